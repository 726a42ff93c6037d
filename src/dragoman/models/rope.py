"""Rotary position embeddings: the tables of cosines and sines for every scaling.

A pair of dimensions ``(j, j + dim / 2)`` of a head is rotated by the angle ``position * frequency[j]`` with
``frequency[j] = theta ** (-2 j / dim)`` (Su et al. 2021, RoFormer, https://arxiv.org/abs/2104.09864, in the
half-split layout of GPT-NeoX and Llama; interleaved, as in the paper and in GPT-J, the pair is ``(2 j, 2 j + 1)``).
A *scaling* changes the frequencies so that longer contexts resemble those of training. ``rope_config`` reads them
from a config.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec.structs import replace

from dragoman.core.lazy_imports import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Scaling(msgspec.Struct, frozen=True):
    """Frequencies as trained; each subclass is one way to change them."""

    kind: ClassVar[str] = "default"

    @property
    def amplitude(self) -> float:
        """Factor on cosine and sine."""
        return 1.0

    def context(self, max_positions: int) -> int:
        """Return the maximum number of positions of the scaled model, from its config's ``max_position_embeddings``."""
        return max_positions

    def served_within(self, context: int) -> Scaling:
        """Return the scaling for sequences of at most ``context`` tokens."""
        return self

    def frequencies(self, theta: float, dim: int, positions: range) -> NDArray[np.float64]:
        """Return the angle per position: ``[dim / 2]``, or ``[positions, dim / 2]`` where it depends on the
        position."""
        return _frequencies(theta, dim)


class Linear(Scaling, frozen=True):
    """Positions divided by ``factor`` (Chen et al. 2023, position interpolation, https://arxiv.org/abs/2306.15595)."""

    kind: ClassVar[str] = "linear"
    factor: float

    def context(self, max_positions: int) -> int:
        return int(max_positions * self.factor)

    def frequencies(self, theta: float, dim: int, positions: range) -> NDArray[np.float64]:
        return _frequencies(theta, dim) / self.factor


class Dynamic(Scaling, frozen=True):
    """NTK-aware base that grows with the length (as in transformers' ``dynamic``; proposed by /u/bloc97, /u/emozilla).

    A token at position p is rotated with the base for a sequence of p + 1 tokens, and keeps that rotation. This is
    what transformers computes when it decodes token by token, and the only reading in which a key does not depend on
    how its prompt was chunked or on later tokens.
    """

    kind: ClassVar[str] = "dynamic"
    factor: float
    max_position_embeddings: int

    def context(self, max_positions: int) -> int:
        return int(max_positions * self.factor)

    def frequencies(self, theta: float, dim: int, positions: range) -> NDArray[np.float64]:
        length = np.maximum(
            1 + np.arange(positions.start, positions.stop, dtype=np.float64), self.max_position_embeddings
        )
        growth = self.factor * length / self.max_position_embeddings - (self.factor - 1)
        bases = theta * growth ** (dim / (dim - 2))
        frequencies: NDArray[np.float64] = bases[:, None] ** -_exponents(dim)
        return frequencies


class Llama3(Scaling, frozen=True):
    """Long wavelengths divided by ``factor``, short ones kept, a ramp between (Llama 3.1,
    https://arxiv.org/abs/2407.21783)."""

    kind: ClassVar[str] = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def frequencies(self, theta: float, dim: int, positions: range) -> NDArray[np.float64]:
        base = _frequencies(theta, dim)
        turns = self.original_max_position_embeddings * base / (2 * math.pi)
        keep = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0, 1.0)
        return (1 - keep) * base / self.factor + keep * base


class Yarn(Scaling, frozen=True):
    """NTK-by-parts with a larger amplitude (Peng et al. 2023, YaRN, https://arxiv.org/abs/2309.00071)."""

    kind: ClassVar[str] = "yarn"
    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    @property
    def score_factor(self) -> float:
        """Factor on scores in models that also scale the part of queries without rotation (DeepSeek)."""
        temperature = self._temperature(self.mscale_all_dim) if self.mscale_all_dim else 1.0
        return temperature * temperature

    def _temperature(self, scale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * scale * math.log(self.factor) + 1.0

    def context(self, max_positions: int) -> int:
        return max(max_positions, int(self.original_max_position_embeddings * self.factor))

    def frequencies(self, theta: float, dim: int, positions: range) -> NDArray[np.float64]:
        base = _frequencies(theta, dim)
        low, high = (self._dimension_of(turns, theta, dim) for turns in (self.beta_fast or 32, self.beta_slow or 1))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001  # a ramp of no width would divide by zero
        ramp = np.clip((np.arange(dim // 2, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
        return base * (ramp / self.factor + (1 - ramp))

    def _dimension_of(self, turns: float, theta: float, dim: int) -> float:
        """Return the dimension whose wavelength fits ``turns`` times into the original context."""
        return dim * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))


class LongRope(Scaling, frozen=True):
    """Each frequency divided by a separate, searched factor (Ding et al. 2024, LongRoPE,
    https://arxiv.org/abs/2402.13753): a short list for contexts as in training, a long one for longer ones.

    The list is chosen once, when the model is loaded, by the longest context it is served with: up to
    ``original_max_position_embeddings`` the short one, above it the long one for all sequences. transformers chooses
    by the current length of each sequence, which makes a key depend on the tokens after it. Both agree on sequences
    longer than the original context, and on all of a server whose ``--max-context`` does not exceed it.
    """

    kind: ClassVar[str] = "longrope"
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    max_position_embeddings: int
    factor: float | None = None
    attention_factor: float | None = None
    long: bool = False

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        factor = self.factor or self.max_position_embeddings / self.original_max_position_embeddings
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(self.original_max_position_embeddings))

    def served_within(self, context: int) -> Scaling:
        return replace(self, long=context > self.original_max_position_embeddings)

    def frequencies(self, theta: float, dim: int, positions: range) -> NDArray[np.float64]:
        factors = np.array(self.long_factor if self.long else self.short_factor, np.float64)
        divided: NDArray[np.float64] = _frequencies(theta, dim) / factors
        return divided


class Divided(Scaling, frozen=True):
    """Each frequency divided by a separate number: GGUF files store so what other configs have formulas for."""

    kind: ClassVar[str] = "divided"
    divisors: tuple[float, ...]

    def frequencies(self, theta: float, dim: int, positions: range) -> NDArray[np.float64]:
        divided: NDArray[np.float64] = _frequencies(theta, dim) / np.array(self.divisors)
        return divided


class Proportional(Scaling, frozen=True):
    """Only the first pairs of a head turn, with the frequencies that they have among all of it (Gemma 4)."""

    kind: ClassVar[str] = "proportional"
    partial_rotary_factor: float = 1.0
    factor: float = 1.0

    def frequencies(self, theta: float, dim: int, positions: range) -> NDArray[np.float64]:
        found = _frequencies(theta, dim) / self.factor
        found[int(self.partial_rotary_factor * dim // 2) :] = 0.0
        return found


class Rope(msgspec.Struct, frozen=True):
    """Rotation of the first ``dim`` dimensions of each head; ``interleaved``: neighbours are pairs, not halves."""

    theta: float
    dim: int
    scaling: Scaling = Scaling()
    interleaved: bool = False

    def served_within(self, context: int) -> Rope:
        """Return the rotation for sequences of at most ``context`` tokens."""
        return replace(self, scaling=self.scaling.served_within(context))

    def tables(self, positions: range) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return cosines and sines: two float32 arrays ``[positions, dim / 2]``.

        Angles are products of float32 numbers, because the models were trained with angles rounded so.
        """
        frequencies = self.scaling.frequencies(self.theta, self.dim, positions).astype(np.float32)
        angles = np.arange(positions.start, positions.stop, dtype=np.float32)[:, None] * frequencies
        amplitude = np.float32(self.scaling.amplitude)
        return np.cos(angles) * amplitude, np.sin(angles) * amplitude


class RotaryTables:
    """Tables of a rotation for a whole context, filled only up to the positions in use: the unused part of a long
    context takes address space only. Thread-safe.

    Attributes:
        cos, sin: float32 ``[positions, dim / 2]``, of which the first ``filled`` rows have their values.
    """

    def __init__(self, rope: Rope, positions: int) -> None:
        self.cos = np.empty((positions, rope.dim // 2), np.float32)
        self.sin = np.empty_like(self.cos)
        self.filled = 0
        self._rope = rope
        self._lock = threading.Lock()

    def reach(self, positions: int) -> None:
        """Fill positions 0 … ``positions`` - 1, up to the end of the tables."""
        with self._lock:
            while self.filled < min(positions, len(self.cos)):
                rows = range(self.filled, min(self.filled + _FILLED_AT_ONCE, len(self.cos)))
                at = slice(rows.start, rows.stop)
                self.cos[at], self.sin[at] = self._rope.tables(rows)
                self.filled = rows.stop


_FILLED_AT_ONCE = 1024


def _exponents(dim: int) -> NDArray[np.float64]:
    return np.arange(0, dim, 2, dtype=np.float64) / dim


def _frequencies(theta: float, dim: int) -> NDArray[np.float64]:
    return np.power(theta, -_exponents(dim))
