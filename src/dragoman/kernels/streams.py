"""Operations of a program on columns of buffers, and on residual streams of several parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dragoman.kernels import _native
from dragoman.kernels._native import PackedMatrix


class StreamOperations:
    """A part of ``Program``: its rules hold here too."""

    _native: _native.Program

    def add_embeddings(self, x: int, table: PackedMatrix, factor: float = 1.0) -> None:
        """Record ``x += factor · table[token]``; table ``[vocab · parts, width / parts]`` of any precision, the parts
        of a token one after the other. A token beyond the table has those of token 0."""
        self._native.add_embeddings(x, table, factor)

    def add_given(self, x: int, part: int) -> None:
        """Record ``x += embedding_values[:, part · width : (part + 1) · width]`` of a run's rows with given embeddings,
        where these have such a part; part 0 is the embedding itself, from 1 on there is one for each such operation."""
        self._native.add_given(x, part)

    def clip_columns(self, x: int, offset: int, width: int, low: float, high: float) -> None:
        """Record ``x = min(max(x, low), high)`` of the columns ``[offset, offset + width)``."""
        self._native.clip_columns(x, offset, width, low, high)

    def copy_columns(self, out: int, x: int, offset: int) -> None:
        """Record ``out = x[:, offset : offset + F]``, F the width of ``out``."""
        self._native.copy_columns(out, x, offset)

    def join(self, out: int, x: int, y: int, offset: int = 0) -> None:
        """Record ``out = (x, y[:, offset:])``, as many columns as ``out`` has.

        ``out`` may have the memory of ``x``, and ``y`` may be ``x``.
        """
        self._native.join(out, x, y, offset)

    def predict_parts(self, out: int, x: int, factors: int) -> None:
        """Record ``out[j] = x[j] + Σ_i factors[j, i] · x[i]`` of a stream's parts, neighbours of one width."""
        self._native.predict_parts(out, x, factors)

    def correct_parts(self, x: int, computed: int, factors: int, active: int) -> None:
        """Record ``x[j] += (computed − x[active]) · (factors[j] + 1)`` of a stream's parts."""
        self._native.correct_parts(x, computed, factors, active)

    def match_magnitude(self, out: int, x: int, least: float) -> None:
        """Record ``out[j] *= sqrt(mean(x²) / max(mean(out[j]²), least))`` of each part, as wide as x."""
        self._native.match_magnitude(out, x, least)

    def add_to_parts(self, x: int, value: int, first: int) -> None:
        """Record ``x[j] += value`` of a stream's parts from ``first`` on."""
        self._native.add_to_parts(x, value, first)

    def scale_by_position(self, x: int, offset: int, width: int, factors: ArrayLike) -> None:
        """Record ``x[:, offset : offset + width] *= factors[position]``; ``factors``: float32 ``[positions]``."""
        self._native.scale_by_position(x, offset, width, np.ascontiguousarray(factors, dtype=np.float32))

    def scale_columns(self, x: int, factors: ArrayLike) -> None:
        """Record ``x *= factors``; float32 ``[width]``."""
        self._native.scale_columns(x, np.ascontiguousarray(factors, dtype=np.float32))

    def keep_largest(self, x: int, width: int, deviations: float) -> None:
        """Record ``x = max(0, x − mean(x) − deviations · deviation(x))`` of the first ``width`` columns, with the
        standard deviation of a row."""
        self._native.keep_largest(x, width, deviations)
