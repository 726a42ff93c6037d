"""Start of the engine's process: an interpreter that imports its modules while it waits for its settings.

Imports almost nothing, so that a command can start it before it knows its settings.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dragoman.child_process import open_standard_files, start_child
from dragoman.core.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.engine.messages import WorkerSettings


_RESERVED = 10
"""Descriptors for two socket pairs and the temporary files of starting a process."""


class DescriptorReserve:
    """Reserve of open files that are closed temporarily, so that a process can start when no more files can be
    opened."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def fill(self) -> None:
        """Reopen the missing files, as far as possible."""
        with contextlib.suppress(OSError):
            while len(self._files) < _RESERVED:
                self._files.append(os.open(os.devnull, os.O_RDONLY))

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Close the reserve for the duration, in which nothing else should be opened; then refill it."""
        while self._files:
            os.close(self._files.pop())
        try:
            yield
        finally:
            self.fill()


class MemoryFile:
    """A file in memory that outlives the processes that it is passed to: see ``block_store``. Closed with its last
    reference. ``file`` is None where the system has no such files."""

    def __init__(self) -> None:
        self.file: int | None = None
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self.file = os.memfd_create("dragoman-blocks")
                weakref.finalize(self, os.close, self.file)


class PrespawnedWorker:
    """A started process that waits for its settings. It ends when ``connection``, our end of a socket pair, is closed.

    Attributes:
        settings: the settings sent to it; None: it waits for them. memory: the file sent with them.
        errors: our end of its standard error, for ``process_log`` to read. A socket, because uvloop closes a pipe's
            descriptor twice, and in between another thread may have opened a file with the same number.
    """

    def __init__(self) -> None:
        """Start the process. Raises DragomanError for forced kernels that are not available, as the process
        would fail."""
        if os.environ.get("DRAGOMAN_KERNELS"):
            try:
                importlib.import_module("dragoman.kernels")
            except ImportError as error:
                raise DragomanError(str(error)) from None
        open_standard_files()  # a program may have closed them, and what it writes would go into the sockets
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as child_ends:

            def pair() -> tuple[socket.socket, socket.socket]:
                ours, child_end = socket.socketpair()
                on_failure.callback(ours.close)
                return ours, child_ends.enter_context(child_end)

            self.connection, connection = pair()
            self.errors, errors = pair()
            ends = ["--fd", str(connection.fileno()), "--parent", str(os.getpid())]
            self.process = start_child(
                [sys.executable, "-m", "dragoman.engine", *ends],
                pass_fds=[connection.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )
            on_failure.pop_all()
        self.settings: WorkerSettings | None = None
        self.memory: MemoryFile | None = None
        self._is_detached = False

    def send_settings(self, settings: WorkerSettings, memory: MemoryFile | None = None) -> None:
        """Send the settings, once. The process starts to load, and answers on ``connection``. ``memory``: the file of
        the previous process; by default a new one."""
        from dragoman.engine.messages import frame  # already imported: a caller with settings needs it

        self.settings, self.memory = settings, memory or MemoryFile()
        files = [] if self.memory.file is None else [self.memory.file]
        data = frame(settings)
        with contextlib.suppress(OSError):  # the process has ended already; reading reports it
            # Without a file nothing is sent beside the data: some systems refuse a message with an empty list of files.
            sent = socket.send_fds(self.connection, [data], files) if files else 0
            self.connection.sendall(data[sent:])

    def detach(self) -> PrespawnedWorker:
        """Hand the process over to the caller: ``close`` no longer ends it."""
        self._is_detached = True
        return self

    def close(self) -> None:
        """End the process, unless it was detached."""
        if not self._is_detached:
            self._is_detached = True
            self.connection.close()
            self.process.kill()
            self.process.wait()
            self.errors.close()
