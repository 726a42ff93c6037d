"""Signals that do not end the server, and notifications to the service manager."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

log = logging.getLogger("dragoman.server")


class Reload(NamedTuple):
    """A reload on SIGHUP: its name in the log, and the function that does it."""

    what: str
    read: Callable[[], object]


class Reloads:
    """Everything that SIGHUP reads again, in the order in which it was added.

    ``read`` is called on the event loop. One that raises is logged, changes nothing, and does not stop the others.
    """

    def __init__(self) -> None:
        self._reloads: list[Reload] = []

    def add(self, what: str, read: Callable[[], object]) -> None:
        """Read this again on every SIGHUP from now on."""
        self._reloads.append(Reload(what, read))

    def run(self) -> None:
        """Read everything again, now."""
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        for what, read in self._reloads:
            try:
                read()
            except Exception as error:
                log.error("SIGHUP: the %s cannot be read again, those from before stay: %s", what, error)
            else:
                log.info("SIGHUP: the %s are read again", what)
        if not self._reloads:
            log.info("SIGHUP: there is nothing to read again")
        notify("READY=1")

    @contextlib.contextmanager
    def on_hangup(self) -> Iterator[None]:
        """For the duration, reload on SIGHUP. One that says that the terminal was closed ends the server as SIGTERM
        does, unless the server was started to survive that (``nohup``)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        was_attended = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

        def hang_up() -> None:
            if was_attended and not _has_terminal():
                signal.raise_signal(signal.SIGTERM)
            else:
                self.run()

        loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGHUP)
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, before)


def _has_terminal() -> bool:
    """Return whether the process belongs to an open terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def notify(state: str) -> None:
    """Notify the service manager, where there is one that asked for it (``sd_notify`` of systemd)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
