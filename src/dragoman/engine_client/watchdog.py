"""Whether an engine that has work still works."""

from __future__ import annotations

from pathlib import Path

LOOK_S = 1.0
LOOKS = 4
"""How often it is looked at least within the time after which a process hangs."""
COMPUTING_FACTOR = 10
"""How many times as long a process may be silent that computes."""
READY_FOR_S = 10.0
"""A process that neither speaks nor computes for so long is not ready any more, though it may come to."""


class Watchdog:
    """Counts the silence of a process that has work: since its last message, and without computing.

    Every step ends with a message. The longest step that is no mistake takes minutes, though: 512 prompt tokens of a
    model of 70 billion parameters take two on two cores, and behind 100,000 tokens a small model's take one. Such a
    process computes meanwhile, which the system can tell; one that is stopped, or waits for what never comes, does not.

    Looks are counted, not seconds by a clock: after a pause of the server itself the process's words are there, unread.
    """

    def __init__(self, hang_s: float) -> None:
        self.look_s = min(LOOK_S, hang_s / LOOKS)
        self._hang_s = hang_s
        self._was_heard = False
        self._silent_s = 0.0
        self._still_s = 0.0
        self._ticks: int | None = None

    def heard(self) -> None:
        """Note that the process said something."""
        self._was_heard = True

    def look(self, pid: int | None) -> bool:
        """Return whether the process hangs, after another ``look_s``. ``pid``: of the one that has work, if one has."""
        if self._was_heard or pid is None:
            self._was_heard = False
            self._silent_s = self._still_s = 0.0
            self._ticks = None
            return False
        before, self._ticks = self._ticks, cpu_ticks(pid)
        is_computing = before is not None and self._ticks is not None and self._ticks > before
        self._silent_s += self.look_s
        self._still_s = 0.0 if is_computing else self._still_s + self.look_s
        return self._still_s > self._hang_s or self._silent_s > COMPUTING_FACTOR * self._hang_s

    def complaint(self) -> str:
        """Say why the process is not to be counted on now; empty where it is."""
        if self._still_s >= min(READY_FOR_S, self._hang_s):
            return f"the engine has work and has not computed for {self._still_s:.0f} s"
        if self._silent_s >= max(READY_FOR_S, self._hang_s):
            return f"the engine computes, and has finished no step for {self._silent_s:.0f} s"
        return ""


def cpu_ticks(pid: int) -> int | None:
    """Return what all threads of a process have computed, in the system's ticks; None where that cannot be told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return None
