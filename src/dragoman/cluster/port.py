"""The port of an ingress: bound, or taken over from the ingress before this one, so that no connection is refused.

Both have the same listening socket for a moment: what waits in its queue is accepted by whichever is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import stat
import tempfile
from pathlib import Path

log = logging.getLogger("dragoman.cluster")

ANSWER_S = 2.0


def open_port(host: str, port: int, owner: str) -> socket.socket:
    """Return the socket on which the owner listens at that address already, else a new one that is bound to it. Raises
    OSError where somebody else has the address."""
    taken = None
    with contextlib.suppress(OSError):  # on a full disk there is no folder for temporary files
        taken = _taken_over(handover_path(host, port, owner))
    return bound_socket(host, port) if taken is None else taken


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a new socket that is bound to the address."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # An ingress that was killed may be followed by one that starts before its socket is gone.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


def handover_path(host: str, port: int, owner: str) -> Path:
    """Return where an owner's ingress at that address waits for the next one: in a folder that is this user's alone."""
    name = hashlib.blake2b(f"{owner}\0{host}\0{port}".encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"dragoman-ports-{os.getuid()}" / name


def _taken_over(path: Path) -> socket.socket | None:
    if not _is_private(path.parent):
        return None
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(ANSWER_S)
        asking.connect(str(path))
        _, descriptors, _, _ = socket.recv_fds(asking, 1, 1)
        if descriptors:
            return socket.socket(fileno=descriptors[0])
    return None


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


class PortOffer:
    """Gives a listening socket to the owner's next ingress that asks for it, until it is closed."""

    def __init__(self, listening: socket.socket, host: str, port: int, owner: str) -> None:
        self._listening = listening.dup()
        self._loop = asyncio.get_running_loop()
        self._offering: socket.socket | None = None
        try:
            self._path = handover_path(host, port, owner)
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(self._path.parent):
                raise PermissionError(f"{self._path.parent} is not this user's alone")
            self._path.unlink(missing_ok=True)
            offering = socket.socket(socket.AF_UNIX)
            offering.setblocking(False)
            offering.bind(str(self._path))
            offering.listen(4)
        except OSError as error:
            log.warning("the port is closed for a moment when this ingress ends: %s", error)
            return
        self._inode = self._path.stat().st_ino
        self._offering = offering
        self._loop.add_reader(offering.fileno(), self._give)

    def _give(self) -> None:
        assert self._offering is not None
        with contextlib.suppress(OSError), self._offering.accept()[0] as asking:
            socket.send_fds(asking, [b"\0"], [self._listening.fileno()])

    def close(self) -> None:
        self._listening.close()
        if self._offering is not None:
            self._loop.remove_reader(self._offering.fileno())
            self._offering.close()
            self._offering = None
            with contextlib.suppress(OSError):
                if self._path.stat().st_ino == self._inode:  # else it is that of the next ingress
                    self._path.unlink()
