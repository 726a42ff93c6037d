"""Friendli's figures for Prometheus, under the names of its container, for the dashboards that ask for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from math import ceil

from dragoman.core.errors import Cancelled, EngineUnavailable, GenerationTimeout, Overloaded
from dragoman.core.events import FinishReason
from dragoman.core.observer import ObservedGeneration, ObservedRequest, Observer, RequestEnd
from dragoman.dialects.exposition import Histogram, braces, head, number
from dragoman.dialects.wire import Instruments

LENGTHS = tuple(float(2**k) for k in range(18))
RATIOS = tuple(k / 10 for k in range(11))
QUANTILES = (0.5, 0.9, 0.99)
REMEMBERED = 1024
"""Newest values that quantiles are of."""

FAILURES = frozenset({FinishReason.TIMEOUT, FinishReason.CANCELLED, FinishReason.ERROR})

COUNTERS = {
    "friendli_requests_total": "Requests that were taken: one for each prompt.",
    "friendli_responses_total": "Requests that were answered.",
    "friendli_items_total": "Sequences of the requests that were taken.",
    "friendli_failure_by_cancel": "Requests over HTTP whose client left.",
    "friendli_failure_by_timeout": "Requests over HTTP that did not finish in their time.",
    "friendli_failure_by_nan_error": "Requests that ended because the model computed no number. Always 0.",
    "friendli_failure_by_reject": "Requests over HTTP that there was no room for.",
}
GAUGES = {
    "friendli_current_requests": ("Requests that are waiting or running.", ("requests_waiting", "requests_running")),
    "friendli_current_items": ("Sequences that are waiting or running.", ("sequences_waiting", "sequences_running")),
    "friendli_current_assigned_items": ("Sequences in the batch.", ("sequences_running",)),
    "friendli_current_waiting_items": ("Sequences that wait for the batch.", ("sequences_waiting",)),
}
HISTOGRAMS = {
    "friendli_tcache_hit_ratio": ("Share of a prompt's tokens that were cached.", RATIOS),
    "friendli_input_lengths": ("Tokens of a prompt.", LENGTHS),
    "friendli_output_lengths": ("Tokens generated for a sequence, on the average of its request.", LENGTHS),
}
SUMMARIES = {
    "friendli_requests_latencies": "From arrival to the last token, in nanoseconds.",
    "friendli_requests_ttft": "From arrival to the first token, in nanoseconds.",
    "friendli_requests_queueing_delays": "From the end of checks to the first step, in nanoseconds.",
}


class FriendliObserver(Observer):
    """Counts every generation of the server, whichever dialect asked for it."""

    def __init__(self, instruments: Instruments) -> None:
        self._state: Callable[[], Mapping[str, float]] = instruments.state
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self._summaries = {name: Summary() for name in SUMMARIES}
        instruments.write(self.text)

    def submitted(self, generation: ObservedGeneration) -> None:
        self._counts["friendli_requests_total"] += 1
        self._counts["friendli_items_total"] += generation.sequences
        self._histograms["friendli_input_lengths"].observe(generation.prompt_tokens)

    def prompted(self, generation: ObservedGeneration) -> None:
        ratio = generation.cached_tokens / generation.prompt_tokens
        self._histograms["friendli_tcache_hit_ratio"].observe(ratio)
        self._summaries["friendli_requests_queueing_delays"].observe(generation.queue_s)

    def first_token(self, generation: ObservedGeneration) -> None:
        self._summaries["friendli_requests_ttft"].observe(generation.first_token_s)

    def finished(self, generation: ObservedGeneration) -> None:
        if len(generation.finishes) == generation.sequences and not FAILURES.intersection(generation.finishes):
            self._counts["friendli_responses_total"] += 1
            self._histograms["friendli_output_lengths"].observe(generation.tokens / generation.sequences)
            whole_s = generation.validation_s + generation.queue_s + generation.inference_s
            self._summaries["friendli_requests_latencies"].observe(whole_s)

    def ended(self, request: ObservedRequest, end: RequestEnd) -> None:
        match end.error:
            case Cancelled() if request.generations:
                self._counts["friendli_failure_by_cancel"] += 1
            case GenerationTimeout():
                self._counts["friendli_failure_by_timeout"] += 1
            case Overloaded() | EngineUnavailable():
                self._counts["friendli_failure_by_reject"] += 1

    def text(self) -> str:
        """All of them, in the text format of Prometheus."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, words in COUNTERS.items():
            yield from head(name, words, "counter")
            yield f"{name} {self._counts[name]}"
        state = self._state()
        for name, (words, parts) in GAUGES.items():
            yield from head(name, words, "gauge")
            yield f"{name} {number(sum(state.get(part, 0.0) for part in parts))}"
        for name, (words, _) in HISTOGRAMS.items():
            yield from head(name, words, "histogram")
            yield from self._histograms[name].lines(name)
        for name, words in SUMMARIES.items():
            yield from head(name, words, "summary")
            yield from self._summaries[name].lines(name)


class Summary:
    """Quantiles of the newest durations, and the number and sum of all. Seconds go in, nanoseconds come out."""

    def __init__(self) -> None:
        self._newest: deque[int] = deque(maxlen=REMEMBERED)
        self._sum = self._count = 0

    def observe(self, seconds: float) -> None:
        nanoseconds = round(seconds * 1e9)
        self._newest.append(nanoseconds)
        self._sum += nanoseconds
        self._count += 1

    def lines(self, name: str) -> Iterator[str]:
        ranked = sorted(self._newest)
        for quantile in QUANTILES:
            value = str(ranked[ceil(quantile * len(ranked)) - 1]) if ranked else "NaN"
            yield f"{name}{braces((('quantile', str(quantile)),))} {value}"
        yield f"{name}_sum {self._sum}"
        yield f"{name}_count {self._count}"
