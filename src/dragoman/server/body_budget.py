"""The memory budget that the bodies of all requests share."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.core.errors import EngineUnavailable

MAX_BUFFERED_BYTES = 64 * 1024 * 1024

MAX_LARGE_BYTES = 256 * 1024 * 1024

MANY_BYTES = 32 * 1024 * 1024
"""Of large bodies at once, whose pieces leave the heap in fragments."""

FREE_BYTES = 64 * 1024
"""Bytes of each body that are not counted: the number of connections is limited, and large bodies must not block
chats."""


class BodyBudget:
    """Counts bytes of bodies that have arrived and are not decoded yet.

    What makes requests large, images, is kept until they have ended: it is counted for that long, by itself.

    Attributes:
        used, max_bytes: bytes of bodies that are not decoded yet, and the most of these.
        large, max_large_bytes: bytes of bodies beyond the limit of ordinary ones, and of files that requests name.
        unparsed: of ``used``, those that are not parsed yet.
        refused: requests that found no room.
        on_passed: called when no large body is left after there were ``MANY_BYTES`` of them; None: nothing is.
    """

    def __init__(
        self,
        max_bytes: int = MAX_BUFFERED_BYTES,
        max_large_bytes: int = MAX_LARGE_BYTES,
        on_passed: Callable[[], None] | None = None,
    ) -> None:
        self.on_passed = on_passed
        self._most_large = 0
        self.max_bytes, self.max_large_bytes = max_bytes, max_large_bytes
        self.used = self.large = 0
        self.unparsed = 0
        self.refused = 0

    def can_take(self, size: int) -> bool:
        """Count so many more bytes, and return True, if there is room for them."""
        if self.used + size > self.max_bytes:
            self.refused += 1
            return False
        self.used += size
        return True

    def can_hold(self, size: int) -> bool:
        """Count bytes that are not parsed yet, such as pipelined requests, and return True, if there is room for them.

        They get half of the budget at most: they come without a key, and must not keep the bodies of others out.
        """
        if self.unparsed + size > self.max_bytes // 2:
            self.refused += 1
            return False
        if not self.can_take(size):
            return False
        self.unparsed += size
        return True

    def release(self, size: int) -> None:
        """Release bytes that were counted by ``can_hold``."""
        self.unparsed -= size
        self.used -= size

    def take(self, size: int) -> None:
        """Count bytes of a body. Raises EngineUnavailable where there is no room."""
        if not self.can_take(size):
            raise EngineUnavailable("The server has no room for this request's body now. Try again later.")

    def give_back(self, size: int) -> None:
        self.used -= size

    def take_large(self, size: int) -> None:
        """Count bytes that a request keeps until it ends. Raises EngineUnavailable where there is no room."""
        if self.large + size > self.max_large_bytes:
            self.refused += 1
            raise EngineUnavailable("The server has no room for this request's images now. Try again later.")
        self.large += size
        self._most_large = max(self._most_large, self.large)

    def give_back_large(self, size: int) -> None:
        self.large -= size
        if not self.large and self._most_large >= MANY_BYTES:
            self._most_large = 0
            if self.on_passed is not None:
                self.on_passed()
