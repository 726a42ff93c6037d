"""The clock by which stored things expire."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

STEP_S = 60.0
"""If the system's clock goes ahead of the time that has passed by more than these seconds, somebody has set it."""

BELIEVED_AFTER_S = 86400.0
"""A clock that was set ahead and stays ahead for so many seconds is taken to be right."""


def steady_time() -> float:
    """Return seconds on a clock that is never set. It goes on while the machine sleeps, where the system has such a
    clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class ExpiryClock:
    """The system's clock, in seconds since the epoch, for what is stored for some time and then deleted. When somebody
    sets it, nothing expires early: a clock that is wrong for a moment must not delete everything.

    ``steady``: seconds on a clock that is never set.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = steady_time) -> None:
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()
        self._ahead_since: float | None = None

    def stamp(self) -> float:
        """Return the time of what is made or used now. It goes on where the system's clock was set back."""
        return max(self._wall(), self._offset + self._steady())

    def now(self) -> float:
        """Return the time that decides what has expired. It takes no leap where the system's clock was set ahead."""
        wall, steady = self._wall(), self._steady()
        if wall <= self._offset + steady + STEP_S:
            self._ahead_since = None
            return wall
        if self._ahead_since is None:
            self._ahead_since = steady
        if steady - self._ahead_since < BELIEVED_AFTER_S:
            return self._offset + steady
        self._offset, self._ahead_since = wall - steady, None
        return wall
