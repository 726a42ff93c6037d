"""What Prometheus may know: requests, tokens, latencies, and the state of the engine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
BETWEEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One server's instruments, in a registry of their own. ``state`` is asked for the gauges at each scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dragoman_http_requests", "HTTP requests answered.", ("dialect", "route", "status"), registry=self.registry
        )
        self.prompt_tokens = Counter("dragoman_prompt_tokens", "Prompt tokens read.", registry=self.registry)
        self.generated_tokens = Counter("dragoman_generated_tokens", "Tokens generated.", registry=self.registry)
        self.cached_tokens = Counter(
            "dragoman_cached_prompt_tokens", "Prompt tokens taken from the prefix cache.", registry=self.registry
        )
        self.finished = Counter(
            "dragoman_sequences_finished",
            "Generated sequences by the reason of their end.",
            ("reason",),
            registry=self.registry,
        )
        self.first_token_s = self._histogram("time_to_first_token", "From arrival to the first token.", SECONDS)
        self.between_tokens_s = self._histogram("inter_token", "Between two tokens of one sequence.", BETWEEN)
        self.whole_s = self._histogram("request", "From arrival to the last token.", SECONDS)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Durations:
        durations = Durations(f"dragoman_{name}_seconds", help, buckets)
        self.registry.register(durations)
        return durations

    def watch(self, gauges: Callable[[], dict[str, float]], counters: Callable[[], dict[str, float]]) -> None:
        """Report these at every scrape, by name; the sentences are in ``STATE``."""
        self.registry.register(_State(gauges, counters))

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)


class Durations(Collector):
    """A histogram of seconds for one thread. The library's own takes microseconds, for every token of every stream."""

    def __init__(self, name: str, help: str, bounds: tuple[float, ...]) -> None:
        self._name, self._help, self._bounds = name, help, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterable[Metric]:
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._help, buckets, self._sum)


STATE = {
    "requests_waiting": "Requests that wait for their first token.",
    "requests_running": "Requests that generate.",
    "connections": "Open HTTP connections.",
    "engine_ready": "1 while the engine takes requests.",
    "sequences_running": "Sequences in the engine's batch.",
    "sequences_waiting": "Sequences that the engine has not begun, or has set back.",
    "kv_blocks": "Blocks of the key-value cache.",
    "kv_blocks_free": "Blocks that no sequence owns, cached ones included.",
    "kv_blocks_used": "Blocks that sequences own.",
    "kv_blocks_cached": "Blocks kept for their prefix.",
    "engine_restarts": "Times the engine process was started again.",
    "engine_steps": "Steps computed.",
    "engine_busy_seconds": "Seconds spent computing steps.",
    "preemptions": "Sequences set back for want of blocks.",
    "drafted_tokens": "Tokens that lookup speculation guessed.",
    "accepted_tokens": "Tokens that it guessed rightly.",
}


class _State(Collector):
    def __init__(self, gauges: Callable[[], dict[str, float]], counters: Callable[[], dict[str, float]]) -> None:
        self._gauges, self._counters = gauges, counters

    def collect(self) -> Iterable[Metric]:
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"dragoman_{name}", STATE[name], value=value)
        for name, value in self._counters().items():
            yield CounterMetricFamily(f"dragoman_{name}", STATE[name], value=value)
