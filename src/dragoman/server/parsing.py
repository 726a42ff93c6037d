"""Sharing the event loop between connections with more input than can be parsed at once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

log = logging.getLogger("dragoman.server")

PIECES_AT_ONCE = 4
"""Pieces of one connection that are parsed on arrival. Further ones wait for their turn."""

TURN_S = 0.002
"""Seconds for which a turn of the loop parses waiting input, of all connections together."""


class HasPieces(Protocol):
    """A connection with input to be parsed. ``transport`` is aborted where that fails."""

    @property
    def transport(self) -> asyncio.Transport: ...

    def parse(self, pieces: int) -> None:
        """Parse so many pieces, and ask for another turn when there are more."""


class ParsingTurns:
    """Connections that wait for their turn; each gets its pieces before the first gets more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[HasPieces] = deque()
        self._queued: set[HasPieces] = set()
        self._is_scheduled = False

    def add(self, connection: HasPieces) -> None:
        """Let the connection continue in one of the next turns of the loop."""
        if connection in self._queued:
            return
        self._waiting.append(connection)
        self._queued.add(connection)
        self._schedule()

    def _take_turn(self) -> None:
        self._is_scheduled = False
        end = perf_counter() + TURN_S
        while self._waiting and perf_counter() < end:
            connection = self._waiting.popleft()
            self._queued.discard(connection)
            try:
                connection.parse(PIECES_AT_ONCE)
            except Exception:
                log.exception("what a connection has sent cannot be parsed; the connection is closed")
                connection.transport.abort()
        if self._waiting:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take_turn)


class ReadingOnDemand(FlowControl):
    """uvicorn's flow control, where the connection itself decides whether to read more."""

    def __init__(self, transport: asyncio.Transport, resume: Callable[[], None]) -> None:
        super().__init__(transport)
        self._resume = resume

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        self._resume()
