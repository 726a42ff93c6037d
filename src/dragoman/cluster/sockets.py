"""WebSockets through the ingress: messages are passed on, and repeated to another replica when one dies.

A socket has no journal: another replica answers the client's messages again, and what the client has of that is left
out. Ids, seeds and times are the same, so the answers are.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import secrets
import time
from typing import Any

import websockets
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response

from dragoman.cluster.answer import INTERNAL as FOR_THE_INGRESS
from dragoman.cluster.answer import head_of
from dragoman.cluster.attempts import MOST_LOSSES
from dragoman.cluster.counts import IngressCounts
from dragoman.cluster.errors import ErrorWriter
from dragoman.cluster.ingress import IngressSettings, Replicas
from dragoman.cluster.replica_state import Replica
from dragoman.cluster.routing import Wanted
from dragoman.cluster.upstream import NO_DESCRIPTORS, RELAYED, ReplicaLost
from dragoman.core.errors import DragomanError, EngineUnavailable, GenerationFailed, ShuttingDown
from dragoman.server.middleware import request_id_of
from dragoman.server.relay import BODY_FRAME, CLIENT, ENTROPY, HEAD_FRAME, INTERNAL, NOW, SCHEME, SECRET

log = logging.getLogger("dragoman.cluster")

_MEASURED = re.compile(rb'"execution_time":[^,}]*')
"""What the answer to a message has that is another one when the message is answered again."""

_HOST = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::(\d{1,5}))?", re.ASCII)

MOST_KEPT = 4 * 1024 * 1024
"""Bytes of a client's messages that are kept to be repeated. A socket with more ends with its replica."""
OPEN_S = 10.0
PING_S, PONG_S, CLOSE_S = 3.0, 5.0, 1.0
"""Seconds between two questions whether a replica is there, until one without an answer counts as lost, and that it has
to close: 9 in all, as for other requests."""
RESTARTING, INTERNAL_ERROR = 1012, 1011
OF_THE_HANDSHAKE = frozenset({b"connection", b"upgrade", b"host", b"content-length", b"transfer-encoding"})
BROKEN = frozenset({1006, 1012, 1001})
"""Codes of a connection whose replica died or ends."""


class _Lost(Exception):
    """The replica died, or ends."""


class _Gone(Exception):
    """The client left."""


class _Connect(connect):
    """Follows no redirects: they are answers for the client."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class SocketRelay:
    """The WebSockets of an ingress, as an ASGI application."""

    def __init__(
        self, replicas: Replicas, secret: bytes, errors: ErrorWriter, settings: IngressSettings, counts: IngressCounts
    ) -> None:
        self._replicas, self._secret, self._errors = replicas, secret, errors
        self._settings, self._counts = settings, counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        socket = _Socket(scope, receive, send, self._secret)
        clock = asyncio.get_running_loop().time
        avoid: set[str] = set()
        wait_s, lost_at, losses, sent = self._settings.wait_s, 0.0, 0, 0
        try:
            while True:
                began = clock()
                try:
                    async with self._replicas.slot(Wanted(avoid=frozenset(avoid)), wait_s) as replica:
                        await socket.run(replica, self._settings.max_body_bytes)
                    return
                except _Lost as lost:
                    self._counts.lost += 1
                    self._replicas.lose(replica, str(lost))
                    avoid.add(replica.name)
                    if not socket.is_repeatable:
                        await socket.close(RESTARTING, "the server of this socket was lost")
                        return
                    if socket.sent > sent or clock() - began > self._settings.continue_s or not losses:
                        sent, lost_at, losses = socket.sent, clock(), 0
                    losses += 1
                    wait_s = self._settings.continue_s - (clock() - lost_at)
                    if losses >= MOST_LOSSES or wait_s < 0:
                        raise GenerationFailed(f"{losses} replicas of this socket ended without a message.") from None
        except _Gone:
            pass
        except asyncio.CancelledError:  # the ingress ends
            await self._fail(socket, scope, ShuttingDown())
        except DragomanError as error:
            await self._fail(socket, scope, error)

    async def _fail(self, socket: _Socket, scope: Scope, error: DragomanError) -> None:
        """Close the socket, or refuse to open it, with the error."""
        if socket.is_open:
            code = INTERNAL_ERROR if isinstance(error, GenerationFailed) else RESTARTING
            await socket.close(code, error.message)
        else:
            status, headers, body = self._errors.whole({**scope, "method": "GET"}, None, error)
            await socket.refuse(status, headers, body)


class _Socket:
    """One client's socket, and what was said on it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, secret: bytes) -> None:
        self._receive, self._send = receive, send
        host, port = scope.get("client") or ("", 0)
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope.get("query_string", b"")
        target = raw.partition(b"?")[0] + (b"?" + query if query else b"")
        self._target = target.replace(b"#", b"%23").decode("latin-1")
        self._headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name not in OF_THE_HANDSHAKE and not name.startswith((b"sec-websocket-", b"x-request-id", INTERNAL))
        ]
        self._host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        own = {
            b"x-request-id": request_id_of(scope),
            SECRET: secret.decode(),
            ENTROPY: secrets.token_hex(16),
            NOW: f"{time.time():.6f}",
            CLIENT: f"{host} {port}" if host else "",
            SCHEME: scope["scheme"],
        }
        self._headers += [(name.decode(), value) for name, value in own.items()]
        self._subprotocols = scope.get("subprotocols", [])
        self._said: list[tuple[int, str | bytes]] = []
        """The client's messages, each with the number of messages that it had before."""
        self._said_bytes = self._received = 0
        self._more = asyncio.Event()
        self.sent = 0
        """Messages that the client has."""
        self._digest = hashlib.blake2b(digest_size=16)
        self.is_open = False
        self.is_repeatable = True

    async def run(self, replica: Replica, most: int) -> None:
        """Pass messages both ways until either side closes. Raises _Lost and _Gone."""
        # A page's origin is compared with the Host that it asked for.
        host = self._host if _is_host(self._host) else f"{replica.host}:{replica.port}"
        try:
            upstream = await _Connect(
                f"ws://{host}{self._target}",
                host=replica.host,
                port=replica.port,
                additional_headers=self._headers,
                subprotocols=[websockets.Subprotocol(name) for name in self._subprotocols] or None,
                compression=None,
                proxy=None,
                max_size=None,
                open_timeout=OPEN_S,
                ping_interval=PING_S,
                ping_timeout=PONG_S,
                close_timeout=CLOSE_S,
                user_agent_header=None,
            )
        except InvalidStatus as refusal:
            status, headers, body = _refusal(refusal.response)
            if self.is_open or status == 503:
                raise _Lost(f"it answered with status {status}") from None
            await self.refuse(status, headers, body)
            return
        except (OSError, TimeoutError, InvalidHandshake) as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS and not self.is_open:
                raise EngineUnavailable(
                    f"The ingress has no room for a connection to a replica: {error.strerror}."
                ) from None
            raise _Lost(f"it cannot be reached: {type(error).__name__}") from None
        try:
            await self._relay(upstream)
        finally:
            await upstream.close()

    async def _relay(self, upstream: ClientConnection) -> None:
        if not self.is_open:
            await self._send({"type": "websocket.accept", "subprotocol": upstream.subprotocol, "headers": []})
            self.is_open = True
        self._received = 0
        down = asyncio.ensure_future(self._pass_down(upstream))
        up = asyncio.ensure_future(self._pass_up(upstream))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            if up.done():
                up.result()
            down.result()
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _pass_up(self, upstream: ClientConnection) -> None:
        """Repeat what the client has said, each after the same answers, then pass on what it says. Raises _Gone when it
        leaves."""
        with contextlib.suppress(ConnectionClosed):  # the other direction learns of it too
            for count, message in list(self._said):
                while self._received < count:
                    self._more.clear()
                    await self._more.wait()
                await upstream.send(message)
            while True:
                event = await self._receive()
                if event["type"] == "websocket.disconnect":
                    raise _Gone
                text = event.get("text")
                message = event["bytes"] if text is None else text
                self._keep(message)
                await upstream.send(message)
        await asyncio.Event().wait()

    def _keep(self, message: str | bytes) -> None:
        self._said_bytes += len(message)
        if self._said_bytes > MOST_KEPT:
            self.is_repeatable = False
            self._said.clear()
        if self.is_repeatable:
            self._said.append((self.sent, message))

    async def _pass_down(self, upstream: ClientConnection) -> None:
        """Pass on what the replica says, but for what the client has. Raises _Lost when the replica dies."""
        left, digest = self.sent, hashlib.blake2b(digest_size=16)
        while True:
            try:
                message = await upstream.recv()
            except ConnectionClosed as closed:
                code = 1006 if closed.rcvd is None else closed.rcvd.code
                if code in BROKEN:
                    raise _Lost("its connection was lost") from None
                await self.close(code, "" if closed.rcvd is None else closed.rcvd.reason)
                return
            self._received += 1
            self._more.set()
            data = message.encode() if isinstance(message, str) else message
            same = _MEASURED.sub(b"", data)
            if left:
                left -= 1
                digest.update(same)
                if not left and digest.digest() != self._digest.digest():
                    await self.close(RESTARTING, "another server answers differently: this cannot be continued")
                    return
                continue
            self.sent += 1
            self._digest.update(same)
            content: dict[str, Any] = {"text": message} if isinstance(message, str) else {"bytes": message}
            try:
                await self._send({"type": "websocket.send", **content})
            except Exception as error:  # uvicorn's own, when the connection is lost
                raise _Gone from error

    async def close(self, code: int, reason: str) -> None:
        with contextlib.suppress(Exception):
            await self._send({"type": "websocket.close", "code": code, "reason": reason[:100]})

    async def refuse(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Answer as to any other request, instead of opening the socket."""
        await self._send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await self._send({"type": "websocket.http.response.body", "body": body})


def _is_host(text: str) -> bool:
    """Return whether a Host header can stand in an address."""
    found = _HOST.fullmatch(text)
    return found is not None and 0 < int(found[1] or 80) <= 65535


def _refusal(answer: Response) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return status, headers and body of an answer in place of a socket. Raises _Lost where it cannot be read."""
    status, body = answer.status_code, bytes(answer.body or b"")
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.raw_items()]
    if (b"content-type", RELAYED) in headers:
        status, headers, body = _unframed(body)
    left_out = {*OF_THE_HANDSHAKE, *FOR_THE_INGRESS, b"date"}
    return status, [each for each in headers if each[0] not in left_out], body


def _unframed(data: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    head, body = b"", b""
    while len(data) >= 5:
        kind, end = data[0], 5 + int.from_bytes(data[1:5], "little")
        payload, data = data[5:end], data[end:]
        if kind == HEAD_FRAME:
            head = payload
        elif kind == BODY_FRAME:
            body += payload
    try:
        return *head_of(head), body
    except ReplicaLost as error:
        raise _Lost(str(error)) from None
