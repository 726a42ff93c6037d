"""Who may come in: a bounded number of requests wait for their first token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.core.errors import EngineUnavailable, Overloaded


class Place:
    """One request's place: waiting until its prompt is computed, then running."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.waits = True
        admission.waiting += 1

    def run(self) -> None:
        """The first token is there, or will be at once: the request waits no more."""
        if self.waits:
            self.waits = False
            self._admission.waiting -= 1
            self._admission.running += 1

    def leave(self) -> None:
        if self.waits:
            self._admission.waiting -= 1
        else:
            self._admission.running -= 1


class Admission:
    """Counts requests, waiting and running. ``close`` lets no more in."""

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self.waiting = 0
        self.running = 0
        self._closed: str | None = None

    @property
    def is_open(self) -> bool:
        return self._closed is None

    def close(self, reason: str) -> None:
        self._closed = reason

    @contextmanager
    def enter(self) -> Iterator[Place]:
        """Take a place for the duration. Raises Overloaded or EngineUnavailable."""
        if self._closed is not None:
            raise EngineUnavailable(self._closed)
        if self.waiting >= self.max_waiting:
            message = f"{self.waiting} requests are waiting already. Try again later."
            # A second for each full step of the queue that is before the client, within reason.
            raise Overloaded(message, retry_after_s=min(30.0, 1.0 + self.waiting / max(self.running, 1)))
        place = Place(self)
        try:
            yield place
        finally:
            place.leave()
