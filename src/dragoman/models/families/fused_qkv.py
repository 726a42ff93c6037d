"""Interleaved queries, keys and values in one matrix, as GPT-NeoX, BLOOM and Falcon store them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.core.lazy_imports import np
from dragoman.models.parameter import Parameter
from dragoman.models.spec import DecoderSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray


def grouped_rows(spec: DecoderSpec, parameter: Parameter) -> NDArray[np.intp] | None:
    """Return the stored row of each row of a fused projection. Stored are, for each key-value head, its query heads,
    its key and its value; the result has all queries, all keys, all values. With as many key-value heads as query
    heads the stored order is query, key, value alternating; with one it is already the wanted order."""
    if parameter.module != "qkv":
        return None
    group = spec.heads // spec.kv_heads
    stored = np.arange(spec.qkv_width).reshape(spec.kv_heads, group + 2, spec.head_dim)
    return np.concatenate([stored[:, :group].ravel(), stored[:, group].ravel(), stored[:, group + 1].ravel()])
