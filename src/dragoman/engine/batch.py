"""Building of a step's batch: from sequences to the arrays that a runner takes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dragoman.engine.arrays import Float32, Int32
from dragoman.engine.prompt_inputs import EncoderInput
from dragoman.engine.schedule import Chunk, Schedule
from dragoman.engine.sequence import Sequence
from dragoman.models.batch import Batch


def build_batch(
    schedule: Schedule, tables: Int32, encoder_tables: Int32, *, block_size: int, has_states: bool = False
) -> Batch:
    """Build the batch of a step: decodes first, each followed by its draft, all with logits; then the chunks. Tables
    are indexed by sequence row, those of blocks by group first. ``has_states``: the model has recurrent layers."""
    decodes, chunks = schedule.decodes, schedule.chunks
    token_ids: list[int] = []
    positions: list[int] = []
    row_starts, last = [0], 0
    for sequence in decodes:
        position, draft = sequence.computed, sequence.draft
        token_ids.append(sequence.token_ids[-1])
        positions.append(position)
        if draft:
            token_ids += draft
            positions += range(position + 1, position + 1 + len(draft))
            position += len(draft)
        if position > last:
            last = position
        row_starts.append(len(token_ids))
    rows = [s.row for s in decodes]
    logit_rows = list(range(len(token_ids)))
    for chunk in chunks:
        sequence, first = chunk.sequence, row_starts[-1]
        start, end = sequence.computed, sequence.computed + chunk.length
        token_ids += sequence.token_ids[start:end]
        positions += range(start, end)
        rows.append(sequence.row)
        last = max(last, end - 1)
        row_starts.append(first + chunk.length)
        logit_rows += range(first + chunk.first_prompt_row, first + chunk.end_prompt_row)
        if chunk.is_last:
            logit_rows.append(row_starts[-1] - 1)
    width = last // block_size + 1
    sequences = decodes + [chunk.sequence for chunk in chunks]
    seen_ends, rotary = _seen(sequences, row_starts, positions)
    return Batch(
        np.array(token_ids, np.int32),
        np.array(positions, np.int32),
        np.array(row_starts, np.int32),
        tables[:, rows, :width] if len(tables) > 1 else tables[0][rows, :width],
        np.array(logit_rows, np.int32),
        *_embeddings(sequences, row_starts),
        _adapters(sequences),
        *(_views(sequences, rows, encoder_tables, block_size) or _encoder(sequences, rows, encoder_tables)),
        *(_states(schedule, sequences) if has_states else ()),
    )._replace(seen_ends=seen_ends, rotary_positions=rotary)


def second_text_rows(chunks: list[Chunk]) -> Int32:
    """Return the rows of a batch of these chunks alone that belong to the second of two texts."""
    rows: list[int] = []
    first = 0
    for chunk in chunks:
        pooling, start = chunk.sequence.group.request.pooling, chunk.sequence.computed
        if pooling is not None and pooling.segment_start:
            rows += range(first + max(0, pooling.segment_start - start), first + chunk.length)
        first += chunk.length
    return np.array(rows, np.int32)


def _states(schedule: Schedule, sequences: list[Sequence]) -> tuple[Int32, Int32]:
    """Return the slot of each sequence's state, and the slots of the states after the rows."""
    after: list[int] = []
    for sequence in schedule.decodes:
        after += sequence.draft_slots or (sequence.state_slot,)
    for chunk in schedule.chunks:
        sequence, first = chunk.sequence, len(after)
        after += [-1] * (chunk.length - 1)
        after.append(sequence.state_slot)
        for position, slot in sequence.saves.items():
            after[first + position - sequence.computed - 1] = slot
    return np.array([sequence.state_slot for sequence in sequences], np.int32), np.array(after, np.int32)


def build_encoder_batch(sequences: list[Sequence], encoder_tables: Int32) -> Batch:
    """Build a batch of the encoder inputs of some sequences, each whole. No logits are needed."""
    inputs = [each.token_ids for each in _inputs(sequences)]
    lengths = [len(ids) for ids in inputs]
    row_starts = np.cumsum([0, *lengths], dtype=np.int32)
    width = max(len(sequence.encoder_blocks) for sequence in sequences)
    return Batch(
        np.concatenate([np.array(ids, np.int32) for ids in inputs]),
        np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        row_starts,
        encoder_tables[[s.row for s in sequences], :width],
        np.empty(0, np.int32),
        *_given(zip(sequences, [0] * len(lengths), lengths, row_starts.tolist(), strict=False)),
        _adapters(sequences),
    )


def _adapters(sequences: list[Sequence]) -> Int32 | None:
    if all(sequence.group.adapter is None for sequence in sequences):
        return None
    return np.array([sequence.adapter_slot for sequence in sequences], np.int32)


def _encoder(sequences: list[Sequence], rows: list[int], tables: Int32) -> tuple[Int32 | None, Int32 | None]:
    """Return the block tables and lengths of the sequences' encoder inputs; None where there are none."""
    lengths = [len(each) for each in _inputs(sequences)]
    if not lengths:
        return None, None
    width = max(len(sequence.encoder_blocks) for sequence in sequences)
    return tables[rows, :width], np.array(lengths, np.int32)


def _views(sequences: list[Sequence], rows: list[int], tables: Int32, block_size: int) -> tuple[Int32, Int32] | None:
    """Return the block tables and lengths of the images that the sequences' rows see, 0 for those that see none; None
    where all see none, or no layer looks at images. All rows of a sequence in a step see the same."""
    found: list[tuple[int, int, int]] = []
    lengths = np.zeros(len(sequences), np.int32)
    for index, sequence in enumerate(sequences):
        images = sequence.group.images
        view = (
            None if images is None or images.cross_attention is None else images.cross_attention.view(sequence.computed)
        )
        if view is not None:
            lengths[index] = view.length
            found.append((index, sequence.run_blocks[view.run], view.length))
    if not found:
        return None
    counts = [-(-length // block_size) for _, _, length in found]
    views = np.full((len(sequences), max(counts)), -1, np.int32)
    for (index, first, _), count in zip(found, counts, strict=True):
        views[index, :count] = tables[rows[index], first : first + count]
    return views, lengths


def _inputs(sequences: list[Sequence]) -> list[EncoderInput]:
    return [each.group.encoder for each in sequences if each.group.encoder is not None]


def _seen(sequences: list[Sequence], row_starts: list[int], positions: list[int]) -> tuple[Int32 | None, Int32 | None]:
    """Return where what each row sees ends, and the positions that it is rotated by; None where no image has any say
    in it."""
    ends = rotary = None
    for index, sequence in enumerate(sequences):
        images, first, end = sequence.group.images, row_starts[index], row_starts[index + 1]
        if images is None:
            continue
        own = images.seen_ends(sequence.computed, end - first)
        if own is not None:
            ends = np.array(positions, np.int32) + np.int32(1) if ends is None else ends
            ends[first:end] = own
        if images.rotates:
            rotary = np.tile(np.array(positions, np.int32), (3, 1)) if rotary is None else rotary
            rotary[:, first:end] = images.rotary_positions(sequence.computed, end - first)
    return ends, rotary


def _embeddings(sequences: list[Sequence], row_starts: list[int]) -> tuple[Int32 | None, Float32 | None]:
    """Return the rows of prompt tokens with given embeddings. The last token of a prompt may be among the decodes."""
    return _given(
        (sequence, sequence.computed, row_starts[i + 1] - row_starts[i], row_starts[i])
        for i, sequence in enumerate(sequences)
        if (sequence.group.embeddings is not None or sequence.group.images is not None)
        and sequence.group.encoder is None
        and sequence.computed < sequence.prompt_length
    )


def _given(parts: Iterable[tuple[Sequence, int, int, int]]) -> tuple[Int32 | None, Float32 | None]:
    """Return the given embeddings of ``length`` prompt tokens from ``start``, the first of them in row ``row``, for
    each ``(sequence, start, length, row)``."""
    rows: list[Int32] = []
    values: list[Float32] = []
    for sequence, start, length, row in parts:
        given, images = sequence.group.embeddings, sequence.group.images
        if given is not None:
            places, vectors = given.between(start, start + length)
            rows.append(places + np.int32(row))
            values.append(vectors)
        if images is not None:
            for places, vectors in images.values(sequence.image_values, start, start + length):
                rows.append(places + np.int32(row - start))
                values.append(vectors)
    if not rows:
        return None, None
    # An image's may be wider: with what is added after the decoder's first layers.
    width = max(each.shape[1] for each in values)
    padded = [each if each.shape[1] == width else np.pad(each, ((0, 0), (0, width - each.shape[1]))) for each in values]
    return np.concatenate(rows), np.concatenate(padded)
