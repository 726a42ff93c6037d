"""Attention of one text's rows to another text's blocks, and programs that only write blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.reference import attention as reference

Floats = NDArray[np.float32]
HEADS, DIM, LENGTH = 3, 20, 700
WIDTH = HEADS * DIM
TABLE = np.random.default_rng(1).normal(size=(LENGTH, 2 * WIDTH)).astype(np.float32)
QUERIES = np.random.default_rng(2).normal(size=(LENGTH, WIDTH)).astype(np.float32)


@pytest.fixture(params=kernels.instruction_sets(), autouse=True)
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield
    kernels.force(before)


def programs(blocks: int = 60) -> tuple[kernels.Program, kernels.Program]:
    """One that writes keys and values of a text, token id = row of the table; one that looks at them."""
    kv = kernels.KVPool(layers=2, blocks=blocks, kv_heads=HEADS, head_dim=DIM, precision="float32")
    writing = kernels.Program(max_tokens=LENGTH, max_sequences=4, max_logit_rows=1, kv=kv)
    pair = writing.buffer(2 * WIDTH)
    writing.embed(pair, kernels.pack(TABLE, "float32"))
    writing.write_kv(pair, 0, WIDTH, 1)
    looking = kernels.Program(max_tokens=LENGTH, max_sequences=4, max_logit_rows=LENGTH, kv=kv)
    queries, out, picked = (looking.buffer(WIDTH) for _ in range(3))
    looking.embed(queries, kernels.pack(QUERIES, "float32"))
    looking.cross_attend(out, queries, 0, HEADS, 1, 0.2)
    looking.select_rows(picked, out)
    looking.logits(picked)
    return writing, looking


def write(program: kernels.Program, first: int, length: int, blocks: list[int]) -> None:
    ids = np.arange(first, first + length)
    assert program.run(ids, np.arange(length), [0, length], [blocks], []).shape == (0, 0)


def look(program: kernels.Program, rows: list[int], tables: list[list[int]], lengths: list[int]) -> list[Floats]:
    """``rows[i]`` queries of sequence i; the first query of all is row 0 of the table."""
    starts = np.cumsum([0, *rows])
    positions = np.concatenate([np.arange(count) for count in rows])
    own = np.full((len(rows), 1), -1)
    made = program.run(
        np.arange(starts[-1]), positions, starts, own, np.arange(starts[-1]), cross_tables=tables, cross_lengths=lengths
    )
    return np.split(made.copy(), starts[1:-1])


def expected(queries: slice, first: int, length: int) -> Floats:
    keys, values = (TABLE[first : first + length, at : at + WIDTH].reshape(-1, HEADS, DIM) for at in (0, WIDTH))
    return reference.attend(QUERIES[queries].reshape(-1, HEADS, DIM), keys, values, 0, 0.2, causal=False)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 640])
def test_every_row_sees_the_whole_other_text(length: int) -> None:
    writing, looking = programs()
    blocks = list(range(59, 59 - -(-length // 32), -1))
    write(writing, 5, length, blocks)
    (made,) = look(looking, [40], [blocks], [length])
    np.testing.assert_allclose(made, expected(slice(0, 40), 5, length), atol=2e-5)


def test_no_bit_depends_on_what_runs_beside_it() -> None:
    writing, looking = programs()
    write(writing, 0, 600, list(range(19)))
    write(writing, 30, 45, [20, 21])
    alone = look(looking, [3], [list(range(19))], [600])[0]
    table = [list(range(19)), [20, 21, *([-1] * 17)], list(range(19))]
    beside = look(looking, [3, 50, 1], table, [600, 45, 600])
    assert (beside[0] == alone).all()
    np.testing.assert_allclose(beside[1], expected(slice(3, 53), 30, 45), atol=2e-5)
    assert (look(looking, [1], [[20, 21]], [45])[0] == look(looking, [1, 1], [[20, 21]] * 2, [45, 45])[0]).all()


def test_what_does_not_fit_is_refused() -> None:
    writing, looking = programs()
    with pytest.raises(ValueError, match="no logits"):
        writing.run([0], [0], [0, 1], [[0]], [0])
    with pytest.raises(ValueError, match="another text, and the batch has none"):
        looking.run([0], [0], [0, 1], [[0]], [0])
    with pytest.raises(ValueError, match="go together"):
        looking.run([0], [0], [0, 1], [[0]], [0], cross_tables=[[0]])
    with pytest.raises(ValueError, match="for each sequence"):
        looking.run([0], [0], [0, 1], [[0]], [0], cross_tables=[[0]], cross_lengths=[1, 1])
    for table, length in (([0], 33), ([0], 0), ([60], 1), ([-1], 1), ([0], -5)):
        with pytest.raises(ValueError, match="block"):
            look(looking, [1], [table], [length])
    with pytest.raises(ValueError, match="no layer"):
        looking.cross_attend(1, 0, 0, HEADS, 2, 0.2)


def test_a_text_is_not_looked_at_while_it_is_written() -> None:
    kv = kernels.KVPool(layers=1, blocks=2, kv_heads=HEADS, head_dim=DIM, precision="float32")
    program = kernels.Program(max_tokens=4, max_sequences=1, max_logit_rows=1, kv=kv)
    pair, out = program.buffer(2 * WIDTH), program.buffer(WIDTH)
    program.embed(pair, kernels.pack(TABLE, "float32"))
    program.write_kv(pair, 0, WIDTH, 0)
    program.cross_attend(out, pair, 0, HEADS, 0, 0.2)
    program.run([0], [0], [0, 1], [[0]], [], cross_tables=[[1]], cross_lengths=[1])
    with pytest.raises(ValueError, match="block 0"):
        program.run([0], [0], [0, 1], [[0]], [], cross_tables=[[0]], cross_lengths=[1])


def optional_programs() -> tuple[kernels.Program, kernels.Program]:
    """One that writes keys and values of a text; one that adds to its rows what they see, where they have a text."""
    kv = kernels.KVPool(layers=1, blocks=8, kv_heads=HEADS, head_dim=DIM, precision="float32")
    writing = kernels.Program(max_tokens=LENGTH, max_sequences=1, max_logit_rows=1, kv=kv)
    pair = writing.buffer(2 * WIDTH)
    writing.embed(pair, kernels.pack(TABLE, "float32"))
    writing.write_kv(pair, 0, WIDTH, 0)
    looking = kernels.Program(max_tokens=8, max_sequences=4, max_logit_rows=8, kv=kv)
    x, queries, out, picked = (looking.buffer(WIDTH) for _ in range(4))
    looking.embed(x, kernels.pack(QUERIES, "float32"))
    with looking.optional():
        looking.copy_columns(queries, x, 0)
        looking.cross_attend(out, queries, 0, HEADS, 0, 0.2)
        looking.clear_without_text(out)
        looking.add(x, out)
    looking.select_rows(picked, x)
    looking.logits(picked)
    return writing, looking


def test_what_is_optional_leaves_rows_without_a_text_as_they_are() -> None:
    writing, looking = optional_programs()
    write(writing, 0, 45, [4, 5])
    made = look(looking, [3, 2, 1], [[4, 5], [-1, -1], [4, 5]], [45, 0, 33])
    np.testing.assert_allclose(made[0] - QUERIES[:3], expected(slice(0, 3), 0, 45), atol=2e-5)
    assert (made[1] == QUERIES[3:5]).all()
    np.testing.assert_allclose(made[2] - QUERIES[5:6], expected(slice(5, 6), 0, 33), atol=2e-5)
    assert (look(looking, [2], [[-1]], [0])[0] == QUERIES[:2]).all()
    rows = np.arange(2)
    assert (looking.run(rows, rows, [0, 2], [[-1]], rows) == QUERIES[:2]).all(), "without any tables"
    with pytest.raises(ValueError, match="all of it is optional"):
        looking.cross_attend(2, 1, 0, HEADS, 0, 0.2)
    with pytest.raises(ValueError, match="within optional operations"):
        looking.clear_without_text(2)


def test_a_text_of_the_same_step_is_seen_where_that_is_recorded() -> None:
    """Two sequences share a block, and one sees the other's positions too."""
    kv = kernels.KVPool(layers=1, blocks=2, kv_heads=HEADS, head_dim=DIM, precision="float32")
    program = kernels.Program(max_tokens=60, max_sequences=2, max_logit_rows=60, kv=kv)
    pair, out, picked = program.buffer(2 * WIDTH), program.buffer(WIDTH), program.buffer(WIDTH)
    program.embed(pair, kernels.pack(TABLE, "float32"))
    program.write_kv(pair, 0, WIDTH, 0)
    program.cross_attend(out, pair, 0, HEADS, 0, 0.2, of_step=True)
    program.select_rows(picked, out)
    program.logits(picked)
    rows, tables = np.arange(50), [[1, 0], [1, 0]]
    made = program.run(rows, rows, [0, 20, 50], tables, rows, cross_tables=tables, cross_lengths=[50, 20])
    queries, keys, values = (TABLE[:50, at : at + WIDTH].reshape(-1, HEADS, DIM) for at in (0, 0, WIDTH))
    for part, seen in ((slice(0, 20), 50), (slice(20, 50), 20)):
        found = reference.attend(queries[part], keys[:seen], values[:seen], 0, 0.2, causal=False)
        np.testing.assert_allclose(made[part], found, atol=2e-5)
