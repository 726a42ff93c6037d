"""How often one caller may start a generation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from dragoman.dialects.locallab.errors import TooOften

if TYPE_CHECKING:
    from dragoman.core.rate_windows import RateWindow

MINUTE_S = 60
SECOND_S = 1


class Limiter:
    """At most ``per_minute`` requests admitted within any 60 s, and ``burst`` within any one second, for each caller.

    What is refused costs nothing. ``per_minute`` 0 is no limit at all: it lifts the burst as well. ``burst`` 0 is no
    limit within a second. ``clock`` gives seconds.
    """

    def __init__(self, per_minute: int, burst: int, clock: Callable[[], float]) -> None:
        self._limits = ((per_minute, MINUTE_S), (burst, SECOND_S)) if per_minute else ()
        self._clock = clock

    @cached_property
    def windows(self) -> tuple[tuple[int, RateWindow], ...]:
        """Each limit with its window; the one of a minute first. Made at the first request, for its import is slow."""
        from dragoman.core.rate_windows import RateWindow

        return tuple((limit, RateWindow(span_s, self._clock)) for limit, span_s in self._limits if limit)

    def admit(self, caller: str) -> dict[str, str]:
        """Count one request of the caller. Returns the headers that say what is left; raises TooOften."""
        if not self._limits:
            return {}
        if not all(window.has_room(caller, limit) for limit, window in self.windows):
            wait_s = max(window.wait_s(caller, limit) for limit, window in self.windows)
            raise TooOften(wait_s, self._headers(caller))
        for limit, window in self.windows:
            window.take(caller, limit)
        return self._headers(caller)

    def _headers(self, caller: str) -> dict[str, str]:
        limit, window = self.windows[0]
        return {
            "x-ratelimit-limit": str(limit),
            "x-ratelimit-remaining": str(window.remaining(caller, limit)),
            "x-ratelimit-reset": str(math.ceil(window.oldest_s(caller))),
        }
