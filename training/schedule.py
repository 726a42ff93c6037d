"""How far a run has come, by time or by tokens, and the learning rate and row length that follow."""

import time
from datetime import UTC, datetime, timedelta

WARM_UP_STEPS = 100


def row_length(step: int, progress: float) -> int:
    """Short rows first, for attention over long ones costs a CPU half of its speed; then, more and more, the whole
    context, while the rate is still high enough to learn far positions from it."""
    if (progress > 0.4 and step % 16 == 0) or (progress > 0.9 and step % 2 == 0):
        return 2048
    return 256 if progress < 0.1 else 512


def learning_rate(step: int, progress: float) -> float:
    """The share of the peak: linear warm-up over steps, then a straight line down to zero at full progress (Bergsma et
    al., 2025)."""
    warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm_up * max(0.0, 1.0 - progress)


class TokenBudget:
    """Progress is the share of the planned tokens that were seen."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def advanced(self, progress: float, tokens_seen: int) -> float:
        return tokens_seen / self.tokens


class Deadline:
    """Progress moves so that it reaches 1 at the deadline, whatever the speed, pauses and restarts until then."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.last_s = time.time()

    @classmethod
    def after(cls, minutes: float) -> "Deadline":
        return cls(time.time() + 60 * minutes)

    @classmethod
    def at(cls, clock: str) -> "Deadline":
        """The next time the clock in UTC shows `HH:MM`."""
        now = datetime.now(UTC)
        hour, minute = map(int, clock.split(":"))
        due = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return cls((due if due > now else due + timedelta(days=1)).timestamp())

    def advanced(self, progress: float, tokens_seen: int) -> float:
        now = time.time()
        left = self.deadline_s - self.last_s
        passed = 1.0 if left <= 0 else min(1.0, (now - self.last_s) / left)
        self.last_s = now
        return progress + (1.0 - progress) * passed
