"""The events of one request, and who waits for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Self

from dragoman.core.events import EngineEvent


class Pause(asyncio.Future[None]):
    """What a task awaits that can go on at once, within a callback of the event loop.

    A plain future has the loop resume its task in the next turn, which costs a switch for every token of every stream.
    """

    _step: Callable[[Any], object]
    _context: Context

    def add_done_callback(self, step: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self._step = step
        self._context = context  # type: ignore[assignment]  # the task that awaits gives its own
        super().add_done_callback(step, context=context)

    def end(self) -> None:
        """Resume the task now. Only where no task is running."""
        self.remove_done_callback(self._step)
        self.set_result(None)
        self._context.run(self._step, self)


class EventStream:
    """The events of one request, in order; ends when all its sequences have. Closing it early cancels the request."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._events: deque[EngineEvent] = deque()
        self._pause: Pause | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EngineEvent:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._pause = Pause()
            try:
                await self._pause
            finally:
                self._pause = None
        return self._events.popleft()

    async def aclose(self) -> None:
        """Cancel what is unfinished. Events not read yet are dropped."""
        if not self._ended:  # once it has, the id may be another request's
            self._cancel()
        self._events.clear()

    def deliver(self, events: list[EngineEvent], ended: bool) -> None:
        """More events, the last of all where it has ``ended``. Whoever waits for them has to be told: see below."""
        self._events.extend(events)
        self._ended = ended

    def wake(self) -> None:
        """Whoever waits goes on in the next turn of the event loop."""
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    def push(self) -> None:
        """Whoever waits goes on now, and takes the events as far as it can. Only where no task is running."""
        if self._pause is not None and not self._pause.done():
            self._pause.end()
