"""One HTTP request and its answer, over ASGI: the server's side of ``dialects.wire.Exchange``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import cached_property
from time import perf_counter
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.types import Message, Receive, Scope, Send

from dragoman.core.errors import Cancelled, DragomanError
from dragoman.dialects.field import Reading, Table
from dragoman.dialects.wire import Abort, Answer, Dialect, NotJson
from dragoman.server.body import check_content_type, decode_json, read_body, too_large
from dragoman.server.cors import answer_headers
from dragoman.server.keys import SCOPES
from dragoman.server.settings import ServerSettings

Result = TypeVar("Result")

Ready = Callable[[], str]
"""Empty when requests are taken and answered; otherwise why they are not."""

# Decoding and checking this much takes some milliseconds, during which no stream would move.
INLINE_BYTES = 64 * 1024
NONE: Mapping[str, str] = {}

WARNINGS = "x-dragoman-warnings"
"""The header of an answer that names those of the request's fields which had no effect."""

TEXT = "text/plain; charset=utf-8"

# In ``scope["extensions"]``, where the connection can be dropped: at once, or when what was written has been read.
ABORT = "dragoman.abort"
CUT = "dragoman.cut"
# Also there: where uvicorn takes the parts of a body. The layers between look at heads only, at a cost for every token.
BODY = "dragoman.body"

UNREAD = object()

_encode = msgspec.json.Encoder().encode


class Exchange:
    """Reads one request and answers it once. Whatever it waits for ends when the client leaves.

    ``dialect``: whose limit the body keeps, and whose headers every answer has. It may be set until the answer starts,
    as may ``more_headers``. ``status``: of the answer, once it has started.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        settings: ServerSettings,
        *,
        dialect: Dialect | None = None,
        ready: Ready = lambda: "",
    ) -> None:
        self.request_id: str = scope["request_id"]
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.client: str = (scope.get("client") or ("",))[0]
        self.headers: Mapping[str, str] = Headers(scope=scope)
        self._query_string: bytes = scope.get("query_string", b"")
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.tenant = ""
        self.scopes: tuple[str, ...] = SCOPES
        self.fault: DragomanError | None = None
        self.status = 0
        self.more_headers: Mapping[str, str] = NONE
        self.dialect = dialect
        self.started = False
        self._began: float = scope.get("began", perf_counter())
        self._ready = ready
        self._warnings = ""
        extensions = scope.get("extensions", {})
        self._abort, self._cut = extensions.get(ABORT), extensions.get(CUT)
        self._send, self._limits = send, settings
        self._send_part: Send = extensions.get(BODY, send)
        self._next_message = receive
        self._body: bytes | None = None
        self._json: Any = UNREAD
        self._body_complete = asyncio.Event()
        if "content-length" not in self.headers and "transfer-encoding" not in self.headers:
            self._body_complete.set()
        self._clock = asyncio.get_running_loop().time
        self._writing_since: float | None = None
        self._written = 0.0

    @cached_property
    def query(self) -> Mapping[str, str]:
        return QueryParams(self._query_string)

    @property
    def elapsed_s(self) -> float:
        return perf_counter() - self._began

    @property
    def not_ready(self) -> str:
        return self._ready()

    async def read(self, table: Table, *, any_content_type: bool = False) -> Reading:
        return await self.check(table, await self.read_json(any_content_type=any_content_type))

    async def read_json(self, *, any_content_type: bool = False) -> Any:
        if not any_content_type:
            check_content_type(self.headers)
        body = await self.read_body()
        if self._json is UNREAD:
            self._json = await self._maybe_in_thread(lambda: decode_json(body))
        return self._json

    async def check(self, table: Table, body: Any) -> Reading:
        reading = await self._maybe_in_thread(lambda: table.read(body, strict=self._limits.strict))
        self.report(reading)
        return reading

    def report(self, reading: Reading) -> None:
        self._warnings = reading.warnings

    async def read_body(self) -> bytes:
        return await self._read_body(body_limit(self.dialect, self._limits))

    async def peek(self, max_bytes: int) -> Any:
        """The JSON body before it is known whose it is; None where there is none, or it is no JSON."""
        body = await self._read_body(max_bytes)
        if self._json is UNREAD and body:
            with contextlib.suppress(NotJson):
                self._json = await self._maybe_in_thread(lambda: decode_json(body))
        return None if self._json is UNREAD else self._json

    async def _read_body(self, max_bytes: int) -> bytes:
        if self._body is None:
            timeout_s = self._limits.body_timeout_s
            self._body = await read_body(self._receive, self.headers, max_bytes=max_bytes, timeout_s=timeout_s)
        elif len(self._body) > max_bytes:
            raise too_large(max_bytes)
        return self._body

    async def _maybe_in_thread(self, work: Callable[[], Result]) -> Result:
        """What takes milliseconds for a long body must not hold up the streams."""
        return await asyncio.to_thread(work) if len(self._body or b"") > INLINE_BYTES else work()

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

    async def reply(
        self,
        content: Any,
        *,
        status: int = 200,
        content_type: str = "application/json",
        headers: Mapping[str, str] = NONE,
    ) -> None:
        body = content if isinstance(content, bytes) else b"" if content is None else _encode(content)
        kind = {} if content is None else {"content-type": content_type}
        head = {**kind, "content-length": str(len(body)), **headers}
        await self.unless_gone(self._write_whole(status, head, body))

    async def reply_text(self, text: str, *, status: int = 200, headers: Mapping[str, str] = NONE) -> None:
        await self.reply(text.encode(), status=status, content_type=TEXT, headers=headers)

    async def answer(self, answer: Answer) -> None:
        """A dialect's error."""
        await self.reply(answer.body, status=answer.status, headers=answer.headers)

    async def stream(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        content_type: str = "text/event-stream; charset=utf-8",
        headers: Mapping[str, str] = NONE,
        filler: bytes = b"",
        silence_s: float = 15.0,
    ) -> None:
        # Proxies must neither keep events back nor keep them at all.
        head = {"content-type": content_type, "cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        try:
            await self.unless_gone(self._write_stream(chunks, head, filler, silence_s))
        except Abort:
            await self._break_off()

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

    async def _write_stream(
        self, chunks: AsyncGenerator[bytes, None], head: Mapping[str, str], filler: bytes, silence_s: float
    ) -> None:
        async with aclosing(chunks):
            await self._start(200, head)
            filling = asyncio.create_task(self._fill_silence(filler, silence_s)) if filler else None
            try:
                async for chunk in chunks:
                    await self._write(chunk, True)
            finally:
                if filling is not None:
                    filling.cancel()
                    await asyncio.gather(filling, return_exceptions=True)
            await self._write(b"", False)

    async def _fill_silence(self, filler: bytes, silence_s: float) -> None:
        """A task beside the stream: looking at the clock now and then costs its chunks nothing."""
        self._written = self._clock()
        while True:
            quiet_s = self._clock() - self._written
            if quiet_s < silence_s:
                await asyncio.sleep(silence_s - quiet_s)
            elif self._writing_since is None:
                await self._write(filler, True)
            else:
                await asyncio.sleep(silence_s)

    async def _break_off(self) -> None:
        """End the connection where the answer is not ended: behind what was written, and before its last chunk."""
        if self._cut is not None:
            self._cut()
            while (await self._receive())["type"] != "http.disconnect":
                pass

    async def _start(self, status: int, head: Mapping[str, str]) -> None:
        self.started, self.status = True, status
        headers = [(name.encode("latin-1"), _header_value(value)) for name, value in self._complete(head).items()]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _complete(self, head: Mapping[str, str]) -> dict[str, str]:
        """The answer's own headers, with those that its dialect adds to all, and those that tell of its request."""
        dialect, whole = self.dialect, {name.lower(): value for name, value in head.items()}
        if self._warnings:
            whole[WARNINGS] = self._warnings
        if dialect is not None and dialect.headers is not None:
            whole = {**dialect.headers(self), **whole}
        whole |= self.more_headers
        if dialect is not None and dialect.cors is not None:
            whole |= answer_headers(dialect.cors, self.headers, whole)
        return whole

    async def _write(self, body: bytes, more: bool) -> None:
        since = self._writing_since = self._clock()
        await self._send_part({"type": "http.response.body", "body": body, "more_body": more})
        self._written, self._writing_since = since, None

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


def body_limit(dialect: Dialect | None, settings: ServerSettings) -> int:
    """Most bytes of a body: as the dialect wants it, or else the server."""
    own = None if dialect is None else dialect.max_body_bytes
    return settings.max_body_bytes if own is None else own


def _header_value(value: str) -> bytes:
    """Printable ASCII on one line, whatever a client has put into a name that is reported back."""
    return "".join(c if " " <= c <= "~" else "?" for c in value[:4096]).encode()
