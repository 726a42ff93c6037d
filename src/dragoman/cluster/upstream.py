"""Connections from the ingress to replicas: a request there, the frames of its answer back."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Sequence
from typing import cast

import httptools

from dragoman.engine_client.event_stream import InlineWaiter

CONNECT_S = 2.0
MOST_UNREAD = 64
"""Frames that may wait for the client before reading from the replica pauses."""
MOST_FRAME = 64 * 1024 * 1024
MOST_IDLE = 256
"""Connections to one replica that wait for the next requests."""
MOST_HEAD = 64 * 1024
RELAYED = b"application/x-dragoman-relay"
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of an attempt to connect that are about this process or its machine, not about the replica."""


SILENT_S = 20
"""Seconds without an acknowledgement of the other machine's kernel after which a connection is lost: one that a
firewall has forgotten would wait for a quarter of an hour, though new ones are answered."""
PROBE_S = 5


def end_if_silent(connected: socket.socket) -> None:
    """Have the kernel end a TCP connection whose other end is silent, in the middle of an answer too."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_S),
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", SILENT_S // PROBE_S - 1),
        ("TCP_USER_TIMEOUT", 1000 * SILENT_S),
    ):
        if hasattr(socket, name):  # Linux has them all
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class ReplicaLost(Exception):
    """The replica ended, or its connection did, before the answer was complete."""


class ReplicaRefused(ReplicaLost):
    """The replica does not take requests of this ingress: the secret differs, or it is none of a cluster."""


class NotAsked(ReplicaLost):
    """The ingress itself has no room for a connection: nothing is known of the replica by that."""


class ReplicaConnection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._frames: deque[tuple[int, bytes]] = deque()
        self._partial = bytearray()
        self._waiter = InlineWaiter()
        self._is_paused = False
        self._is_relayed = False
        self._keeps_alive = False
        self._has_head = False
        self._head_bytes = 0
        self._status = 0
        self.fault = ""
        self.is_complete = True

    # The request ------------------------------------------------------------------------------------------------------

    def start(self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: Sequence[bytes]) -> None:
        """Send a request."""
        self.is_complete = self._is_relayed = self._has_head = False
        self._head_bytes = 0
        lines = [b"%s %s HTTP/1.1\r\n" % (method.encode(), target)]
        lines += [b"%s: %s\r\n" % (name, value) for name, value in headers]
        self._transport.writelines([*lines, b"\r\n", *body])

    async def next_frame(self) -> tuple[int, bytes]:
        """Return the answer's next frame. Raises ReplicaLost where it ends before its last one."""
        while not self._frames:
            if self.is_complete and not self._is_relayed:
                raise ReplicaRefused(f"it answered with status {self._status}")
            if self.fault or self.is_complete:
                raise ReplicaLost(self.fault or "it ended the answer too early")
            await self._waiter
        if self._is_paused and len(self._frames) < MOST_UNREAD // 2:
            self._is_paused = False
            self._transport.resume_reading()
        return self._frames.popleft()

    async def read_plain(self) -> tuple[int, bytes]:
        """Return the status and body of an answer that is not relayed. Raises ReplicaLost."""
        while not self.is_complete:
            if self.fault:
                raise ReplicaLost(self.fault)
            await self._waiter
        return self._status, bytes(self._partial)

    def give_up(self, reason: str) -> None:
        """Close a connection whose other end does not answer any more."""
        self._fail(reason)
        self._waiter.end_soon()

    @property
    def is_reusable(self) -> bool:
        return self.is_complete and self._keeps_alive and not self.fault and not self._frames

    def close(self) -> None:
        """Close at once: what is unfinished there is cancelled."""
        self._transport.abort()

    # The transport ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        end_if_silent(self._transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if self.is_complete:
            self._fail("it sent what it was not asked for")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"it does not answer in HTTP: {error}")
        if not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD:
                self._fail("the head of its answer is too long")
        self._waiter.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("its connection was lost")
        self._waiter.end_soon()

    def _fail(self, fault: str) -> None:
        if not self.fault:
            self.fault = fault
            self._transport.abort()

    # The parser -------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._partial.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type" and value == RELAYED:
            self._is_relayed = True

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        partial = self._partial
        partial += body
        if not self._is_relayed:
            if len(partial) > MOST_FRAME:
                self._fail("its answer is too long")
            return
        start = 0
        while len(partial) - start >= 5:
            size = int.from_bytes(partial[start + 1 : start + 5], "little")
            if size > MOST_FRAME:
                self._fail("it sent a frame that is too long")
                return
            if len(partial) - start - 5 < size:
                break
            self._frames.append((partial[start], bytes(partial[start + 5 : start + 5 + size])))
            start += 5 + size
        del partial[:start]
        if len(self._frames) > MOST_UNREAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self.is_complete = True
        self._keeps_alive = self._parser.should_keep_alive()
        self._status = self._parser.get_status_code()


class ReplicaPool:
    """Open connections by address, for the next requests."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], list[ReplicaConnection]] = {}

    async def open(self, host: str, port: int, *, fresh: bool = False) -> ReplicaConnection:
        """Return a connection. Raises ReplicaLost where there is none to be had. ``fresh``: no waiting one."""
        idle = self._idle.get((host, port), [])
        while idle and not fresh:
            connection = idle.pop()
            if connection.is_reusable:
                return connection
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(ReplicaConnection, host, port)
        except (OSError, TimeoutError) as error:
            if getattr(error, "errno", None) in NO_DESCRIPTORS:
                self._drop_all()
                raise NotAsked(f"The ingress has no room for a connection to a replica: {error.strerror}.") from None
            reason = getattr(error, "strerror", None) or "no answer"
            raise ReplicaLost(f"{host}:{port} cannot be reached: {reason}") from None
        return connection

    def give_back(self, host: str, port: int, connection: ReplicaConnection) -> None:
        """Keep a connection for later requests, or close one that cannot be used again."""
        idle = self._idle.setdefault((host, port), [])
        if len(idle) >= MOST_IDLE:  # the oldest are perhaps closed at the other end
            idle[:] = [each for each in idle if each.is_reusable]
        if connection.is_reusable and len(idle) < MOST_IDLE:
            idle.append(connection)
        elif not connection.fault:
            connection.close()

    def drop(self, host: str, port: int) -> None:
        """Close the waiting connections to a replica that is gone."""
        for connection in self._idle.pop((host, port), []):
            connection.close()

    def _drop_all(self) -> None:
        for host, port in list(self._idle):
            self.drop(host, port)

    def close(self) -> None:
        self._drop_all()
