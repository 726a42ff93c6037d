"""Where the server listens."""

from __future__ import annotations

import socket

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


def address_of(listener: socket.socket) -> str:
    """The URL of a bound socket; one that listens everywhere is reached at the loopback address too."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
