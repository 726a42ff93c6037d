"""Packed weight matrices: created once when a model is loaded, multiplied in every step.

The layout of the bytes is described in ``csrc/gemm/matrix.h``. ``int8`` numbers are those of GGUF's Q8_0, ``int4``
those of Q4_0, or with ``minimum`` of Q4_1: groups of 32 along K with fp16 scales. ``wide`` int8 has one scale for
128: fewer bytes to read and fewer sums to fold for about the same error, as activations have one scale for 128 too.

The other precisions are types of ggml, whose numbers are packed as they are: by ``pack_blocks`` alone.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.kernels import _native
from dragoman.kernels._native import PackedMatrix

BlockPrecision = Literal["mxfp4", "iq4_nl", "iq4_xs", "q3_k", "q4_k", "q5_k", "q6_k"]
BLOCK_PRECISIONS: tuple[BlockPrecision, ...] = get_args(BlockPrecision)
Precision = Literal["float32", "bfloat16", "int8", "int4"] | BlockPrecision
Weight = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]


def pack(weight: Weight, precision: Precision, *, minimum: bool = False, wide: bool = False) -> PackedMatrix:
    """Pack ``weight`` ``[N, K]`` for products ``y = x · Wᵀ``.

    ``weight`` is float32, float16, or bfloat16 as uint16; values must be finite for int8 and int4. The bytes are in
    huge pages where the system has them. ValueError on another shape or dtype, or an unknown precision.
    """
    if weight.ndim != 2:
        raise ValueError(f"a weight must be [N, K], got {weight.ndim} dimensions")
    if weight.dtype not in (np.float32, np.float16, np.uint16):
        raise ValueError(f"a weight must be float32, float16 or bfloat16 (as uint16), got {weight.dtype}")
    contiguous = cast("Weight", np.ascontiguousarray(weight))
    return _native.pack(contiguous, precision, minimum, wide)


def pack_codes(
    values: NDArray[np.int8],
    scales: NDArray[np.float16],
    minimums: NDArray[np.float16] | None,
    precision: Precision,
    order: NDArray[np.int32] | None = None,
    *,
    wide: bool = False,
) -> PackedMatrix:
    """Pack a matrix ``[N, K]`` whose numbers are already quantized, without changing them.

    ``values``: -128 … 127 for int8; for int4 -8 … 7, or 0 … 15 with ``minimums``. ``scales`` and ``minimums``, of
    groups of 32 along K: ``[N, ceil(K / 32)]``. ``order`` ``[K]``: the input of each column of ``values``, where
    they are reordered; products and ``dequantize`` take and return inputs in their own order. ``wide``, of int8:
    four groups have the same scale, stored once. ValueError on shapes that do not fit, on numbers outside the range,
    on an order that does not name each input once, and on scales that differ within a wide group.
    """
    least, most = (-128, 127) if precision == "int8" else (-8, 7) if minimums is None else (0, 15)
    if precision == "int4" and values.size and not (least <= values.min() and values.max() <= most):
        raise ValueError(f"the numbers of int4 must be {least} … {most}")
    lowest = None if minimums is None else _float16_bits(minimums)
    places = None if order is None else np.ascontiguousarray(order, np.int32)
    bits = _float16_bits(scales)
    if wide and not np.array_equal(np.repeat(bits[:, ::4], 4, axis=1)[:, : bits.shape[1]], bits):
        raise ValueError("scales of wide groups must be the same in all four")
    return _native.pack_codes(np.ascontiguousarray(values, np.int8), bits, lowest, precision, wide, places)


def quantize_blocks(weight: Weight) -> NDArray[np.uint8]:
    """Return ``weight`` ``[N, K]`` as ggml's blocks of IQ4_NL ``[N, K / 32 · 18]``, for ``pack_blocks``.

    Each 32 weights get the scale, of eighteen that are tried, whose numbers and least-squares scale leave the smallest
    sum of squared errors: 4.5 bits a weight, with a quarter less error than ``int4``. ValueError for a K that is not a
    multiple of 32, and as in ``pack``.
    """
    if weight.ndim != 2:
        raise ValueError(f"a weight must be [N, K], got {weight.ndim} dimensions")
    if weight.dtype not in (np.float32, np.float16, np.uint16):
        raise ValueError(f"a weight must be float32, float16 or bfloat16 (as uint16), got {weight.dtype}")
    return _native.quantize_blocks(cast("Weight", np.ascontiguousarray(weight)))


def round_with_feedback(
    values: NDArray[np.float32], factor: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Round 32 inputs of all outputs, ``[32, N]``, one after the other. Returns blocks of IQ4_NL ``[N, 18]``, and
    errors ``[32, N]``.

    ``factor``: upper triangular ``[32, 32]`` with a positive diagonal. The error of input i is what it lost, divided by
    ``factor[i, i]``; input j after it has lost ``factor[i, j]`` times as much before it is rounded. Of eighteen scales
    that are tried for each output, the one with the smallest sum of squared errors is taken.
    """
    blocks, errors = np.empty((values.shape[1], 18), np.uint8), np.empty(values.shape, np.float32)
    _native.round_with_feedback(
        np.ascontiguousarray(values, np.float32), np.ascontiguousarray(factor, np.float32), blocks, errors
    )
    return blocks, errors


def pack_blocks(blocks: NDArray[np.uint8], k: int, precision: BlockPrecision) -> PackedMatrix:
    """Pack a matrix ``[N, k]`` of ggml's blocks, ``[N, bytes of a row]``, as a GGUF file has them.

    Scales must be finite (``gguf_scales_are_finite``). ValueError on rows that are not whole blocks.
    """
    return _native.pack_blocks(np.ascontiguousarray(blocks, np.uint8), k, precision)


def linear(
    x: NDArray[np.float32],
    w: PackedMatrix,
    bias: NDArray[np.float32] | None = None,
    *,
    out: NDArray[np.float32] | None = None,
    accumulate: bool = False,
) -> NDArray[np.float32]:
    """Return ``x · Wᵀ (+ bias)``: ``x`` ``[rows, K]`` to ``[rows, N]``; with ``accumulate`` added to ``out``.

    A row of the result has the same bits alone and in any batch. ``x`` is rounded to bfloat16 for bfloat16 weights
    and quantized per row and group of 128 for quantized weights; sums are float32. ValueError on shapes that do not
    fit, and for an ``out`` that is not contiguous float32.
    """
    n, k = w.shape
    if x.ndim != 2 or x.shape[1] != k:
        raise ValueError(f"x must be [rows, {k}], got {list(x.shape)}")
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"bias must be [{n}], got {list(bias.shape)}")
    if out is None:
        if accumulate:
            raise ValueError("accumulate needs an out to add to")
        out = np.empty((x.shape[0], n), np.float32)
    elif out.shape != (x.shape[0], n) or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(f"out must be contiguous float32 [{x.shape[0]}, {n}]")
    rows = np.ascontiguousarray(x, np.float32)
    offset = None if bias is None else np.ascontiguousarray(bias, np.float32)
    _native.linear(rows, w, offset, out, accumulate)
    return out


def gather_rows(w: PackedMatrix, ids: ArrayLike) -> NDArray[np.float32]:
    """Return rows ``ids`` of ``W`` as float32 ``[len(ids), K]``, for embeddings. IndexError on an id outside ``[0,
    N)``."""
    wanted = np.ascontiguousarray(ids, np.int32)
    if wanted.ndim != 1:
        raise ValueError(f"ids must be one-dimensional, got {wanted.ndim} dimensions")
    out = np.empty((wanted.shape[0], w.shape[1]), np.float32)
    _native.gather_rows(w, wanted, out)
    return out


def packed_bytes(
    n: int, k: int, precision: Precision, *, minimum: bool = False, wide: bool = False, ordered: bool = False
) -> int:
    """Return the size of a packed ``[n, k]`` matrix in bytes."""
    return _native.packed_bytes(n, k, precision, minimum, wide, ordered)


def empty(nbytes: int) -> NDArray[np.uint8]:
    """Return ``nbytes`` zero bytes, page aligned, in huge pages where the system has them, allocated as they are
    touched.

    Decoding from huge pages reads 15 to 20 % faster than from 4 KiB pages, such as those of a mapped file.
    """
    if nbytes < 0:
        raise ValueError(f"nbytes must not be negative, got {nbytes}")
    return _native.empty(nbytes)


def checksum(buffer: ArrayLike | bytes | memoryview) -> int:
    """Return a 32-bit checksum of a contiguous buffer's bytes, several GB/s, as ``csrc/memory/checksum.h``
    defines it."""
    flat = np.frombuffer(cast("memoryview", buffer), np.uint8)
    return _native.checksum(flat)


def memory_bandwidth(seconds: float = 0.5) -> float:
    """Return the bytes per second that all threads read together: the best pass over 256 MiB within ``seconds``."""
    return max(memory_passes(seconds))


def memory_passes(seconds: float = 0.5) -> list[float]:
    """Return the bytes per second that all threads read together, in each pass over 256 MiB within ``seconds``; at
    least three.

    On a machine with other load, the best pass may be much faster than the sustained speed.
    """
    return _native.memory_passes(seconds)


def multiply_peak(precision: Precision) -> float:
    """Return the operations per second of the multiply instruction on registers only, all threads: no product is
    faster."""
    return _native.multiply_peak(precision)


def _float16_bits(values: NDArray[np.float16]) -> NDArray[np.uint16]:
    return np.ascontiguousarray(values, np.float16).view(np.uint16)
