"""Where the server listens."""

from __future__ import annotations

import contextlib
import os
import socket
import stat

from dragoman.core.errors import DragomanError


def bound(host: str, port: int) -> socket.socket:
    """A socket that holds the address, and does not listen yet. Raises DragomanError where that cannot be."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # `localhost` is two addresses, and most clients try this one.
        family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise DragomanError(f"cannot listen on {host}, port {port}: {reason}") from error
    return listener


def bound_unix(path: str, mode: int) -> socket.socket:
    """A Unix socket at the path, for whom its permissions let in; it does not listen yet.

    What a server that is gone has left there is removed. Raises DragomanError where another one listens, or the path is
    taken by something else.
    """
    try:
        _remove_stale(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            before = os.umask(0o777 & ~mode)  # nobody else can connect before the permissions are right
            try:
                listener.bind(path)
            finally:
                os.umask(before)
            os.chmod(path, mode)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise DragomanError(f"cannot listen on the Unix socket {path}: {error.strerror or error}") from error
    return listener


def remove_unix(path: str, made: os.stat_result) -> None:
    """Remove the socket at the path, unless another server has put its own there since."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        # The number of a file that is gone may be another's.
        if (found.st_dev, found.st_ino, found.st_ctime_ns) == (made.st_dev, made.st_ino, made.st_ctime_ns):
            os.unlink(path)


def _remove_stale(path: str) -> None:
    """Remove a socket on which nobody listens."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise DragomanError(f"cannot listen on the Unix socket {path}: something else is there")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise DragomanError(f"cannot listen on the Unix socket {path}: another server does")


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """The URL of a bound socket; one that listens everywhere is reached at the loopback address too. Of a Unix socket
    ``unix:`` and its path."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
