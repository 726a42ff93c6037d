"""The entry of a cluster's ingress: requests that it passes on, answered in frames that also carry their journal.

With a secret of its cluster the server answers requests that name it, and health checks and figures; nothing else. A
relayed request is answered as any other, but what is written is framed: the head, the body's parts as they are written,
and between them the journal's entries, each before the part that follows from it. So the ingress can have another
server continue the request, from where its client is.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import dragoman
from dragoman.core.entropy import Entropy
from dragoman.core.errors import DragomanError
from dragoman.core.journal import Journal, current_journal
from dragoman.core.regular_file import require_regular
from dragoman.server.exchange import ABORT, BODY, CUT
from dragoman.server.middleware import ARRIVED_WITH
from dragoman.server.scope_reader import PROXIED_PREFIX
from dragoman.serving.runtime import Runtime

SECRET = b"x-dragoman-relay"
"""The request header with the cluster's secret."""
ENTROPY = b"x-dragoman-relay-entropy"
"""Hexadecimal digits that the request's ids and seeds are made from."""
NOW = b"x-dragoman-relay-now"
"""The time of the request, in seconds since 1970."""
CLIENT = b"x-dragoman-relay-client"
"""The client's address and port, with a blank between."""
SCHEME = b"x-dragoman-relay-scheme"
PREFIX = b"x-dragoman-relay-prefix"
METHOD = b"x-dragoman-relay-method"
"""The client's method. It is HEAD where the ingress asks with GET: an answer to HEAD could carry no frames."""
JOURNAL = b"x-dragoman-relay-journal"
"""How many bytes of journal the body begins with."""
INTERNAL = b"x-dragoman-relay"
"""The beginning of the names of all these."""

STATE_PATH = "/cluster/state"
"""Where the ingress asks how the server is."""
CHANGES_PATH = "/cluster/changes"
"""Where the ingress leaves what it has changed here, for the ingress after it."""
MOST_CHANGES = 16 * 1024 * 1024
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/healthcheck", "/metrics"})

HEAD_FRAME, BODY_FRAME, JOURNAL_FRAME, END_FRAME, CUT_FRAME = range(5)
FLUSH_S = 0.02
"""How long journal entries wait for a part of the body to go with."""
MIN_SECRET = 16
MOST_NAMES = 2048
"""Names of cached prefixes in the state: 40 KB, which hold 65,536 tokens."""

_encode = msgspec.msgpack.Encoder().encode


def frame(kind: int, payload: bytes) -> bytes:
    return bytes((kind,)) + len(payload).to_bytes(4, "little") + payload


def read_secret(file: str) -> bytes:
    """Return the secret in that file. Raises DragomanError where it cannot be read or is too short to be one."""
    require_regular(file)
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise DragomanError(f"--cluster-secret-file {file} cannot be read: {error.strerror}") from None
    if len(secret) < MIN_SECRET or not secret.isascii():
        raise DragomanError(f"--cluster-secret-file {file}: a secret has at least {MIN_SECRET} ASCII characters")
    return secret


class RelayMiddleware:
    """Wraps the application. ``state`` returns what ``STATE_PATH`` answers."""

    def __init__(self, app: ASGIApp, secret: bytes, state: Callable[[], Mapping[str, Any]]) -> None:
        self._app, self._secret, self._state = app, secret, state
        self._changes = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(SECRET, b""), self._secret):
            if scope["type"] == "http" and scope["path"] in OPEN_PATHS and SECRET not in headers:
                await self._app(scope, receive, send)
            else:
                await _refuse(scope, send)
            return
        if scope["path"] == STATE_PATH:
            await _reply(send, 200, msgspec.json.encode(self._state()))
            return
        if scope["path"] == CHANGES_PATH:
            await self._keep_changes(scope, receive, send)
            return
        try:
            entropy = Entropy(bytes.fromhex(headers[ENTROPY].decode()), float(headers[NOW]))
            skipped = int(headers.get(JOURNAL, b"0"))
            length = int(headers.get(b"content-length", b"0")) - skipped
        except (KeyError, ValueError):
            await _refuse(scope, send)
            return
        client, _, port = headers.get(CLIENT, b"").decode("latin-1").partition(" ")
        kept = [(name, value) for name, value in scope["headers"] if not name.startswith(INTERNAL)]
        if skipped:
            kept = [(name, b"%d" % length if name == b"content-length" else value) for name, value in kept]
        scope["headers"] = kept
        scope[ARRIVED_WITH] = entropy
        scope["client"] = (client, int(port) if port.isdigit() else 0) if client else None
        scope["scheme"] = headers.get(SCHEME, scope["scheme"].encode()).decode("latin-1")
        scope[PROXIED_PREFIX] = headers.get(PREFIX, b"").decode("latin-1")
        request = entropy.draw_named("request", 16)
        if scope["type"] == "websocket":
            await self._run(Journal(request=request), scope, receive, send)
            return
        method = headers.get(METHOD, scope["method"].encode()).decode("latin-1")
        relayed = _Relayed(scope, receive, send, skipped, method)
        journal = Journal(write=relayed.record, abandon=relayed.abandon, request=request)
        if skipped:
            journal.read(await relayed.read_journal())
        flusher = asyncio.create_task(relayed.flush_repeatedly())
        try:
            await self._run(journal, relayed.scope, relayed.receive, relayed.send)
        finally:
            flusher.cancel()
            await asyncio.gather(flusher, return_exceptions=True)

    async def _keep_changes(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the bytes that were left here, or take others in their place."""
        if scope["method"] != "PUT":
            await _reply(send, 200, self._changes)
            return
        data = bytearray()
        while (message := await receive())["type"] == "http.request" and len(data) <= MOST_CHANGES:
            data += message.get("body", b"")
            if not message.get("more_body", False):
                self._changes = bytes(data)
                await _reply(send, 200, b"")
                return

    async def _run(self, journal: Journal, scope: Scope, receive: Receive, send: Send) -> None:
        token = current_journal.set(journal)
        try:
            await self._app(scope, receive, send)
        finally:
            current_journal.reset(token)


class _Relayed:
    """One relayed request: the ASGI callables of its answer in frames."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, skipped: int, method: str) -> None:
        extensions = dict(scope.get("extensions", {}))
        self._send = send
        self._send_part: Send = extensions.pop(BODY, send)
        self._drop = extensions.get(ABORT)
        if CUT in extensions:
            extensions[CUT] = self._cut
        # A copy: the connection would leave out the body of an answer to HEAD.
        self.scope: Scope = {**scope, "extensions": extensions, "method": method}
        self._receive = receive
        self._skipped = skipped
        self._rest: Message | None = None
        self._pending = bytearray()
        """Frames of the journal that are not sent yet."""
        self._has_pending = asyncio.Event()
        self._has_begun = self._has_ended = False
        self._sending = asyncio.Lock()

    # The request ------------------------------------------------------------------------------------------------------

    async def read_journal(self) -> bytes:
        """Return the beginning of the body that is the journal."""
        data = bytearray()
        while len(data) < self._skipped:
            message = await self._receive()
            if message["type"] != "http.request":
                self._rest = message
                return b""
            data += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self._rest = {
            "type": "http.request",
            "body": bytes(data[self._skipped :]),
            "more_body": message.get("more_body", False),
        }
        return bytes(data[: self._skipped])

    async def receive(self) -> Message:
        rest, self._rest = self._rest, None
        return await self._receive() if rest is None else rest

    # The journal ------------------------------------------------------------------------------------------------------

    def record(self, entry: bytes) -> None:
        """Send an entry with the next part of the body, or soon."""
        self._pending += frame(JOURNAL_FRAME, entry)
        self._has_pending.set()

    def abandon(self) -> None:
        """Break the connection: the server ends, and another one continues the request."""
        if self._drop is not None:
            self._drop()

    async def flush_repeatedly(self) -> None:
        """Send entries that no part of the body follows: of answers that are written as a whole."""
        while True:
            await self._has_pending.wait()
            await asyncio.sleep(FLUSH_S)
            if self._pending and not self._sending.locked() and not self._has_ended:
                await self._write(b"", True)
            self._has_pending.clear()

    # The answer -------------------------------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            head = [message["status"], [(name, value) for name, value in message["headers"]]]
            await self._write(frame(HEAD_FRAME, _encode(head)), True)
        elif message["type"] == "http.response.body":
            body, more = message.get("body", b""), message.get("more_body", False)
            data = frame(BODY_FRAME, body) if body else b""
            await self._write(data if more else data + frame(END_FRAME, b""), more)

    async def _write(self, data: bytes, more: bool) -> None:
        async with self._sending:
            if not self._has_begun:
                self._has_begun = True
                headers = [(b"content-type", b"application/x-dragoman-relay"), (b"cache-control", b"no-store")]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            # Taken only now: what was recorded while another part was written precedes this one.
            pending = bytes(self._pending)
            self._pending.clear()
            self._has_ended = not more
            await self._send_part({"type": "http.response.body", "body": pending + data, "more_body": more})

    def _cut(self) -> None:
        """End the answer with a frame that has the ingress break off the client's connection."""
        self._cutting = asyncio.ensure_future(self._write(frame(CUT_FRAME, b""), False))


async def _reply(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse(scope: Scope, send: Send) -> None:
    text = "This server answers the ingress of its cluster only."
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": text})
        return
    await _reply(send, 403, msgspec.json.encode({"error": {"message": text, "type": "forbidden"}}))


def state_of(runtime: Runtime) -> dict[str, Any]:
    """Return the state of the server for its ingress: what it serves, how busy it is, and the most recent names of its
    cached prefixes."""
    reason = runtime.not_ready()
    gauges = runtime.gauges()
    cards = runtime.serving.models()
    return {
        "version": dragoman.__version__,
        "ready": not reason,
        "reason": reason,
        "fingerprint": cards[0].fingerprint if cards else "",
        "models": [card.name for card in cards],
        "waiting": gauges["requests_waiting"],
        "running": gauges["requests_running"],
        "blocks": gauges.get("kv_blocks", 0),
        "blocks_used": gauges.get("kv_blocks_used", 0),
        "prefixes": runtime.serving.prefixes.newest(MOST_NAMES) if cards else [],
    }
