"""One HTTP request and its answer, over ASGI: the server's side of ``dialects.wire.Exchange``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from dragoman.core.errors import Cancelled
from dragoman.dialects.field import Reading, Table
from dragoman.dialects.wire import Answer
from dragoman.server.body import check_content_type, decode_json, read_body
from dragoman.server.settings import ServerSettings

Result = TypeVar("Result")

# Decoding and checking this much takes some milliseconds, during which no stream would move.
INLINE_BYTES = 64 * 1024
NONE: Mapping[str, str] = {}

WARNINGS = "x-dragoman-warnings"
"""The header of an answer that names those of the request's fields which had no effect."""

# In ``scope["extensions"]``, where the connection can be dropped without waiting for the client to read.
ABORT = "dragoman.abort"

_encode = msgspec.json.Encoder().encode


class Exchange:
    """Reads one request and answers it once. Whatever it waits for ends when the client leaves."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: ServerSettings) -> None:
        self.request_id: str = scope["request_id"]
        self.headers: Mapping[str, str] = Headers(scope=scope)
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.started = False
        self._warnings = ""
        self._abort = scope.get("extensions", {}).get(ABORT)
        self._send, self._limits = send, settings
        self._next_message = receive
        self._body_complete = asyncio.Event()
        if "content-length" not in self.headers and "transfer-encoding" not in self.headers:
            self._body_complete.set()
        self._clock = asyncio.get_running_loop().time
        self._writing_since: float | None = None

    async def read(self, table: Table, *, any_content_type: bool = False) -> Reading:
        if not any_content_type:
            check_content_type(self.headers)
        limits = self._limits
        body = await read_body(
            self._receive, self.headers, max_bytes=limits.max_body_bytes, timeout_s=limits.body_timeout_s
        )
        if len(body) > INLINE_BYTES:
            reading = await asyncio.to_thread(_checked, table, body, limits.strict)
        else:
            reading = _checked(table, body, limits.strict)
        self._warnings = reading.warnings
        return reading

    async def unless_gone(self, work: Awaitable[Result]) -> Result:
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._until_gone())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not working.done():
                working.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)
        if working.cancelled():
            raise Cancelled("The client left, or stopped reading, before the answer was complete.")
        return working.result()

    async def reply(self, content: Any, *, status: int = 200, headers: Mapping[str, str] = NONE) -> None:
        body = content if isinstance(content, bytes) else b"" if content is None else _encode(content)
        kind = {} if content is None else {"content-type": "application/json"}
        head = {**kind, "content-length": str(len(body)), **headers}
        await self.unless_gone(self._write_whole(status, head, body))

    async def answer(self, answer: Answer) -> None:
        """A dialect's error."""
        await self.reply(answer.body, status=answer.status, headers=answer.headers)

    async def stream(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        content_type: str = "text/event-stream; charset=utf-8",
        headers: Mapping[str, str] = NONE,
    ) -> None:
        # Proxies must neither keep events back nor keep them at all.
        head = {"content-type": content_type, "cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        await self.unless_gone(self._write_stream(chunks, head))

    async def _write_whole(self, status: int, head: Mapping[str, str], body: bytes) -> None:
        await self._start(status, head)
        if self._body_complete.is_set() or status == 408:
            await self._write(body, False)
            return
        # The client has its answer, but may look for it only when it has written everything.
        await self._write(body, True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._body_complete.wait(), self._limits.linger_s)
        await self._write(b"", False)

    async def _write_stream(self, chunks: AsyncGenerator[bytes, None], head: Mapping[str, str]) -> None:
        async with aclosing(chunks):
            await self._start(200, head)
            async for chunk in chunks:
                await self._write(chunk, True)
            await self._write(b"", False)

    async def _start(self, status: int, head: Mapping[str, str]) -> None:
        self.started = True
        if self._warnings:
            head = {**head, WARNINGS: self._warnings}
        headers = [(name.encode("latin-1"), _header_value(value)) for name, value in head.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, body: bytes, more: bool) -> None:
        self._writing_since = self._clock()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._writing_since = None

    async def _receive(self) -> Message:
        message = await self._next_message()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._body_complete.set()
        return message

    async def _until_gone(self) -> None:
        """Returns when the client has left, or has let an answer wait for the whole write timeout."""
        limit = self._limits.write_timeout_s
        while True:
            try:
                async with asyncio.timeout(limit / 4):
                    message = await self._receive()
            except TimeoutError:
                since = self._writing_since
                if since is None or self._clock() - since < limit:
                    continue
                if self._abort is None:
                    return
                self._abort()
                # What follows is that the client has left.
                message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            # The rest of a body that nobody wants. A source that never waits must not keep others from running.
            await asyncio.sleep(0)


def _checked(table: Table, body: bytes, strict: bool) -> Reading:
    return table.read(decode_json(body), strict=strict)


def _header_value(value: str) -> bytes:
    """Printable ASCII on one line, whatever a client has put into a name that is reported back."""
    return "".join(c if " " <= c <= "~" else "?" for c in value[:4096]).encode()
