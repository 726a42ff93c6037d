"""How often one caller may start a generation."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from dragoman.dialects.locallab.errors import RateLimited

MINUTE_S = 60.0
SECOND_S = 1.0
MAX_CALLERS = 16_384
"""Callers that are remembered. Beyond them the one that has been quiet for longest is forgotten."""


class Limiter:
    """At most ``per_minute`` requests admitted within any 60 s, and ``burst`` within any one second, for each caller.

    What is refused costs nothing. 0 is no limit. ``clock`` gives seconds.
    """

    def __init__(self, per_minute: int, burst: int, clock: Callable[[], float]) -> None:
        self._limits = [(limit, span) for limit, span in ((per_minute, MINUTE_S), (burst, SECOND_S)) if limit]
        self._clock = clock
        self._admitted: OrderedDict[str, deque[float]] = OrderedDict()

    def admit(self, caller: str) -> dict[str, str]:
        """Count one request of the caller. Returns the headers that say what is left; raises RateLimited."""
        if not self._limits:
            return {}
        now = self._clock()
        times = self._admitted.setdefault(caller, deque())
        self._admitted.move_to_end(caller)
        if len(self._admitted) > MAX_CALLERS:
            self._admitted.popitem(last=False)
        while times and times[0] <= now - MINUTE_S:
            times.popleft()
        wait = 0.0
        for limit, span in self._limits:
            # The request before the last ``limit`` - 1 ones has to be out of the span.
            if len(times) >= limit and times[-limit] > now - span:
                wait = max(wait, times[-limit] + span - now)
        if wait > 0:
            raise RateLimited(wait, self._headers(times, now))
        times.append(now)
        return self._headers(times, now)

    def _headers(self, times: deque[float], now: float) -> dict[str, str]:
        limit, span = self._limits[0]
        recent = sum(time > now - span for time in times)
        reset = max(0.0, times[0] + span - now) if times else 0.0
        return {
            "x-ratelimit-limit": str(limit),
            "x-ratelimit-remaining": str(max(0, limit - recent)),
            "x-ratelimit-reset": str(-int(-reset // 1)),
        }
