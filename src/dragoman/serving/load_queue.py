"""Models that requests wait for: which is loaded next, and who waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from dragoman.core.errors import DragomanError, Overloaded
from dragoman.core.progress import ProgressReport, current_progress
from dragoman.serving.admission import LONGEST_WAIT_S
from dragoman.serving.model_registry import ModelSource
from dragoman.serving.residency import RequestLease, Resident

UNKNOWN_LOAD_S = 5.0
"""The wait that is suggested for a load that has not progressed yet."""


class _Waiter:
    """One that waits for a model: a request with its lease, or an operator's call without one."""

    def __init__(self, own: RequestLease | None) -> None:
        self.own = own
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Load:
    """A model that is to be loaded.

    Attributes:
        is_asked: an operator's call asks for it, so it is loaded though nobody waits; and it becomes the current one.
        opened_at: when reading the model began; None before that.
    """

    def __init__(self, source: ModelSource, *, is_asked: bool) -> None:
        self.source, self.is_asked = source, is_asked
        self.stage, self.progress = "", 0.0
        self.opened_at: float | None = None
        self._waiters: list[_Waiter] = []
        self._reports: list[ProgressReport] = []

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def report(self, stage: str, share: float) -> None:
        """Note how far it is, and report it to the clients that ask for progress."""
        self.stage, self.progress = stage, share
        for each in self._reports:
            each.loading(stage, share)

    def remaining_s(self) -> float:
        """Return the seconds until the load is done at its rate so far, within bounds."""
        if self.opened_at is None or not self.progress:
            return UNKNOWN_LOAD_S
        elapsed_s = asyncio.get_running_loop().time() - self.opened_at
        return min(max(elapsed_s / self.progress * (1 - self.progress), 1.0), LONGEST_WAIT_S)

    async def wait(self, own: RequestLease | None) -> None:
        """Wait until the model is loaded, and then held by the request. Raises what ended the load."""
        waiter, report = _Waiter(own), current_progress.get()
        self._waiters.append(waiter)
        if report is not None:
            self._reports.append(report)
            report.loading(self.stage, self.progress)
        try:
            await waiter.turn
        finally:
            self._waiters.remove(waiter)
            if report is not None:
                self._reports.remove(report)

    def end(self, resident: Resident[Any] | None, error: DragomanError | None) -> None:
        """Wake those that wait, in order, each of them holding the model: another load may follow at once."""
        for waiter in self._waiters:
            if waiter.turn.done():
                continue
            if error is not None:
                waiter.turn.set_exception(error)
                continue
            if resident is not None and waiter.own is not None:
                waiter.own.take(resident)
            waiter.turn.set_result(None)


class LoadQueue:
    """The loads that are wanted, in the order in which they were asked for; the first is in progress.

    ``max_waiting``: requests that may wait for a model.
    """

    def __init__(self, max_waiting: int, on_wanted: Callable[[Load], None]) -> None:
        """``on_wanted`` is called with each new load."""
        self._max_waiting = max_waiting
        self._on_wanted = on_wanted
        self._loads: dict[str, Load] = {}

    def __len__(self) -> int:
        return len(self._loads)

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(self._loads.values())

    @property
    def first(self) -> Load | None:
        return next(iter(self._loads.values()), None)

    @property
    def asked(self) -> Load | None:
        """Return the first load that an operator's call asks for."""
        return next((load for load in self._loads.values() if load.is_asked), None)

    def get(self, name: str) -> Load | None:
        return self._loads.get(name)

    def want(self, source: ModelSource, *, is_asked: bool = False) -> Load:
        """Return the load of this model: the one that is wanted already, or a new one."""
        load = self._loads.get(source.name)
        if load is None:
            load = self._loads[source.name] = Load(source, is_asked=is_asked)
            self._on_wanted(load)
        load.is_asked = load.is_asked or is_asked
        return load

    def require_room(self) -> None:
        """Raise Overloaded where too many requests wait already."""
        waiting = sum(load.waiting for load in self._loads.values())
        if waiting >= self._max_waiting:
            after_s = sum(load.remaining_s() for load in self._loads.values())
            message = f"{waiting} requests are waiting for a model already. Try again later."
            raise Overloaded(message, retry_after_s=min(after_s, LONGEST_WAIT_S))

    def remove(self, load: Load) -> None:
        with contextlib.suppress(KeyError):
            del self._loads[load.source.name]
