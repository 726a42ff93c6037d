"""The figures of a running server, from readings of its metrics: what ``dragoman top`` shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from dragoman.core.errors import DragomanError

SPAN_S = 30.0
"""Latencies and shares are of so many seconds: in a single interval there may be no first token."""

_OURS = "dragoman_"
_FIRST_TOKEN = "time_to_first_token_seconds"
_BETWEEN = "inter_token_seconds"
_GROWING = ("_total", "_count", "_sum", "_bucket")

Labels = tuple[tuple[str, str], ...]
Values = Mapping[tuple[str, Labels], float]
"""Values by name, without ``dragoman_``, and labels."""


def parsed_metrics(text: str) -> Values:
    """Return the server's own metrics. Raises DragomanError where there are none, as at another kind of server."""
    values: dict[tuple[str, Labels], float] = {}
    try:
        for family in text_string_to_metric_families(text):
            if family.name.startswith(_OURS):
                for sample in family.samples:
                    values[sample.name.removeprefix(_OURS), tuple(sorted(sample.labels.items()))] = sample.value
    except ValueError:
        values = {}
    if not values:
        raise DragomanError("its /metrics has no figures of a dragoman")
    return values


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the last ``SPAN_S`` seconds.

    Attributes:
        mean_ms: their mean.
        p95_ms: 95 % of them are not above this bound of the histogram; None: above its last one.
    """

    mean_ms: float
    p95_ms: float | None


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one holder of a key: generations now, tokens per second, and counts since the server's start."""

    name: str
    running: int
    waiting: int
    tokens_per_s: float | None
    generated_tokens: int
    prompt_tokens: int
    requests: int
    refused: int


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model or adapter that is served. ``memory_bytes``: what its weights take, where it is known."""

    name: str
    memory_bytes: int | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A server at one moment. What needs two readings is None at the first; what did not occur is None.

    Attributes:
        interval_s: seconds since the reading before, which rates are of; None at the first.
        cached_share: of the prompt tokens of the last ``SPAN_S`` seconds, those from the prefix cache.
        accepted_share: of the drafted tokens of that time, those that were right.
        busy_share: of the interval, the time in which the engine computed.
        memory_used_bytes, memory_bytes: of the machine; None where the server does not tell them.
        models: None where the server does not tell them.
    """

    server: str
    time: str
    interval_s: float | None
    engine_ready: bool
    generated_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    requests_running: int
    requests_waiting: int
    sequences_running: int
    sequences_waiting: int
    time_to_first_token: Latency | None
    between_tokens: Latency | None
    blocks: int
    blocks_used: int
    blocks_cached: int
    cached_share: float | None
    accepted_share: float | None
    busy_share: float | None
    preemptions: int
    engine_restarts: int
    memory_used_bytes: int | None
    memory_bytes: int | None
    models: list[Model] | None
    holders: list[Holder]


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What other paths than ``/metrics`` tell: the machine's memory, and the models."""

    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    models: list[Model] | None = None


def around_of(models: Any, current: Any, resources: Any) -> Around:
    """Return what the answers tell; one that is None, or of another shape, tells nothing."""
    memory = _member(resources, "memory")
    listed = _member(models, "data")
    names = [str(_member(each, "id")) for each in listed if _is_loaded(each)] if isinstance(listed, list) else None
    sizes = {_member(current, "id"): _whole(_member(current, "memory_used"))}
    return Around(
        memory_used_bytes=_whole(_member(memory, "used")),
        memory_bytes=_whole(_member(memory, "total")),
        models=None if names is None else [Model(name=name, memory_bytes=sizes.get(name)) for name in names],
    )


def _is_loaded(entry: Any) -> bool:
    """Return whether a list's model is in memory: where the list does not say that, it has no others."""
    return _member(_member(entry, "status"), "value") in (None, "loaded")


def _member(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, dict) else None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class Readings:
    """The newest readings of one server. Figures compare the last with those before.

    Attributes:
        restarted: the last reading has counted less than the one before: the server is another process.
    """

    def __init__(self, server: str) -> None:
        self.restarted = False
        self._server = server
        self._kept: deque[tuple[float, Values]] = deque()

    def add(self, at_s: float, values: Values) -> None:
        """Add a reading. ``at_s``: seconds of a clock that never goes back."""
        self.restarted = bool(self._kept) and _is_reset(self._kept[-1][1], values)
        if self.restarted:
            self._kept.clear()
        self._kept.append((at_s, values))
        while len(self._kept) > 2 and self._kept[1][0] <= at_s - SPAN_S:
            self._kept.popleft()

    def figures(self, time: str, around: Around) -> Figures:
        """Return the figures of the last reading."""
        at_s, values = self._kept[-1]
        before = _Change(self._kept[-2][1] if len(self._kept) > 1 else None, values)
        span = _Change(self._kept[0][1] if len(self._kept) > 1 else None, values)
        seconds = at_s - self._kept[-2][0] if len(self._kept) > 1 else None

        def now(name: str) -> int:
            return int(values.get((name, ()), 0))

        busy = before.rate("engine_busy_seconds_total", seconds)
        return Figures(
            server=self._server,
            time=time,
            interval_s=None if seconds is None else round(seconds, 3),
            engine_ready=bool(now("engine_ready")),
            generated_tokens_per_s=before.rate("generated_tokens_total", seconds),
            prompt_tokens_per_s=before.rate("prompt_tokens_total", seconds),
            requests_running=now("requests_running"),
            requests_waiting=now("requests_waiting"),
            sequences_running=now("sequences_running"),
            sequences_waiting=now("sequences_waiting"),
            time_to_first_token=span.latency(_FIRST_TOKEN),
            between_tokens=span.latency(_BETWEEN),
            blocks=now("kv_blocks"),
            blocks_used=now("kv_blocks_used"),
            blocks_cached=now("kv_blocks_cached"),
            cached_share=span.share("cached_prompt_tokens_total", "prompt_tokens_total"),
            accepted_share=span.share("accepted_tokens_total", "drafted_tokens_total"),
            busy_share=None if busy is None else min(1.0, busy),
            preemptions=now("preemptions_total"),
            engine_restarts=now("engine_restarts_total"),
            memory_used_bytes=around.memory_used_bytes,
            memory_bytes=around.memory_bytes,
            models=around.models,
            holders=list(_holders(values, before, seconds)),
        )


def _is_reset(before: Values, now: Values) -> bool:
    return any(now.get(key, 0.0) < value for key, value in before.items() if key[0].endswith(_GROWING) and not key[1])


class _Change:
    """The difference of two readings; of one alone, nothing is known."""

    def __init__(self, before: Values | None, now: Values) -> None:
        self._before, self._now = before, now

    def of(self, name: str, labels: Labels = ()) -> float:
        """Return how much a counter has grown."""
        before = self._before or {}
        return self._now.get((name, labels), 0.0) - before.get((name, labels), 0.0)

    def rate(self, name: str, seconds: float | None, labels: Labels = ()) -> float | None:
        """Return the growth in a second; None at the first reading, and where there is no such counter."""
        if self._before is None or not seconds or (name, labels) not in self._now:
            return None
        return round(self.of(name, labels) / seconds, 3)

    def share(self, part: str, whole: str) -> float | None:
        """Return one counter's growth by another's; None where that has not grown."""
        grown = self.of(whole) if self._before is not None else 0.0
        return round(self.of(part) / grown, 4) if grown > 0 else None

    def latency(self, name: str) -> Latency | None:
        """Return the times that a histogram got; None where it got none."""
        count = self.of(f"{name}_count") if self._before is not None else 0.0
        if count <= 0:
            return None
        bounds = sorted(
            (float(dict(labels)["le"]), self.of(bucket, labels))
            for bucket, labels in self._now
            if bucket == f"{name}_bucket"
        )
        p95 = next((bound for bound, below in bounds if below >= 0.95 * count), float("inf"))
        mean_ms = 1000 * self.of(f"{name}_sum") / count
        return Latency(mean_ms=round(mean_ms, 3), p95_ms=None if p95 == float("inf") else round(1000 * p95, 3))


def _holders(values: Values, before: _Change, seconds: float | None) -> Iterator[Holder]:
    """Yield the holders that the metrics name, those with the most tokens per second first."""
    names = {dict(labels)["holder"] for name, labels in values if name.startswith("holder_")}
    found = []
    for name in names:

        def count(metric: str, *more: tuple[str, str], name: str = name) -> int:
            return int(values.get((metric, tuple(sorted((("holder", name), *more)))), 0))

        generated: Labels = (("holder", name), ("kind", "generated"))
        found.append(
            Holder(
                name=name,
                running=count("holder_generations", ("state", "running")),
                waiting=count("holder_generations", ("state", "waiting")),
                tokens_per_s=before.rate("holder_tokens_total", seconds, generated),
                generated_tokens=count("holder_tokens_total", ("kind", "generated")),
                prompt_tokens=count("holder_tokens_total", ("kind", "prompt")),
                requests=count("holder_requests_total"),
                refused=count("holder_requests_refused_total"),
            )
        )
    yield from sorted(found, key=lambda each: (-(each.tokens_per_s or 0), -each.generated_tokens, each.name))
