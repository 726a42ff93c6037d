"""Sandboxed processes for work that cannot be limited from inside: started, asked, killed when they take too long.

Each is a Python program that exchanges frames on file descriptor 0, a stream socket: 4 bytes of length, big-endian,
then JSON. It greets with ``{}``; the first frame it gets is its setup, answered like every later one by an object.
A request or an answer with ``payload_bytes`` is followed by so many bytes as they are.
``{"error": …, "kind": …}`` is a failure; of the kind ``lost``, one that the request did not cause. A frame
``{"cancel": true}`` has no answer: it ends the current work, where the program supports that. ``sandbox_child`` has
the code that these programs share.

The end of a process decides about its request. A request fails for an error that the program reports, for processor
time (not for a process that was stopped, or got none), and for a crash that happens twice. After any other end of a
process the request is sent to a new one, once.
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

from dragoman.child_process import ChildState, child_state, start_child
from dragoman.text.confinement import bare_environment
from dragoman.text.sandbox_child import framed, receive_exactly, receive_size

log = logging.getLogger("dragoman.text")

_START_S = 30.0  # a new interpreter takes 0.1 s; a machine can be very busy
_POLL_S = 0.05
"""Interval at which a process that has not answered, and the cancellation of the request, are checked."""
_CLOCK_FACTOR = 4.0
"""Factor of a process's time limit by the clock, while other processes use the processor."""

_BLAMELESS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGSTOP)
"""Signals that come from outside: from the system short of memory, from an operator, at shutdown."""

Cancelled = Callable[[], bool]
Result = TypeVar("Result")


class ProcessFailure(Exception):
    """The request failed. ``kind`` as reported by the program, or: time (limit exceeded), memory (it crashed twice).
    ``place``: of the part that it failed for, where the program says so."""

    def __init__(self, kind: str, message: str, place: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.place = place


class ProcessLost(Exception):
    """The process ended, or was stopped, before it answered, as far as known not because of the request.

    ``crash``: how it died, where the process may have caused it itself.
    """

    def __init__(self, reason: str, crash: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.crash = crash


class SandboxedProcess:
    """A program that is set up once, answers one request at a time, and is replaced when it had to be killed.

    ``setup`` returns its first frame. An answer takes at most ``time_s`` of processor time and ``answer_bytes``, and
    its payload ``payload_bytes``.
    Methods block and may be called from any thread. ``close``, or losing the last reference, ends the process.
    """

    def __init__(
        self,
        program: Path,
        setup: Callable[[], Mapping[str, Any]],
        *,
        time_s: float,
        answer_bytes: int,
        payload_bytes: int = 0,
    ) -> None:
        self._program = program
        self._setup = setup
        self._time_s = time_s
        self._answer_bytes = answer_bytes
        self._payload_bytes = payload_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._setup_answer: dict[str, Any] | None = None
        """The program's answer to its setup."""
        self._closing = False
        self._end: Callable[[], object] = _do_nothing

    def begin(self) -> None:
        """Start without waiting; ``start`` then waits for less, and raises the errors."""
        with self._lock, contextlib.suppress(ProcessLost):
            if self._connection is None:
                self._begin()

    def start(self) -> dict[str, Any]:
        """Start and set up, unless that is done; return the answer to the setup. Raises ProcessFailure, ProcessLost;
        ``ask`` does the same when needed."""
        with self._lock:
            self._with_retry(self._started)
            return self._setup_answer or {}

    def ask(
        self, request: Mapping[str, Any], cancelled: Cancelled | None = None, payload: bytes = b""
    ) -> dict[str, Any]:
        """Return the answer to one request, both plain JSON values. Raises ProcessFailure, ProcessLost.

        ``cancelled``: checked at intervals; once it is true the answer is not needed. ``payload``: bytes that follow
        the request; those that follow the answer are its ``payload``.
        """
        with self._lock:
            return self._with_retry(lambda: self._ask(self._started(), request, cancelled, payload))

    def close(self) -> None:
        """End the process."""
        self._closing = True
        self._end()  # ends the wait of a thread for an answer
        with self._lock:
            self._stop()
            self._closing = False

    def _with_retry(self, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except ProcessLost as first:
            if self._closing:
                raise
            log.warning("%s: %s; starting a new process", self._program.stem, first.reason)
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
        if self._setup_answer is None:
            try:
                self._exchange(connection, b"", _START_S)  # the process greets when it is ready
                self._setup_answer = self._ask(connection, self._setup())
            except ProcessFailure:
                self._stop()
                raise
            log.debug("%s is ready, confined by: %s", self._program.stem, self._setup_answer.get("confined"))
        return connection

    def _begin(self) -> socket.socket:
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._process = process = start_child(
                        # -P: the folder of the program is not on its path, so no module in it can hide another.
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
        self._connection, self._setup_answer = ours, None
        self._end = weakref.finalize(self, _end, process, ours)
        return ours

    def _stop(self) -> None:
        self._connection, self._setup_answer = None, None
        self._end()

    def _ask(
        self,
        connection: socket.socket,
        request: Mapping[str, Any],
        cancelled: Cancelled | None = None,
        payload: bytes = b"",
    ) -> dict[str, Any]:
        try:
            frame = framed({**request, "payload_bytes": len(payload)} if payload else request)
        except RecursionError:
            raise ProcessFailure("failed", "the messages are nested too deeply") from None
        return self._exchange(connection, frame, self._time_s, cancelled, payload)

    def _exchange(
        self,
        connection: socket.socket,
        frame: bytes,
        time_s: float,
        cancelled: Cancelled | None = None,
        payload: bytes = b"",
    ) -> dict[str, Any]:
        """Send a frame and return its answer. After any error the process is ended, as it may be out of step."""
        try:
            deadline = time.monotonic() + _CLOCK_FACTOR * time_s
            used_before_s = self._used_s()
            for part in (frame, payload):
                _send(connection, part, self._time_is_up(deadline, time_s, used_before_s, None))
            _await_answer(connection, self._time_is_up(deadline, time_s, used_before_s, cancelled))
            size = receive_size(connection, deadline)
            if size > self._answer_bytes:
                raise EOFError
            answer = json.loads(receive_exactly(connection, size, deadline))
            if more := answer.get("payload_bytes", 0):
                if not 0 < more <= self._payload_bytes:
                    raise EOFError
                answer["payload"] = receive_exactly(connection, more, deadline)
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
            raise ProcessFailure(answer["kind"], answer["error"], answer.get("place"))
        return dict(answer)

    def _time_is_up(
        self, deadline: float, time_s: float, used_before_s: float, cancelled: Cancelled | None
    ) -> Callable[[], None]:
        """Return a check to call at intervals while waiting. It raises TimeoutError when the process exceeded its
        limits, and sends the cancellation to the process."""
        soft_deadline = deadline - (_CLOCK_FACTOR - 1) * time_s
        is_cancel_sent = False

        def check() -> None:
            nonlocal is_cancel_sent
            now = time.monotonic()
            if now >= deadline or self._is_stopped():
                raise TimeoutError
            if now >= soft_deadline and self._used_s() - used_before_s >= 0.9 * time_s:
                raise TimeoutError
            if cancelled is not None and not is_cancel_sent and cancelled() and self._connection is not None:
                is_cancel_sent = True
                self._connection.sendall(framed({"cancel": True}))

        return check

    def _used_s(self) -> float:
        """Return the processor seconds of the process; those of the clock where the system does not report them."""
        state = self._state()
        return time.monotonic() if state is None else state.cpu_ticks / 100

    def _is_stopped(self) -> bool:
        state = self._state()
        return state is not None and state.is_stopped

    def _state(self) -> ChildState | None:
        return None if self._process is None else child_state(self._process.pid)


class SandboxedProcesses:
    """Up to ``count`` processes of one program, each started when the earlier ones are busy. Attributes and methods are
    those of ``SandboxedProcess``; a caller waits while all are busy."""

    def __init__(
        self,
        program: Path,
        setup: Callable[[], Mapping[str, Any]],
        *,
        time_s: float,
        answer_bytes: int,
        payload_bytes: int = 0,
        count: int = 1,
    ) -> None:
        limits = {"answer_bytes": answer_bytes, "payload_bytes": payload_bytes}
        self._all = [SandboxedProcess(program, setup, time_s=time_s, **limits) for _ in range(count)]
        self._idle = self._all[::-1]
        self._one_is_idle = threading.Condition()

    def begin(self) -> None:
        """Start the first one without waiting."""
        self._all[0].begin()

    def start(self) -> dict[str, Any]:
        """Start the first one; return its answer to the setup. Raises ProcessFailure, ProcessLost."""
        return self._all[0].start()

    def ask(
        self, request: Mapping[str, Any], cancelled: Cancelled | None = None, payload: bytes = b""
    ) -> dict[str, Any]:
        """Return the answer of one of them. Raises ProcessFailure, ProcessLost."""
        with self._one_is_idle:
            while not self._idle:
                self._one_is_idle.wait()
            process = self._idle.pop()
        try:
            return process.ask(request, cancelled, payload)
        finally:
            with self._one_is_idle:
                self._idle.append(process)
                self._one_is_idle.notify()

    def close(self) -> None:
        """End all; a later ``ask`` starts them again."""
        for process in self._all:
            process.close()


def _loss(process: subprocess.Popen[bytes] | None, time_s: float) -> Exception:
    """Return the error for a process that ended unasked."""
    status = None if process is None else process.poll()
    if status is None:
        return ProcessLost("the process was ended")
    if status == -signal.SIGXCPU:
        return ProcessFailure("time", f"it took more than {time_s:g} s")
    if -status in _BLAMELESS:
        return ProcessLost(f"the process was killed by signal {-status}")
    how = f"killed by signal {-status}" if status < 0 else f"with exit status {status}"
    return ProcessLost(f"the process died, {how}", crash=how)


def _send(connection: socket.socket, frame: bytes, check: Callable[[], None]) -> None:
    connection.setblocking(False)
    view = memoryview(frame)
    while view:
        try:
            view = view[connection.send(view) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(connection, select.POLLOUT)
            if not poll.poll(1000 * _POLL_S):
                check()


def _await_answer(connection: socket.socket, check: Callable[[], None]) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not poll.poll(1000 * _POLL_S):
        check()


def _is_open(connection: socket.socket) -> bool:
    """Return whether the process lives: when it ends, its end of an idle connection is closed, and so readable."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _do_nothing() -> None:
    """Do nothing: there is no process to end."""


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    # The process first: a thread that waits for its answer then sees its end, not a closed file.
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
    connection.close()
