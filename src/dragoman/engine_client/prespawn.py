"""Starting the engine's process: an interpreter that imports what it needs, and waits for its settings meanwhile.

Imports next to nothing, so that a command can begin with it before it knows what the engine is to run.
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

from dragoman.child_process import start_child
from dragoman.core.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.engine.messages import WorkerSettings


_RESERVED = 10
"""A socket pair, and what starting a process takes for a moment; and as many again."""


class DescriptorReserve:
    """Open files that are closed to make room, so that a process can be started when no more files can be opened."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def fill(self) -> None:
        """Open what is missing, as far as that goes."""
        with contextlib.suppress(OSError):
            while len(self._files) < _RESERVED:
                self._files.append(os.open(os.devnull, os.O_RDONLY))

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Leave room for the duration, in which nothing else should be opened; then take what is left of it again."""
        while self._files:
            os.close(self._files.pop())
        try:
            yield
        finally:
            self.fill()


class KeptMemory:
    """A file in memory that outlives the processes that it is given to: see ``block_store``. Closed with its last
    reference. ``file`` is None where the system has no such files."""

    def __init__(self) -> None:
        self.file: int | None = None
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self.file = os.memfd_create("dragoman-blocks")
                weakref.finalize(self, os.close, self.file)


class PrespawnedWorker:
    """A process that waits. It ends by itself when ``connection``, our end of a socket pair, is closed.

    Attributes:
        told: the settings that it has; None: it waits for them. memory: what it was given with them.
        errors: our end of its standard error, for ``process_log`` to read. A socket, because uvloop closes the file of
            a pipe twice, and in between another thread may have opened one of the same number.
    """

    def __init__(self) -> None:
        """Raises DragomanError for forced kernels that cannot be had: the process would die of them."""
        if os.environ.get("DRAGOMAN_KERNELS"):
            try:
                importlib.import_module("dragoman.kernels")
            except ImportError as error:
                raise DragomanError(str(error)) from None
        with contextlib.ExitStack() as unless_started, contextlib.ExitStack() as theirs:

            def pair() -> tuple[socket.socket, socket.socket]:
                ours, child_end = socket.socketpair()
                unless_started.callback(ours.close)
                return ours, theirs.enter_context(child_end)

            self.connection, connection = pair()
            self.errors, errors = pair()
            ends = ["--fd", str(connection.fileno()), "--parent", str(os.getpid())]
            self.process = start_child(
                [sys.executable, "-m", "dragoman.engine", *ends],
                pass_fds=[connection.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )
            unless_started.pop_all()
        self.told: WorkerSettings | None = None
        self.memory: KeptMemory | None = None
        self._adopted = False

    def tell(self, settings: WorkerSettings, memory: KeptMemory | None = None) -> None:
        """Send the settings; once. The process begins to load, and answers who reads ``connection``. ``memory``: what
        the process before it left; by default new."""
        from dragoman.engine.messages import frame  # it is there: whoever has settings has imported it

        self.told, self.memory = settings, memory or KeptMemory()
        files = [] if self.memory.file is None else [self.memory.file]
        data = frame(settings)
        with contextlib.suppress(OSError):  # a process that is gone already: who reads finds its end
            sent = socket.send_fds(self.connection, [data], files)
            self.connection.sendall(data[sent:])

    def adopt(self) -> PrespawnedWorker:
        """For who sees to it from now on."""
        self._adopted = True
        return self

    def close(self) -> None:
        """End the process, unless somebody else has it."""
        if not self._adopted:
            self._adopted = True
            self.connection.close()
            self.process.kill()
            self.process.wait()
            self.errors.close()
