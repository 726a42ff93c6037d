"""GGUF's quantized blocks against the `gguf` package, which is not ours: every bit of what is dequantized, and what the
packed numbers lose."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from dragoman import kernels

ROWS, K = 40, 512

# Where the blocks of a type hold float16 numbers.
HALVES = {
    Type.Q4_0: (0,), Type.Q4_1: (0, 2), Type.Q5_0: (0,), Type.Q5_1: (0, 2), Type.Q8_0: (0,), Type.Q2_K: (80, 82),
    Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,), Type.IQ4_NL: (0,), Type.IQ4_XS: (0,),
    Type.TQ1_0: (52,), Type.TQ2_0: (64,), Type.MXFP4: (),
}  # fmt: skip
TYPES = [pytest.param(kind, id=kind.name) for kind in HALVES]

# docs/gguf.md: the most that packing a type loses, relative to its numbers (root of the mean square).
INT8_LOSS = {Type.Q4_0: 0.0, Type.Q5_0: 0.0, Type.Q8_0: 0.0, Type.Q3_K: 0.0, Type.IQ4_NL: 0.0, Type.IQ4_XS: 3e-4,
             Type.TQ1_0: 0.0, Type.TQ2_0: 0.0, Type.MXFP4: 0.0}  # fmt: skip
INT4_LOSS = {
    (Type.Q4_0, False): 0.0,
    (Type.TQ1_0, False): 0.0,
    (Type.TQ2_0, False): 0.0,
    (Type.Q4_1, True): 0.0,
    (Type.Q4_K, True): 3e-4,
}


def random_blocks(kind: Type, seed: int = 0) -> np.ndarray:
    """Blocks of a matrix [ROWS, K] with every bit drawn but those of its scales, which are finite."""
    rng = np.random.default_rng(seed)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * K // values, size), dtype=np.uint8)
    if kind == Type.MXFP4:
        blocks[:, 0] = rng.integers(112, 126, len(blocks))
    for place in HALVES[kind]:
        blocks[:, place : place + 2] = rng.normal(0, 0.02, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(ROWS, -1)


def restored(codes: kernels.gguf.GroupCodes) -> np.ndarray:
    values, scales, minimums = codes
    floats = values.reshape(ROWS, -1, 32) * scales.astype(np.float32)[..., None]
    if minimums is not None:
        floats = floats + minimums.astype(np.float32)[..., None]
    return floats.reshape(ROWS, K)


def loss(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)))


@pytest.mark.parametrize("kind", TYPES)
def test_dequantized_to_the_bits_of_the_gguf_package(kind: Type) -> None:
    blocks = random_blocks(kind)
    theirs = gguf.dequantize(blocks, kind)
    ours = kernels.dequantize_gguf(blocks.reshape(-1), kind)
    assert (ours.view(np.uint32) == theirs.reshape(-1).view(np.uint32)).all()


@pytest.mark.parametrize("kind", TYPES)
def test_int8_numbers_lose_nothing_where_groups_agree_and_else_what_packing_loses(kind: Type) -> None:
    blocks = random_blocks(kind)
    floats = gguf.dequantize(blocks, kind)
    codes = kernels.gguf_codes(blocks.reshape(-1), kind, (ROWS, K), "int8", False)
    assert codes is not None
    if kind in INT8_LOSS:
        assert loss(restored(codes), floats) <= INT8_LOSS[kind]
    else:
        assert (restored(codes) == kernels.pack(floats, "int8").dequantize()).all()


@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_int4_numbers_are_had_of_those_types_only_that_are_made_of_them(kind: Type, minimum: bool) -> None:
    blocks = random_blocks(kind)
    codes = kernels.gguf_codes(blocks.reshape(-1), kind, (ROWS, K), "int4", minimum)
    if (kind, minimum) not in INT4_LOSS:
        assert codes is None
        return
    assert codes is not None
    floats = gguf.dequantize(blocks, kind)
    assert loss(restored(codes), floats) <= INT4_LOSS[kind, minimum]
    packed = kernels.pack_codes(*codes, precision="int4")
    assert (packed.dequantize() == restored(codes)).all()


@pytest.mark.parametrize("scale", [-32, 31])
@pytest.mark.parametrize("number", [-4, 3])
def test_q3_k_reaches_its_corners(scale: int, number: int) -> None:
    """-32 times -4 is one more than int8 holds: the sign goes to the scale."""
    block = np.zeros((ROWS, K // 256, 110), np.uint8)
    block[..., :32] = 0xFF if number >= 0 else 0
    block[..., 32:96] = 0xFF if number == 3 else 0
    block[..., 96:108] = 0xFF if scale == 31 else 0
    block[..., 108:] = np.array([0.25], np.float16).view(np.uint8)
    codes = kernels.gguf_codes(block.reshape(-1), Type.Q3_K, (ROWS, K), "int8", False)
    assert codes is not None
    assert (restored(codes) == 0.25 * scale * number).all()
    assert (gguf.dequantize(block.reshape(ROWS, -1), Type.Q3_K) == 0.25 * scale * number).all()


def test_mxfp4_scales_that_float16_does_not_hold_are_quantized_again() -> None:
    blocks = random_blocks(Type.MXFP4)
    blocks.reshape(-1, 17)[:, 0] = 100
    codes = kernels.gguf_codes(blocks.reshape(-1), Type.MXFP4, (ROWS, K), "int8", False)
    assert codes is not None
    assert (restored(codes) == kernels.pack(gguf.dequantize(blocks, Type.MXFP4), "int8").dequantize()).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind.values[0] != Type.MXFP4])
def test_numbers_that_are_not_finite_are_refused(kind: Type, value: float) -> None:
    blocks = random_blocks(kind)
    place = HALVES[kind][0]
    blocks[-1, -blocks.shape[1] // (K // gguf.GGML_QUANT_SIZES[kind][0]) :][place : place + 2] = np.array(
        [value], np.float16
    ).view(np.uint8)
    with pytest.raises(ValueError, match="not finite"):
        kernels.gguf_codes(blocks.reshape(-1), kind, (ROWS, K), "int8", False)


def test_bytes_that_are_no_whole_blocks_and_unknown_types_are_refused() -> None:
    with pytest.raises(ValueError, match="whole blocks"):
        kernels.dequantize_gguf(np.zeros(35, np.uint8), Type.Q8_0)
    with pytest.raises(ValueError, match=r"\[rows, k\]"):
        kernels.gguf_codes(np.zeros(34, np.uint8), Type.Q8_0, (2, 32), "int8", False)
    with pytest.raises(ValueError, match="whole blocks"):
        kernels.gguf_codes(np.zeros(34, np.uint8), Type.Q8_0, (1, 33), "int8", False)
    for kind in (0, 9, 16, 1000, -1):
        with pytest.raises(ValueError, match="unknown GGUF block type"):
            kernels.dequantize_gguf(np.zeros(34, np.uint8), kind)
