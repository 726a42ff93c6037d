"""Draft tokens from recent outputs of the same caller: answers of one kind resemble one another."""

from __future__ import annotations

from array import array
from collections import OrderedDict

from dragoman.engine.speculation.drafter import DraftSource, Pace
from dragoman.engine.speculation.lookup import GramTable

GRAM_LENGTHS = (6, 4)
"""Longer than in a sequence's own text: what others said is less likely said again."""
CAPACITY = 1 << 15
"""Tokens of one caller's outputs that are kept. Half of them are forgotten where there is no room."""
PLACES = 1 << 14
MOST_CALLERS = 64
MOST_PENDING = 1 << 14
"""Tokens of outputs that have ended since the last draft. Older ones are forgotten: drafts are not made under load."""
END = -1
"""Stands between outputs, and is no token."""


class RecentOutputs:
    """The newest outputs of one caller.

    They are only learned when a draft is asked for: a busy server makes none.
    """

    def __init__(self) -> None:
        self._token_ids = array("i", [END])
        self._pending: list[list[int]] = []
        self._num_pending = 0
        self._tables = self._new_tables()

    @property
    def num_tokens(self) -> int:
        """Number of tokens that are learned, with one between two outputs."""
        return len(self._token_ids)

    def add(self, token_ids: list[int]) -> None:
        """Keep the end of an output."""
        self._pending.append(token_ids[-MOST_PENDING:])
        self._num_pending += len(self._pending[-1])
        while self._num_pending > MOST_PENDING:
            self._num_pending -= len(self._pending.pop(0))

    def following(self, newest: list[int], most: int) -> list[int]:
        """Return up to ``most`` tokens that followed the newest ones in an output."""
        self._learn()
        known = self._token_ids
        for table in self._tables:
            place = table.find(known, newest[-table.size :])
            if place:
                found = known[place : place + most].tolist()
                return found[: found.index(END)] if END in found else found
        return []

    def _learn(self) -> None:
        if not self._pending:
            return
        for token_ids in self._pending:
            if len(self._token_ids) + len(token_ids) >= CAPACITY:
                del self._token_ids[: CAPACITY // 2]
                self._tables = self._new_tables()
                self._record(0)
            first = len(self._token_ids)
            self._token_ids.extend(token_ids)
            self._token_ids.append(END)
            self._record(first)
        self._pending, self._num_pending = [], 0

    def _record(self, first: int) -> None:
        for table in self._tables:
            table.learn(self._token_ids, first + table.size, len(self._token_ids))

    @staticmethod
    def _new_tables() -> list[GramTable]:
        return [GramTable(size, PLACES) for size in GRAM_LENGTHS]


class RecentOutputsByCaller:
    """The recent outputs of the callers that were served last."""

    def __init__(self) -> None:
        self._outputs: OrderedDict[str, RecentOutputs] = OrderedDict()

    def of(self, cache_salt: str) -> RecentOutputs:
        """Return the outputs of requests that share blocks of the prefix cache: the speed of drafts too shows one
        caller what another one was told."""
        found = self._outputs.pop(cache_salt, None) or RecentOutputs()
        self._outputs[cache_salt] = found
        if len(self._outputs) > MOST_CALLERS:
            self._outputs.popitem(last=False)
        return found


class RecentOutputsLookup:
    """Drafts for one sequence, from the recent outputs of its caller."""

    source = DraftSource.RECENT

    def __init__(self, outputs: RecentOutputs, start: int) -> None:
        """``start``: number of the sequence's tokens before its output."""
        self._outputs = outputs
        self._start = start
        self._pace = Pace()

    def draft(self, token_ids: list[int], most: int) -> list[int]:
        """As ``Drafter``."""
        if self._pace.is_pausing(len(token_ids)):
            return []
        newest = token_ids[max(self._start, len(token_ids) - GRAM_LENGTHS[0]) :]
        return self._outputs.following(newest, min(self._pace.length, most))

    def verified(self, num_tokens: int, drafted: int, accepted: int) -> None:
        """As ``Drafter``."""
        if accepted:
            self._pace.accepted(drafted, accepted)
        else:
            self._pace.rejected(num_tokens, drafted)
