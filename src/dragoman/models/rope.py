"""Rotary position embeddings: the tables of cosines and sines for every scaling.

A pair of dimensions ``(j, j + dim / 2)`` of a head is turned by the angle ``position * frequency[j]`` with
``frequency[j] = theta ** (-2 j / dim)`` (Su et al. 2021, RoFormer, https://arxiv.org/abs/2104.09864, in the half-split
layout of GPT-NeoX and Llama; interleaved, as in the paper and in GPT-J, the pair is ``(2 j, 2 j + 1)``). A *scaling*
changes the frequencies so that longer contexts look like those of training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError

# Keys that a rope block may carry without effect on the scalings here: they restate the type, or how it was trained.
_INERT_KEYS = {"rope_type", "type", "rope_theta", "finetuned"}


@dataclass(frozen=True, slots=True)
class Scaling:
    """Frequencies as trained; each subclass is one way to change them."""

    kind: ClassVar[str] = "default"

    @property
    def amplitude(self) -> float:
        """Factor on cosine and sine."""
        return 1.0

    def context(self, max_positions: int) -> int:
        """Most positions the scaled model can use, from the ``max_position_embeddings`` of its config."""
        return max_positions

    def served_within(self, context: int) -> Scaling:
        """The scaling where no sequence is longer than ``context``."""
        return self

    def frequencies(self, theta: float, dim: int, positions: int) -> NDArray[np.float64]:
        """Angle per position: ``[dim / 2]``, or ``[positions, dim / 2]`` where it depends on the position."""
        return _frequencies(theta, dim)


@dataclass(frozen=True, slots=True)
class Linear(Scaling):
    """Positions divided by ``factor`` (Chen et al. 2023, position interpolation, https://arxiv.org/abs/2306.15595)."""

    kind: ClassVar[str] = "linear"
    factor: float

    def context(self, max_positions: int) -> int:
        return int(max_positions * self.factor)

    def frequencies(self, theta: float, dim: int, positions: int) -> NDArray[np.float64]:
        return _frequencies(theta, dim) / self.factor


@dataclass(frozen=True, slots=True)
class Dynamic(Scaling):
    """NTK-aware base that grows with the length (as in transformers' ``dynamic``; proposed by /u/bloc97, /u/emozilla).

    A token at position p is rotated with the base for a sequence of p + 1 tokens, and keeps that rotation. This is what
    transformers computes when it decodes token by token, and the only reading under which a key does not depend on how
    its prompt was chunked or on what came after it.
    """

    kind: ClassVar[str] = "dynamic"
    factor: float
    max_position_embeddings: int

    def context(self, max_positions: int) -> int:
        return int(max_positions * self.factor)

    def frequencies(self, theta: float, dim: int, positions: int) -> NDArray[np.float64]:
        length = np.maximum(np.arange(1, positions + 1, dtype=np.float64), self.max_position_embeddings)
        growth = self.factor * length / self.max_position_embeddings - (self.factor - 1)
        bases = theta * growth ** (dim / (dim - 2))
        frequencies: NDArray[np.float64] = bases[:, None] ** -_exponents(dim)
        return frequencies


@dataclass(frozen=True, slots=True)
class Llama3(Scaling):
    """Long wavelengths divided by ``factor``, short ones kept, a ramp between (Llama 3.1, https://arxiv.org/abs/2407.21783)."""

    kind: ClassVar[str] = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def frequencies(self, theta: float, dim: int, positions: int) -> NDArray[np.float64]:
        base = _frequencies(theta, dim)
        turns = self.original_max_position_embeddings * base / (2 * math.pi)
        keep = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0, 1.0)
        return (1 - keep) * base / self.factor + keep * base


@dataclass(frozen=True, slots=True)
class Yarn(Scaling):
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

    def _temperature(self, scale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * scale * math.log(self.factor) + 1.0

    def context(self, max_positions: int) -> int:
        return max(max_positions, int(self.original_max_position_embeddings * self.factor))

    def frequencies(self, theta: float, dim: int, positions: int) -> NDArray[np.float64]:
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
        """The dimension whose wavelength fits ``turns`` times into the original context."""
        return dim * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))


SCALINGS: dict[str, type[Scaling]] = {scaling.kind: scaling for scaling in (Scaling, Linear, Dynamic, Llama3, Yarn)}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotation of the first ``dim`` dimensions of each head; ``interleaved``: neighbours are pairs, not halves."""

    theta: float
    dim: int
    scaling: Scaling = Scaling()
    interleaved: bool = False

    def served_within(self, context: int) -> Rope:
        """The same rotation where no sequence is longer than ``context``."""
        return replace(self, scaling=self.scaling.served_within(context))

    def tables(self, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines for positions 0 … ``positions`` - 1: two float32 arrays ``[positions, dim / 2]``.

        Angles are products of float32 numbers, because the models were trained with angles rounded so.
        """
        frequencies = self.scaling.frequencies(self.theta, self.dim, positions).astype(np.float32)
        angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
        amplitude = np.float32(self.scaling.amplitude)
        return np.cos(angles) * amplitude, np.sin(angles) * amplitude


def read_scaling(block: dict[str, Any], max_positions: int, original: object = None) -> Scaling:
    """The scaling described by a config's ``rope_scaling`` or ``rope_parameters`` block.

    ``max_positions`` is the config's ``max_position_embeddings``; ``original``, its own
    ``original_max_position_embeddings``, goes before the block's.
    Raises ModelError on an unknown type, a missing or an unknown key.
    """
    kind = block.get("rope_type", block.get("type", "default"))
    if kind not in SCALINGS:
        raise ModelError(f"config.json: rope scaling {kind!r} is not supported; known: {', '.join(SCALINGS)}")
    scaling = SCALINGS[kind]
    values = {key: value for key, value in block.items() if key not in _INERT_KEYS}
    known = {field.name for field in fields(scaling)}
    if scaling is Dynamic:
        values["max_position_embeddings"] = max_positions
    if "original_max_position_embeddings" in known:
        values["original_max_position_embeddings"] = (
            original or values.get("original_max_position_embeddings") or max_positions
        )
    else:
        values.pop("original_max_position_embeddings", None)  # written by some tools for every type; no effect here
    if values.get("partial_rotary_factor") in (None, 1, 1.0):
        values.pop("partial_rotary_factor", None)
    if unknown := sorted(values.keys() - known):
        raise ModelError(f"config.json: rope scaling {kind!r} with {', '.join(unknown)} is not supported")
    for key, value in values.items():
        _check_number(kind, key, value)
    try:
        return scaling(**values)
    except TypeError as error:
        raise ModelError(f"config.json: rope scaling {kind!r} is incomplete: {error}") from None


def _check_number(kind: str, key: str, value: object) -> None:
    if key == "truncate":
        fine = isinstance(value, bool)
    elif value is None:
        fine = key in {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
    else:
        fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    if not fine:
        raise ModelError(f"config.json: rope scaling {kind!r}: {key} must be a positive number, got {value!r}")


def _exponents(dim: int) -> NDArray[np.float64]:
    return np.arange(0, dim, 2, dtype=np.float64) / dim


def _frequencies(theta: float, dim: int) -> NDArray[np.float64]:
    return np.power(theta, -_exponents(dim))
