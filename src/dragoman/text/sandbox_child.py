"""What every program of a ``limited_process`` begins with: its frames, and its limits.

A new process is waited for, so this imports little, and the room's face nothing before it is asked.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import struct
import time
from typing import Any

from dragoman.child_process import die_with_parent


def greet() -> socket.socket:
    """The connection to the parent, which is told that this process is ready for its setup, and which it dies with."""
    die_with_parent()  # before the first frame, which fails if the parent is gone by now
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which closes the socket when it stops
    connection = socket.socket(fileno=0)
    send(connection, {})
    return connection


def limit(address_bytes: int) -> None:
    """Never take more address space than this, write no files, and dump no core."""
    resource.setrlimit(resource.RLIMIT_AS, (address_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def receive(connection: socket.socket) -> Any:
    """The next frame's value. Raises EOFError when the other end is closed."""
    return json.loads(receive_exactly(connection, receive_size(connection)))


def send(connection: socket.socket, value: object) -> None:
    """Write one frame."""
    connection.sendall(framed(value))


def framed(value: object) -> bytes:
    """A JSON value as a frame."""
    data = json.dumps(value).encode()
    return struct.pack(">I", len(data)) + data


def receive_size(connection: socket.socket, deadline: float | None = None) -> int:
    """How many bytes the next frame's value has."""
    return int(struct.unpack(">I", receive_exactly(connection, 4, deadline))[0])


def receive_exactly(connection: socket.socket, size: int, deadline: float | None = None) -> bytearray:
    """So many bytes. Raises EOFError when the other end is closed, TimeoutError after ``deadline`` (a time of
    ``time.monotonic``; None waits for ever)."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data
