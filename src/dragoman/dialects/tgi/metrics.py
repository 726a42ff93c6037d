"""TGI's figures for Prometheus, under its names, for the dashboards that ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from dragoman.dialects.exposition import Histogram, Labels, braces, head, number

DURATION_BOUNDS = tuple(float(f"{0.0001 * 1.5**k:.12g}") for k in range(1, 36))
BATCH_BOUNDS = tuple(float(k) for k in range(1, 1025))

HELP = {
    "tgi_request_count": "Total number of requests",
    "tgi_request_success": "Number of successful requests",
    "tgi_request_failure": "Number of failed requests",
    "tgi_request_duration": "Total time spent processing the request",
    "tgi_request_validation_duration": "Time spent validating the request",
    "tgi_request_queue_duration": "Time spent in the queue per request",
    "tgi_request_inference_duration": "Request inference duration",
    "tgi_request_mean_time_per_token_duration": "Mean time per token per request",
    "tgi_request_generated_tokens": "Generated tokens per request",
    "tgi_request_input_length": "Input token length per request",
    "tgi_request_max_new_tokens": "Maximum new tokens per request",
    "tgi_request_skipped_tokens": "Speculated tokens per request",
    "tgi_queue_size": "Current queue size",
    "tgi_batch_current_size": "Current batch size",
    "tgi_batch_current_max_tokens": "Maximum tokens for the current batch",
    "tgi_batch_max_total_tokens": "Maximum tokens that all batches can hold",
    "tgi_batch_next_size": "Batch size of the next batch",
    "tgi_batch_inference_count": "Inference calls per method",
    "tgi_batch_inference_success": "Number of successful inference calls per method",
    "tgi_batch_inference_failure": "Number of failed inference calls per method",
    "tgi_batch_inference_duration": "Batch inference duration",
    "tgi_batch_forward_duration": "Batch forward duration per method",
    "tgi_batch_decode_duration": "Batch decode duration per method",
    "tgi_batch_filter_duration": "Time spent filtering batches and sending generated tokens per method",
    "tgi_batch_concat": "Number of times a batch was concatenated",
    "tgi_batch_concat_duration": "Time of concatenating a batch",
}


class Counter:
    """What one series has counted."""

    def __init__(self) -> None:
        self.value = 0.0


class Series:
    """All series; one appears with its first value, or when it is asked for."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, Counter]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self.counter(name, **labels).value += amount

    def observe(self, name: str, value: float, bounds: Sequence[float] = DURATION_BOUNDS, **labels: str) -> None:
        self.histogram(name, bounds, **labels).observe(value)

    def counter(self, name: str, **labels: str) -> Counter:
        """To be kept by whoever counts at every step of the engine: looking it up takes longer than counting."""
        return self._counters.setdefault(name, {}).setdefault(tuple(labels.items()), Counter())

    def histogram(self, name: str, bounds: Sequence[float] = DURATION_BOUNDS, **labels: str) -> Histogram:
        """As ``counter``."""
        series = self._histograms.setdefault(name, {})
        key = tuple(labels.items())
        if key not in series:
            series[key] = Histogram(bounds)
        return series[key]

    def text(self, gauges: Mapping[str, float]) -> str:
        """The text format of Prometheus; ``gauges`` are known only now."""
        return "".join(f"{line}\n" for line in self._lines(gauges))

    def _lines(self, gauges: Mapping[str, float]) -> Iterator[str]:
        for name, counts in self._counters.items():
            yield from head(name, HELP[name], "counter")
            for labels, counter in counts.items():
                yield f"{name}{braces(labels)} {number(counter.value)}"
        for name, value in gauges.items():
            yield from head(name, HELP[name], "gauge")
            yield f"{name} {number(value)}"
        for name, series in self._histograms.items():
            yield from head(name, HELP[name], "histogram")
            for labels, histogram in series.items():
                yield from histogram.lines(name, labels)


@lru_cache(8)
def steps_to(most: int) -> tuple[float, ...]:
    """100 equal steps. There are as many different ones as a model has limits; each request asks for three."""
    return tuple(most * (k + 1) / 100 for k in range(100))
