"""Drafts by a smaller model, which runs in the engine's process in front of the steps of the model that is served.

It reads what the sequences are given and draw, in blocks of its own, and guesses the next tokens one after the other,
for all sequences in one batch. Where a token is drawn at random it draws with the same random number and the same
parameters, so that two models that think alike draw alike.

Everything that it keeps can be computed again from the tokens of a sequence: what a preemption, another source's draft
or a restart takes away is read once more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple, Protocol

import numpy as np

from dragoman import kernels
from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine.arrays import Float32, Int32
from dragoman.engine.sampling.sampler import DRAW_TOKEN, truncation_columns
from dragoman.engine.sequence import Sequence
from dragoman.engine.settings import LEAST_GUESSES
from dragoman.engine.speculation.drafter import FIRST_LENGTH, DraftSource
from dragoman.engine.speculation.step_costs import StepCosts, best_length
from dragoman.models.batch import Batch, PoolSize, first_rows

MOST_TEXTS = 64
"""Texts that are kept: of sequences that are drafted for, and of those that have ended, for prompts that go on."""
LEAST_SHARED = 64
"""Tokens from which on the beginning of a text that has ended is used again."""
ASSUMED_ACCEPTANCE = 0.6
ASSUMPTION_WEIGHT = 4.0
"""Tokens that count as much as that assumption."""
ACCEPTANCE_DECAY = 0.98
LONGEST_PAUSE = 64
"""Most steps without a draft after drafts have not paid."""
LEAST_PART = 64
"""Least tokens of texts that are read in front of one step."""


class Acceptance:
    """The probability that a guessed token is right where those before it were, as the newest tokens have it."""

    def __init__(self) -> None:
        self._accepted = self._tried = 0.0

    def note(self, drafted: int, accepted: int) -> None:
        """Learn from a draft of which so many tokens were accepted; the first other one was tried too."""
        for is_right in [1.0] * accepted + [0.0] * (accepted < drafted):
            self._accepted = ACCEPTANCE_DECAY * self._accepted + is_right
            self._tried = ACCEPTANCE_DECAY * self._tried + 1

    def forget(self) -> None:
        """Let what was seen count half, so that drafts that have not paid are tried again."""
        self._accepted /= 2
        self._tried /= 2

    @property
    def value(self) -> float:
        return self.given(ASSUMED_ACCEPTANCE)

    def given(self, assumed: float) -> float:
        """Return the probability, with another one assumed until enough tokens were seen."""
        return (self._accepted + ASSUMPTION_WEIGHT * assumed) / (self._tried + ASSUMPTION_WEIGHT)


class DraftText:
    """A sequence as the draft model knows it, and the owner of its drafts.

    Attributes:
        ids: its tokens in the draft model's vocabulary.
        read: leading ones whose keys and values are in the blocks.
        guessed: tokens after those, whose keys and values are in the blocks too if they turn out to be right.
        table: ``[groups, blocks of the longest text]`` ids of the draft model's blocks. owned: by group.
    """

    source: DraftSource = DraftSource.MODEL

    def __init__(self, groups: int, width: int, hash_seed: bytes, of_all: Acceptance) -> None:
        """``of_all``: of the drafts of all texts, which learns from this one's too."""
        self.hash_seed = hash_seed
        self.ids: list[int] = []
        self.read = 0
        self.guessed: list[int] = []
        self.table: Int32 = np.full((groups, width), -1, np.int32)
        self.owned: list[list[int]] = [[] for _ in range(groups)]
        self.acceptance = Acceptance()
        self._of_all = of_all
        self._seen = 0

    def verified(self, num_tokens: int, drafted: int, accepted: int) -> None:
        """As ``DraftOwner``."""
        self.acceptance.note(drafted, accepted)
        self._of_all.note(drafted, accepted)

    def follow(self, token_ids: list[int], vocabulary: DraftVocabulary) -> None:
        """Learn the tokens that the sequence has now. The newest one is always read again, for what follows it."""
        if vocabulary.to_draft is None:
            self.ids = token_ids
        else:
            for token_id in token_ids[self._seen :]:
                self.ids += vocabulary.to_draft[token_id]
            self._seen = len(token_ids)
        right = 0
        for guess, token_id in zip(self.guessed, self.ids[self.read : self.read + len(self.guessed)], strict=False):
            if guess != token_id:
                break
            right += 1
        self.guessed = []
        self.read = min(self.read + right, max(0, len(self.ids) - 1))

    def end(self) -> None:
        """Keep what was read: the sequence has ended."""
        self.ids = self.ids[: self.read]
        self.guessed = []


class Ask(NamedTuple):
    """A sequence that wants a draft of at most so many tokens, and its text."""

    sequence: Sequence
    most: int
    text: DraftText


class DraftRunner(Protocol):
    """What drafts are computed with: the limits and blocks of a ``Runner``."""

    @property
    def block_size(self) -> int: ...
    @property
    def pools(self) -> SequenceOf[PoolSize]: ...
    @property
    def max_context(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
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
        steps: of the served model, without prompts.
        has_computed: the last call of ``draft`` has computed something.
    """

    least_guesses = LEAST_GUESSES

    def __init__(self, runner: DraftRunner) -> None:
        """``runner``: a decoder without states of recurrent layers and without an encoder."""
        self.vocabulary: DraftVocabulary | None = None
        self.steps = StepCosts()
        self.has_computed = False
        self._runner = runner
        self._costs = StepCosts()
        self._acceptance = Acceptance()
        self._pause, self._paused = 1, 0
        size = runner.block_size
        self._width = math.ceil(runner.max_context / size)
        # Layers with a window use a ring of blocks: what a step writes is never what a row of it still sees.
        self._rings = [
            min(self._width, math.ceil((pool.window + runner.max_tokens) / size) + 1) if pool.window else self._width
            for pool in runner.pools
        ]
        self._free = [list(range(pool.blocks - 1, -1, -1)) for pool in runner.pools]
        self._texts: dict[Sequence, DraftText] = {}
        """The least recently used first."""
        self._ended: list[DraftText] = []
        """The oldest first."""

    def draft(
        self, asked: list[tuple[Sequence, int]], running: int, meanwhile: Callable[[], None] | None = None
    ) -> list[tuple[Sequence, DraftText, list[int]]]:
        """Return drafts for sequences that want one of at most so many tokens, where they pay.

        ``running``: sequences of the step. ``meanwhile`` is called once, if anything is computed.
        """
        self.has_computed = False
        if self.vocabulary is None or not asked:
            return []
        if self._paused:
            self._paused -= 1
            return []
        asks = self._known(asked)
        length, gain = self._length(asks, running)
        asks = [ask for ask in asks if self._pays(ask, gain, running, len(asks))]
        if not length or not asks:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._paused = self._pause - 1
            for acceptance in (self._acceptance, *(ask.text.acceptance for ask in asks)):
                acceptance.forget()
            return []
        self._pause, self.has_computed = 1, True
        return self._guess(asks, length, meanwhile)

    def end(self, sequence: Sequence) -> None:
        """Let a sequence go. What was read of it is kept for a while, for prompts that begin alike."""
        text = self._texts.pop(sequence, None)
        if text is None:
            return
        text.end()
        self._ended.append(text)
        while len(self._texts) + len(self._ended) > MOST_TEXTS and self._ended:
            self._release(self._ended.pop(0))

    # What steps cost, before any has run -----------------------------------------------------------------------------

    def has_room(self, rows: int) -> bool:
        """Return whether a step of so many rows can be tried without taking anything from any text."""
        runner = self._runner
        most = min(runner.max_tokens, runner.max_logit_rows, runner.block_size, runner.max_context)
        return rows <= most and all(self._free)

    def try_step(self, rows: int) -> Float32:
        """Compute the first so many tokens of a text that nobody has; return logits, ``[rows, vocabulary]``."""
        return self._runner.run(self._trial(rows))

    def learn_costs(self, model: Mapping[int, float], draft: Mapping[int, float]) -> None:
        """Begin with what steps take that were tried: seconds by their rows."""
        for rows, seconds in model.items():
            self.steps.note(rows, seconds)
        for rows, seconds in draft.items():
            self._costs.note(rows, seconds)

    def _trial(self, rows: int) -> Batch:
        return first_rows([free[-1] for free in self._free], rows)

    # What is worth it ------------------------------------------------------------------------------------------------

    def _length(self, asks: list[Ask], running: int) -> tuple[int, float]:
        """Return how long the drafts of this step are, and how many times as many tokens they give; 0 and 1: they do
        not pay."""
        if not asks:
            return 0, 1.0
        most = max(ask.most for ask in asks)
        if not (self.steps.is_known and self._costs.is_known):
            return min(most, FIRST_LENGTH), 2.0
        assumed = self._acceptance.value
        acceptance = sum(ask.text.acceptance.given(assumed) for ask in asks) / len(asks)
        return best_length(acceptance, most, running, len(asks), self.steps, self._costs.seconds(len(asks)))

    def _pays(self, ask: Ask, gain: float, running: int, drafting: int) -> bool:
        """Return whether what a sequence may still win is more than reading what is not read of it.

        ``gain``: times as many tokens in a second, to which each of ``drafting`` sequences has an equal part.
        """
        unread = len(ask.text.ids) - ask.text.read
        if unread <= LEAST_PART or not (self.steps.is_known and self._costs.is_known):
            return True
        left = ask.sequence.max_length - len(ask.sequence.token_ids)
        saved_s = left * self.steps.seconds(running) * (1 - 1 / gain) / drafting
        return self._costs.seconds(unread) < saved_s

    def _part(self) -> int:
        """Return how many tokens of texts are read in front of one step: it takes no longer than the step itself."""
        most = self._runner.max_tokens
        if not (self.steps.is_known and self._costs.is_known):
            return min(2 * LEAST_PART, most)
        row_s = max(self._costs.seconds(most) - self._costs.seconds(1), 1e-9) / most
        return min(max(LEAST_PART, int(self.steps.seconds(1) / row_s)), most)

    # Texts and their blocks ------------------------------------------------------------------------------------------

    def _known(self, asked: list[tuple[Sequence, int]]) -> list[Ask]:
        """Return the sequences that there is memory for, with their texts."""
        assert self.vocabulary is not None
        asks: list[Ask] = []
        for sequence, most in asked:
            text = self._texts.pop(sequence, None)
            if text is None:
                text = self._begin(sequence)
            self._texts[sequence] = text
            text.follow(sequence.token_ids, self.vocabulary)
            if not text.ids or len(text.ids) + most > self._runner.max_context:
                continue
            asks.append(Ask(sequence, most, text))
        kept = {id(ask.text) for ask in asks}
        return [ask for ask in asks if self._allocate(ask.text, len(ask.text.ids) + ask.most, kept)]

    def _begin(self, sequence: Sequence) -> DraftText:
        """Return the text of a new sequence: one that has ended and begins alike, cut where they differ, or an empty
        one."""
        assert self.vocabulary is not None
        fresh = DraftText(len(self._free), self._width, sequence.hash_seed, self._acceptance)
        fresh.follow(sequence.token_ids, self.vocabulary)
        shared, best = LEAST_SHARED - 1, None
        for text in self._ended:
            if text.hash_seed == sequence.hash_seed:
                common = common_length(text.ids, fresh.ids)
                if common > shared and self._holds(text, common):
                    shared, best = common, text
        if best is not None:
            self._ended.remove(best)
            fresh.table, fresh.owned, fresh.read = best.table, best.owned, shared
        return fresh

    def _holds(self, text: DraftText, tokens: int) -> bool:
        """Return whether its rings still have what a token after so many sees."""
        size = self._runner.block_size
        for pool, ring in zip(self._runner.pools, self._rings, strict=True):
            if pool.window and max(0, tokens - pool.window) // size < math.ceil(text.read / size) - ring + 1:
                return False
        return True

    def _allocate(self, text: DraftText, tokens: int, kept: set[int]) -> bool:
        """Give a text blocks for so many tokens. Returns False where there are none, even without the texts that are
        not ``kept``."""
        blocks = math.ceil(tokens / self._runner.block_size)
        for group, (owned, ring) in enumerate(zip(text.owned, self._rings, strict=True)):
            while len(owned) < min(blocks, ring):
                if not self._free[group] and not self._evict(kept):
                    return False
                if self._free[group]:
                    owned.append(self._free[group].pop())
            filled = int((text.table[group] >= 0).sum())
            for index in range(filled, blocks):
                text.table[group, index] = owned[index % ring]
        return True

    def _evict(self, kept: set[int]) -> bool:
        """Free the blocks of one text. Returns False where there is none."""
        if self._ended:
            self._release(self._ended.pop(0))
            return True
        for sequence, text in self._texts.items():
            if id(text) not in kept and any(text.owned):
                del self._texts[sequence]
                self._release(text)
                return True
        return False

    def _release(self, text: DraftText) -> None:
        for free, owned in zip(self._free, text.owned, strict=True):
            free += owned
            owned.clear()
        text.table.fill(-1)
        text.read, text.guessed = 0, []

    # Guessing --------------------------------------------------------------------------------------------------------

    def _guess(
        self, asks: list[Ask], length: int, meanwhile: Callable[[], None] | None
    ) -> list[tuple[Sequence, DraftText, list[int]]]:
        """Read what is unread, a part of it at most, and guess up to ``length`` tokens for those who have been read."""
        part = self._part()
        parts: list[tuple[DraftText, list[int]]] = []
        ready: list[Ask] = []
        for ask in sorted(asks, key=lambda ask: len(ask.text.ids) - ask.text.read):
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
            self._costs.note(rows, time.perf_counter() - started)
            return []
        guesses: dict[int, list[int]] = {id(ask.text): [] for ask in ready}
        drafts = {id(ask.text): list[int]() for ask in ready}
        active = ready
        for place in range(length):
            drawn = self._draw(logits, active, place)
            self._costs.note(rows, time.perf_counter() - started)  # with what comes after the products
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


def common_length(one: list[int], other: list[int]) -> int:
    """Return how many leading tokens two lists share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
