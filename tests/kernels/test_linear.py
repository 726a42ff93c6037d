"""Products with packed matrices: right on every instruction set, and the same bits for a row in any company."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.reference import linear as reference

FORMATS = [
    ("float32", False, False),
    ("bfloat16", False, False),
    ("int8", False, False),
    ("int8", False, True),
    ("int4", False, False),
    ("int4", True, False),
]
Floats = NDArray[np.float32]


@pytest.fixture(params=kernels.instruction_sets())
def instruction_set(request: pytest.FixtureRequest):
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield request.param
    kernels.force(before)


def random_floats(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def assert_close(y: Floats, expected: NDArray[np.float64], x: Floats, w: Floats) -> None:
    """Within the rounding of a float32 sum: relative to the sum of magnitudes, since terms may cancel."""
    magnitude = np.abs(x).astype(np.float64) @ np.abs(w).T + np.abs(expected)
    assert (np.abs(y - expected) <= 2e-6 * magnitude).all()


@pytest.mark.parametrize(("precision", "minimum", "wide"), FORMATS)
@pytest.mark.parametrize("isa", kernels.instruction_sets())
def test_product_equals_the_reference(isa, precision, minimum, wide):
    """Odd sizes, from one element to several tiles; the only difference allowed is that of summing in float32."""

    @settings(max_examples=25, deadline=None)
    @given(
        rows=st.integers(1, 70),
        n=st.integers(1, 150),
        k=st.integers(1, 200),
        with_bias=st.booleans(),
        seed=st.integers(0, 2**32),
    )
    def check(rows, n, k, with_bias, seed):
        x, w = random_floats(seed, rows, k), random_floats(seed + 1, n, k)
        bias = random_floats(seed + 2, n) if with_bias else None
        y = kernels.linear(x, kernels.pack(w, precision, minimum=minimum, wide=wide), bias)
        assert_close(y, reference.linear(x, w, precision, bias, minimum, wide), x, w)

    before = kernels.instruction_set()
    kernels.force(isa)
    try:
        check()
    finally:
        kernels.force(before)


@pytest.mark.parametrize(("precision", "minimum", "wide"), FORMATS)
@pytest.mark.parametrize(("n", "k"), [(130, 96), (49, 321)])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(instruction_set, precision, minimum, wide, n, k):
    x = random_floats(0, 70, k)
    w = kernels.pack(random_floats(1, n, k), precision, minimum=minimum, wide=wide)
    bias = random_floats(2, n)
    alone = np.concatenate([kernels.linear(x[i : i + 1], w, bias) for i in range(70)])
    rng = np.random.default_rng(3)
    for rows in range(1, 71):
        chosen = rng.choice(70, rows, replace=False)
        np.testing.assert_array_equal(kernels.linear(x[chosen], w, bias), alone[chosen])


@pytest.mark.parametrize(("precision", "minimum", "wide"), FORMATS)
def test_the_number_of_threads_changes_no_bit(instruction_set, precision, minimum, wide):
    x = random_floats(0, 9, 160)
    w = kernels.pack(random_floats(1, 2000, 160), precision, minimum=minimum, wide=wide)
    before = kernels.threads()
    try:
        results = []
        for threads in (1, 2, 3):
            kernels.set_threads(threads)
            results.append(kernels.linear(x, w))
    finally:
        kernels.set_threads(before)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_widened_bfloat16_has_the_same_bits_in_all_widths():
    """Without products of bfloat16 its numbers are multiplied as float32, one after the other."""
    x, weight = random_floats(0, 13, 320), random_floats(1, 50, 320)
    results = {}
    before = kernels.instruction_set()
    try:
        for name in {"avx512_vnni", "avx_vnni", "avx2"} & set(kernels.instruction_sets()):
            kernels.force(name)
            results[name] = kernels.linear(x, kernels.pack(weight, "bfloat16"))
    finally:
        kernels.force(before)
    if not results:
        pytest.skip("this machine has none of them")
    for y in results.values():
        np.testing.assert_array_equal(y, next(iter(results.values())))


@pytest.mark.parametrize(("precision", "minimum", "wide"), [f for f in FORMATS if f[0].startswith("int")])
def test_quantized_products_agree_between_instruction_sets(precision, minimum, wide):
    """Integer sums are exact and are folded in the same order, so only the rounding of the fold may differ."""
    x, weight = random_floats(0, 13, 320), random_floats(1, 50, 320)
    results = {}
    before = kernels.instruction_set()
    try:
        for name in kernels.instruction_sets():
            kernels.force(name)
            results[name] = kernels.linear(x, kernels.pack(weight, precision, minimum=minimum, wide=wide))
    finally:
        kernels.force(before)
    for name in {"avx512", "avx512_vnni", "avx_vnni"} & set(results):
        np.testing.assert_array_equal(results[name], results["avx2"])
    for y in results.values():
        np.testing.assert_allclose(y, results["portable"], rtol=0, atol=1e-6 * np.abs(results["portable"]).max())


@pytest.mark.parametrize("wide", [False, True])
def test_extreme_integers_do_not_saturate(instruction_set, wide):
    """Every weight and activation at the end of its range, in all four sign combinations."""
    w = np.ones((4, 160), np.float32) * np.array([[1], [-1], [1], [-1]], np.float32)
    w[2:, 1::2] *= -1
    x = np.ones((2, 160), np.float32) * np.array([[1], [-1]], np.float32)
    y = kernels.linear(x, kernels.pack(w, "int8", wide=wide))
    np.testing.assert_allclose(y, x @ w.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("minimum", [False, True])
def test_extreme_nibbles_do_not_overflow(instruction_set, minimum):
    """Codes of 15 beside activations of 127 and -127: the largest sums that a group of int4 can have."""
    w = np.full((2, 64), 7.0, np.float32)
    w[:, ::32] = -8.0
    x = np.ones((2, 64), np.float32) * np.array([[1], [-1]], np.float32)
    y = kernels.linear(x, kernels.pack(w, "int4", minimum=minimum))
    np.testing.assert_allclose(y, x @ w.T, rtol=1e-3)


def test_accumulate_adds_to_the_output(instruction_set):
    x, w = random_floats(0, 5, 64), kernels.pack(random_floats(1, 20, 64), "float32")
    bias = random_floats(2, 20)
    out = random_floats(3, 5, 20)
    expected = kernels.linear(x, w, bias) + out
    assert kernels.linear(x, w, bias, out=out, accumulate=True) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_its_row_and_no_other(instruction_set, precision, bad):
    x = random_floats(0, 3, 64)
    x[1, 40] = bad
    y = kernels.linear(x, kernels.pack(np.abs(random_floats(1, 20, 64)) + 1, precision))
    assert np.isfinite(y[[0, 2]]).all()
    assert not np.isfinite(y[1]).any()


def test_zeros_give_zeros(instruction_set):
    for precision, minimum, wide in FORMATS:
        w = kernels.pack(np.zeros((20, 64), np.float32), precision, minimum=minimum, wide=wide)
        assert not kernels.linear(random_floats(0, 3, 64), w).any()
        w = kernels.pack(random_floats(1, 20, 64), precision, minimum=minimum, wide=wide)
        assert not kernels.linear(np.zeros((3, 64), np.float32), w).any()


def test_shapes_that_do_not_fit_are_refused():
    w = kernels.pack(np.ones((4, 8), np.float32), "float32")
    x = np.ones((2, 8), np.float32)
    with pytest.raises(ValueError, match=r"x must be \[rows, 8\]"):
        kernels.linear(np.ones((2, 7), np.float32), w)
    with pytest.raises(ValueError, match=r"bias must be \[4\]"):
        kernels.linear(x, w, np.ones(5, np.float32))
    with pytest.raises(ValueError, match="out must be"):
        kernels.linear(x, w, out=np.ones((2, 5), np.float32))
    with pytest.raises(ValueError, match="out must be"):
        kernels.linear(x, w, out=np.ones((2, 4), np.float64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="accumulate needs an out"):
        kernels.linear(x, w, accumulate=True)
