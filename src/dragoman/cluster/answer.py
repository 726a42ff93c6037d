"""An answer on its way through the ingress: the frames of a replica, and the client that gets them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.types import Scope, Send

from dragoman.cluster.upstream import ReplicaConnection, ReplicaLost
from dragoman.core import elsewhere
from dragoman.server.exchange import BODY, CUT
from dragoman.server.relay import BODY_FRAME, CUT_FRAME, END_FRAME, HEAD_FRAME
from dragoman.serving.prefix_names import HEADER

PREFIX, ELSEWHERE = HEADER.encode(), elsewhere.HEADER.encode()
INTERNAL = (PREFIX, ELSEWHERE)
"""Headers that are for the ingress."""
WITHOUT_BODY = (204, 304)
"""Statuses of answers whose head may have the length of a body that is not there."""
_decode_head = msgspec.msgpack.Decoder(tuple[int, list[tuple[bytes, bytes]]]).decode

Frames = list[tuple[int, bytes]]
"""Kind and content of each."""


class ClientAnswer:
    """The client's side of an answer."""

    def __init__(self, scope: Scope, send: Send) -> None:
        extensions = scope.get("extensions", {})
        self._send = send
        self._send_part: Send = extensions.get(BODY, send)
        self._cut: Callable[[], None] | None = extensions.get(CUT)
        self.has_begun = self.is_events = False

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.has_begun = True
        self.is_events = any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in headers)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def part(self, data: bytes) -> None:
        await self._send_part({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._send_part({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, frames: Frames) -> None:
        """Send a whole answer of a replica."""
        for kind, payload in frames:
            if kind == HEAD_FRAME:
                status, headers = _decode_head(payload)
                await self.start(status, [(name, value) for name, value in headers if name not in INTERNAL])
            elif kind == BODY_FRAME:
                await self.part(payload)
        await self.end()

    async def whole_error(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self._send_part({"type": "http.response.body", "body": body, "more_body": False})

    def cut(self) -> None:
        """Break off: the client sees that the answer is not complete."""
        if self._cut is None:
            raise RuntimeError("an unfinished answer is broken off")  # the server closes the connection
        self._cut()


def head_of(payload: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Return the status and headers in a frame. Raises ReplicaLost where it has none that a client can get."""
    try:
        status, headers = _decode_head(payload)
    except msgspec.MsgspecError:
        raise ReplicaLost("its answer has a head that cannot be read") from None
    if not 200 <= status < 600 or any(b"\n" in part or b"\r" in part for header in headers for part in header):
        raise ReplicaLost("its answer has a head that is none of HTTP")
    return status, headers


class ExpectedLength:
    """Compares the body of an answer with the length in its head."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        given = None if status in WITHOUT_BODY else dict(headers).get(b"content-length")
        self._left = int(given) if given is not None and given.isdigit() else None

    def take(self, data: bytes) -> None:
        """Count a part. Raises ReplicaLost where the body is too long."""
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise ReplicaLost("the body of its answer is longer than its head says")

    def end(self) -> None:
        """Take that no part follows. Raises ReplicaLost where the body is too short."""
        if self._left:
            raise ReplicaLost("the body of its answer is shorter than its head says")


async def rest_of(connection: ReplicaConnection, first: tuple[int, bytes]) -> Frames:
    """Return all frames of a short answer. Raises ReplicaLost where it is not whole."""
    frames, expected = [first], None
    while frames[-1][0] not in (END_FRAME, CUT_FRAME):
        kind, payload = frames[-1]
        if kind == HEAD_FRAME:
            expected = ExpectedLength(*head_of(payload))
        elif kind == BODY_FRAME and expected is not None:
            expected.take(payload)
        frames.append(await connection.next_frame())
    if expected is not None and frames[-1][0] == END_FRAME:
        expected.end()
    return frames
