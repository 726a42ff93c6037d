"""When an engine that died is started again: at once, then after longer waits, and at last not any more."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 60.0
PATIENCE_S = 5.0
"""Time after the engine's crash in which requests are still accepted, to be run when it is back."""


class RestartTimes:
    """The times of crashes and starts. A wait doubles from 50 ms to a minute while no process completes a step.

    ``give_up_s``: how long the engine may be down; 0: for ever. ``clock`` gives seconds and never steps back.
    """

    def __init__(self, give_up_s: float, clock: Callable[[], float]) -> None:
        self.give_up_s = give_up_s
        self._clock = clock
        self._wait_s = 0.0
        self._down_since: float | None = None
        """When the process died; None: another one has completed a step since."""
        self._died_at = 0.0
        """When the newest process that had started died."""
        self._next_start = 0.0

    def on_exit(self) -> None:
        """Take that a process that had started died."""
        self._died_at = self._next_start = self._clock()
        if self._down_since is None:
            self._down_since = self._died_at

    def on_progress(self) -> None:
        """Take that the engine is well: it has completed a step, or has nothing to do."""
        self._wait_s, self._down_since = 0.0, None

    def begin_wait(self) -> float:
        """Return the seconds to wait before the next start: none before the first, and up to a minute after many
        failed ones."""
        wait_s = self._wait_s * random.uniform(0.75, 1.25)
        if self.give_up_s and self._down_since is not None:
            wait_s = min(wait_s, max(0.0, self._down_since + self.give_up_s - self._clock()))
        self._wait_s = min(max(FIRST_WAIT_S, 2 * self._wait_s), LONGEST_WAIT_S)
        self._next_start = self._clock() + wait_s
        return wait_s

    @property
    def is_over(self) -> bool:
        """Whether the engine has been down for too long."""
        return (
            bool(self.give_up_s) and self._down_since is not None and self._clock() - self._down_since >= self.give_up_s
        )

    @property
    def is_late(self) -> bool:
        """Whether the engine is down for so long that requests are better refused."""
        return self.down_s > PATIENCE_S

    @property
    def down_s(self) -> float:
        """Seconds since the newest process that had started died."""
        return self._clock() - self._died_at

    @property
    def start_in_s(self) -> float:
        """Seconds until the next start; negative where it is under way."""
        return self._next_start - self._clock()
