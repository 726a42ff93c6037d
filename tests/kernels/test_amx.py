"""AMX's kernels: on a processor that has tiles, and anywhere with tiles in plain C++, which do what the manual says of
the instructions (simd/amx_tiles.h)."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from dragoman import kernels
from tests.kernels.attention_layer import Layer
from tests.kernels.test_block_formats import TYPES, pack, random_blocks, width

PLAIN = "amx_plain"
TILES = [name for name in ("amx", PLAIN) if name == PLAIN or name in kernels.instruction_sets()]
ROWS = (1, 2, 11, 15, 16, 17, 27, 28, 31, 32, 33, 48, 65, 127, 128, 129, 200)


def _has_tiles() -> bool:
    before = kernels.instruction_set()
    try:
        kernels.force(PLAIN)
    except ValueError:  # another processor, or one without AVX-512
        return False
    finally:
        kernels.force(before)
    return True


pytestmark = pytest.mark.skipif(not _has_tiles(), reason="the rest of these kernels is AVX-512")


@pytest.fixture(autouse=True)
def kernels_as_before():
    before = kernels.instruction_set()
    yield
    kernels.force(before)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """To the nearest bfloat16, ties to even; none is a denormal here."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def in_tiles(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x · wᵀ as TDPBF16PS adds: of 32 inputs, the even and the odd products apart, one after the other.

    A product of two bfloat16 is exact in float32, so adding it rounds once, as a fused multiply-add does.
    """
    inputs = -(-x.shape[1] // 32) * 32
    x, w = (np.pad(bfloat16(each), ((0, 0), (0, inputs - each.shape[1]))) for each in (x, w))
    total = np.zeros((x.shape[0], w.shape[0]), np.float32)
    for first in range(0, inputs, 32):
        even, odd = np.zeros_like(total), np.zeros_like(total)
        for k in range(first, first + 32, 2):
            even += x[:, k, None] * w[None, :, k]
            odd += x[:, k + 1, None] * w[None, :, k + 1]
        total += even + odd
    return total


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize(("n", "k"), [(32, 128), (64, 256), (71, 160), (33, 96), (96, 1000), (8, 37), (200, 2048)])
@pytest.mark.parametrize(
    "options",
    [
        {"precision": "int8", "wide": True},
        {"precision": "int8"},
        {"precision": "int4"},
        {"precision": "int4", "minimum": True},
    ],
    ids=["wide", "int8", "int4", "int4-minimum"],
)
def test_integers_have_the_bits_of_avx512(options, n, k, tiles):
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((max(ROWS), k)) * 10 ** rng.uniform(-2, 2, (max(ROWS), 1))).astype(np.float32)
    w = kernels.pack(rng.standard_normal((n, k)).astype(np.float32), **options)
    bias = rng.standard_normal(n).astype(np.float32)
    kernels.force("avx512")
    expected, with_bias = kernels.linear(x, w), kernels.linear(x, w, bias=bias)
    kernels.force(tiles)
    for rows in ROWS:
        np.testing.assert_array_equal(kernels.linear(x[:rows], w), expected[:rows])
        np.testing.assert_array_equal(kernels.linear(x[:rows], w, bias=bias), with_bias[:rows])


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("kind", TYPES)
def test_blocks_of_gguf_have_the_bits_of_avx512(kind, tiles):
    rng = np.random.default_rng(7)
    for n, k in ((71, width(kind, 3)), (64, 1024)):
        w, _ = pack(kind, random_blocks(kind, n, k))
        x = rng.standard_normal((max(ROWS), k)).astype(np.float32)
        kernels.force("avx512")
        expected = kernels.linear(x, w)
        assert np.isfinite(expected).all()
        assert expected.any()
        kernels.force(tiles)
        for rows in ROWS:
            np.testing.assert_array_equal(kernels.linear(x[:rows], w), expected[:rows])


@pytest.mark.parametrize(("n", "k"), [(32, 32), (64, 256), (71, 100), (8, 37)])
@pytest.mark.parametrize("tiles", TILES)
def test_bfloat16_adds_in_the_order_of_the_tiles(n, k, tiles):
    rng = np.random.default_rng(k)
    x = rng.standard_normal((max(ROWS), k)).astype(np.float32)
    weight = rng.standard_normal((n, k)).astype(np.float32)
    w = kernels.pack(weight, "bfloat16")
    expected = in_tiles(x, weight)
    kernels.force(tiles)
    for rows in ROWS:
        np.testing.assert_array_equal(kernels.linear(x[:rows], w), expected[:rows])
    kernels.force("avx512")
    np.testing.assert_allclose(kernels.linear(x, w), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("tiles", TILES)
def test_denormals_are_zeros_in_bfloat16(tiles):
    """An instruction of the tiles takes and gives none; no weight or activation of a model is near one."""
    small = np.full((1, 32), 1e-39, np.float32)
    w = kernels.pack(np.full((32, 32), 1.0, np.float32), "bfloat16")
    kernels.force(tiles)
    assert not kernels.linear(small, w).any()
    assert kernels.linear(np.full((1, 32), 1e-37, np.float32), w).all()


@pytest.mark.parametrize("precision", ["float32", "int4", "bfloat16", "int8"])
def test_other_products_and_the_other_kernels_are_those_of_avx512(precision):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 96)).astype(np.float32)
    w = kernels.pack(rng.standard_normal((40, 96)).astype(np.float32), precision)
    results = []
    for name in ("avx512", PLAIN):
        kernels.force(name)
        results.append(
            (kernels.linear(x, w), kernels.log_softmax_at(x, np.arange(40, dtype=np.int32)[:1], np.zeros(1, np.int32)))
        )
    (first, one), (second, other) = results
    if precision != "bfloat16":
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(one, other)


@pytest.mark.skipif("amx" not in TILES, reason="the processor has no tiles")
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_attention_has_the_bits_of_plain_tiles(head_dim):
    layer = Layer(4, 2, head_dim, "bfloat16", window=50)
    results = []
    for name in TILES:
        kernels.force(name)
        results.append(layer.alone(3, 170))
    np.testing.assert_array_equal(*results)


def run_with(name: str) -> subprocess.CompletedProcess[str]:
    code = "from dragoman import kernels; print(kernels.instruction_set(), *kernels.instruction_sets())"
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"DRAGOMAN_KERNELS": name}, capture_output=True, text=True
    )


def test_tiles_of_the_processor_are_chosen_where_it_has_them_and_plain_ones_never():
    chosen, *offered = run_with("").stdout.split()
    assert chosen == offered[0] == ("amx" if "amx" in kernels.instruction_sets() else "avx512")
    assert PLAIN not in offered
    assert run_with(PLAIN).stdout.split()[0] == PLAIN


@pytest.mark.skipif("amx" in kernels.instruction_sets(), reason="this processor has AMX")
def test_a_processor_without_tiles_refuses_them():
    done = run_with("amx")
    assert done.returncode != 0
    assert 'DRAGOMAN_KERNELS: this processor does not support the kernels "amx"' in done.stderr
