"""What all requests of one server share in this dialect: the settings, the permits, and how it is doing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.core.errors import Overloaded
from dragoman.dialects.tgi.settings import TgiSettings


class Permits:
    """So many sequences may be in flight: from before their validation until their answer has been sent."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    @contextmanager
    def take(self, count: int = 1) -> Iterator[None]:
        """Hold so many for the duration. Raises Overloaded when there are not enough left."""
        if self.taken + count > self.most:
            raise Overloaded("Model is overloaded")
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count


class Service:
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
