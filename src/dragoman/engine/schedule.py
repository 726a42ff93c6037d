"""The schedule of one step: what the scheduler passes to the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dragoman.engine.pooling import PooledText
from dragoman.engine.sequence import Sequence


class Chunk(NamedTuple):
    """``length`` tokens of one sequence, from its first uncomputed one. Logits are needed for its rows from
    ``first_prompt_row`` to ``end_prompt_row`` (prompt log-probabilities) and, where ``is_last``, for its last row."""

    sequence: Sequence
    length: int
    first_prompt_row: int
    end_prompt_row: int
    is_last: bool

    @property
    def logit_rows(self) -> int:
        return self.end_prompt_row - self.first_prompt_row + self.is_last


class Schedule(NamedTuple):
    """One step: sequences that compute one token, and their drafts, and draw the next; prefill chunks; blocks to copy
    before, by group of layers; sequences whose encoder inputs are encoded before, no input twice; states of recurrent
    layers to copy before; chunks of texts that are pooled, with the rows that count in place of rows of logits; and the
    waiting sequence of whose images a part is computed before."""

    decodes: list[Sequence]
    chunks: list[Chunk]
    copies: dict[int, list[tuple[int, int]]]
    encodes: list[Sequence]
    state_copies: list[tuple[int, int]]
    pooled: list[Chunk]
    sees: Sequence | None = None

    @property
    def is_deferrable(self) -> bool:
        """Return whether it is for deferrable requests alone."""
        sequences = [*self.decodes, *(chunk.sequence for chunk in (*self.chunks, *self.pooled))]
        return all(sequence.group.request.deferrable for sequence in sequences)

    def withdraw(self) -> None:
        """Undo what the schedule changed in sequences of a model without states: their rows were not computed."""
        for sequence in self.decodes:
            sequence.draft = []
        for sequence in [*self.decodes, *(chunk.sequence for chunk in self.chunks if chunk.is_last)]:
            sequence.share.counter -= sequence.share.token_cost


def cut_chunks(
    parts: Iterable[tuple[Sequence, int]], budget: int, logit_rows: int, *, whole_texts: bool, room: int
) -> tuple[list[Chunk], list[Chunk]]:
    """Return the chunks of a step: of prompts, and of texts that are pooled.

    ``parts``: sequences, each with its maximum of tokens, at most ``budget`` in all. ``logit_rows``: rows of logits in
    addition to one for each sequence. ``whole_texts``: a text that is pooled is one chunk; only the first text of a
    step may exceed the budget. ``room``: most tokens of the step's chunks, where those of an image have to be in one.
    """
    chunks: list[Chunk] = []
    pooled: list[Chunk] = []
    for sequence, most in _with_whole_images(list(parts), room):
        if sequence.group.pooled is None:
            chunks.append(_prompt_chunk(sequence, most, logit_rows))
            logit_rows -= max(0, chunks[-1].logit_rows - 1)
            continue
        left = budget - sum(chunk.length for chunk in pooled)
        if not (whole_texts and pooled and sequence.remaining > left):
            pooled.append(_pooled_chunk(sequence, sequence.group.pooled, sequence.remaining if whole_texts else most))
    return chunks, pooled


def _with_whole_images(parts: list[tuple[Sequence, int]], room: int) -> list[tuple[Sequence, int]]:
    """Return the parts, none of which ends within tokens that see each other both ways: such tokens are computed in one
    step, and go before the other sequences'. Parts without tokens are left out."""
    if all(sequence.group.images is None for sequence, _ in parts):
        return parts
    lengths = []
    for sequence, most in parts:
        images, start = sequence.group.images, sequence.computed
        length = 0
        if images is not None:
            length = images.whole_end(start, start + min(sequence.remaining, most)) - start
            length = length if length <= room else 0
            room -= length
        lengths.append(length)
    found = []
    for (sequence, most), length in zip(parts, lengths, strict=True):
        if sequence.group.images is None:
            length = min(sequence.remaining, most, room)
            room -= length
        if length:
            found.append((sequence, length))
    return found


def _prompt_chunk(sequence: Sequence, budget: int, logit_rows: int) -> Chunk:
    """Return the next chunk of a prompt: at most ``budget`` tokens, with at most ``logit_rows`` rows of logits in
    addition to one."""
    start = sequence.computed
    end = start + min(sequence.remaining, budget)
    first = last = end
    if sequence.group.wants_prompt_logprobs:
        first = max(start, len(sequence.group.prompt_logprobs) - 1)
        end = max(min(end, first + logit_rows + 1), start + 1)
        first = min(first, end)
        last = max(first, min(end, sequence.prompt_length - 1))
    return Chunk(sequence, end - start, first - start, last - start, end == len(sequence.token_ids))


def _pooled_chunk(sequence: Sequence, pooled: PooledText, budget: int) -> Chunk:
    """Return the next chunk of a text that is pooled: at most ``budget`` tokens, with the rows that count."""
    start = sequence.computed
    end = start + min(sequence.remaining, budget)
    first, last = pooled.wanted(start, end)
    return Chunk(sequence, end - start, first - start, last - start, is_last=False)
