"""Reference of packed matrices: the numbers of each precision, and products with them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GROUP = 32  # weights that share a scale
ACT_GROUP = 128  # activations that share one, and weights of wide int8

Floats = NDArray[np.float32]


def to_bfloat16(x: Floats) -> NDArray[np.uint16]:
    """Round float32 to bfloat16 bits, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> Floats:
    """Return bfloat16 bits as float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def groups_of(x: Floats) -> Floats:
    """Return ``[rows, K]`` as ``[rows, ceil(K / 32), 32]``, padded with zeros."""
    rows, k = x.shape
    padded = np.zeros((rows, -(-k // GROUP) * GROUP), np.float32)
    padded[:, :k] = x
    return padded.reshape(rows, -1, GROUP)


def _inverse(scale: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.where(scale != 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)


def quantize_int8(w: Floats, wide: bool = False) -> tuple[NDArray[np.int8], Floats]:
    """Return GGUF Q8_0: codes ``[N, G, 32]`` and scales ``[N, G]`` (rounded to fp16). Halves round away from zero.

    ``wide``: four groups share the scale of their largest magnitude.
    """
    groups = groups_of(w)
    largest = np.abs(groups).max(axis=2)
    scale = (_shared_by_act_groups(largest) if wide else largest) / np.float32(127)
    scaled = groups * _inverse(scale)[..., None]
    whole = np.trunc(scaled)
    rest = scaled - whole
    codes = whole + (rest >= 0.5) - (rest <= -0.5)
    return codes.astype(np.int8), scale.astype(np.float16).astype(np.float32)


def quantize_int4(w: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return GGUF Q4_0: codes − 8 ``[N, G, 32]`` and scales ``[N, G]``: the value of largest magnitude becomes −8."""
    groups = groups_of(w)
    first = np.abs(groups).argmax(axis=2)
    scale = np.take_along_axis(groups, first[..., None], axis=2)[..., 0] / np.float32(-8)
    scaled = groups * _inverse(scale)[..., None] + np.float32(8.5)
    codes = np.minimum(15, scaled.astype(np.int32)) - 8
    return codes.astype(np.int8), scale.astype(np.float16).astype(np.float32)


def quantize_int4_minimum(w: Floats) -> tuple[NDArray[np.int8], Floats, Floats]:
    """Return GGUF Q4_1: codes 0 … 15 ``[N, G, 32]``, scales and minimums ``[N, G]``."""
    groups = groups_of(w)
    least = groups.min(axis=2)
    scale = (groups.max(axis=2) - least) / np.float32(15)
    scaled = (groups - least[..., None]) * _inverse(scale)[..., None] + np.float32(0.5)
    codes = np.minimum(15, scaled.astype(np.int32)).astype(np.int8)
    return codes, scale.astype(np.float16).astype(np.float32), least.astype(np.float16).astype(np.float32)


def quantize_activations(x: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return codes ``[rows, G, 32]`` and scales ``[rows, G]``: largest magnitude of 128 / 127, to nearest even."""
    groups = groups_of(x)
    scale = _shared_by_act_groups(np.abs(groups).max(axis=2)) / np.float32(127)
    return np.rint(groups * _inverse(scale)[..., None]).astype(np.int8), scale


def _shared_by_act_groups(largest: Floats) -> Floats:
    """Return the largest magnitudes of groups ``[rows, G]``, each the largest of four that share a scale."""
    shared = largest.copy()
    for first in range(0, shared.shape[1], ACT_GROUP // GROUP):
        four = shared[:, first : first + ACT_GROUP // GROUP]
        four[:] = four.max(axis=1, keepdims=True)
    return shared


def _quantize(w: Floats, precision: str, minimum: bool, wide: bool) -> tuple[NDArray[np.int8], Floats, Floats]:
    if precision == "int8":
        codes, scale = quantize_int8(w, wide)
    elif minimum:
        return quantize_int4_minimum(w)
    else:
        codes, scale = quantize_int4(w)
    return codes, scale, np.zeros_like(scale)


def dequantize(w: Floats, precision: str, minimum: bool = False, wide: bool = False) -> Floats:
    """Return the float32 numbers that ``kernels.pack(w, precision)`` represents."""
    if precision == "float32":
        return w.copy()
    if precision == "bfloat16":
        return from_bfloat16(to_bfloat16(w))
    codes, scale, least = _quantize(w, precision, minimum, wide)
    values = codes.astype(np.float32) * scale[..., None] + least[..., None]
    return values.reshape(w.shape[0], -1)[:, : w.shape[1]]


def linear(
    x: Floats, w: Floats, precision: str, bias: Floats | None = None, minimum: bool = False, wide: bool = False
) -> NDArray[np.float64]:
    """Return ``x · Wᵀ + bias`` on the rounded numbers, summed in float64.

    int8 and int4: integer sums per group of 32, times the scales of weights and activations, plus minimum · Σx.
    """
    if precision == "float32":
        y = x.astype(np.float64) @ w.T.astype(np.float64)
    elif precision == "bfloat16":
        y = from_bfloat16(to_bfloat16(x)).astype(np.float64) @ dequantize(w, precision).T.astype(np.float64)
    else:
        codes, scale, least = _quantize(w, precision, minimum, wide)
        q, x_scale = quantize_activations(x)
        sums = np.einsum("rgk,ngk->rng", q.astype(np.int64), codes.astype(np.int64))
        y = np.einsum("rng,rg,ng->rn", sums, x_scale.astype(np.float64), scale.astype(np.float64))
        y += np.einsum(
            "rg,ng->rn", q.sum(axis=2, dtype=np.int64) * x_scale.astype(np.float64), least.astype(np.float64)
        )
    return y if bias is None else y + bias


def block_linear(x: Floats, numbers: Floats, bias: Floats | None = None) -> NDArray[np.float64]:
    """Return ``x · Wᵀ + bias`` with quantized activations and the numbers of a matrix of ggml's blocks, in float64."""
    q, scale = quantize_activations(x)
    rounded = (q * scale.astype(np.float64)[..., None]).reshape(len(x), -1)[:, : x.shape[1]]
    y = rounded @ numbers.astype(np.float64).T
    return y if bias is None else y + bias


def checksum(data: bytes) -> int:
    """Return the CRC-32C of the CRC-32Cs of the 1 MiB chunks (4 bytes little endian each) and the length (8 bytes)."""
    chunks = [data[i : i + 2**20] for i in range(0, len(data), 2**20)]
    summary = b"".join(crc32c(chunk).to_bytes(4, "little") for chunk in chunks)
    return crc32c(summary + len(data).to_bytes(8, "little"))


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
