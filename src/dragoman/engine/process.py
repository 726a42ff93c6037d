"""One life of the engine's process, as its parent sees it: start, messages both ways, end."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Callable
from typing import cast

import msgspec

from dragoman.engine.launch import Launched
from dragoman.engine.messages import FrameReader, FromEngine, Shutdown, WorkerSettings, frame

log = logging.getLogger(__name__)

GOODBYE_S = 2.0
"""How long a process may take to leave when told to, before it is killed."""


class WorkerProcess(asyncio.Protocol):
    """A started process. ``heard`` gets every message; ``gone`` is called once, when the connection has ended."""

    def __init__(self, heard: Callable[[FromEngine], None], gone: Callable[[], None]) -> None:
        self._heard = heard
        self._gone = gone
        self._frames = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._transport: asyncio.Transport
        self._process: subprocess.Popen[bytes]

    @classmethod
    async def spawn(
        cls,
        settings: WorkerSettings,
        heard: Callable[[FromEngine], None],
        gone: Callable[[], None],
        launched: Launched | None = None,
    ) -> WorkerProcess:
        """Start the process, unless one has been launched that has these settings, or none yet. It gets them before
        this first waits, and answers ``Ready`` or ``Failed`` when it is done loading."""
        if launched is None or launched.told not in (None, settings):
            launched = Launched()
        launched.adopt()
        if launched.told is None:
            launched.tell(settings)
        worker = cls(heard, gone)
        worker._process = launched.process
        await asyncio.get_running_loop().create_unix_connection(lambda: worker, sock=launched.connection)
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: msgspec.Struct) -> None:
        """Never waits. After the end of the process it does nothing: ``gone`` says what matters."""
        if not self._transport.is_closing():
            self._transport.write(frame(message))

    def kill(self) -> None:
        """End the process at once; ``gone`` follows."""
        self._process.kill()

    async def reap(self) -> int:
        """Make sure that the process is over; its exit status, negative for a signal."""
        self._transport.close()
        try:
            return await asyncio.to_thread(self._process.wait, GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)

    async def stop(self) -> None:
        """Ask the process to leave, and see that it does."""
        self.send(Shutdown())
        await self.reap()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._frames.feed(data):
                self._heard(self._decoder.decode(payload))
        except (ValueError, msgspec.MsgspecError):
            log.exception("the engine process speaks nonsense; it is killed")
            self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()
