"""A program run in parts computes what it computes at once; rows that see ahead see what they are told;
buffers can be read after a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman import kernels
from dragoman.kernels.reference import attention as reference
from dragoman.kernels.reference import transform
from dragoman.kernels.reference.linear import from_bfloat16, to_bfloat16

ROWS, WINDOW = 70, 50
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 12


def one(count: int, first: int = 0, **changes: Any) -> dict[str, Any]:
    """The batch of so many rows of one sequence, from a position on."""
    batch: dict[str, Any] = {
        "token_ids": np.zeros(count, np.int32),
        "positions": np.arange(first, first + count),
        "row_starts": [0, count],
        "block_tables": [[5, 2, 7]],
        "logit_rows": np.arange(count),
        "embedding_rows": np.arange(count),
    }
    return batch | changes


def random_rows(count: int = ROWS) -> Any:
    return np.random.default_rng(5).normal(size=(count, (HEADS + 2 * KV_HEADS) * HEAD_DIM)).astype(np.float32)


def _attention(window: int, both_ways: bool = True, own: bool = False) -> kernels.Program:
    """A program whose result is the attention of its rows, which are queries, keys and values. ``own``: in int4, with
    own blocks in bfloat16."""
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    kept = {"precision": "int4", "own_blocks": 8} if own else {"precision": "float32"}
    kv = kernels.KVPool(layers=1, blocks=8, kv_heads=KV_HEADS, head_dim=HEAD_DIM, **kept)  # type: ignore[arg-type]
    p = kernels.Program(max_tokens=256, max_sequences=2, max_logit_rows=256, kv=kv)
    x, mixed, wanted = p.buffer(width), p.buffer(HEADS * HEAD_DIM), p.buffer(HEADS * HEAD_DIM)
    p.embed(x, kernels.pack(np.zeros((1, width), np.float32), "float32"))
    p.write_kv(x, HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM, 0)
    p.attend(mixed, x, 0, HEADS, 0, HEAD_DIM**-0.5, window=window, both_ways=both_ways)
    p.select_rows(wanted, mixed)
    p.logits(wanted)
    return p


def test_parts_one_after_the_other_are_the_whole() -> None:
    whole = _attention(0).run(**one(50, embedding_values=random_rows(50))).copy()
    program = _attention(0)
    count = program.operation_count
    for size in (1, 2, count):
        result = None
        for first in range(0, count, size):
            # What the first operation takes, later ones have in their buffers.
            values = random_rows(50) if first == 0 else np.zeros_like(random_rows(50))
            operations = first, min(first + size, count)
            result = program.run(**one(50, embedding_values=values), operations=operations)
        np.testing.assert_array_equal(result, whole)


@pytest.mark.parametrize("operations", [(-1, 2), (3, 2), (0, 10_000)])
def test_parts_that_are_none_are_refused(operations: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="the program has"):
        _attention(0).run(**one(3, embedding_values=random_rows(3)), operations=operations)


@pytest.mark.parametrize("window", [0, WINDOW])
@pytest.mark.parametrize("chunks", [(ROWS,), (41, 29), (3, 38, 29)])
@pytest.mark.parametrize("own", [False, True])
def test_rows_see_up_to_the_end_they_are_given(window: int, chunks: tuple[int, ...], own: bool) -> None:
    """As the tokens of an image: 5 to 41 see each other both ways, the others what is before them. In int4 they see all
    from their own block on in bfloat16, also what is behind it."""
    rows = random_rows()
    ends = np.arange(1, ROWS + 1, dtype=np.int32)
    if chunks[0] != 3:
        ends[5:41] = 41
    ends[50:60] = 60
    q, k, v = (
        part.reshape(ROWS, -1, HEAD_DIM)
        for part in np.split(rows, [HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM], axis=1)
    )
    near = far = k, v
    if own:
        near = from_bfloat16(to_bfloat16(k)), from_bfloat16(to_bfloat16(v))
        far = reference.int4_keys(k), reference.int4_values(v)
    expected = []
    for r, end in enumerate(ends):
        begin, block = max(0, r - window + 1) if window else 0, r // 32 * 32
        seen = [np.concatenate([b[:block], a[block:]])[begin:end] for a, b in zip(near, far, strict=True)]
        expected.append(reference.attend(q[r : r + 1], *seen, r - begin, HEAD_DIM**-0.5, causal=False))
    program, found, first = _attention(window, own=own), [], 0
    for count in chunks:
        batch = one(count, first, embedding_values=rows[first : first + count])
        if own:
            batch["block_tables"] = [batch["block_tables"], [[1, 6, 3]]]
        found.append(program.run(**batch, seen_ends=ends[first : first + count]).copy())
        first += count
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), atol=1e-2 if own else 1e-5)


def test_ends_do_not_hold_where_a_layer_sees_one_way() -> None:
    batch = one(50, embedding_values=random_rows(50))
    expected = _attention(0).run(**batch).copy()
    ends = np.full(50, 50)
    np.testing.assert_array_equal(_attention(0, both_ways=False).run(**batch, seen_ends=ends), expected)
    assert np.abs(_attention(0).run(**batch, seen_ends=ends) - expected).max() > 0.01


@pytest.mark.parametrize("ends", [[0, 2, 3], [1, 2, 4], [3, 2, 3], [1, 2]])
def test_ends_that_cannot_be_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="seen_ends"):
        _attention(0).run(**one(3, embedding_values=random_rows(3)), seen_ends=ends)


def _rotation(axes: list[int] | None, interleaved: bool) -> tuple[kernels.Program, Any, Any]:
    """A program that rotates its rows as two heads, and its tables."""
    angles = np.arange(40)[:, None] * 10.0 ** -(np.arange(HEAD_DIM // 2) / 3)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    kv = kernels.KVPool(layers=1, blocks=8, kv_heads=1, head_dim=HEAD_DIM, precision="float32")
    p = kernels.Program(max_tokens=64, max_sequences=1, max_logit_rows=64, kv=kv)
    x, wanted = p.buffer(2 * HEAD_DIM), p.buffer(2 * HEAD_DIM)
    p.embed(x, kernels.pack(np.zeros((1, 2 * HEAD_DIM), np.float32), "float32"))
    p.rotate(x, 0, 2, HEAD_DIM, cos, sin, interleaved, axes)
    p.select_rows(wanted, x)
    p.logits(wanted)
    return p, cos, sin


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_are_rotated_by_the_axes_they_have(interleaved: bool) -> None:
    axes = [0, 2, 1, 1, 2, 0]
    places = np.random.default_rng(3).integers(0, 40, (3, 30)).astype(np.int32)
    rows = random_rows(30)[:, : 2 * HEAD_DIM]
    program, cos, sin = _rotation(axes, interleaved)
    batch = one(30, embedding_values=rows)
    found = program.run(**batch, rotary_positions=places).copy()
    # A table for each row and pair: pair i of row r is at the row that its axis says.
    chosen_cos = np.stack([cos[places[axis], i] for i, axis in enumerate(axes)], axis=1)
    chosen_sin = np.stack([sin[places[axis], i] for i, axis in enumerate(axes)], axis=1)
    expected = transform.rotate(rows, 0, 2, HEAD_DIM, chosen_cos, chosen_sin, np.arange(30), interleaved)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # Three equal positions are one, and without any the rows have their own.
    same = program.run(**batch, rotary_positions=np.tile(np.arange(30, dtype=np.int32), (3, 1))).copy()
    np.testing.assert_array_equal(same, program.run(**batch))
    np.testing.assert_array_equal(same, _rotation(None, interleaved)[0].run(**batch, rotary_positions=places))


def test_axes_and_places_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="an axis for each pair"):
        _rotation([0, 1], False)
    with pytest.raises(ValueError, match="an axis is 0, 1 or 2"):
        _rotation([0, 1, 2, 3, 0, 0], False)
    program = _rotation([0] * 6, False)[0]
    for places, message in (([[0], [0]], "three entries"), ([[0], [40], [0]], "rotary position 40 is not")):
        with pytest.raises(ValueError, match=message):
            program.run(**one(1, embedding_values=random_rows(1)[:, : 2 * HEAD_DIM]), rotary_positions=places)


def test_rows_of_buffers_are_read_after_a_run() -> None:
    """Those of tokens and of logits, as the last operation left them; nothing that the run has overwritten."""
    kv = kernels.KVPool(layers=1, blocks=2, kv_heads=1, head_dim=16, precision="float32")
    p = kernels.Program(max_tokens=8, max_sequences=2, max_logit_rows=4, kv=kv)
    table = np.arange(5 * 32, dtype=np.float32).reshape(5, 32)
    x, last, never = p.buffer(32), p.buffer(32), p.buffer(32)
    gone = p.buffer(16)
    over = p.buffer(16, over=gone)
    p.embed(x, kernels.pack(table, "float32"))
    p.copy_columns(gone, x, 0)
    p.copy_columns(over, x, 16)
    p.select_rows(last, x)
    p.logits(last)
    ids = np.array([3, 0, 4], np.int32)
    p.run(ids, np.arange(3), [0, 3], [[0]], [2])
    np.testing.assert_array_equal(p.rows(x, 3), table[ids])
    np.testing.assert_array_equal(p.rows(over, 2), table[ids[:2], 16:])
    np.testing.assert_array_equal(p.rows(last, 1), table[[4]])
    assert p.rows(x, 8).shape == (8, 32)
    for buffer, rows, message in (
        (x, 9, "has no 9 rows"),
        (last, 5, "has no 5 rows"),
        (x, -1, "has no -1 rows"),
        (gone, 1, "read before it is written"),
        (never, 1, "read before it is written"),
        (99, 1, "there is no buffer 99"),
    ):
        with pytest.raises(ValueError, match=message):
            p.rows(buffer, rows)
