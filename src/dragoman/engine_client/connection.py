"""Connection to one process of the engine: start, messages both ways, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import msgspec

from dragoman.engine.messages import FrameReader, FromEngine, Shutdown, WorkerSettings, frame
from dragoman.engine.process_log import log_line
from dragoman.engine_client.prespawn import DescriptorReserve, MemoryFile, PrespawnedWorker

log = logging.getLogger(__name__)

CONNECT_S = 30.0
"""Time limit for connecting the event loop to the process's sockets."""

STOP_TIMEOUT_S = 2.0
"""Time a process has to end after ``Shutdown``, before it is killed."""

LONGEST_LINE = 64 * 1024
"""Longer lines of the process, which are not log records, are logged in parts."""

STDERR_TIMEOUT_S = 0.5
"""Time to read the rest of an ended process's standard error."""

TURN_S = 0.005
"""Time after which the messages that came together give the event loop a turn. To pass on one step of 64 streams with
20 alternatives each takes 12 ms, and several steps arrive at once where the server is slower than the engine: new
requests and health checks waited for all of them."""

_descriptor_reserve = DescriptorReserve()


def ending(status: int, *, says_why: bool = False) -> str:
    """Return how a process has ended, from its exit status, which is negative for a signal. ``says_why``: and who
    usually sends that signal."""
    if status >= 0:
        return f"exit status {status}"
    why = ", which the system sends where memory is short" if says_why and status == -signal.SIGKILL else ""
    return f"killed by signal {-status}{why}"


class EngineProcess(Protocol):
    """A process of the engine, as ``EngineClient`` uses it. Simulations replace it."""

    @property
    def pid(self) -> int: ...

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Never blocks, and does nothing after the process has ended."""

    def kill(self) -> None:
        """Kill the process; ``on_exit`` is called afterwards."""

    async def reap(self) -> int:
        """Wait for the process's end, killing it if needed; return its exit status, negative for a signal."""

    async def stop(self) -> None:
        """Ask the process to end, and wait for it."""


Spawn = Callable[
    [WorkerSettings, Callable[[FromEngine], None], Callable[[], None], PrespawnedWorker | None],
    Awaitable[EngineProcess],
]
"""Starts a process of the engine; see ``Spawner``."""


class WorkerProcess(asyncio.Protocol):
    """A started process. ``on_message`` is called with every message, ``on_exit`` once, when the connection
    has ended."""

    def __init__(self, on_message: Callable[[FromEngine], None], on_exit: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_exit = on_exit
        self._frames = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._arrived: deque[bytes] = deque()
        """Messages that are not handled yet; nothing is read meanwhile."""
        self._is_handling = False
        self._transport: asyncio.Transport
        self._process: subprocess.Popen[bytes]
        self._errors = LineReader()
        self._errors_transport: asyncio.BaseTransport

    async def connect(self, prespawned: PrespawnedWorker) -> None:
        """Connect to the process's messages and its standard error."""
        self._process = prespawned.process
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):  # the watchdog checks no process before this returns
                errors = loop.create_unix_connection(lambda: self._errors, sock=prespawned.errors)
                self._errors_transport, _ = await errors
                await loop.create_unix_connection(lambda: self, sock=prespawned.connection)
        except BaseException:
            self._process.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Never blocks, and does nothing after the process has ended."""
        if not self._transport.is_closing():
            self._transport.write(frame(message))

    def kill(self) -> None:
        """Kill the process; ``on_exit`` is called afterwards."""
        self._process.kill()

    async def reap(self) -> int:
        """Wait for the process's end, killing it if needed; return its exit status, negative for a signal."""
        self._transport.close()
        # Polled: a waiting thread would itself have to be joined.
        end, poll_s = time.monotonic() + STOP_TIMEOUT_S, 0.001
        while (status := self._process.poll()) is None:
            if time.monotonic() > end:
                self._process.kill()
            await asyncio.sleep(poll_s)
            poll_s = min(2 * poll_s, 0.05)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STDERR_TIMEOUT_S):
                await self._errors.ended.wait()
        self._errors_transport.close()
        return status

    async def stop(self) -> None:
        """Ask the process to end, and wait for it."""
        self.send(Shutdown())
        await self.reap()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._arrived.extend(self._frames.feed(data))
        except ValueError:
            self._on_malformed()
            return
        if not self._is_handling:
            self._handle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._handle(always=True)
        self._on_exit()

    def _handle(self, *, always: bool = False) -> None:
        """Handle what has arrived, for ``TURN_S`` or ``always``, and the rest in the next turns of the event loop."""
        end = time.monotonic() + TURN_S
        try:
            while self._arrived:
                self._on_message(self._decoder.decode(self._arrived.popleft()))
                if self._arrived and not always and time.monotonic() >= end:
                    self._wait_for_turn()
                    return
        except Exception:  # of whatever a message leads to: nothing would handle the messages after it
            self._on_malformed()
        if self._is_handling:
            self._is_handling = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _wait_for_turn(self) -> None:
        if not self._is_handling:
            self._is_handling = True
            self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._handle)

    def _on_malformed(self) -> None:
        log.exception("a message of the engine process cannot be handled; killing it")
        self._arrived.clear()
        self.kill()


class LineReader(asyncio.Protocol):
    """Logs what the engine process writes to standard error, in the server. ``ended`` is set at the end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._partial = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            log_line(line)
        if len(self._partial) > LONGEST_LINE:
            log_line(self._partial)
            self._partial = b""

    def connection_lost(self, exc: Exception | None) -> None:
        log_line(self._partial)
        self.ended.set()


class Spawner:
    """Starts the processes of one engine, each with the memory file of the previous one."""

    def __init__(self) -> None:
        self._memory: MemoryFile | None = None

    async def __call__(
        self,
        settings: WorkerSettings,
        on_message: Callable[[FromEngine], None],
        on_exit: Callable[[], None],
        prespawned: PrespawnedWorker | None = None,
    ) -> WorkerProcess:
        """Start a process, unless ``prespawned`` has these settings or none yet. The settings are sent before this
        first waits; the process answers ``Ready`` or ``Failed`` after loading."""
        if prespawned is None or prespawned.settings not in (None, settings):
            with _descriptor_reserve.released():
                prespawned = PrespawnedWorker()
        _descriptor_reserve.fill()
        prespawned.detach()
        if prespawned.settings is None:
            prespawned.send_settings(settings, self._memory)
        process = WorkerProcess(on_message, on_exit)
        await process.connect(prespawned)
        self._memory = prespawned.memory
        return process
