"""A process for work that cannot be bounded from inside: started, asked, killed when it takes too long.

It is a Python program that speaks frames on file descriptor 0, a stream socket: 4 bytes of length, big-endian, then
JSON. It greets with ``{}``; the first frame that it gets is its setup, answered like every later one by an object.
``{"error": …, "kind": …}`` is a failure. ``limited_program`` has what these programs share.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dragoman.text.limited_program import framed, receive_exactly, receive_size

_START_S = 30.0  # a new interpreter takes 0.1 s; a machine can be very busy


class ProcessFailure(Exception):
    """The work was not done. ``kind`` as the program says, or: time (too much of it), memory (the process died)."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class LimitedProcess:
    """A program, set up once, asked one thing at a time, and replaced when it had to be killed.

    ``setup`` makes its first frame. An answer takes at most ``time_s`` and ``answer_bytes``. Methods block and may be
    called from any thread. ``close``, or losing the last reference, ends the process.
    """

    def __init__(
        self, program: Path, setup: Callable[[], Mapping[str, Any]], *, time_s: float, answer_bytes: int
    ) -> None:
        self._program = program
        self._setup = setup
        self._time_s = time_s
        self._answer_bytes = answer_bytes
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._set_up: dict[str, Any] | None = None
        """What the program answered to its setup."""
        self._end: Callable[[], object] = _nothing

    def begin(self) -> None:
        """Start without waiting; ``start`` then waits for less."""
        with self._lock:
            if self._connection is None:
                self._begin()

    def start(self) -> dict[str, Any]:
        """Start and set up, unless that is done; the answer to the setup. Raises ProcessFailure; ``ask`` does the same
        when it has to."""
        with self._lock:
            self._started()
            return self._set_up or {}

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request, both plain JSON values. Raises ProcessFailure."""
        with self._lock:
            return self._ask(self._started(), request)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _started(self) -> socket.socket:
        connection = self._connection
        if connection is None or not _is_open(connection):
            self._stop()
            connection = self._begin()
        if self._set_up is None:
            try:
                self._exchange(connection, b"", _START_S)  # the process greets when it is ready
                self._set_up = self._ask(connection, self._setup())
            except ProcessFailure:
                self._stop()
                raise
        return connection

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                # -P: the folder of the program is not on its path, so no module beside it can hide another.
                [sys.executable, "-P", str(self._program)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._connection, self._set_up = ours, None
        self._end = weakref.finalize(self, _end, process, ours)
        return ours

    def _stop(self) -> None:
        self._connection = None
        self._end()

    def _ask(self, connection: socket.socket, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            frame = framed(request)
        except RecursionError:
            raise ProcessFailure("failed", "the messages are nested too deeply") from None
        return self._exchange(connection, frame, self._time_s)

    def _exchange(self, connection: socket.socket, frame: bytes, time_s: float) -> dict[str, Any]:
        """Send a frame and return the answer to it. Whatever goes wrong, a process out of step is not asked again."""
        deadline = time.monotonic() + time_s
        try:
            connection.settimeout(time_s)
            connection.sendall(frame)
            size = receive_size(connection, deadline)
            if size > self._answer_bytes:
                raise EOFError
            answer = json.loads(receive_exactly(connection, size, deadline))
        except TimeoutError:
            self._stop()
            raise ProcessFailure("time", f"it took more than {time_s:g} s") from None
        except (OSError, EOFError, ValueError):
            self._stop()
            raise ProcessFailure("memory", "its process died, probably of too much memory or recursion") from None
        except BaseException:
            self._stop()
            raise
        if "error" in answer:
            raise ProcessFailure(answer["kind"], answer["error"])
        return dict(answer)


def _is_open(connection: socket.socket) -> bool:
    """Whether the process still lives: its end of an idle connection is closed, and so readable, when it does not."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _nothing() -> None:
    """There is no process to end."""


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
