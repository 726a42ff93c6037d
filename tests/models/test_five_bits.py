"""Five bits: the bytes are ggml's, and error feedback loses less of what inputs make of them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.error_feedback import inverse_factor, quantize_for_inputs
from dragoman.models.five_bits import round_to_five_bits
from dragoman.models.packing import pack_matrix
from dragoman.models.tensors import Blocks, Format

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(70, 512)).astype(np.float32)


def floats(blocks: Blocks, precision: kernels.BlockPrecision = "q5_k") -> NDArray[np.float32]:
    return kernels.pack_blocks(blocks.data, 512, precision).dequantize()


def test_the_bytes_are_those_of_ggml() -> None:
    blocks = round_to_five_bits(WEIGHT)
    theirs = gguf.dequantize(blocks.data, gguf.GGMLQuantizationType.Q5_K)
    np.testing.assert_array_equal(floats(blocks), theirs)
    error = np.sqrt(((theirs - WEIGHT) ** 2).mean() / (WEIGHT**2).mean())
    assert error < 0.04
    packed = pack_matrix(Format("q5_k"), WEIGHT)
    np.testing.assert_array_equal(packed, kernels.pack_blocks(blocks.data, 512, "q5_k").data)


def test_errors_are_made_up_for_by_later_inputs() -> None:
    mixed = RNG.normal(size=(2000, 512)) @ (RNG.normal(size=(512, 512)) / 20 + np.eye(512))
    seen = (mixed.T @ mixed / 2000).astype(np.float32)
    factor = inverse_factor(seen)
    assert factor is not None

    def lost(found: NDArray[np.float32]) -> float:
        change = found - WEIGHT
        return float(np.einsum("ij,jk,ik->", change, seen, change))

    five = lost(floats(round_to_five_bits(WEIGHT, factor)))
    assert five < 0.65 * lost(floats(round_to_five_bits(WEIGHT)))
    assert five < 0.35 * lost(floats(quantize_for_inputs(WEIGHT, factor), "iq4_nl"))


@pytest.mark.parametrize("value", [0.0, -1e-9, 1e-9, 5.0, -5.0, 3e4])
def test_rows_of_one_number(value: float) -> None:
    weight = np.full((32, 256), value, np.float32)
    found = kernels.pack_blocks(round_to_five_bits(weight).data, 256, "q5_k").dequantize()
    np.testing.assert_allclose(found, weight, rtol=0.002, atol=1e-7)
