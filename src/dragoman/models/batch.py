"""Batch: one step's work as the arrays that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]


class PoolSize(NamedTuple):
    """The blocks of one group of layers.

    ``window``: maximum positions a token sees in these layers, its own included; 0: all before it are seen.
    ``own``: they are own blocks, of what running sequences write. Nobody else reads them: they have no names.
    """

    window: int
    blocks: int
    own: bool = False


class Batch(NamedTuple):
    """A flat batch, for the decoder or for the encoder: the arrays of ``kernels.Program.run``, in its order.

    Sequence i owns rows ``row_starts[i] : row_starts[i + 1]``, at consecutive positions.

    Decode rows and prefill chunks follow each other without padding.

    Attributes:
        token_ids: int32 [T]. positions: int32 [T].
        row_starts: int32 [S + 1], first 0, last T.
        block_tables: int32 [G, S, M]; position p of sequence i is in block ``block_tables[g, i, p // block_size]`` of
            group g of layers; unused entries are -1. Of one group also [S, M].
        logit_rows: int32 [R], ascending: the rows whose logits are needed. May be empty.
        embedding_rows, embedding_values: int32 [E] and float32 [E, width]: rows with given embeddings, if any.
            Of a decoder whose vision has stacked embeddings, those of images are ``[E, (1 + stacked) · width]``; where
            a batch has these and others, the others' further numbers are 0.
        adapters: int32 [S]: the slot of each sequence's adapter, -1 without one; None where no sequence has one.
        encoder_tables, encoder_lengths: int32 [S, N] and [S]: the blocks of each sequence's encoder input, and its
            tokens; None where the model has no encoder.
        state_slots: int32 [S]: the slot with each sequence's state of recurrent layers; state_rows: int32 [T]: the slot
            that gets the state after each row, -1 for none; None where the model has no such layers.
        seen_ends: int32 [T]: of each row the position before which it sees all, ascending; None: that after its own.
        rotary_positions: int32 [3, T]: of each row the positions of time, row and column that it is rotated by; None:
            its own, or the decoder has no such axes.
    """

    token_ids: Int32s
    positions: Int32s
    row_starts: Int32s
    block_tables: Int32s
    logit_rows: Int32s
    embedding_rows: Int32s | None = None
    embedding_values: Float32s | None = None
    adapters: Int32s | None = None
    encoder_tables: Int32s | None = None
    encoder_lengths: Int32s | None = None
    state_slots: Int32s | None = None
    state_rows: Int32s | None = None
    seen_ends: Int32s | None = None
    rotary_positions: Int32s | None = None


def first_rows(blocks: Sequence[int], count: int) -> Batch:
    """Return the batch of the first so many tokens of one text, with the logits of each. ``blocks``: the one of each
    group of layers that has them."""
    rows = np.arange(count, dtype=np.int32)
    starts = np.array([0, count], np.int32)
    return Batch(np.zeros(count, np.int32), rows, starts, np.array(blocks, np.int32).reshape(-1, 1, 1), rows)


def rows_of_slot(count: int, slot: int) -> Int32s:
    """Return ``state_rows`` of one sequence of so many rows, whose last state goes to a slot."""
    rows = np.full(count, -1, np.int32)
    rows[-1:] = slot
    return rows


def tables_of_one(pools: Sequence[PoolSize], blocks: int) -> Int32s:
    """Return ``block_tables`` of one sequence of so many blocks that has all pools to itself. Where a pool has fewer,
    because its layers have a window, the sequence uses them again."""
    return np.stack([np.arange(blocks, dtype=np.int32)[None] % np.int32(pool.blocks) for pool in pools])
