"""Draft tokens from the earlier tokens of a sequence: repetitive text needs fewer steps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from dragoman.engine.speculation.drafter import DraftSource, Pace

GRAM_LENGTHS = (4, 2)
"""Lengths of the n-grams of newest tokens that are looked up: the longer first, which is more reliable."""
MOST_PLACES = 1 << 16


class GramTable:
    """Where n-grams of one length were last seen, in a list of tokens that only grows.

    Places are kept at the hash of the tokens before them, in a table of fixed size; the newest replaces others.
    """

    def __init__(self, size: int, places: int) -> None:
        """``size``: tokens of an n-gram. ``places``: a power of two."""
        self.size = size
        self._mask = places - 1
        self._table = array("i", bytes(4 * places))

    @property
    def nbytes(self) -> int:
        return self._table.itemsize * len(self._table)

    def learn(self, token_ids: Sequence[int], first: int, end: int) -> None:
        """Record the places ``first`` to ``end``, each of the n-gram that ends before it."""
        table, size, mask = self._table, self.size, self._mask
        for place in range(max(first, size), end):
            table[hash(tuple(token_ids[place - size : place])) & mask] = place

    def find(self, token_ids: Sequence[int], newest: Sequence[int]) -> int:
        """Return the place in ``token_ids`` after the last recorded occurrence of an n-gram; 0: there is none."""
        if len(newest) < self.size:
            return 0
        place = self._table[hash(tuple(newest)) & self._mask]
        return place if place and list(token_ids[place - self.size : place]) == list(newest) else 0


class Lookup:
    """Drafts for one sequence, from its own tokens: those that followed the newest tokens before.

    Where these were not seen before, but part of the last draft was accepted, the text may differ from it by one word
    only: the next draft uses the same distance.
    """

    source = DraftSource.LOOKUP

    def __init__(self, most_tokens: int, before: tuple[int, ...] = ()) -> None:
        """``before``: tokens that precede the sequence's own and are looked up too: an encoder's input."""
        places = min(MOST_PLACES, 1 << (most_tokens + len(before)).bit_length())
        self.tables = [GramTable(size, places) for size in GRAM_LENGTHS]
        self._before = list(before)
        self._seen = 0
        self._distance = 0
        """The distance back to the last draft's source; 0: there was no draft, or no token of it was accepted."""
        self._was_found = False
        self._pace = Pace()

    def draft(self, token_ids: list[int], most: int) -> list[int]:
        """As ``Drafter``."""
        if self._before:
            token_ids = [*self._before, *token_ids]
        if self._pace.is_pausing(len(token_ids)):
            return []
        for table in self.tables:
            table.learn(token_ids, self._seen, len(token_ids))
        self._seen = len(token_ids)
        found = self._find(token_ids)
        self._was_found = found > 0
        distance = self._distance = found or self._distance
        if not distance:
            return []
        length, place = min(self._pace.length, most), len(token_ids) - distance
        draft = token_ids[place : place + length]
        while len(draft) < length:  # the draft has reached the end of the list: it continues periodically
            draft.append(draft[-distance])
        return draft

    def verified(self, num_tokens: int, drafted: int, accepted: int) -> None:
        """As ``Drafter``."""
        if accepted:
            self._pace.accepted(drafted, accepted)
            return
        self._distance = 0
        if self._was_found:
            self._pace.rejected(num_tokens + len(self._before), drafted)

    def _find(self, token_ids: list[int]) -> int:
        """Return the distance back to the tokens that followed the newest tokens before; 0: there was no earlier
        occurrence."""
        for table in self.tables:
            place = table.find(token_ids, token_ids[-table.size :])
            if place:
                return len(token_ids) - place
        return 0
