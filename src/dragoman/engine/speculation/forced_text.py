"""Draft tokens of the text that a grammar forces: names of properties, punctuation, frames of tool calls."""

from __future__ import annotations

from dragoman.engine.sampling.grammar_state import GrammarState
from dragoman.engine.speculation.drafter import DraftSource


class ForcedText:
    """Drafts for one sequence, of the bytes that its grammar leaves no choice about.

    The bytes are known, the tokens they are divided into are a guess: the longest ones.
    """

    source = DraftSource.GRAMMAR

    def __init__(self, grammar_state: GrammarState) -> None:
        self._grammar_state = grammar_state
        self._spaced = True
        """Whether a space is expected where blanks are free: until one draft fails, as texts keep to one style."""

    def draft(self, token_ids: list[int], most: int) -> list[int]:
        """As ``Drafter``."""
        return self._grammar_state.forced(most, spaced=self._spaced)

    def verified(self, num_tokens: int, drafted: int, accepted: int) -> None:
        """As ``Drafter``."""
        if accepted < drafted:
            self._spaced = False
