"""Guesses at the tokens to come, looked up in what a sequence has said before: text that repeats itself costs less.

A step that decodes few sequences waits for the weights to come from memory; rows beside those that decode are nearly
free. Such rows verify a draft: tokens that followed the last time that the sequence's newest tokens appeared in its
prompt or output. Each row's token is drawn as if it were the only one, from the row before it being true, and while the
draft names the token that is drawn, the next row is valid too. So a draft changes how many tokens a step gives, and
never which.
"""

from __future__ import annotations

from array import array

GRAM_LENGTHS = (4, 2)
"""How many of the newest tokens are looked up: first the more, which seldom mislead."""
FIRST_LENGTH = 4
LONGEST = 16
"""Tokens of one draft. Steps of more rows cost more than the steps they save."""
MOST_PLACES = 1 << 16
LONGEST_PAUSE = 16
"""Tokens without a draft, after drafts have failed again and again: what a text that never repeats pays at most."""


class Lookup:
    """Drafts for one sequence, from its own tokens.

    Places are remembered in tables of a fixed size, at the hash of the tokens before them; the newest stays. Where
    nothing is found, but the last draft came true in part, the text may go on as it did there but for a word: the next
    draft is from as far back. A draft doubles while all of it comes true, shrinks by a quarter when not all of it does,
    and pauses, longer each time, while nothing does.
    """

    def __init__(self, most_tokens: int) -> None:
        places = min(MOST_PLACES, 1 << most_tokens.bit_length())
        self._mask = places - 1
        self._tables = [array("i", bytes(4 * places)) for _ in GRAM_LENGTHS]
        self._seen = 0
        self._length = FIRST_LENGTH
        self._distance = 0
        """How far back the last draft came from; 0: there was none, or nothing of it came true."""
        self._was_found = False
        self._pause = 1
        self._resume_at = 0

    def draft(self, token_ids: list[int], most: int) -> list[int]:
        """Up to ``most`` tokens that may follow ``token_ids``, a list that only ever grows; often none."""
        if len(token_ids) < self._resume_at:
            return []
        self._learn(token_ids)
        found = self._find(token_ids)
        self._was_found = found > 0
        distance = self._distance = found or self._distance
        if not distance:
            return []
        length, place = min(self._length, most), len(token_ids) - distance
        draft = token_ids[place : place + length]
        while len(draft) < length:  # the end of what has been said is within the draft: it goes on in the same way
            draft.append(draft[-distance])
        return draft

    def verified(self, num_tokens: int, drafted: int, accepted: int) -> None:
        """What became of the last draft, the sequence now having ``num_tokens``."""
        if accepted:
            # Slowly down: what was cut short by one changed word goes on behind it.
            grown = self._length if accepted == drafted else 3 * self._length // 4
            self._length = min(max(2 * accepted, grown), LONGEST)
            self._pause = 1
            return
        self._distance = 0
        if self._was_found:
            self._length = max(1, drafted // 2)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._resume_at = num_tokens + self._pause - 1

    def _learn(self, token_ids: list[int]) -> None:
        mask = self._mask
        for table, size in zip(self._tables, GRAM_LENGTHS, strict=True):
            for place in range(max(self._seen, size), len(token_ids)):
                table[hash(tuple(token_ids[place - size : place])) & mask] = place
        self._seen = len(token_ids)

    def _find(self, token_ids: list[int]) -> int:
        """How far back what followed the newest tokens before begins; 0: they are new."""
        for table, size in zip(self._tables, GRAM_LENGTHS, strict=True):
            newest = token_ids[-size:]
            place = table[hash(tuple(newest)) & self._mask]
            if place and token_ids[place - size : place] == newest:
                return len(token_ids) - place
        return 0
