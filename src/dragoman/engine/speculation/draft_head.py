"""Drafts by a head: a layer that reads the hidden states of the model that is served, and guesses what follows.

For each position that the model has computed, it reads the hidden state and the token that came next, in blocks of its
own, and says which token comes after that one. Further guesses are made of its own hidden states. Of a position that
was not computed, as its keys and values were in the prefix cache, there is no hidden state: the head begins after it.
Positions are counted from where it begins, which rotations do not feel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine.arrays import Float32, Int32
from dragoman.engine.sequence import Sequence, Status
from dragoman.engine.speculation.draft_gain import Acceptance
from dragoman.engine.speculation.draft_model import DraftModel, DraftRunner
from dragoman.engine.speculation.draft_texts import Ask, DraftText, DraftTexts
from dragoman.engine.speculation.drafter import DraftSource
from dragoman.models.batch import Batch


class HeadRunner(DraftRunner, Protocol):
    """A head, as ``models.draft_head.DraftHead``: the given embeddings of its batch are hidden states.

    Attributes:
        vocab_size: tokens of the model. target_ids: those that it guesses among; None: all.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def target_ids(self) -> Int32 | None: ...
    def hidden(self, rows: int) -> Float32:
        """Return what the first rows of the last run's logits give to the next guess, ``[rows, width]``."""


class HeadText(DraftText):
    """A sequence as the head knows it.

    Attributes:
        ids: the tokens after the positions that it can read, the first of which is ``start``.
        hidden: the hidden states of these positions, without those of the first ``dropped``, which were read.
        fed: what the head itself has said last, for the next guess.
    """

    source = DraftSource.HEADS

    def __init__(self, width: int, hash_seed: bytes, of_all: Acceptance) -> None:
        """``width``: blocks of the longest text."""
        super().__init__(1, width, hash_seed, of_all)
        self.start = self.dropped = 0
        self.hidden: list[Float32] = []
        self.fed: Float32 | None = None
        self.is_too_long = False

    def add(self, first: int, token_ids: list[int], rows: Float32, most: int) -> None:
        """Learn the hidden states of positions from ``first`` on, and the token after each. Of a text of more than
        ``most`` positions nothing is kept."""
        end = self.start + len(self.ids)
        if not self.ids or first > end:
            self.forget()
            self.start = end = first
        known = end - first
        if known >= len(token_ids) or self.is_too_long:
            return
        if len(self.ids) + len(token_ids) - known > most:
            self.forget()
            self.is_too_long = True
            return
        self.ids += token_ids[known:]
        self.hidden += list(rows[known:].copy())

    def follow(self, token_ids: list[int], vocabulary: DraftVocabulary) -> None:
        """As ``DraftText``. Guesses are read again, with the hidden states of the model."""
        self.guessed = []
        if self.start + len(self.ids) != len(token_ids) - 1:
            self.forget()
        self.read = min(self.read, max(0, len(self.ids) - 1))
        done = self.read - self.dropped
        del self.hidden[:done]
        self.dropped += done

    def inputs(self, count: int) -> list[Float32]:
        """Return the hidden states for the next tokens that are read or guessed."""
        if self.guessed or self.read == len(self.ids):
            assert self.fed is not None
            return [self.fed]
        at = self.read - self.dropped
        return self.hidden[at : at + count]

    def forget(self) -> None:
        """Begin again with the next position that is computed."""
        self.ids, self.hidden, self.guessed = [], [], []
        self.read = self.dropped = 0


class HeadTexts(DraftTexts):
    """Keeps texts as a head knows them: none of a sequence that has ended."""

    def begin(self, sequence: Sequence, vocabulary: DraftVocabulary) -> HeadText:
        """Return the text of a new sequence, an empty one."""
        return self._empty(sequence)

    def end(self, sequence: Sequence) -> None:
        """Let a sequence go."""
        text = self.of_sequences.pop(sequence, None)
        if text is not None:
            self.release(text)

    def release(self, text: DraftText) -> None:
        """Give back the blocks of a text, and forget its hidden states."""
        super().release(text)
        if isinstance(text, HeadText):
            text.forget()

    def text_of(self, sequence: Sequence) -> HeadText:
        """Return the text of a sequence, an empty one if it has none yet."""
        text = self.of_sequences.get(sequence)
        if text is None:
            text = self.of_sequences[sequence] = self._empty(sequence)
        assert isinstance(text, HeadText)
        return text

    def forget_some(self) -> None:
        """Keep no more hidden states than one whole context has: the texts that were drafted for longest ago lose
        theirs."""
        texts = [text for text in self.of_sequences.values() if isinstance(text, HeadText)]
        held = sum(len(text.hidden) for text in texts)
        for text in texts:
            if held <= self._max_context:
                break
            held -= len(text.hidden)
            text.forget()

    def _empty(self, sequence: Sequence) -> HeadText:
        return HeadText(self.blocks.width, sequence.hash_seed, self._acceptance)


class HeadDrafts(DraftModel):
    """Makes the drafts of all sequences of a step with a head. No more than one whole context of hidden states is kept
    for later."""

    least_guesses = 1
    texts: HeadTexts

    def __init__(self, head: HeadRunner) -> None:
        super().__init__(head, HeadTexts)
        self.vocabulary = DraftVocabulary(head.vocab_size)
        self._head = head

    def note(self, sequences: list[Sequence | None], batch: Batch, hidden: Float32) -> None:
        """Learn the hidden states of a step's rows. ``sequences``: those of the batch; None: it is not drafted for."""
        starts = batch.row_starts.tolist()
        for sequence, begin, end in zip(sequences, starts, starts[1:], strict=False):
            if sequence is None or sequence.status is not Status.RUNNING:
                continue
            first = int(batch.positions[begin])
            count = min(end - begin, len(sequence.token_ids) - 1 - first)  # the others are of a draft's wrong tokens
            text = self.texts.text_of(sequence)
            if count > 0:
                following = sequence.token_ids[first + 1 : first + 1 + count]
                text.add(first, following, hidden[begin : begin + count], self._head.max_context)
        self.texts.forget_some()

    def _trial(self, rows: int) -> Batch:
        hidden = np.ones((rows, self._head.width), np.float32)
        return super()._trial(rows)._replace(embedding_rows=np.arange(rows, dtype=np.int32), embedding_values=hidden)

    def _draw(self, logits: Float32, asks: list[Ask], place: int) -> list[int]:
        """As of ``DraftModel``; where the head guesses among some tokens only, logits and draws are in their order."""
        drawn, ids = super()._draw(logits, asks, place), self._head.target_ids
        return drawn if ids is None else [int(ids[each]) if each >= 0 else each for each in drawn]

    def _run(
        self, parts: list[tuple[DraftText, list[int]]], logits: int, meanwhile: Callable[[], None] | None = None
    ) -> Float32:
        batch, given = self._batch(parts, logits), list[Float32]()
        texts = [text for text, _ in parts if isinstance(text, HeadText)]
        for text, (_, ids) in zip(texts, parts, strict=True):
            given += text.inputs(len(ids))
        rows = np.arange(len(given), dtype=np.int32)
        found = self._head.run(batch._replace(embedding_rows=rows, embedding_values=np.stack(given)), meanwhile)
        for text, row in zip(texts, self._head.hidden(logits).copy(), strict=False):
            text.fed = row
        return found
