"""Positions that are neither rotary nor learned rows: biases by distance, factors by position, and sinusoids."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from dragoman.core.lazy_imports import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]


class RelativeBias(msgspec.Struct, frozen=True, kw_only=True):
    """Bias of a score by the distance of its positions: a learned number for each head and bucket of distances
    (Raffel et al. 2019, T5, https://arxiv.org/abs/1910.10683).

    Attributes:
        buckets: where both sides are seen, half of them for each. The first half of a side's hold one distance each,
            the others ranges that grow logarithmically. distance: from here on all are in the last bucket.
        by_layer: every layer has separate numbers (UMT5); otherwise all share the first's.
    """

    buckets: int
    distance: int
    by_layer: bool = False

    def table(self, learned: Float32, *, both_sides: bool) -> Float32:
        """Return ``[heads, 2 · distance + 1]``: the bias of each distance, key position - query position; ``learned``:
        ``[buckets, heads]``."""
        distances = np.arange(-self.distance, self.distance + 1)
        return np.ascontiguousarray(learned[self._bucket(distances, both_sides)].T)

    def _bucket(self, distances: NDArray[np.int64], both_sides: bool) -> NDArray[np.int64]:
        buckets = self.buckets // 2 if both_sides else self.buckets
        away = np.abs(distances) if both_sides else np.maximum(-distances, 0)
        exact = buckets // 2
        # In float32, as the models were trained: a distance on the edge of a range may fall to either side.
        ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
        span = (ratio / np.float32(math.log(self.distance / exact)) * np.float32(buckets - exact)).astype(np.int64)
        bucket = np.where(away < exact, away, np.minimum(exact + span, buckets - 1))
        return bucket + np.where(both_sides & (distances > 0), buckets, 0)


class QueryScale(msgspec.Struct, frozen=True, kw_only=True):
    """Factor of queries that grows with their position: 1 + factor · ln(1 + floor((position + shift) / span)), as in
    Llama 4 (https://arxiv.org/abs/2501.19399).

    Attributes:
        layers: those whose queries have it.
    """

    factor: float
    span: float
    shift: int
    layers: tuple[int, ...]

    def table(self, positions: int) -> Float32:
        """Return the factors of all positions: float32 ``[positions]``."""
        steps = np.floor((np.arange(positions) + self.shift) / self.span)
        return (1 + self.factor * np.log1p(steps)).astype(np.float32)


def sinusoids(positions: int, width: int, first: int = 0, *, whole: bool = False) -> Float32:
    """Return ``[positions, width]`` from position ``first``: sines in the first half, cosines of the same angles in the
    second (Vaswani et al.). ``whole``: the slowest pair has a base of 10,000 itself, not only what would follow it."""
    pairs = width // 2
    slowness = np.power(10_000.0, np.arange(-(-width // 2)) / (pairs - 1 if whole else width / 2))
    angles = np.arange(first, first + positions)[:, None] / slowness
    return np.concatenate([np.sin(angles), np.cos(angles[:, :pairs])], axis=1).astype(np.float32)
