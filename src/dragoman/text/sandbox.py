"""Processes for work that cannot be bounded from inside: started, asked, killed when they take too long.

Each is a Python program that speaks frames on file descriptor 0, a stream socket: 4 bytes of length, big-endian, then
JSON. It greets with ``{}``; the first frame that it gets is its setup, answered like every later one by an object.
``{"error": …, "kind": …}`` is a failure; of the kind ``lost``, one that the request is not to blame for. A frame
``{"cancel": true}`` has no answer of its own: it ends what is being worked on, where the program can do that.
``limited_program`` has what these programs share.

What a request has earned is told from what befell its process. A request fails for what the program itself reports,
for processor time (not for a process that was stopped, or got none), and for a crash that happens twice. Any other end
of a process is nobody's fault: the request is asked again in a new one, once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dragoman.child_process import start_child
from dragoman.text.confinement import bare_environment
from dragoman.text.sandbox_child import framed, receive_exactly, receive_size

log = logging.getLogger("dragoman.text")

_START_S = 30.0  # a new interpreter takes 0.1 s; a machine can be very busy
_LOOK_S = 0.05
"""How often a process that has not answered is looked at, and whether anybody still waits for it."""
_PATIENCE = 4.0
"""So many times its limit a process may take by the clock, where others have the processor."""

_BLAMELESS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGSTOP)
"""Signals that come from outside: from the system short of memory, from an operator, from the end of everything."""

Cancelled = Callable[[], bool]
Result = TypeVar("Result")


class ProcessFailure(Exception):
    """The request failed. ``kind`` as the program says, or: time (too much of it), memory (it crashed twice)."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class ProcessLost(Exception):
    """The process ended, or was stopped, before it answered; as far as can be told not for what it was asked.

    ``crash``: how, where the process may have done it to itself.
    """

    def __init__(self, reason: str, crash: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.crash = crash


class SandboxedProcess:
    """A program, set up once, asked one thing at a time, and replaced when it had to be killed.

    ``setup`` makes its first frame. An answer takes at most ``time_s`` of the processor and ``answer_bytes``. Methods
    block and may be called from any thread. ``close``, or losing the last reference, ends the process.
    """

    def __init__(
        self, program: Path, setup: Callable[[], Mapping[str, Any]], *, time_s: float, answer_bytes: int
    ) -> None:
        self._program = program
        self._setup = setup
        self._time_s = time_s
        self._answer_bytes = answer_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._set_up: dict[str, Any] | None = None
        """What the program answered to its setup."""
        self._closing = False
        self._end: Callable[[], object] = _nothing

    def begin(self) -> None:
        """Start without waiting; ``start`` then waits for less, and says what is wrong."""
        with self._lock, contextlib.suppress(ProcessLost):
            if self._connection is None:
                self._begin()

    def start(self) -> dict[str, Any]:
        """Start and set up, unless that is done; the answer to the setup. Raises ProcessFailure, ProcessLost; ``ask``
        does the same when it has to."""
        with self._lock:
            self._twice(self._started)
            return self._set_up or {}

    def ask(self, request: Mapping[str, Any], cancelled: Cancelled | None = None) -> dict[str, Any]:
        """The answer to one request, both plain JSON values. Raises ProcessFailure, ProcessLost.

        ``cancelled``: looked at now and then; once it is true nobody wants the answer any more.
        """
        with self._lock:
            return self._twice(lambda: self._ask(self._started(), request, cancelled))

    def close(self) -> None:
        """End the process."""
        self._closing = True
        self._end()  # whoever waits for an answer hears of it
        with self._lock:
            self._stop()
            self._closing = False

    def _twice(self, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except ProcessLost as first:
            if self._closing:
                raise
            log.warning("%s: %s; asking a new process", self._program.stem, first.reason)
            try:
                return work()
            except ProcessLost as second:
                if first.crash and first.crash == second.crash:
                    raise ProcessFailure("memory", f"its process died, {first.crash}, probably of recursion") from None
                raise

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
            log.debug("%s is ready, confined by: %s", self._program.stem, self._set_up.get("confined"))
        return connection

    def _begin(self) -> socket.socket:
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._process = process = start_child(
                        # -P: the folder of the program is not on its path, so no module beside it can hide another.
                        [sys.executable, "-P", str(self._program)],
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        env=bare_environment(),
                        start_new_session=True,
                    )
                except BaseException:
                    ours.close()
                    raise
        except OSError as error:  # no descriptors, no memory, no more processes
            raise ProcessLost(f"the process cannot be started: {error.strerror}") from None
        self._connection, self._set_up = ours, None
        self._end = weakref.finalize(self, _end, process, ours)
        return ours

    def _stop(self) -> None:
        self._connection, self._set_up = None, None
        self._end()

    def _ask(
        self, connection: socket.socket, request: Mapping[str, Any], cancelled: Cancelled | None = None
    ) -> dict[str, Any]:
        try:
            frame = framed(request)
        except RecursionError:
            raise ProcessFailure("failed", "the messages are nested too deeply") from None
        return self._exchange(connection, frame, self._time_s, cancelled)

    def _exchange(
        self, connection: socket.socket, frame: bytes, time_s: float, cancelled: Cancelled | None = None
    ) -> dict[str, Any]:
        """Send a frame and return the answer to it. Whatever goes wrong, a process out of step is not asked again."""
        try:
            deadline = time.monotonic() + _PATIENCE * time_s
            used_before_s = self._used_s()
            _send(connection, frame, self._time_is_up(deadline, time_s, used_before_s, None))
            _await_answer(connection, self._time_is_up(deadline, time_s, used_before_s, cancelled))
            size = receive_size(connection, deadline)
            if size > self._answer_bytes:
                raise EOFError
            answer = json.loads(receive_exactly(connection, size, deadline))
        except TimeoutError:
            used_s = self._used_s() - used_before_s
            self._stop()
            if used_s >= 0.5 * time_s:
                raise ProcessFailure("time", f"it took more than {time_s:g} s") from None
            raise ProcessLost(f"the process was stopped, or got {used_s:.2f} s of the processor") from None
        except (OSError, EOFError, ValueError):
            process = self._process
            self._stop()
            raise _loss(process, time_s) from None
        except BaseException:
            self._stop()
            raise
        if answer.get("kind") == "lost":
            raise ProcessLost(answer["error"])
        if "error" in answer:
            raise ProcessFailure(answer["kind"], answer["error"])
        return dict(answer)

    def _time_is_up(
        self, deadline: float, time_s: float, used_before_s: float, cancelled: Cancelled | None
    ) -> Callable[[], None]:
        """What to call now and then meanwhile. It raises TimeoutError when the process is not to be waited for, and
        passes on that nobody wants the answer any more."""
        soft_deadline = deadline - (_PATIENCE - 1) * time_s
        told = False

        def look() -> None:
            nonlocal told
            now = time.monotonic()
            if now >= deadline or self._is_stopped():
                raise TimeoutError
            if now >= soft_deadline and self._used_s() - used_before_s >= 0.9 * time_s:
                raise TimeoutError
            if cancelled is not None and not told and cancelled() and self._connection is not None:
                told = True
                self._connection.sendall(framed({"cancel": True}))

        return look

    def _used_s(self) -> float:
        """Seconds of the processor that the process has had. Of the clock, where the system does not say."""
        fields = _status(self._process)
        return (int(fields[11]) + int(fields[12])) / _TICKS if fields else time.monotonic()

    def _is_stopped(self) -> bool:
        fields = _status(self._process)
        return bool(fields) and fields[0] in ("T", "t")


class SandboxedProcesses:
    """Up to ``count`` processes of one program, each started when those before it are busy. Attributes and methods are
    those of ``SandboxedProcess``; who finds all of them busy waits."""

    def __init__(
        self,
        program: Path,
        setup: Callable[[], Mapping[str, Any]],
        *,
        time_s: float,
        answer_bytes: int,
        count: int = 1,
    ) -> None:
        self._all = [SandboxedProcess(program, setup, time_s=time_s, answer_bytes=answer_bytes) for _ in range(count)]
        self._idle = self._all[::-1]
        self._one_is_idle = threading.Condition()

    def begin(self) -> None:
        """Start the first one without waiting."""
        self._all[0].begin()

    def start(self) -> dict[str, Any]:
        """Start the first one; what it answers to its setup. Raises ProcessFailure, ProcessLost."""
        return self._all[0].start()

    def ask(self, request: Mapping[str, Any], cancelled: Cancelled | None = None) -> dict[str, Any]:
        """The answer of one of them. Raises ProcessFailure, ProcessLost."""
        with self._one_is_idle:
            while not self._idle:
                self._one_is_idle.wait()
            process = self._idle.pop()
        try:
            return process.ask(request, cancelled)
        finally:
            with self._one_is_idle:
                self._idle.append(process)
                self._one_is_idle.notify()

    def close(self) -> None:
        """End all; a later ``ask`` starts them again."""
        for process in self._all:
            process.close()


_TICKS = 100  # of Linux, in a second; sysconf says no other


def _status(process: subprocess.Popen[bytes] | None) -> list[str]:
    """What /proc says of it, from the state on (proc_pid_stat(5)); nothing where there is no such thing."""
    try:
        with open(f"/proc/{process.pid if process else 0}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _loss(process: subprocess.Popen[bytes] | None, time_s: float) -> Exception:
    """Why a process has ended that was not told to."""
    status = None if process is None else process.poll()
    if status is None:
        return ProcessLost("the process was ended")
    if status == -signal.SIGXCPU:
        return ProcessFailure("time", f"it took more than {time_s:g} s")
    if -status in _BLAMELESS:
        return ProcessLost(f"the process was killed by signal {-status}")
    how = f"killed by signal {-status}" if status < 0 else f"with exit status {status}"
    return ProcessLost(f"the process died, {how}", crash=how)


def _send(connection: socket.socket, frame: bytes, look: Callable[[], None]) -> None:
    connection.setblocking(False)
    view = memoryview(frame)
    while view:
        try:
            view = view[connection.send(view) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(connection, select.POLLOUT)
            if not poll.poll(1000 * _LOOK_S):
                look()


def _await_answer(connection: socket.socket, look: Callable[[], None]) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not poll.poll(1000 * _LOOK_S):
        look()


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
    # The process first: who waits for its answer in another thread then sees its end, not a closed file.
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
    connection.close()
