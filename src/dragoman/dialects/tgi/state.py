"""What all requests of one server share in this dialect: the settings, the permits, and how it is doing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from dragoman.core.errors import Overloaded
from dragoman.dialects.tgi.settings import TgiSettings

REMEMBERED = 20
"""Of so many requests, about, the mean is kept."""


class Permits:
    """So many sequences may be in flight: from before their validation until their answer has been sent.

    ``held_s``: for how long a permit is held, on average of the newest.
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = perf_counter) -> None:
        self.most = most
        self.taken = 0
        self.held_s = 0.0
        self._clock = clock

    @contextmanager
    def take(self, count: int = 1) -> Iterator[None]:
        """Hold so many for the duration. Raises Overloaded when there are not enough left."""
        if self.taken + count > self.most:
            # So often permits come back, where all are taken.
            raise Overloaded("Model is overloaded", retry_after_s=self.held_s * count / self.most)
        self.taken += count
        began = self._clock()
        try:
            yield
        finally:
            self.taken -= count
            held_s = self._clock() - began
            self.held_s += (held_s - self.held_s) / REMEMBERED if self.held_s else held_s


class TgiState:
    """Made once by ``make``; every operation of the dialect has it.

    Attributes:
        healthy: whether the last generation did not fail inside.
    """

    def __init__(self, settings: TgiSettings) -> None:
        settings.check()
        self.settings = settings
        self.quirks = settings.quirks()
        self.permits = Permits(settings.max_concurrent_requests)
        self.healthy = True
