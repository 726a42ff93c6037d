"""The server's measurements under the metric names of llama-server."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.measurements import Histogram
from dragoman.dialects.api import MetricsContext
from dragoman.dialects.prometheus_text import counter, gauge

PREFIX = "llamacpp:"


class LlamaCppMetrics:
    """The page of metrics. It covers every generation of the server, in any dialect.

    A step that computes tokens of prompts counts as one for prompts, though it may generate tokens too. Quotients are
    those of all time, and 0 before there is anything to divide.
    """

    def __init__(self, context: MetricsContext) -> None:
        self._state = context.state
        self._generations = context.measurements.generations
        self._steps = context.measurements.steps()

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        state, seen = self._state(), self._generations
        prompts, others = self._durations("prefill"), self._durations("decode")
        computed = seen.prompt_tokens - seen.cached_tokens
        steps = prompts.count + others.count
        for name, words, value in (
            ("prompt_tokens_total", "Prompt tokens computed; cached ones are not.", computed),
            ("prompt_seconds_total", "Seconds of steps that computed prompts.", prompts.sum),
            ("tokens_predicted_total", "Tokens generated.", seen.generated_tokens),
            ("tokens_predicted_seconds_total", "Seconds of all other steps.", others.sum),
            ("n_decode_total", "Steps of the engine.", steps),
        ):
            yield from counter(PREFIX + name, words, {(): value})
        for name, words, value in (
            ("prompt_tokens_seconds", "Prompt tokens per second.", _quotient(computed, prompts.sum)),
            ("predicted_tokens_seconds", "Tokens generated per second.", _quotient(seen.generated_tokens, others.sum)),
            ("n_busy_slots_per_decode", "Tokens generated per step.", _quotient(seen.generated_tokens, steps)),
            ("requests_processing", "Requests that generate.", state.get("requests_running", 0.0)),
            ("requests_deferred", "Requests that wait.", state.get("requests_waiting", 0.0)),
        ):
            yield from gauge(PREFIX + name, words, value)

    def _durations(self, kind: str) -> Histogram:
        durations = self._steps.durations.get(kind)
        return Histogram() if durations is None else durations.whole


def _quotient(count: float, of: float) -> float:
    return count / of if of else 0.0
