"""What every source of drafts has in common."""

from __future__ import annotations

import enum
from typing import Protocol

FIRST_LENGTH = 4
LONGEST = 16
"""Tokens of one draft. Steps of more rows cost more than the steps they save."""
LONGEST_PAUSE = 16
"""Most tokens without a draft after repeated failures; it bounds the cost of a source that guesses wrongly."""


class DraftSource(enum.StrEnum):
    """Where a draft comes from, in the order in which the sources are asked."""

    PREDICTION = "prediction"
    """The text that the client expects."""
    GRAMMAR = "grammar"
    """The only text that the sequence's grammar allows next."""
    LOOKUP = "lookup"
    """What followed the newest tokens before, in the prompt and the output."""
    RECENT = "recent"
    """What followed them in other recent outputs of the same caller."""
    MODEL = "model"
    """What a smaller model says next."""
    HEADS = "heads"
    """What the model's own further layer says of its hidden states."""


class DraftOwner(Protocol):
    """Learns what became of the drafts of one sequence."""

    source: DraftSource

    def verified(self, num_tokens: int, drafted: int, accepted: int) -> None:
        """Learn the result of the last draft, when the sequence has ``num_tokens``."""
        ...


class Drafter(DraftOwner, Protocol):
    """Guesses the next tokens of one sequence."""

    def draft(self, token_ids: list[int], most: int) -> list[int]:
        """Return up to ``most`` draft tokens to follow ``token_ids``, an append-only list; often none."""
        ...


class Pace:
    """How long the drafts of one source are, and when it makes none.

    A draft doubles while all of it is accepted and shrinks by a quarter when only part is. While none is, it becomes
    short, and pauses, longer each time.

    Attributes:
        length: tokens of the next draft.
    """

    def __init__(self) -> None:
        self.length = FIRST_LENGTH
        self._pause = 1
        self._resume_at = 0

    def is_pausing(self, num_tokens: int) -> bool:
        """Return whether there is no draft yet for a sequence that has ``num_tokens``."""
        return num_tokens < self._resume_at

    def accepted(self, drafted: int, accepted: int) -> None:
        """Adapt to a draft of which at least one token was accepted."""
        # Shrinks slowly: a repetition that one changed word cut short continues after it.
        grown = self.length if accepted == drafted else 3 * self.length // 4
        self.length = min(max(2 * accepted, grown), LONGEST)
        self._pause = 1

    def rejected(self, num_tokens: int, drafted: int) -> None:
        """Adapt to a draft of which no token was accepted, when the sequence has ``num_tokens``."""
        self.length = max(1, drafted // 2)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._resume_at = num_tokens + self._pause - 1
