"""Clients that speak to the application over ASGI: patient, slow, or gone before the end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message

from tests.simulation.virtual_time import VirtualLoop

UNREAD_BYTES = 4096
"""What the system takes in for a client before a write has to wait for it."""


@dataclass
class Manner:
    """How a client behaves. ``read_s``: for each part of the answer. ``leaves_after_s``: after it asked; None: stays.
    ``body_s``: for the body to be sent, in two parts; infinite: the second never comes."""

    read_s: float = 0.0
    leaves_after_s: float | None = None
    body_s: float = 0.0


@dataclass
class Answer:
    """All that a client got."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    starts: int = 0
    ends: int = 0
    left: bool = False
    dropped: bool = False
    """The server ended the connection."""
    asked_s: float = 0.0
    ended_s: float = 0.0
    holder: str = ""
    key: str = ""

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


class Exchange:
    """One request as uvicorn hands it to an application, and the flow control of its connection."""

    def __init__(self, loop: VirtualLoop, manner: Manner, body: bytes) -> None:
        self._loop, self._manner = loop, manner
        self.answer = Answer(asked_s=loop.time())
        half = len(body) // 2
        self._parts = [body] if not manner.body_s else [body[:half], body[half:]]
        self._first = True
        self._gone = asyncio.Event()
        self._unread = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._is_reading = False

    async def receive(self) -> Message:
        if self._gone.is_set():
            return {"type": "http.disconnect"}
        if self._parts:
            if not self._first:
                waiting = asyncio.ensure_future(self._gone.wait())
                try:
                    limit = None if self._manner.body_s == float("inf") else self._manner.body_s
                    await asyncio.wait((waiting,), timeout=limit)
                finally:
                    waiting.cancel()
                if self._gone.is_set():
                    return {"type": "http.disconnect"}
            self._first = False
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        answer = self.answer
        if message["type"] == "http.response.start":
            answer.starts += 1
            answer.status = message["status"]
            answer.headers = {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
            return
        assert message["type"] == "http.response.body", message
        assert answer.starts == 1, "a body before its head"
        assert not answer.ends, "a body after its end"
        body = message.get("body", b"")
        answer.body += body
        if not message.get("more_body", False):
            answer.ends += 1
            answer.ended_s = self._loop.time()
        if self._manner.read_s:
            self._unread += len(body)
            self._read_on()
            if self._unread > UNREAD_BYTES:
                self._drained.clear()
                await self._drained.wait()

    def _read_on(self) -> None:
        if not self._is_reading and self._unread:
            self._is_reading = True
            self._loop.call_later(self._manner.read_s, self._have_read)

    def _have_read(self) -> None:
        self._is_reading = False
        self._unread = max(0, self._unread - 512)
        if self._unread <= UNREAD_BYTES:
            self._drained.set()
        self._read_on()

    def leave(self) -> None:
        if not self.answer.ends and not self._gone.is_set():
            self.answer.left = True
            self._end()

    def abort(self) -> None:
        """The server drops the connection."""
        if not self._gone.is_set():
            self.answer.dropped = not self.answer.ends
            self._end()

    def _end(self) -> None:
        self._gone.set()
        self._drained.set()


def scope_of(path: str, headers: dict[str, str], key: str, address: str) -> dict[str, Any]:
    """What an application is told of a request, or of a WebSocket."""
    head = {"host": "localhost", **headers}
    if key:
        head["authorization"] = f"Bearer {key}"
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in head.items()],
        "client": (address, 40000),
        "server": ("127.0.0.1", 8000),
        "state": {},
        "extensions": {},
    }


async def ask(
    app: Any,
    loop: VirtualLoop,
    path: str,
    body: Any,
    *,
    key: str = "",
    manner: Manner,
    headers: dict[str, str],
    address: str,
) -> Answer:
    """One request on a connection of its own."""
    content = json.dumps(body).encode()
    exchange = Exchange(loop, manner, content)
    headers = {"content-type": "application/json", "content-length": str(len(content)), **headers}
    scope = scope_of(path, headers, key, address)
    scope["extensions"] = {"dragoman.abort": exchange.abort, "dragoman.cut": exchange.abort}
    leaving = None
    if manner.leaves_after_s is not None:
        leaving = loop.call_later(manner.leaves_after_s, exchange.leave)
    try:
        await app(scope, exchange.receive, exchange.send)
    finally:
        if leaving is not None:
            leaving.cancel()
        exchange._end()  # the connection is of no further use; whoever still reads from it is told
    return exchange.answer
