"""Packed matrices: the numbers of GGUF's formats, one layout on every instruction set, bytes that can be mapped."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def random_weight(seed: int, n: int, k: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, k)) * 10.0 ** rng.integers(-3, 3, (n, 1))).astype(np.float32)


@pytest.mark.parametrize(("precision", "minimum", "wide"), FORMATS)
@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 70), k=st.integers(1, 150), seed=st.integers(0, 2**32))
def test_dequantize_gives_the_numbers_of_the_reference(precision, minimum, wide, n, k, seed):
    weight = random_weight(seed, n, k)
    packed = kernels.pack(weight, precision, minimum=minimum, wide=wide)
    assert (packed.shape, packed.precision, packed.minimum, packed.wide) == ((n, k), precision, minimum, wide)
    np.testing.assert_array_equal(packed.dequantize(), reference.dequantize(weight, precision, minimum, wide))


def test_int8_is_q8_0_to_the_letter():
    """Worked by hand: the largest of 32 becomes 127, scales are fp16, halves round away from zero."""
    weight = np.zeros((1, 32), np.float32)
    weight[0, :4] = [127.0, 2.5, -2.5, 3.4]
    np.testing.assert_array_equal(kernels.pack(weight, "int8").dequantize()[0, :4], [127, 3, -3, 3])


def test_wide_int8_rounds_128_weights_with_one_scale():
    """Worked by hand: 127 is the largest of the first 128, 254 of what is left."""
    weight = np.zeros((1, 160), np.float32)
    weight[0, [0, 100, 127, 128, 129]] = [127.0, 2.5, -3.4, 254.0, 3.4]
    packed = kernels.pack(weight, "int8", wide=True).dequantize()[0]
    np.testing.assert_array_equal(packed[[0, 100, 127, 128, 129]], [127, 3, -3, 254, 4])


def test_int4_is_q4_0_to_the_letter():
    """Worked by hand: the value of largest magnitude becomes −8, so the other end stops at 7."""
    weight = np.zeros((1, 32), np.float32)
    weight[0, :4] = [-8.0, 8.0, 2.4, -2.6]
    np.testing.assert_array_equal(kernels.pack(weight, "int4").dequantize()[0, :4], [-8, 7, 2, -3])


def test_int4_with_minimum_is_q4_1_to_the_letter():
    weight = np.full((1, 32), 3.0, np.float32)
    weight[0, :4] = [1.0, 16.0, 4.4, 4.6]
    np.testing.assert_array_equal(kernels.pack(weight, "int4", minimum=True).dequantize()[0, :4], [1, 16, 4, 5])


@pytest.mark.parametrize(("precision", "minimum", "wide"), FORMATS)
def test_bytes_are_the_same_on_every_instruction_set(precision, minimum, wide):
    """A packed cache written on one machine serves another."""
    weight = random_weight(7, 77, 101)
    before = kernels.instruction_set()
    try:
        packed = []
        for name in kernels.instruction_sets():
            kernels.force(name)
            packed.append(kernels.pack(weight, precision, minimum=minimum, wide=wide))
            np.testing.assert_array_equal(packed[-1].dequantize(), packed[0].dequantize())
    finally:
        kernels.force(before)
    for other in packed[1:]:
        np.testing.assert_array_equal(packed[0].data, other.data)


@pytest.mark.parametrize(("precision", "minimum", "wide"), FORMATS)
def test_half_precision_sources_are_read_exactly(precision, minimum, wide):
    weight = random_weight(1, 33, 70)
    half = weight.astype(np.float16)
    brain = reference.to_bfloat16(weight)
    for source, as_float in ((half, half.astype(np.float32)), (brain, reference.from_bfloat16(brain))):
        packed = kernels.pack(source, precision, minimum=minimum, wide=wide)
        np.testing.assert_array_equal(packed.data, kernels.pack(as_float, precision, minimum=minimum, wide=wide).data)


def test_every_fp16_and_bfloat16_value_is_read_right():
    bits = np.arange(2**16, dtype=np.uint16).reshape(64, 1024)
    before = kernels.instruction_set()
    try:
        for name in kernels.instruction_sets():
            kernels.force(name)
            halves = kernels.pack(bits.view(np.float16), "float32").dequantize()
            np.testing.assert_array_equal(halves, bits.view(np.float16).astype(np.float32))
            brains = kernels.pack(bits, "float32").dequantize()
            np.testing.assert_array_equal(brains.view(np.uint32), bits.astype(np.uint32) << 16)
    finally:
        kernels.force(before)


@pytest.mark.parametrize(("precision", "minimum", "wide"), FORMATS)
def test_a_matrix_over_mapped_bytes_multiplies_the_same(tmp_path, precision, minimum, wide):
    weight = random_weight(2, 40, 96)
    packed = kernels.pack(weight, precision, minimum=minimum, wide=wide)
    packed.data.tofile(tmp_path / "weights")
    mapped = np.memmap(tmp_path / "weights", np.uint8, "r")
    view = kernels.PackedMatrix(mapped, 40, 96, precision, minimum, wide)
    del mapped  # the matrix keeps its bytes alive
    assert (
        view.nbytes
        == packed.nbytes
        == packed.data.size
        == kernels.packed_bytes(40, 96, precision, minimum=minimum, wide=wide)
    )
    x = random_weight(3, 5, 96)
    np.testing.assert_array_equal(kernels.linear(x, view), kernels.linear(x, packed))


@pytest.mark.parametrize(("precision", "minimum", "wide"), FORMATS)
def test_gathered_rows_are_rows_of_the_matrix(precision, minimum, wide):
    packed = kernels.pack(random_weight(4, 100, 70), precision, minimum=minimum, wide=wide)
    ids = [99, 0, 17, 17, 63]
    np.testing.assert_array_equal(kernels.gather_rows(packed, ids), packed.dequantize()[ids])
    assert kernels.gather_rows(packed, np.empty(0, np.int32)).shape == (0, 70)


@pytest.mark.parametrize("row", [-1, 100])
def test_a_row_outside_the_matrix_is_refused(row):
    packed = kernels.pack(random_weight(4, 100, 70), "int8")
    with pytest.raises(IndexError):
        kernels.gather_rows(packed, [0, row])


def test_bad_matrices_are_refused():
    weight = np.ones((4, 8), np.float32)
    with pytest.raises(ValueError, match="unknown precision"):
        kernels.pack(weight, "int3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dimensions"):
        kernels.pack(weight[0], "int8")
    with pytest.raises(ValueError, match="float64"):
        kernels.pack(weight.astype(np.float64), "int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="minimum"):
        kernels.pack(weight, "int8", minimum=True)
    with pytest.raises(ValueError, match="share a scale"):
        kernels.pack(weight, "int4", wide=True)
    with pytest.raises(ValueError, match="1 <= n"):
        kernels.pack(weight[:0], "int8")
    with pytest.raises(ValueError, match="bytes, not 10"):
        kernels.PackedMatrix(np.zeros(10, np.uint8), 4, 8, "int8")


def test_checksum_is_that_of_the_reference():
    assert reference.crc32c(b"123456789") == 0xE3069283  # the check value of the CRC catalogue
    rng = np.random.default_rng(0)
    for size in (0, 1, 7, 8, 4097, 2**20 + 13):
        data = rng.bytes(size)
        assert kernels.checksum(data) == reference.checksum(data)


def test_checksum_sees_a_flipped_bit_and_a_moved_chunk():
    data = np.random.default_rng(0).integers(0, 256, 5 * 2**20, np.uint8)
    before = kernels.checksum(data)
    data[3_000_000] ^= 1
    assert kernels.checksum(data) != before
    data[3_000_000] ^= 1
    assert kernels.checksum(data) == before
    assert kernels.checksum(np.roll(data, 2**20)) != before


def test_empty_memory_is_zero_aligned_and_writable():
    memory = kernels.empty(5_000_000)
    assert memory.shape == (5_000_000,)
    assert not memory.any()
    assert memory.ctypes.data % 64 == 0
    memory[:] = 1
    assert kernels.empty(0).size == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only there can pages be exchanged beneath a reader")
def test_a_file_moves_into_memory_of_its_own_beneath_its_readers(tmp_path: Path) -> None:
    content = np.random.default_rng(5).integers(0, 256, (9 << 20) + 4321, np.uint8)
    content.tofile(tmp_path / "file")
    with (tmp_path / "file").open("rb") as stream:
        memory = kernels.FileMemory(stream.fileno(), content.size)
    expected = kernels.checksum(content)
    read, address = memory.data, memory.data.ctypes.data
    memory.settle()
    while_moving = [kernels.checksum(read) for _ in range(20)]
    assert memory.settled()
    assert set(while_moving) == {expected}
    (tmp_path / "file").write_bytes(bytes(content.size))  # what has moved is no longer the file's
    whole = content.size >> 21 << 21
    np.testing.assert_array_equal(read[:whole], content[:whole])
    assert memory.data.ctypes.data == address
    del memory
    assert read[7] == content[7]  # an array keeps it alive


@pytest.mark.skipif(sys.platform != "linux", reason="only there can pages be exchanged beneath a reader")
@pytest.mark.parametrize(("huge_kb", "moves"), [(8 << 10, False), (0, True), (None, True)])
def test_a_file_that_comes_in_huge_pages_stays_where_it_is(huge_kb: int | None, moves: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8 << 20))
    with (tmp_path / "file").open("rb") as stream:
        memory = kernels.FileMemory(stream.fileno(), 8 << 20)
    if huge_kb is not None:  # else as on a system that does not say
        other = "10-20 r--s 00000000 fe:00 7 /other\nFilePmdMapped: 0 kB\n"
        ours = f"20-{1 << 63:x} r--s 00000000 fe:00 7 /file\nSize: 8192 kB\nFilePmdMapped: {huge_kb:8} kB\n"
        (tmp_path / "smaps").write_text(other + ours)
    memory.settle(0.0, str(tmp_path / "smaps"))
    assert memory.settled() == moves


@pytest.mark.skipif(sys.platform != "linux", reason="only there can pages be exchanged beneath a reader")
def test_a_file_that_is_to_move_later_can_be_given_up_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5 << 20))
    with (tmp_path / "file").open("rb") as stream:
        memory = kernels.FileMemory(stream.fileno(), 5 << 20)
    memory.settle(600.0)
    started = time.monotonic()
    del memory
    assert time.monotonic() - started < 60, "it waits for what is not wanted any more"


def test_a_file_that_cannot_be_mapped_is_refused() -> None:
    with pytest.raises(MemoryError):
        kernels.FileMemory(-1, 4096)


@pytest.mark.parametrize(("precision", "minimum"), [("int8", False), ("int4", False), ("int4", True)])
@pytest.mark.parametrize("shape", [(64, 128), (37, 70)])
def test_codes_are_packed_as_they_are(precision: kernels.Precision, minimum: bool, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(3)
    rows, inputs = shape
    least, most = (-128, 127) if precision == "int8" else (0, 15) if minimum else (-8, 7)
    values = random.integers(least, most, shape, np.int8, endpoint=True)
    scales, minimums = random.normal(size=(2, rows, -(-inputs // 32))).astype(np.float16)
    packed = kernels.pack_codes(values, scales, minimums if minimum else None, precision)
    expanded, offset = (np.repeat(part.astype(np.float32), 32, axis=1)[:, :inputs] for part in (scales, minimums))
    np.testing.assert_array_equal(packed.dequantize(), expanded * values + (offset if minimum else np.float32(0)))


def test_codes_beyond_their_range_are_refused() -> None:
    scales = np.ones((2, 1), np.float16)
    with pytest.raises(ValueError, match=r"-8 … 7"):
        kernels.pack_codes(np.full((2, 32), 8, np.int8), scales, None, "int4")
    with pytest.raises(ValueError, match=r"0 … 15"):
        kernels.pack_codes(np.full((2, 32), -1, np.int8), scales, scales, "int4")
    with pytest.raises(ValueError, match="ceil"):
        kernels.pack_codes(np.zeros((2, 64), np.int8), scales, None, "int8")
    with pytest.raises(ValueError, match="codes"):
        kernels.pack_codes(np.zeros((2, 32), np.int8), scales, None, "bfloat16")


@pytest.fixture(params=kernels.instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield request.param
    kernels.force(before)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("precision", "minimum"), [("int8", False), ("int4", False), ("int4", True)])
@pytest.mark.parametrize("shape", [(64, 128), (37, 70), (5, 300)])
def test_inputs_in_an_order_are_found_where_they_stand(
    precision: kernels.Precision, minimum: bool, shape: tuple[int, int]
) -> None:
    """The product is bit for bit that of inputs put into the order beforehand; numbers come back in their places."""
    random = np.random.default_rng(4)
    rows, inputs = shape
    least, most = (-128, 127) if precision == "int8" else (0, 15) if minimum else (-8, 7)
    values = random.integers(least, most, shape, np.int8, endpoint=True)
    scales, minimums = random.normal(size=(2, rows, -(-inputs // 32))).astype(np.float16)
    codes = (values, scales, minimums if minimum else None, precision)
    order = random.permutation(inputs).astype(np.int32)
    plain, ordered = kernels.pack_codes(*codes), kernels.pack_codes(*codes, order)
    assert ordered.ordered
    assert ordered.nbytes == plain.nbytes + 4 * inputs
    assert ordered.nbytes == kernels.packed_bytes(rows, inputs, precision, minimum=minimum, ordered=True)
    x = random.normal(size=(9, inputs)).astype(np.float32)
    np.testing.assert_array_equal(kernels.linear(x, ordered), kernels.linear(x[:, order], plain))
    np.testing.assert_array_equal(kernels.linear(x[3:4], ordered), kernels.linear(x, ordered)[3:4])
    np.testing.assert_array_equal(ordered.dequantize()[:, order], plain.dequantize())
    ids = [rows - 1, 0]
    np.testing.assert_array_equal(kernels.gather_rows(ordered, ids), ordered.dequantize()[ids])
    mapped = kernels.PackedMatrix(ordered.data, rows, inputs, precision, minimum, ordered=True)
    np.testing.assert_array_equal(mapped.dequantize(), ordered.dequantize())


def test_orders_that_are_none_are_refused() -> None:
    values, scales = np.zeros((2, 32), np.int8), np.ones((2, 1), np.float16)
    for wrong in ([0] * 32, [*range(1, 33)], [-1, *range(1, 32)]):
        with pytest.raises(ValueError, match="each of 32 inputs once"):
            kernels.pack_codes(values, scales, None, "int8", np.array(wrong, np.int32))
    with pytest.raises(ValueError, match=r"must be \[K\]"):
        kernels.pack_codes(values, scales, None, "int8", np.arange(31, dtype=np.int32))
    data = kernels.pack_codes(values, scales, None, "int8", np.arange(32, dtype=np.int32)).data.copy()
    data[-4:] = 255
    with pytest.raises(ValueError, match="each of 32 inputs once"):
        kernels.PackedMatrix(data, 2, 32, "int8", ordered=True)
    with pytest.raises(ValueError, match="only int8 and int4"):
        kernels.PackedMatrix(data, 2, 32, "bfloat16", ordered=True)


@pytest.mark.parametrize("shape", [(64, 256), (37, 170), (3, 40)])
def test_codes_of_wide_groups_are_packed_as_they_are(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(5)
    rows, inputs = shape
    values = random.integers(-128, 127, shape, np.int8, endpoint=True)
    shared = random.normal(size=(rows, -(-inputs // 128))).astype(np.float16)
    scales = np.repeat(shared, 4, axis=1)[:, : -(-inputs // 32)]
    packed = kernels.pack_codes(values, scales, None, "int8", wide=True)
    assert packed.nbytes == kernels.packed_bytes(rows, inputs, "int8", wide=True)
    expected = values * np.repeat(shared.astype(np.float32), 128, axis=1)[:, :inputs]
    np.testing.assert_array_equal(packed.dequantize(), expected)
    scales[0, -1] += 1
    if scales.shape[1] % 4 != 1:
        with pytest.raises(ValueError, match="the same in all four"):
            kernels.pack_codes(values, scales, None, "int8", wide=True)
