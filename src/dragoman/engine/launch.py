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
from typing import TYPE_CHECKING

from dragoman.core.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.engine.messages import WorkerSettings


class Launched:
    """A process that waits. It ends by itself when ``connection``, our end of a socket pair, is closed.

    Attributes:
        told: the settings that it has; None: it waits for them.
    """

    def __init__(self) -> None:
        """Raises DragomanError for forced kernels that cannot be had: the process would die of them."""
        if os.environ.get("DRAGOMAN_KERNELS"):
            try:
                importlib.import_module("dragoman.kernels")
            except ImportError as error:
                raise DragomanError(str(error)) from None
        self.connection, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "dragoman.engine", "--fd", str(theirs.fileno())]
            try:
                self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            except BaseException:
                self.connection.close()
                raise
        self.told: WorkerSettings | None = None
        self._adopted = False

    def tell(self, settings: WorkerSettings) -> None:
        """Send the settings; once. The process begins to load, and answers who reads ``connection``."""
        from dragoman.engine.messages import frame  # it is there: whoever has settings has imported it

        self.told = settings
        with contextlib.suppress(OSError):  # a process that is gone already: who reads finds its end
            self.connection.sendall(frame(settings))

    def adopt(self) -> Launched:
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
