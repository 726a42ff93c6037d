"""Types of ggml that are packed as they are: the numbers of the `gguf` package, products with them equal to NumPy's,
and the same bits for a row in any company."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.reference import linear as reference

Floats = NDArray[np.float32]

# Where the blocks of a type hold float16 numbers.
HALVES = {
    Type.MXFP4: (), Type.IQ4_NL: (0,), Type.IQ4_XS: (0,), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2),
    Type.Q6_K: (208,),
}  # fmt: skip
TYPES = [pytest.param(kind, id=kind.name) for kind in HALVES]


@pytest.fixture(params=kernels.instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield request.param
    kernels.force(before)


def random_blocks(kind: Type, n: int, k: int, seed: int = 0) -> NDArray[np.uint8]:
    """``[n, bytes of a row]`` with every bit drawn but those of float16 numbers, and exponents around 120."""
    rng = np.random.default_rng(seed)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (n * k // values, size), dtype=np.uint8)
    if kind == Type.MXFP4:
        blocks[:, 0] = rng.integers(112, 126, len(blocks))
    for place in HALVES[kind]:
        blocks[:, place : place + 2] = rng.normal(0, 0.02, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(n, -1)


def pack(kind: Type, blocks: NDArray[np.uint8]) -> tuple[kernels.PackedMatrix, Floats]:
    """The packed matrix, and its numbers by the package."""
    floats = gguf.dequantize(blocks, kind)
    precision = next(each for each in kernels.BLOCK_PRECISIONS if each == kind.name.lower())
    return kernels.pack_blocks(blocks, floats.shape[1], precision), floats


def width(kind: Type, groups: int) -> int:
    """So many groups of 32 inputs, or of 256 where blocks are so long."""
    return groups * gguf.GGML_QUANT_SIZES[kind][0]


def random_floats(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("n", "groups"), [(70, 3), (32, 4), (1, 1), (33, 9)])
def test_packed_numbers_are_those_of_the_package_to_the_bit(kind: Type, n: int, groups: int) -> None:
    matrix, floats = pack(kind, random_blocks(kind, n, width(kind, groups)))
    assert matrix.precision == kind.name.lower()
    assert (matrix.dequantize().view(np.uint32) == floats.view(np.uint32)).all()
    ids = [n - 1, 0]
    assert (kernels.gather_rows(matrix, ids) == floats[ids]).all()
    assert matrix.nbytes == kernels.packed_bytes(n, width(kind, groups), matrix.precision)
    mapped = kernels.PackedMatrix(matrix.data, n, width(kind, groups), matrix.precision)
    assert (mapped.dequantize() == floats).all()


def test_every_exponent_of_mxfp4_is_read() -> None:
    blocks = random_blocks(Type.MXFP4, 255, 32)
    blocks[:, 0] = np.arange(255)
    with np.errstate(over="ignore"):  # 12 times 2 to the power 126 is none
        matrix, floats = pack(Type.MXFP4, blocks)
    assert (matrix.dequantize().view(np.uint32) == floats.view(np.uint32)).all()


@pytest.mark.usefixtures("instruction_set")
def test_products_with_every_exponent_of_mxfp4_are_exact() -> None:
    blocks = np.zeros((255, 17), np.uint8)
    blocks[:, 0], blocks[:, 1] = np.arange(255), 7  # one number of 6
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 127.0  # quantized with a scale of 1
    with np.errstate(over="ignore"):
        matrix, floats = pack(Type.MXFP4, blocks)
        np.testing.assert_array_equal(kernels.linear(x, matrix)[0], floats[:, 0] * np.float32(127))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("rows", "n", "groups"), [(1, 70, 3), (7, 32, 8), (21, 150, 5)])
@pytest.mark.usefixtures("instruction_set")
def test_product_equals_the_reference(kind: Type, rows: int, n: int, groups: int) -> None:
    """The only difference is that of summing in float32."""
    matrix, floats = pack(kind, random_blocks(kind, n, width(kind, groups)))
    x, bias = random_floats(1, rows, floats.shape[1]), random_floats(2, n)
    expected = reference.block_linear(x, floats, bias)
    magnitude = np.abs(x).astype(np.float64) @ np.abs(floats).T + np.abs(expected)
    assert (np.abs(kernels.linear(x, matrix, bias) - expected) <= 2e-6 * magnitude).all()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.usefixtures("instruction_set")
def test_every_input_meets_its_own_number(kind: Type) -> None:
    """Rows with a single input each, quantized with a scale of 1: no sum hides a code that is opened wrongly."""
    matrix, floats = pack(kind, random_blocks(kind, 33, 256))
    x = np.diag(np.full(256, 127, np.float32))
    found = kernels.linear(x, matrix).T / np.float32(127)
    np.testing.assert_allclose(found, floats, rtol=1e-6, atol=1e-6 * np.abs(floats).max())


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 21])
@pytest.mark.usefixtures("instruction_set")
def test_mxfp4_has_the_bits_of_its_numbers_in_int8(rows: int) -> None:
    """Twice the numbers are integers, and half the scales are float16: the same sums, of half the bytes."""
    blocks = random_blocks(Type.MXFP4, 70, width(Type.MXFP4, 9))
    matrix, floats = pack(Type.MXFP4, blocks)
    scales = np.ldexp(np.float16(1), blocks.reshape(70, -1, 17)[..., 0].astype(np.int32) - 128).astype(np.float16)
    values = (floats / np.repeat(scales.astype(np.float32), 32, axis=1)).astype(np.int8)
    integers = kernels.pack_codes(values, scales, None, "int8")
    x = random_floats(4, rows, floats.shape[1])
    np.testing.assert_array_equal(kernels.linear(x, matrix), kernels.linear(x, integers))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.usefixtures("instruction_set")
def test_a_row_has_the_same_bits_alone_and_in_any_batch(kind: Type) -> None:
    matrix, floats = pack(kind, random_blocks(kind, 70, width(kind, 5)))
    x, rng = random_floats(0, 70, floats.shape[1]), np.random.default_rng(3)
    alone = np.concatenate([kernels.linear(x[i : i + 1], matrix) for i in range(70)])
    for rows in (*range(1, 27), 47, 48, 49, 70):
        chosen = rng.choice(70, rows, replace=False)
        np.testing.assert_array_equal(kernels.linear(x[chosen], matrix), alone[chosen])


@pytest.mark.parametrize("kind", TYPES)
def test_threads_and_instruction_sets_change_no_bit(kind: Type) -> None:
    matrix, floats = pack(kind, random_blocks(kind, 500, width(kind, 2)))
    x = random_floats(0, 9, floats.shape[1])
    threads, before = kernels.threads(), kernels.instruction_set()
    results = {}
    try:
        for name in kernels.instruction_sets():
            kernels.force(name)
            for count in (1, 3):
                kernels.set_threads(count)
                results[name, count] = kernels.linear(x, matrix)
    finally:
        kernels.set_threads(threads)
        kernels.force(before)
    for name in kernels.instruction_sets():
        np.testing.assert_array_equal(results[name, 1], results[name, 3])
    for name in {"avx512", "avx512_vnni", "avx_vnni"} & set(kernels.instruction_sets()):
        np.testing.assert_array_equal(results[name, 1], results["avx2", 1])
    largest = 1e-6 * np.abs(results["portable", 1]).max()
    np.testing.assert_allclose(results[before, 1], results["portable", 1], rtol=0, atol=largest)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("byte", [0x00, 0x0F, 0x77, 0x88, 0xFF])
@pytest.mark.usefixtures("instruction_set")
def test_extreme_codes_do_not_overflow(kind: Type, byte: int) -> None:
    """All codes of a block at one end, beside activations of 127 and -127."""
    blocks = random_blocks(kind, 2, width(kind, 2))
    numbers = blocks.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    numbers[:] = byte
    if kind == Type.MXFP4:
        numbers[:, 0] = 127
    for place in HALVES[kind]:
        numbers[:, place : place + 2] = np.array([1], np.float16).view(np.uint8)
    matrix, floats = pack(kind, blocks)
    x = np.ones((2, floats.shape[1]), np.float32) * np.array([[1], [-1]], np.float32)
    expected = reference.block_linear(x, floats)
    np.testing.assert_allclose(kernels.linear(x, matrix), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("kind", TYPES)
def test_a_packed_matrix_takes_at_most_four_hundredths_more_than_its_file(kind: Type) -> None:
    values, size = gguf.GGML_QUANT_SIZES[kind]
    packed = kernels.packed_bytes(64, 2048, kind.name.lower())  # type: ignore[arg-type]
    assert 64 * 2048 // values * size <= packed <= 1.04 * 64 * 2048 // values * size


@pytest.mark.parametrize("kinds", [(Type.MXFP4, Type.MXFP4), (Type.IQ4_NL, Type.MXFP4), (Type.Q4_K, Type.Q6_K)])
@pytest.mark.usefixtures("instruction_set")
def test_experts_are_the_products_of_their_matrices(kinds: tuple[Type, Type]) -> None:
    """Experts of two types in one network: the bits of the same products one after the other."""
    size, count, rows = 256, 3, 11
    inward = [pack(kinds[e % 2], random_blocks(kinds[e % 2], size, size, e))[0] for e in range(count)]
    outward = [pack(kinds[e % 2], random_blocks(kinds[e % 2], size, size, 9 + e))[0] for e in range(count)]
    router = random_floats(5, count, size)
    table = random_floats(6, rows, size)
    kv = kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=1, precision="float32")
    p = kernels.Program(max_tokens=rows, max_sequences=1, max_logit_rows=rows, kv=kv)
    x, out, logits = p.buffer(size), p.buffer(size), p.buffer(size)
    p.embed(x, kernels.pack(table, "float32"))
    p.experts(out, x, kernels.pack(router, "float32"), inward, outward, active=1, gated=False, activation="relu")
    p.select_rows(logits, out)
    p.logits(logits)
    ids = np.arange(rows, dtype=np.int32)
    y = p.run(ids, ids, [0, rows], np.zeros((1, 1000), np.int32), ids)
    for row, expert in enumerate((table @ router.T).argmax(axis=1)):
        inner = np.maximum(kernels.linear(table[row : row + 1], inward[expert]), 0)
        np.testing.assert_array_equal(y[row], kernels.linear(inner, outward[expert])[0])


def test_what_is_not_whole_blocks_or_not_made_of_them_is_refused() -> None:
    with pytest.raises(ValueError, match="whole blocks"):
        kernels.pack_blocks(np.zeros((2, 144), np.uint8), 128, "q4_k")
    with pytest.raises(ValueError, match="bytes of a row"):
        kernels.pack_blocks(np.zeros((2, 143), np.uint8), 256, "q4_k")
    with pytest.raises(ValueError, match="made of blocks"):
        kernels.pack_blocks(np.zeros((2, 34), np.uint8), 32, "int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="packed from blocks"):
        kernels.pack(np.zeros((2, 256), np.float32), "q4_k")
    with pytest.raises(ValueError, match="made of codes"):
        kernels.pack_codes(np.zeros((2, 32), np.int8), np.ones((2, 1), np.float16), None, "mxfp4")
    data = kernels.pack_blocks(np.zeros((2, 17), np.uint8), 32, "mxfp4").data
    with pytest.raises(ValueError, match="has 576 bytes"):
        kernels.PackedMatrix(data[:-1], 2, 32, "mxfp4")


@pytest.mark.parametrize("kind", TYPES)
def test_scales_that_are_not_finite_are_found(kind: Type) -> None:
    blocks = random_blocks(kind, 3, width(kind, 2))
    assert kernels.gguf_scales_are_finite(blocks.reshape(-1), kind)
    for place in HALVES[kind] or (0,):
        damaged = blocks.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1]).copy()
        damaged[-1, place : place + 1 + bool(HALVES[kind])] = (
            np.array([np.inf], np.float16).view(np.uint8) if HALVES[kind] else 255
        )
        assert not kernels.gguf_scales_are_finite(damaged.reshape(-1), kind)
    with pytest.raises(ValueError, match="no packed format"):
        kernels.gguf_scales_are_finite(np.zeros(34, np.uint8), Type.Q8_0)


def _levels() -> NDArray[np.float32]:
    """The table of IQ4_NL, as the gguf package reads it."""
    block = np.concatenate([np.array([1.0], np.float16).view(np.uint8), np.arange(16, dtype=np.uint8)])
    return gguf.dequantize(block[None], Type.IQ4_NL)[0, :16]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_are_quantized_to_the_least_squares_of_what_is_tried(dtype: str) -> None:
    """Of nine scales at either end of the table, the numbers and the best scale for them, found again in float64."""
    rng = np.random.default_rng(4)
    weight = (rng.standard_normal((37, 96)) * rng.lognormal(size=(37, 1))).astype(np.float32)
    weight[3, :32] = 0
    weight[5, 40] = 30
    given: NDArray[np.generic] = weight
    if dtype == "float16":
        given = weight.astype(np.float16)
        weight = given.astype(np.float32)
    elif dtype == "bfloat16":
        given = reference.to_bfloat16(weight)
        weight = reference.from_bfloat16(given)
    found = gguf.dequantize(kernels.quantize_blocks(given), Type.IQ4_NL)  # type: ignore[arg-type]
    levels = _levels().astype(np.float64)
    borders = (levels[1:] + levels[:-1]) / 2
    groups = weight.reshape(-1, 32).astype(np.float64)
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(1)[:, None], 1)
    least = np.full(len(groups), np.inf)
    for end in (levels[0], levels[-1]):
        for step in range(-4, 5):
            with np.errstate(divide="ignore", invalid="ignore"):
                inverse = np.nan_to_num(end * (1 + 0.045 * step) / extreme)
            numbers = levels[np.searchsorted(borders, groups * inverse)]
            scale = (groups * numbers).sum(1) / (numbers**2).sum(1)
            least = np.minimum(least, ((groups - scale[:, None] * numbers) ** 2).sum(1))
    errors = ((groups - found.reshape(-1, 32)) ** 2).sum(1)
    assert (errors <= least * 1.002 + 1e-12).all()
    assert errors[9] == 0, "zeros stay zeros"
    evenly = kernels.pack(given, "int4").dequantize()  # type: ignore[arg-type]
    assert errors.sum() < 0.85 * ((weight - evenly) ** 2).sum()


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="whole blocks of 32"):
        kernels.quantize_blocks(np.zeros((2, 40), np.float32))
    with pytest.raises(ValueError, match="1 dimensions"):
        kernels.quantize_blocks(np.zeros(64, np.float32))


def test_the_same_bytes_on_every_instruction_set(instruction_set: str) -> None:
    weight = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    found = kernels.quantize_blocks(weight)
    kernels.force("portable")
    assert (kernels.quantize_blocks(weight) == found).all()


def test_rounding_with_feedback_follows_the_recurrence() -> None:
    """Each input is rounded to the nearest number after it made up for those before; errors are what it then lost."""
    rng = np.random.default_rng(8)
    values = (rng.standard_normal((32, 37)) * rng.lognormal(size=37)).astype(np.float32)
    values[:, 4] = 0
    factor = np.triu(0.3 * rng.standard_normal((32, 32)) + np.eye(32)).astype(np.float32)
    np.fill_diagonal(factor, rng.uniform(0.5, 2, 32))
    blocks, errors = kernels.round_with_feedback(values, factor)
    found = gguf.dequantize(blocks, Type.IQ4_NL).astype(np.float64)
    scales = blocks[:, :2].copy().view(np.float16)[:, 0].astype(np.float64)
    left = values.astype(np.float64)
    for i in range(32):
        nearest = np.abs(left[i, :, None] - scales[:, None] * _levels()).min(1)
        np.testing.assert_allclose(np.abs(left[i] - found[:, i]), nearest, atol=1e-4 * np.abs(scales).max())
        lost = (left[i] - found[:, i]) / factor[i, i]
        np.testing.assert_allclose(errors[i], lost, rtol=1e-3, atol=1e-3 * np.abs(scales).max())
        left[i + 1 :] -= np.outer(factor[i, i + 1 :], lost)
    assert not errors[:, 4].any(), "zeros stay zeros"
    assert kernels.round_with_feedback(values[:, :1], factor)[0].tobytes() == blocks[:1].tobytes()


def test_feedback_without_correlation_loses_no_more_than_a_search() -> None:
    values = np.random.default_rng(2).standard_normal((32, 64)).astype(np.float32)
    _, errors = kernels.round_with_feedback(values, np.eye(32, dtype=np.float32))
    searched = gguf.dequantize(kernels.quantize_blocks(values.T), Type.IQ4_NL)
    assert (errors**2).sum() < 1.1 * ((values.T - searched) ** 2).sum()


def test_what_does_not_fit_feedback_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[32, N\]"):
        kernels.round_with_feedback(np.zeros((31, 4), np.float32), np.eye(32, dtype=np.float32))
    with pytest.raises(ValueError, match=r"factor \[32, 32\]"):
        kernels.round_with_feedback(np.zeros((32, 4), np.float32), np.eye(31, dtype=np.float32))
