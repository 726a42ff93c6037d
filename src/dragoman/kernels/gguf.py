"""The quantized blocks of GGUF files: to floats, or to the integers that ``pack_codes`` takes.

``kind`` is the number of a type in the file (``csrc/gguf/gguf_blocks.h`` lists the supported ones); ValueError on
any other.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.kernels import _native

GroupCodes = tuple[NDArray[np.int8], NDArray[np.float16], NDArray[np.float16] | None]
"""Integers ``[N, K]``, scales and minimums ``[N, K / 32]``."""


def gguf_block(kind: int) -> tuple[int, int]:
    """Return how many numbers a block holds, and its size in bytes."""
    return _native.gguf_block(kind)


def dequantize_gguf(blocks: NDArray[np.uint8], kind: int) -> NDArray[np.float32]:
    """Return the numbers of whole blocks, bit for bit those of ggml's reference. ValueError on incomplete blocks."""
    values, size = gguf_block(kind)
    out = np.empty(len(blocks) // size * values, np.float32)
    _native.dequantize_gguf(blocks, kind, out)
    return out


def gguf_scales_are_finite(blocks: NDArray[np.uint8], kind: int) -> bool:
    """Return whether all scales of whole blocks are finite, of a type that ``pack_blocks`` takes. ValueError on any
    other."""
    return _native.gguf_scales_are_finite(blocks, kind)


def gguf_codes(
    blocks: NDArray[np.uint8], kind: int, shape: tuple[int, int], precision: Literal["int8", "int4"], minimum: bool
) -> GroupCodes | None:
    """Return a matrix ``[N, K]`` in the integers of a precision; None where the type cannot be converted without
    floats.

    Every type can be converted to int8: as stored where its groups are groups of int8, else quantized as ``pack``
    does. Raises ValueError on numbers that are not finite, and on bytes that do not fit the shape.
    """
    if not _native.gguf_has_codes(kind, precision == "int8", minimum):
        return None
    rows, k = shape
    values = np.empty(shape, np.int8)
    scales = np.empty((rows, k // 32), np.uint16)
    minimums = np.empty_like(scales) if minimum else None
    if not _native.gguf_codes(blocks, kind, values, scales, minimums, precision == "int8"):
        raise ValueError("it has numbers that are not finite, or out of the range of float16")
    lowest = None if minimums is None else minimums.view(np.float16)
    return values, scales.view(np.float16), lowest
