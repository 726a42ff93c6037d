"""What the bodies of all requests together may take in memory."""

from __future__ import annotations

from dragoman.core.errors import EngineUnavailable

MAX_BUFFERED_BYTES = 64 * 1024 * 1024

FREE_BYTES = 64 * 1024
"""Of each body, not counted: there are only so many connections, and who sends large bodies keeps no chat out."""


class BodyBudget:
    """Counts bytes of bodies that have come and are not decoded yet. ``refused``: requests that found no room."""

    def __init__(self, max_bytes: int = MAX_BUFFERED_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self.refused = 0

    def can_take(self, size: int) -> bool:
        """Count so many bytes more, if there is room for them."""
        if self.used + size > self.max_bytes:
            self.refused += 1
            return False
        self.used += size
        return True

    def take(self, size: int) -> None:
        """The same. Raises EngineUnavailable where there is no room."""
        if not self.can_take(size):
            raise EngineUnavailable("The server has no room for this request's body now. Try again later.")

    def give_back(self, size: int) -> None:
        self.used -= size
