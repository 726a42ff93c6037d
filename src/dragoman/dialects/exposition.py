"""Prometheus' text format, for names that the client library does not allow: it adds ``_total`` to every counter."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

Labels = tuple[tuple[str, str], ...]


class Histogram:
    """Counts of values up to each bound, for one series."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: Labels = ()) -> Iterator[str]:
        bounds = [*map(number, self.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(self._counts), strict=True):
            yield f"{name}_bucket{braces((*labels, ('le', bound)))} {count}"
        yield f"{name}_sum{braces(labels)} {number(self._sum)}"
        yield f"{name}_count{braces(labels)} {sum(self._counts)}"


def head(name: str, words: str, kind: str) -> Iterator[str]:
    """The lines that introduce a metric."""
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"


def braces(labels: Labels) -> str:
    """The labels behind a name; their values are ours, and need no escapes."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


def number(value: float) -> str:
    """As short as it is exact."""
    return repr(float(value)).removesuffix(".0")
