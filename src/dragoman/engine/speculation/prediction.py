"""Draft tokens from a text that the client expects as the answer, such as a file before an edit."""

from __future__ import annotations

from collections import defaultdict

from dragoman.engine.speculation.drafter import DraftSource, Pace

GRAM_LENGTHS = (3, 2)
"""Lengths of the n-grams by which the place is found again, the longer first."""
NEAR = 64
"""How far from the expected place an n-gram of the shortest length counts."""
LEFT_OUT = 8
"""How many predicted tokens may be left out for a single token to be found again."""


class Prediction:
    """Drafts for one sequence, from a predicted output.

    It follows the output in the prediction. Where they differ it looks for the newest tokens, nearest to the place
    where they are expected; until they are found the output is taken to replace tokens one by one.
    """

    source = DraftSource.PREDICTION

    def __init__(self, predicted: tuple[int, ...], start: int) -> None:
        """``start``: number of the sequence's tokens before its output."""
        self._predicted = list(predicted)
        self._seen = start
        self._start = start
        self._place = 0
        """Place in the prediction of the next token."""
        self._is_lost = False
        """Whether the newest token is not known to be the one before ``_place``."""
        self._differs_at = 0
        """Place of the token that was expected in place of the first one that differs."""
        self._pace = Pace()
        self._pace.length = len(predicted)  # cut by the room in a step
        self._grams: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for size in GRAM_LENGTHS:
            for place in range(size, len(predicted)):
                self._grams[predicted[place - size : place]].append(place)

    def draft(self, token_ids: list[int], most: int) -> list[int]:
        """As ``Drafter``."""
        self._follow(token_ids)
        if self._pace.is_pausing(len(token_ids)):
            return []
        length = min(self._pace.length, most) if self._is_lost else most
        return self._predicted[self._place : self._place + length]

    def verified(self, num_tokens: int, drafted: int, accepted: int) -> None:
        """As ``Drafter``."""
        if accepted:
            self._pace.accepted(drafted, accepted)
        else:
            self._pace.rejected(num_tokens, drafted)

    def _follow(self, token_ids: list[int]) -> None:
        """Find the place of the newest token."""
        predicted = self._predicted
        for index in range(self._seen, len(token_ids)):
            if self._place < len(predicted) and predicted[self._place] == token_ids[index]:
                self._place += 1
                self._is_lost = False
                continue
            if not self._is_lost:
                self._differs_at = self._place
            self._place = self._found(token_ids[self._start : index + 1]) or self._replaced(token_ids[index])
        self._seen = len(token_ids)

    def _found(self, output: list[int]) -> int:
        """Return the place after the newest tokens of the output, nearest to the one expected; 0: they do not occur."""
        expected = self._place + 1
        for size in GRAM_LENGTHS:
            places = self._grams.get(tuple(output[-size:]), ()) if len(output) >= size else ()
            nearest = min(places, key=lambda place: abs(place - expected), default=0)
            if nearest and (size > GRAM_LENGTHS[-1] or abs(nearest - expected) <= NEAR):
                self._is_lost = False
                return nearest
        return 0

    def _replaced(self, token_id: int) -> int:
        """Return the place after a token that differs: behind its occurrence near where the texts began to differ, as
        tokens before it were inserted or left out; else behind the token in its place."""
        self._is_lost = True
        near = self._predicted[self._differs_at : self._place + LEFT_OUT]
        if token_id in near:
            return self._differs_at + near.index(token_id) + 1
        return min(self._place + 1, len(self._predicted))
