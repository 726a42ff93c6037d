"""What Prometheus may know: requests, tokens, latencies, and the state of the engine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from dragoman.core.observer import ObservedGeneration, ObservedStep, Observer
from dragoman.core.serving import ModelCard
from dragoman.dialects.wire import Instruments

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
BETWEEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


# One more line for each series, of which no dashboard makes anything.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics(Observer):
    """One server's instruments, in a registry of their own.

    ``observers``: itself, and those of the dialects, which register names of their own.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.observers: list[Observer] = [self]
        self._states: list[_State] = []
        self._known: set[str] = set()
        self._texts: list[Callable[[], str]] = []
        self.requests = Counter(
            "dragoman_http_requests", "HTTP requests answered.", ("dialect", "route", "status"), registry=self.registry
        )
        self.prompt_tokens = Counter("dragoman_prompt_tokens", "Prompt tokens read.", registry=self.registry)
        self.generated_tokens = Counter("dragoman_generated_tokens", "Tokens generated.", registry=self.registry)
        self.cached_tokens = Counter(
            "dragoman_cached_prompt_tokens", "Prompt tokens taken from the prefix cache.", registry=self.registry
        )
        self.finished_sequences = Counter(
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
        self._states.append(_State(gauges, counters))
        self.registry.register(self._states[-1])

    def watch_labelled(
        self,
        name: str,
        help: str,
        labels: tuple[str, ...],
        values: Callable[[], Mapping[tuple[str, ...], float]],
        *,
        gauge: bool = False,
    ) -> None:
        """Report these at every scrape, by their labels; as a counter, or else a gauge."""
        family = GaugeMetricFamily if gauge else CounterMetricFamily
        self.registry.register(_Labelled(family, f"dragoman_{name}", help, labels, values))

    def state(self) -> dict[str, float]:
        """Everything that is watched, as it is now."""
        return {name: value for state in self._states for name, value in state.values().items()}

    def admit(
        self, name: str, make: Callable[[Instruments], Observer], models: Callable[[], tuple[ModelCard, ...]]
    ) -> None:
        """Let one more observer be told, unless one of that name is."""
        if name not in self._known:
            self._known.add(name)
            self.observers.append(make(Instruments(self.registry, self.state, models, self._texts.append)))

    def tell(self, step: ObservedStep) -> None:
        """One more step of the engine."""
        for observer in self.observers:
            observer.step(step)

    def prompted(self, generation: ObservedGeneration) -> None:
        self.prompt_tokens.inc(generation.prompt_tokens)
        self.cached_tokens.inc(generation.cached_tokens)

    def first_token(self, generation: ObservedGeneration) -> None:
        self.first_token_s.observe(generation.first_token_s)

    def next_token(self, generation: ObservedGeneration, seconds: float) -> None:
        self.between_tokens_s.observe(seconds)

    def finished(self, generation: ObservedGeneration) -> None:
        for reason in generation.finishes:
            self.finished_sequences.labels(reason.value).inc()
        self.generated_tokens.inc(generation.tokens)
        self.whole_s.observe(generation.validation_s + generation.queue_s + generation.inference_s)

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry) + "".join([text() for text in self._texts]).encode()


class _Labelled(Collector):
    def __init__(
        self,
        family: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        help: str,
        labels: tuple[str, ...],
        values: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        self._make = partial(family, name, help, labels=labels)
        self._values = values

    def collect(self) -> Iterable[Metric]:
        metric = self._make()
        for labels, value in self._values().items():
            metric.add_metric(labels, value)
        yield metric


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
    "connections": "Open connections.",
    "connections_dropped": "Idle connections closed for new ones.",
    "connections_refused": "Connections and requests refused because there were too many connections.",
    "body_bytes": "Bytes of bodies that are not decoded yet.",
    "bodies_refused": "Requests refused because bodies took too much memory.",
    "engine_ready": "1 while the engine takes requests.",
    "engine_seconds_since_step": "Seconds since an engine that has work finished a step; 0 without work.",
    "sequences_running": "Sequences in the engine's batch.",
    "sequences_waiting": "Sequences that the engine has not begun, or has set back.",
    "kv_blocks": "Blocks of the key-value cache.",
    "kv_tokens": "Tokens that all blocks can hold.",
    "kv_blocks_free": "Blocks that no sequence owns, cached ones included.",
    "kv_blocks_used": "Blocks that sequences own.",
    "kv_blocks_cached": "Blocks kept for their prefix.",
    "engine_restarts": "Times the engine process was started again.",
    "engine_steps": "Steps computed.",
    "engine_busy_seconds": "Seconds spent computing steps.",
    "preemptions": "Sequences set back for want of blocks.",
    "drafted_tokens": "Tokens that lookup speculation guessed.",
    "accepted_tokens": "Tokens that it guessed rightly.",
    "ledger_failures": "Times that the ledger could not be written.",
    "continue_keys": "Cut generations that are kept to be gone on with.",
    "continue_tokens": "Their tokens.",
    "continue_hits": "Requests that went on with a cut generation.",
    "continue_misses": "Requests whose key had none.",
    "continue_expired": "Cut generations forgotten for their age.",
    "continue_evicted": "Cut generations forgotten for want of room.",
    "log_lines_dropped": "Lines of the log that nobody read, or that could not be written.",
    "continue_waits": "Requests that waited for another one of their key.",
    "continue_failures": "Reads and writes of cut generations that failed.",
}


class _State(Collector):
    def __init__(self, gauges: Callable[[], dict[str, float]], counters: Callable[[], dict[str, float]]) -> None:
        self._gauges, self._counters = gauges, counters

    def values(self) -> dict[str, float]:
        return self._gauges() | self._counters()

    def collect(self) -> Iterable[Metric]:
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"dragoman_{name}", STATE[name], value=value)
        for name, value in self._counters().items():
            yield CounterMetricFamily(f"dragoman_{name}", STATE[name], value=value)
