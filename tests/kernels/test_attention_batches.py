"""Promise 1 for attention: no bit of a row depends on what runs beside it, and on how its sequence was divided."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman import kernels
from tests.kernels.attention_layer import (
    LATENT_PRECISIONS,
    MOST_PRECISIONS,
    OWN,
    SETS,
    Chunk,
    Floats,
    Kept,
    Layer,
    forced,
)


@pytest.fixture(params=SETS, autouse=True)
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    with forced(request.param):
        yield


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[int], list[list[tuple[int, int]]], list[int]]:
    """Lengths of four sequences, steps (each a list of (sequence, tokens to run)), and a permutation of the blocks."""
    lengths = draw(st.lists(st.integers(1, 150), min_size=4, max_size=4))
    left = list(lengths)
    steps: list[list[tuple[int, int]]] = []
    while any(left):
        step = []
        for s in draw(st.permutations(range(4))):
            if left[s] and (draw(st.booleans()) or not any(left[:s])):
                tokens = min(left[s], draw(st.sampled_from([1, 1, 2, 7, 31, 32, 33, 64, 150])))
                step.append((s, tokens))
                left[s] -= tokens
        if step:
            steps.append(step)
    return lengths, steps, draw(st.permutations(range(40)))


LAYERS = [
    Layer(4, 2, 64, "bfloat16"),
    Layer(4, 4, 20, "float32"),
    Layer(6, 1, 32, "float32", window=50),
    Layer(6, 2, 48, "bfloat16", window=33),
    Layer(4, 2, 32, "bfloat16", softcap=1.0, sloped=True, reach=40),
    Layer(6, 2, 80, "int8"),
    Layer(4, 4, 32, "int8", window=33),
    Layer(20, 1, 72, "bfloat16", window=40, latent=64),
    Layer(6, 1, 48, "int8", latent=32),
    Layer(6, 2, 80, "own"),
    Layer(4, 4, 32, "own", window=20),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.precision}-{layer.window}-{layer.softcap}")
@settings(max_examples=8, deadline=None)
@given(schedule=schedules(), threads=st.sampled_from([1, 2]))
def test_a_row_is_the_same_bits_in_any_batch_and_chunking(
    layer: Layer, schedule: tuple[list[int], list[list[tuple[int, int]]], list[int]], threads: int
) -> None:
    lengths, steps, order = schedule
    before = kernels.threads()
    kernels.set_threads(threads)
    try:
        _, program = layer.start()
        done = [0] * 4
        rows: list[list[Floats]] = [[] for _ in range(4)]
        blocks = [tuple(order[s * 5 : s * 5 + -(-lengths[s] // 32)]) for s in range(4)]
        for step in steps:
            chunks = [Chunk(s, done[s], done[s] + n, blocks[s]) for s, n in step]
            for chunk, result in zip(chunks, layer.run(program, chunks), strict=True):
                rows[chunk.sequence].append(result)
                done[chunk.sequence] = chunk.end
        for s in range(4):
            np.testing.assert_array_equal(np.concatenate(rows[s]), layer.alone(s, lengths[s]))
    finally:
        kernels.set_threads(before)


@pytest.mark.parametrize("precision", MOST_PRECISIONS)
@pytest.mark.parametrize("window", [0, 700])
def test_long_contexts_are_the_same_bits_however_divided(precision: Kept, window: int) -> None:
    """A sequence of several KV splits: whole chunks in one thread, then single rows whose splits go to two threads."""
    layer = Layer(2, 1, 16, precision, window, sequences=2, length=1700)
    blocks = tuple(range(54))
    results = []
    before = kernels.threads()
    try:
        for threads, sizes in ((1, [600, 600, 500]), (2, [511, 513, 640]), (2, [700, 700, *[1] * 40])):
            kernels.set_threads(threads)
            _, program = layer.start()
            done, rows = 0, []
            for size in sizes:
                rows += layer.run(program, [Chunk(1, done, done + size, blocks)])
                done += size
            results.append(np.concatenate(rows)[:1440])
    finally:
        kernels.set_threads(before)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_a_row_of_several_tiles_is_the_same_bits_however_divided() -> None:
    layer = Layer(33, 1, 48, "bfloat16", sequences=1, length=524, latent=32)
    blocks = tuple(range(17))
    before = kernels.threads()
    kernels.set_threads(2)
    try:
        _, program = layer.start()
        layer.run(program, [Chunk(0, 0, 520, blocks)])
        rows = [layer.run(program, [Chunk(0, t, t + 1, blocks)])[0] for t in range(520, 524)]
        together = layer.run(program, [Chunk(0, 520, 524, blocks)])[0]
    finally:
        kernels.set_threads(before)
    np.testing.assert_array_equal(np.concatenate(rows), together)


@pytest.mark.parametrize(
    ("precision", "latent"), [*((each, 0) for each in MOST_PRECISIONS), *((each, 32) for each in LATENT_PRECISIONS)]
)
def test_what_lies_in_foreign_slots_has_no_influence(precision: Kept, latent: int) -> None:
    """The pool starts as NaN, zeros or huge numbers: the results do not differ in a bit."""
    layer = Layer(4, 1 if latent else 2, 48 if latent else 32, precision, latent=latent)
    results = []
    for garbage in (0x00, 0xFF, 0x7F):
        kv, program = layer.start()
        for group in range(len(kv.blocks)):
            kv.block_data(group)[:] = garbage
        chunks = [Chunk(0, 0, 33, (3, 7)), Chunk(1, 0, 1, (5,))]
        first = layer.run(program, chunks)
        second = layer.run(program, [Chunk(1, 1, 2, (5,)), Chunk(0, 33, 100, (3, 7, 1, 2))])
        results.append(np.concatenate(first + second))
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("window", [0, 20])
def test_rows_that_see_to_both_sides_do_not_see_their_neighbours(window: int) -> None:
    layer = Layer(4, 2, 32, "bfloat16", window, causal=False, reach=16)
    _, program = layer.start()
    both = layer.run(program, [Chunk(0, 0, 90, (0, 1, 2)), Chunk(1, 0, 41, (3, 4))])
    np.testing.assert_array_equal(both[0], layer.alone(0, 90))
    np.testing.assert_array_equal(both[1], layer.alone(1, 41))


@pytest.mark.parametrize("precision", MOST_PRECISIONS)
@pytest.mark.parametrize("part", ["queries", "keys", "values", "all"])
def test_a_sequence_of_nan_stays_alone(precision: Kept, part: str) -> None:
    layer = Layer(4, 2, 32, precision)
    columns = {"queries": slice(0, 128), "keys": slice(128, 192), "values": slice(192, 256), "all": slice(None)}[part]
    layer.table[layer.length : 2 * layer.length, columns] = np.nan
    _, program = layer.start()
    healthy, broken = layer.run(program, [Chunk(0, 0, 90, (0, 1, 2)), Chunk(1, 0, 90, (3, 4, 5))])
    assert np.isnan(broken).all()
    np.testing.assert_array_equal(healthy, layer.alone(0, 90))


@pytest.mark.parametrize("precision", MOST_PRECISIONS)
def test_copied_blocks_continue_as_the_original(precision: Kept) -> None:
    layer = Layer(4, 2, 32, precision)
    kv, program = layer.start()
    layer.run(program, [Chunk(0, 0, 50, (0, 1))])
    kv.copy_blocks([1], [9])
    if precision == "own":
        kv.copy_blocks([1 + OWN], [9 + OWN], group=1)
    original, copy = layer.run(program, [Chunk(0, 50, 60, (0, 1)), Chunk(0, 50, 60, (0, 9))])
    np.testing.assert_array_equal(original, copy)


def test_a_prefix_written_in_the_same_step_can_be_shared() -> None:
    layer = Layer(4, 2, 32, "float32")
    _, program = layer.start()
    whole, rest = layer.run(program, [Chunk(0, 0, 64, (0, 1)), Chunk(0, 32, 64, (0, 2))])
    np.testing.assert_array_equal(whole[32:], rest)
