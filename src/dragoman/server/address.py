"""The addresses that the server listens on."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from dragoman.core.errors import DragomanError
from dragoman.server.settings import NetworkSettings, ServerSettings


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, not listening yet. Raises DragomanError where it cannot be bound."""
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
        raise DragomanError(f"cannot listen on {host}, port {port}: {_reason(error, host, port)}") from error
    return listener


def check_free(host: str, port: int) -> None:
    """Raise DragomanError where ``bound`` would."""
    bound(host, port).close()


def listen(listener: socket.socket, backlog: int) -> None:
    """Have a bound socket listen. Raises DragomanError where another one does by now: two servers that start at the
    same time are both bound to a port."""
    try:
        listener.listen(backlog)
    except OSError as error:
        if listener.family == socket.AF_UNIX:
            raise
        host, port = listener.getsockname()[:2]
        raise DragomanError(f"cannot listen on {host}, port {port}: {_reason(error, host, port)}") from error


def _reason(error: OSError, host: str, port: int) -> str:
    """Return why the address cannot be bound, and what helps."""
    if isinstance(error, socket.gaierror):
        return f"{host} is no address of this machine ({error.strerror}); --host 127.0.0.1 is always one"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{_holder(port) or 'another program'} listens there; --port 0 takes any port that is free"
        case errno.EACCES:
            return f"ports below {_first_free_for_all()} are for root alone; --port 8000 is for all"
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine; --host 127.0.0.1 is always one"
    return error.strerror or str(error)


def _first_free_for_all() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text("ascii"))
    except (OSError, ValueError):
        return 1024


def _holder(port: int) -> str:
    """Return the program that listens at the port, with its process id; empty where this user may not see it."""
    import psutil  # here, not above: a start that finds its port free need not wait for it

    try:
        found = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        pid = next((each.pid for each in found if each.laddr and each.laddr.port == port and each.pid), None)
        return "" if pid is None else f"{psutil.Process(pid).name()} (process {pid})"
    except (psutil.Error, OSError):
        return ""


def bound_unix(path: str, mode: int) -> socket.socket:
    """Return a Unix socket bound to the path, with these permissions, not listening yet.

    A socket file that an ended server left there is removed. Raises DragomanError where another server listens, or the
    path is taken by something else.
    """
    try:
        _remove_stale(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            before = os.umask(0o777 & ~mode)  # no other user can connect before the permissions are set
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
        # The inode number of a removed file may be used again by another.
        if (found.st_dev, found.st_ino, found.st_ctime_ns) == (made.st_dev, made.st_ino, made.st_ctime_ns):
            os.unlink(path)


def _remove_stale(path: str) -> None:
    """Remove a socket on which no process listens."""
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


@contextlib.contextmanager
def listening(settings: ServerSettings, network: NetworkSettings) -> Iterator[socket.socket]:
    """Yield the bound socket of the settings. A Unix socket is removed at the end. Raises DragomanError."""
    if network.uds is None:
        with contextlib.closing(bound(settings.host, settings.port)) as listener:
            yield listener
        return
    with contextlib.closing(bound_unix(network.uds, int(network.uds_mode, 8))) as listener:
        made = os.stat(network.uds)
        try:
            yield listener
        finally:
            remove_unix(network.uds, made)


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a bound socket, ``unix:`` and the path for a Unix socket. A wildcard address is kept: it
    includes the loopback address."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
