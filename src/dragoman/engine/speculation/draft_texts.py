"""The texts that a draft model knows: those of the sequences that it drafts for, and some that have ended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine.arrays import Int32
from dragoman.engine.sequence import Sequence
from dragoman.engine.speculation.draft_blocks import DraftBlocks
from dragoman.engine.speculation.draft_gain import Acceptance
from dragoman.engine.speculation.drafter import DraftSource

MOST_TEXTS = 64
"""Texts that are kept: of sequences that are drafted for, and of those that have ended, for prompts that go on."""
LEAST_SHARED = 64
"""Tokens from which on the beginning of a text that has ended is used again."""


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

    @property
    def unread(self) -> int:
        """Return how many of its tokens are not read."""
        return len(self.ids) - self.read

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


class DraftTexts:
    """Keeps texts and their blocks, as many as there are blocks for.

    Attributes:
        of_sequences: the texts of sequences that are drafted for, the least recently used first.
        ended: texts of sequences that have ended, the oldest first.
        blocks: where the keys and values of all texts are.
    """

    def __init__(self, blocks: DraftBlocks, max_context: int, acceptance: Acceptance) -> None:
        """``max_context``: tokens of the longest text. ``acceptance``: learns from the drafts of all texts."""
        self.of_sequences: dict[Sequence, DraftText] = {}
        self.ended: list[DraftText] = []
        self.blocks = blocks
        self._max_context = max_context
        self._acceptance = acceptance

    def follow(self, asked: list[tuple[Sequence, int]], vocabulary: DraftVocabulary) -> list[Ask]:
        """Learn what these sequences have now, of which each wants a draft of at most so many tokens. Return those that
        there is memory for, with their texts."""
        asks: list[Ask] = []
        for sequence, most in asked:
            text = self.of_sequences.pop(sequence, None)
            if text is None:
                text = self.begin(sequence, vocabulary)
            self.of_sequences[sequence] = text
            text.follow(sequence.token_ids, vocabulary)
            if not text.ids or len(text.ids) + most > self._max_context:
                continue
            asks.append(Ask(sequence, most, text))
        kept = {id(ask.text) for ask in asks}
        return [ask for ask in asks if self._allocate(ask.text, len(ask.text.ids) + ask.most, kept)]

    def begin(self, sequence: Sequence, vocabulary: DraftVocabulary) -> DraftText:
        """Return the text of a new sequence: one that has ended and begins alike, cut where they differ, or an empty
        one."""
        fresh = DraftText(len(self.blocks.free), self.blocks.width, sequence.hash_seed, self._acceptance)
        fresh.follow(sequence.token_ids, vocabulary)
        shared, best = LEAST_SHARED - 1, None
        for text in self.ended:
            if text.hash_seed == sequence.hash_seed:
                common = common_length(text.ids, fresh.ids)
                if common > shared and self.blocks.still_has(text, common):
                    shared, best = common, text
        if best is not None:
            self.ended.remove(best)
            fresh.table, fresh.owned, fresh.read = best.table, best.owned, shared
        return fresh

    def end(self, sequence: Sequence) -> None:
        """Let a sequence go. What was read of it is kept for a while, for prompts that begin alike."""
        text = self.of_sequences.pop(sequence, None)
        if text is None:
            return
        text.end()
        self.ended.append(text)
        while len(self.of_sequences) + len(self.ended) > MOST_TEXTS and self.ended:
            self.release(self.ended.pop(0))

    def release(self, text: DraftText) -> None:
        """Give back the blocks of a text."""
        self.blocks.release(text)
        text.guessed = []

    def _allocate(self, text: DraftText, tokens: int, kept: set[int]) -> bool:
        """Give a text blocks for so many tokens. Returns False where there are none, even without the texts that are
        not ``kept``."""
        while not self.blocks.allocate(text, tokens):
            if not self._evict(kept):
                return False
        return True

    def _evict(self, kept: set[int]) -> bool:
        """Free the blocks of one text. Returns False where there is none."""
        if self.ended:
            self.release(self.ended.pop(0))
            return True
        for sequence, text in self.of_sequences.items():
            if id(text) not in kept and any(text.owned):
                del self.of_sequences[sequence]
                self.release(text)
                return True
        return False


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
