"""Drafts by a smaller model, which runs in the engine's process in front of the steps of the model that is served.

It reads what the sequences are given and draw, in blocks of its own, and guesses the next tokens one after the other,
for all sequences in one batch. Where a token is drawn at random it draws with the same random number and the same
parameters, so that two models that think alike draw alike.

Everything that it keeps can be computed again from the tokens of a sequence: what a preemption, another source's draft
or a restart takes away is read once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from dragoman import kernels
from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine.arrays import Float32
from dragoman.engine.sampling.sampler import DRAW_TOKEN, truncation_columns
from dragoman.engine.sequence import Sequence
from dragoman.engine.settings import LEAST_GUESSES
from dragoman.engine.speculation.draft_blocks import BlockLimits, DraftBlocks
from dragoman.engine.speculation.draft_gain import DraftGain
from dragoman.engine.speculation.draft_texts import Ask, DraftText, DraftTexts
from dragoman.models.batch import Batch, first_rows


class DraftRunner(BlockLimits, Protocol):
    """What drafts are computed with: the limits and blocks of a ``Runner``."""

    @property
    def max_logit_rows(self) -> int: ...
    def run(self, batch: Batch, meanwhile: Callable[[], None] | None = None) -> Float32:
        """As that of a ``Runner``."""


class DraftModel:
    """Makes the drafts of all sequences of a step.

    Attributes:
        least_guesses: tokens that a step must have room for, for each sequence, for a draft to be asked for.
        vocabulary: how tokens of the served model become those of the draft model; None: not known yet, and there are
            no drafts.
        gain: decides whether drafts pay.
        texts: the sequences as the draft model knows them, and their blocks.
        has_computed: the last call of ``draft`` has computed something.
    """

    least_guesses = LEAST_GUESSES

    def __init__(self, runner: DraftRunner, keep: type[DraftTexts] = DraftTexts) -> None:
        """``runner``: a decoder without states of recurrent layers and without an encoder. ``keep``: the class of
        ``texts``."""
        self.vocabulary: DraftVocabulary | None = None
        self.gain = DraftGain()
        self.texts = keep(DraftBlocks(runner), runner.max_context, self.gain.acceptance)
        self.has_computed = False
        self._runner = runner

    def draft(
        self, asked: list[tuple[Sequence, int]], running: int, meanwhile: Callable[[], None] | None = None
    ) -> list[tuple[Sequence, DraftText, list[int]]]:
        """Return drafts for sequences that want one of at most so many tokens, where they pay.

        ``running``: sequences of the step. ``meanwhile`` is called once, if anything is computed.
        """
        self.has_computed = False
        if self.vocabulary is None or not asked or self.gain.skip_step():
            return []
        asks = self.texts.follow(asked, self.vocabulary)
        acceptances = [ask.text.acceptance for ask in asks]
        length, gain = self.gain.length(acceptances, max((ask.most for ask in asks), default=0), running)
        asks = [ask for ask in asks if self._pays(ask, gain, running, len(acceptances))]
        if not length or not asks:
            self.gain.pause([ask.text.acceptance for ask in asks])
            return []
        self.gain.end_pause()
        self.has_computed = True
        return self._guess(asks, length, meanwhile)

    def end(self, sequence: Sequence) -> None:
        """Let a sequence go, which has ended."""
        self.texts.end(sequence)

    def has_room(self, rows: int) -> bool:
        """Return whether a step of so many rows can be tried without taking anything from any text."""
        runner = self._runner
        most = min(runner.max_tokens, runner.max_logit_rows, runner.block_size, runner.max_context)
        return rows <= most and all(self.texts.blocks.free)

    def try_step(self, rows: int) -> Float32:
        """Compute the first so many tokens of a text that nobody has; return logits, ``[rows, vocabulary]``."""
        return self._runner.run(self._trial(rows))

    def _trial(self, rows: int) -> Batch:
        return first_rows([free[-1] for free in self.texts.blocks.free], rows)

    def _pays(self, ask: Ask, gain: float, running: int, drafting: int) -> bool:
        left = ask.sequence.max_length - len(ask.sequence.token_ids)
        return self.gain.pays(ask.text.unread, left, gain, running, drafting)

    def _guess(
        self, asks: list[Ask], length: int, meanwhile: Callable[[], None] | None
    ) -> list[tuple[Sequence, DraftText, list[int]]]:
        """Read what is unread, a part of it at most, and guess up to ``length`` tokens for those who have been read."""
        part = self.gain.part(self._runner.max_tokens)
        parts: list[tuple[DraftText, list[int]]] = []
        ready: list[Ask] = []
        for ask in sorted(asks, key=lambda ask: ask.text.unread):
            text = ask.text
            unread = text.ids[text.read : text.read + part]
            if not unread:
                break
            part -= len(unread)
            parts.append((text, unread))
            if text.read + len(unread) == len(text.ids):
                ready.append(ask)
        started, rows = time.perf_counter(), sum(len(unread) for _, unread in parts)
        logits = self._run(parts, len(ready), meanwhile)
        for text, unread in parts:
            text.read += len(unread)
        if not ready:
            self.gain.draft_costs.note(rows, time.perf_counter() - started)
            return []
        guesses: dict[int, list[int]] = {id(ask.text): [] for ask in ready}
        drafts = {id(ask.text): list[int]() for ask in ready}
        active = ready
        for place in range(length):
            drawn = self._draw(logits, active, place)
            self.gain.draft_costs.note(rows, time.perf_counter() - started)  # with what comes after the products
            going = []
            for ask, token_id in zip(active, drawn, strict=True):
                guess = self._as_target(token_id)
                if guess < 0:
                    continue
                drafts[id(ask.text)].append(guess)
                if place + 1 < min(length, ask.most):
                    guesses[id(ask.text)].append(token_id)
                    going.append(ask)
            active = going
            if not active:
                break
            started, rows = time.perf_counter(), len(active)
            logits = self._run([(ask.text, guesses[id(ask.text)][-1:]) for ask in active], len(active))
            for ask in active:
                ask.text.guessed.append(guesses[id(ask.text)][-1])
        return [(ask.sequence, ask.text, drafts[id(ask.text)]) for ask in ready if drafts[id(ask.text)]]

    def _as_target(self, token_id: int) -> int:
        """Return a token of the draft model in the served model's vocabulary; -1: there is none."""
        assert self.vocabulary is not None
        if token_id < 0 or token_id >= self.vocabulary.draft_size:
            return -1
        return token_id if self.vocabulary.to_target is None else self.vocabulary.to_target[token_id]

    def _draw(self, logits: Float32, asks: list[Ask], place: int) -> list[int]:
        """Draw the token at ``place`` of each draft as the served model's would be drawn, without what depends on more
        than the logits: penalties, grammars, mirostat."""
        sampling = [ask.sequence.sampling for ask in asks]
        seeds = np.array([ask.sequence.seed for ask in asks], np.uint64)
        positions = np.array([ask.sequence.num_generated + place for ask in asks], np.uint64)
        token_ids = np.empty(len(asks), np.int32)
        kernels.sample(
            logits,
            np.array([params.temperature for params in sampling], np.float32),
            kernels.philox_uniform(seeds, positions, DRAW_TOKEN),
            token_ids,
            truncation_columns(sampling),
        )
        drawn: list[int] = token_ids.tolist()
        return drawn

    def _run(
        self, parts: list[tuple[DraftText, list[int]]], logits: int, meanwhile: Callable[[], None] | None = None
    ) -> Float32:
        """Compute the next tokens of some texts; return the logits after the last of each of the first ``logits``."""
        return self._runner.run(self._batch(parts, logits), meanwhile)

    def _batch(self, parts: list[tuple[DraftText, list[int]]], logits: int) -> Batch:
        """Return the batch of the next tokens of some texts."""
        token_ids: list[int] = []
        positions: list[int] = []
        starts = [0]
        for text, ids in parts:
            first = text.read + len(text.guessed)
            token_ids += ids
            positions += range(first, first + len(ids))
            starts.append(len(token_ids))
        width = max(positions) // self._runner.block_size + 1
        tables = np.stack([text.table[:, :width] for text, _ in parts], axis=1)
        return Batch(
            np.array(token_ids, np.int32),
            np.array(positions, np.int32),
            np.array(starts, np.int32),
            tables if len(tables) > 1 else tables[0],
            np.array([end - 1 for end in starts[1 : logits + 1]], np.int32),
        )
