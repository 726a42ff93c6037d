"""What one request contributes to the metrics."""

from __future__ import annotations

from time import perf_counter

from dragoman.core.events import FinishReason
from dragoman.server.metrics import Metrics


class Meter:
    """Made when the request arrives. The event loop's own clock is too coarse for it: a millisecond, in uvloop."""

    def __init__(self, metrics: Metrics, sequences: int) -> None:
        self._metrics = metrics
        self.arrived = perf_counter()
        self._last = [0.0] * sequences
        self._generated = 0
        self._first = True

    def prompt(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._metrics.prompt_tokens.inc(prompt_tokens)
        self._metrics.cached_tokens.inc(cached_tokens)

    def token(self, sequence: int) -> None:
        now = perf_counter()
        self._generated += 1
        if self._last[sequence]:
            self._metrics.between_tokens_s.observe(now - self._last[sequence])
        elif self._first:
            self._first = False
            self._metrics.first_token_s.observe(now - self.arrived)
        self._last[sequence] = now

    def finished(self, reason: FinishReason) -> None:
        self._metrics.finished.labels(reason.value).inc()

    def leave(self) -> None:
        """The request is over, however it ended."""
        self._metrics.generated_tokens.inc(self._generated)
        self._metrics.whole_s.observe(perf_counter() - self.arrived)
