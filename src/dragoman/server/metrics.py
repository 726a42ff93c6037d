"""The server's page of metrics for Prometheus: requests, tokens, latencies, and the state of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from dragoman.core.measurements import FIRST_TOKEN_S, TOTAL_S, Histogram, Measurements
from dragoman.core.observer import Observers
from dragoman.core.serving import ModelCard
from dragoman.dialects.api import MetricsContext
from dragoman.serving.runtime import Runtime
from dragoman.serving.worker_pool import WorkerPools

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
BETWEEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """A server's page of metrics, and the measurements that it is made from.

    Attributes:
        observers: those of all events of the server.
        measurements: the values that they have measured.
        registry: the metrics under the server's own names.
    """

    def __init__(self, observers: Observers | None = None) -> None:
        """``observers``: those of the runtime; by default new ones."""
        self.registry = CollectorRegistry()
        self.observers = observers or Observers()
        self.measurements = Measurements(self.observers)
        self._states: list[_State] = []
        self._texts: dict[str, Callable[[], str]] = {}
        self._http_requests: dict[tuple[str, str, int], int] = {}
        self.registry.register(_Requests(self._http_requests))
        self.registry.register(_Generations(self.measurements))

    def watch(self, gauges: Callable[[], dict[str, float]], counters: Callable[[], dict[str, float]]) -> None:
        """Report these at every scrape, by name; the sentences are in ``STATE``."""
        self._states.append(_State(gauges, counters))
        self.registry.register(self._states[-1])

    def watch_runtime(self, runtime: Runtime) -> None:
        """Report the state of the engines, of the pools and of the store of saved generations at every scrape."""
        self.registry.register(PoolsCollector(runtime.pools))
        self.watch(runtime.gauges, runtime.counters)
        help = "Tokens of drafts, by source and by whether they were drawn."
        self.watch_labelled("draft_tokens", help, ("source", "result"), runtime.draft_tokens)
        serving = runtime.serving
        for store in (serving.continuing, serving.responses, serving.batches):
            self.watch(store.gauges, store.counters)

    def watch_labelled(
        self,
        name: str,
        help: str,
        labels: tuple[str, ...],
        values: Callable[[], Mapping[tuple[str, ...], float]],
        *,
        gauge: bool = False,
    ) -> None:
        """Report these at every scrape, by their labels; as a counter, or as a gauge."""
        family = GaugeMetricFamily if gauge else CounterMetricFamily
        self.registry.register(_Labelled(family, f"dragoman_{name}", help, labels, values))

    def state(self) -> dict[str, float]:
        """Return the current values of everything that is watched."""
        return {name: value for state in self._states for name, value in state.values().items()}

    def show_names_of(
        self,
        name: str,
        make: Callable[[MetricsContext], Callable[[], str]],
        models: Callable[[], tuple[ModelCard, ...]],
    ) -> None:
        """Show the measurements under another server's names too, from before the first request."""
        if name not in self._texts:
            self._texts[name] = make(MetricsContext(self.measurements, self.state, models))

    def count_request(self, dialect: str, operation: str, status: int) -> None:
        """Count an HTTP request that is over."""
        key = (dialect, operation, status)
        self._http_requests[key] = self._http_requests.get(key, 0) + 1

    def render(self) -> bytes:
        """Return the page in Prometheus's text format."""
        return generate_latest(self.registry) + "".join([text() for text in self._texts.values()]).encode()


class _Requests(Collector):
    def __init__(self, counts: Mapping[tuple[str, str, int], int]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        labels = ("dialect", "route", "status")
        metric = CounterMetricFamily("dragoman_http_requests", "HTTP requests answered.", labels=labels)
        for (dialect, operation, status), count in self._counts.items():
            metric.add_metric((dialect, operation, str(status)), count)
        yield metric


class _Generations(Collector):
    """The measurements of generations, under the server's own names."""

    def __init__(self, measurements: Measurements) -> None:
        self._generations = generations = measurements.generations
        generations.between_tokens_s.add_bounds(BETWEEN)
        self._first_token_s = generations.histogram(FIRST_TOKEN_S, SECONDS)
        self._total_s = generations.histogram(TOTAL_S, SECONDS)

    def collect(self) -> Iterable[Metric]:
        seen = self._generations
        for name, help, value in (
            ("prompt_tokens", "Prompt tokens read.", seen.prompt_tokens),
            ("generated_tokens", "Tokens generated.", seen.generated_tokens),
            ("cached_prompt_tokens", "Prompt tokens taken from the prefix cache.", seen.cached_tokens),
        ):
            yield CounterMetricFamily(f"dragoman_{name}", help, value=value)
        help = "Generated sequences by the reason of their end."
        finished = CounterMetricFamily("dragoman_sequences_finished", help, labels=("reason",))
        for reason, count in seen.finishes.items():
            finished.add_metric((reason.value,), count)
        yield finished
        for name, help, histogram, bounds in (
            ("time_to_first_token", "From arrival to the first token.", self._first_token_s, SECONDS),
            ("inter_token", "Between two tokens of one sequence.", seen.between_tokens_s, BETWEEN),
            ("request", "From arrival to the last token.", self._total_s, SECONDS),
        ):
            yield _seconds(f"dragoman_{name}_seconds", help, histogram, bounds)


class PoolsCollector(Collector):
    """The work in threads, by pool."""

    def __init__(self, pools: WorkerPools) -> None:
        self._pools = pools

    def collect(self) -> Iterable[Metric]:
        queued = GaugeMetricFamily("dragoman_pool_queued", "Work that waits for a thread, by pool.", labels=["pool"])
        running = GaugeMetricFamily("dragoman_pool_running", "Threads that work, by pool.", labels=["pool"])
        refused = CounterMetricFamily("dragoman_pool_refused", "Work that was refused, by pool.", labels=["pool"])
        waited = SummaryMetricFamily(
            "dragoman_pool_wait_seconds", "From the arrival of work to its start, by pool.", labels=["pool"]
        )
        for pool in self._pools.all:
            queued.add_metric([pool.name], pool.queued)
            running.add_metric([pool.name], pool.running)
            refused.add_metric([pool.name], pool.refused)
            waited.add_metric([pool.name], count_value=pool.taken, sum_value=pool.waited_s)
        return queued, running, refused, waited


def _seconds(name: str, help: str, histogram: Histogram, bounds: tuple[float, ...]) -> Metric:
    counts = map(float, (*histogram.cumulative(bounds), histogram.count))
    buckets = list(zip((*map(floatToGoString, bounds), "+Inf"), counts, strict=True))
    return HistogramMetricFamily(name, help, buckets, histogram.sum)


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


STATE = {
    "requests_waiting": "Requests that wait for their first token.",
    "requests_running": "Requests that generate.",
    "connections": "Open connections.",
    "connections_dropped": "Idle connections closed for new ones.",
    "connections_refused": "Connections and requests refused because there were too many connections.",
    "body_bytes": "Bytes of bodies that are not decoded yet.",
    "bodies_refused": "Requests refused because bodies took too much memory.",
    "engine_ready": "1 while the engine takes requests.",
    "models_loaded": "Models in memory, those that finish their last requests included.",
    "model_loads": "Models that were loaded after the first.",
    "model_evictions": "Models that made room for another.",
    "engine_seconds_since_step": "Seconds since an engine that has work finished a step; 0 without work.",
    "sequences_running": "Sequences in the engine's batch.",
    "sequences_waiting": "Sequences that the engine has not begun, or has preempted.",
    "kv_cache_usage": "Share of the key-value cache's blocks that sequences own, from 0 to 1.",
    "kv_blocks": "Blocks of the key-value cache.",
    "kv_tokens": "Tokens that all blocks can hold.",
    "kv_blocks_free": "Blocks that no sequence owns, cached ones included.",
    "kv_blocks_used": "Blocks that sequences own.",
    "kv_blocks_cached": "Blocks kept for their prefix.",
    "image_cache_bytes": "Bytes of images' embeddings that are kept.",
    "images_encoded": "Images that the vision tower has computed.",
    "images_found": "Images whose embeddings were kept from before.",
    "image_seconds": "Seconds that the vision tower took of steps.",
    "disk_cache_records": "Blocks and states of the model in the prefix cache on disk.",
    "disk_cache_bytes": "Bytes of the prefix cache on disk, of all models.",
    "adapter_slots": "LoRA adapters that fit into the engine's memory at one time.",
    "engine_restarts": "Times the engine process was started again.",
    "engine_steps": "Steps computed.",
    "engine_busy_seconds": "Seconds spent computing steps.",
    "memory_bandwidth": "Bytes that this machine reads from memory in a second, the highest that was measured.",
    "engine_read_bytes": "Bytes of weights, keys and values that steps had to read, each once in a step.",
    "engine_generated_tokens": "Tokens that steps have drawn, those of unfinished sequences included.",
    "preemptions": "Sequences preempted because no block of keys and values was free.",
    "drafted_tokens": "Tokens that drafts guessed.",
    "accepted_tokens": "Tokens of drafts that were accepted.",
    "disk_cache_read_records": "Blocks and states that were read from disk instead of being computed.",
    "disk_cache_read_bytes": "Bytes read from the prefix cache on disk.",
    "disk_cache_written_bytes": "Bytes written to the prefix cache on disk.",
    "disk_cache_damaged": "Damaged records and files of the prefix cache on disk; what they held is computed again.",
    "disk_cache_dropped": "Blocks whose memory was needed before they could be written.",
    "kv_event_batches": "Batches of events of the prefix cache that were published.",
    "kv_event_batches_dropped": "Batches of events of the prefix cache that were dropped because the queue was full.",
    "ledger_failures": "Times that the ledger could not be written.",
    "files_stored": "Files that are kept.",
    "batches_unfinished": "Batches that are not over.",
    "continue_keys": "Cut generations that are kept to be gone on with.",
    "continue_tokens": "Tokens of the cut generations that are kept.",
    "continue_hits": "Requests that went on with a cut generation.",
    "continue_misses": "Requests to go on with a cut generation that was not kept.",
    "continue_expired": "Cut generations forgotten for their age.",
    "continue_evicted": "Cut generations forgotten for want of room.",
    "responses_stored": "Responses that are kept.",
    "responses_stored_bytes": "Bytes of the responses that are kept.",
    "responses_expired": "Responses forgotten for their age.",
    "responses_evicted": "Responses forgotten for want of room.",
    "responses_failures": "Reads and writes of responses that failed.",
    "idempotency_answers": "Answers kept under an Idempotency-Key, running ones included.",
    "idempotency_bytes": "Bytes of the answers kept under an Idempotency-Key.",
    "idempotency_evicted": "Ended answers forgotten for want of room.",
    "idempotency_abandoned": "Answers that ended because none of their clients came back.",
    "capsules_written": "Capsules that were recorded.",
    "capsules_removed": "Capsules that made room for newer ones.",
    "capsules_dropped": "Capsules that were lost: the disk refused them, or they were too large or came too fast.",
    "log_lines_dropped": "Lines of the log that nobody read, or that could not be written.",
    "batch_store_failures": "Uses of the store of files and batches that failed.",
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
