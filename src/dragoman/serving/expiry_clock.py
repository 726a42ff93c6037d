"""The clock that kept things expire by."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

STEP_S = 60.0
"""By how much more the system's clock has to go ahead than time passes to have been set."""

BELIEVED_AFTER_S = 86400.0
"""Seconds after which a clock that was set ahead, and stays so, is right."""


def steady_time() -> float:
    """Return seconds on a clock that is never set. It goes on while the machine sleeps, where the system has such a
    clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class ExpiryClock:
    """The system's clock, in seconds since the epoch, for what is kept for a time and then deleted. When it is set,
    nothing expires early: a clock that is wrong for a moment must not delete everything.

    ``steady``: seconds on a clock that is never set.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = steady_time) -> None:
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()
        self._ahead_since: float | None = None

    def stamp(self) -> float:
        """Return the time of what is made or used now; where the clock was set back, that which has passed."""
        return max(self._wall(), self._offset + self._steady())

    def now(self) -> float:
        """Return the time that decides what has expired; where the clock was set ahead, that which has passed."""
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
