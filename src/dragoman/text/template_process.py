"""The process that renders templates, seen from the server: started, asked, killed when it takes too long."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_WORKER = Path(__file__).with_name("template_worker.py")
_START_S = 30.0  # a new interpreter takes 0.1 s; a machine can be very busy


class TemplateLimits(NamedTuple):
    """What one compilation or one rendering may take. ``memory_bytes`` is the process's whole address space."""

    time_s: float = 1.0
    output_chars: int = 1 << 22
    memory_bytes: int = 1 << 29


DEFAULT_LIMITS = TemplateLimits()


class TemplateFailure(Exception):
    """The template did not render. ``kind``: syntax, raised (by the template itself), failed, time, size, memory."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class TemplateProcess:
    """Named templates, compiled once, rendered one at a time in a process that is replaced when it had to be killed.

    Methods block and may be called from any thread. ``close``, or losing the last reference, ends the process.
    """

    def __init__(self, templates: Mapping[str, str], limits: TemplateLimits) -> None:
        self._templates = dict(templates)
        self._limits = limits
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._end: Callable[[], object] = _nothing

    def start(self) -> None:
        """Compile the templates. Raises TemplateFailure; ``render`` does the same when it has to."""
        with self._lock:
            self._started()

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """The text of one template. ``variables`` are plain JSON values. Raises TemplateFailure."""
        with self._lock:
            answer = self._ask(self._started(), {"name": name, "variables": variables}, self._limits.time_s)
            return str(answer["text"])

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _started(self) -> socket.socket:
        if self._connection is not None and _is_open(self._connection):
            return self._connection
        self._stop()
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                # -P: the folder of the program is not on its path, so no module beside it can hide another.
                [sys.executable, "-P", str(_WORKER)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._connection = ours
        self._end = weakref.finalize(self, _end, process, ours)
        setup = {"limits": self._limits._asdict(), "templates": self._templates}
        try:
            self._exchange(ours, b"", _START_S)  # the process greets when it is ready
            self._ask(ours, setup, self._limits.time_s)
        except TemplateFailure:
            self._stop()
            raise
        return ours

    def _stop(self) -> None:
        self._connection = None
        self._end()

    def _ask(self, connection: socket.socket, request: Mapping[str, Any], time_s: float) -> dict[str, Any]:
        try:
            data = json.dumps(request).encode()
        except RecursionError:
            raise TemplateFailure("failed", "the messages are nested too deeply") from None
        return self._exchange(connection, struct.pack(">I", len(data)) + data, time_s)

    def _exchange(self, connection: socket.socket, frame: bytes, time_s: float) -> dict[str, Any]:
        """Send a frame and return the answer to it. Whatever goes wrong, a process out of step is not asked again."""
        deadline = time.monotonic() + time_s
        try:
            connection.settimeout(time_s)
            connection.sendall(frame)
            size = struct.unpack(">I", _receive(connection, 4, deadline))[0]
            # No character takes more than 12 bytes of JSON.
            if size > 12 * self._limits.output_chars + (1 << 16):
                raise EOFError
            answer = json.loads(_receive(connection, size, deadline))
        except TimeoutError:
            self._stop()
            raise TemplateFailure("time", f"it took more than {time_s:g} s") from None
        except (OSError, EOFError, ValueError):
            self._stop()
            raise TemplateFailure("memory", "its process died, probably of too much memory or recursion") from None
        except BaseException:
            self._stop()
            raise
        if "error" in answer:
            raise TemplateFailure(answer["kind"], answer["error"])
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


def _receive(connection: socket.socket, size: int, deadline: float) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data


def _nothing() -> None:
    """There is no process to end."""


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
