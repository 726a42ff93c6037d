"""One HTTP request and its answer, over ASGI: the server's side of ``dialects.api.RequestContext``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from math import ceil, inf
from time import perf_counter
from typing import Any, Literal, TypeVar

import msgspec
from starlette.types import Message, Receive, Scope, Send

from dragoman.core.errors import Cancelled, DragomanError, EngineUnavailable, Overloaded
from dragoman.core.progress import ProgressReport, current_progress
from dragoman.dialects.api import NEVER, Abort, Dialect, ErrorResponse, KeepAlive, NotJson, Operation, error_response
from dragoman.dialects.field import NOTHING_READ, Reading, Table
from dragoman.server.body import check_content_type, check_encoding, decode_json, read_table
from dragoman.server.body_budget import BodyBudget
from dragoman.server.cors import OriginPolicy, page_headers
from dragoman.server.key_file import SCOPES
from dragoman.server.pages import page_security_headers
from dragoman.server.request_body import UNREAD, RequestBody
from dragoman.server.scope_reader import Ready, ScopeReader
from dragoman.server.settings import ServerSettings
from dragoman.server.upload import body_pieces
from dragoman.serving.worker_pool import WorkerPools

Result = TypeVar("Result")

Head = Callable[[], Mapping[str, str]]
"""Returns the headers of an answer as it begins."""

CopiedHead = Callable[[], Awaitable[tuple[int, Mapping[str, str]]]]
"""Returns the status and the headers of an answer that is copied, when they are there."""

# Decoding and checking this much takes some milliseconds, during which no stream would move.
INLINE_BYTES = 64 * 1024
PIECE_BYTES = 256 * 1024
NONE: Mapping[str, str] = {}

WARNINGS = "x-dragoman-warnings"
"""The header of an answer that lists the request's fields that had no effect."""

TEXT = "text/plain; charset=utf-8"

# In ``scope["extensions"]``, where the connection can be dropped: at once, or when what was written has been read.
ABORT = "dragoman.abort"
CUT = "dragoman.cut"
# Also there, while it is needed: the callback for when the client has left.
ON_LEFT = "dragoman.on_left"
# Also there: where uvicorn takes the parts of a body. The layers between need only heads, and would cost time for every
# token.
BODY = "dragoman.body"

EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}

COMMENT_S = 0.1
"""Least time between two comments."""

_encode = msgspec.json.Encoder().encode


class Exchange(ScopeReader):
    """Reads one request and answers it once. Everything it waits for ends when the client leaves.

    ``dialect``: sets the limit of the body and the headers of every answer. It may be set until the answer starts, as
    may ``operation``, ``more_headers`` and ``origins``, which gives the CORS headers. ``limit_headers`` then gives the
    caller's remaining quotas. ``ignored_headers``: those of the request that have no effect. ``status``: of the answer,
    once it has started. ``sees_images`` returns whether a model in memory sees: its bodies may be larger.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        settings: ServerSettings,
        pools: WorkerPools,
        *,
        dialect: Dialect | None = None,
        ready: Ready = lambda: "",
        bodies: BodyBudget | None = None,
        origins: OriginPolicy | None = None,
        sees_images: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(scope, ready)
        self.method: str = scope["method"]
        self.scopes: tuple[str, ...] = SCOPES
        self.fault: DragomanError | None = None
        self.status = 0
        self.more_headers: Mapping[str, str] = NONE
        self.limit_headers: Callable[[], Mapping[str, str]] | None = None
        self.dialect = dialect
        self.operation: Operation | None = None
        self.page = page_headers(scope["headers"])
        self.origins = origins
        self.explains, self.is_strict = False, settings.strict
        self.ignored_headers: tuple[str, ...] = ()
        self.started = self._has_begun = self._is_streaming = False
        self._beginning = asyncio.Lock()
        self._progress: ProgressReport | None = None
        self._keep_alive: KeepAlive | None = None
        self._progressed = asyncio.Event()
        self._began: float = scope.get("began", perf_counter())
        self._reading: Reading | None = None
        extensions = self._extensions = scope.get("extensions", {})
        self._abort, self._cut = extensions.get(ABORT), extensions.get(CUT)
        self._send, self._limits, self._pools = send, settings, pools
        self._raw_headers = scope["headers"]
        self._send_part: Send = extensions.get(BODY, send)
        self._next_message = receive
        self._body = RequestBody(self.headers, settings, bodies or BodyBudget(), sees_images)
        self._body_complete = asyncio.Event()
        if "content-length" not in self.headers and "transfer-encoding" not in self.headers:
            self._body_complete.set()
        self._clock = asyncio.get_running_loop().time
        self._writing_since: float | None = None
        self._written = 0.0

    @property
    def elapsed_s(self) -> float:
        return perf_counter() - self._began

    async def read(self, table: Table, *, any_content_type: bool = False) -> Reading:
        return await self.check(table, await self.read_json(any_content_type=any_content_type))

    async def read_json(self, *, any_content_type: bool = False) -> Any:
        if not any_content_type:
            check_content_type(self.headers)
        body = await self.read_body()
        if self._body.json is UNREAD:
            self._body.json = await self._maybe_in_thread(lambda: decode_json(body))
        return self._with_model(self._body.json)

    async def check(self, table: Table, body: Any) -> Reading:
        reading = await self._maybe_in_thread(lambda: read_table(table, body, strict=self._limits.strict))
        self.report(reading)
        return reading

    def report(self, reading: Reading) -> None:
        self._reading = reading

    async def read_body(self) -> bytes:
        check_encoding(self._raw_headers)
        return await self._body.read(self._receive, self.body_limit(self.dialect))

    def body_limit(self, *dialects: Dialect | None) -> int:
        """Return the most bytes of the body that any of these dialects takes."""
        return self._body.limit(*dialects)

    def keep_bytes(self, size: int) -> None:
        self._body.keep(size)

    def body_pieces(self, max_bytes: int) -> AsyncGenerator[bytes, None]:
        check_encoding(self._raw_headers)
        return body_pieces(self._receive, self.headers, max_bytes=max_bytes, timeout_s=self._limits.body_timeout_s)

    async def peek(self, max_bytes: int) -> Any:
        """Return the JSON body before its operation is known; None where there is none, or it is not JSON."""
        body = await self._body.read(self._receive, max_bytes)
        if self._body.json is UNREAD and body:
            with contextlib.suppress(NotJson):
                self._body.json = await self._maybe_in_thread(lambda: decode_json(body))
        return None if self._body.json is UNREAD else self._with_model(self._body.json)

    def _with_model(self, body: Any) -> Any:
        return body if self.operation is None else self.operation.with_model(body, self.path_params)

    def abort(self) -> None:
        """Close the connection at once, where that can be done."""
        if self._abort is not None:
            self._abort()

    def drop_body(self) -> None:
        """Release the body once everything in it is known."""
        self._body.drop()

    def end(self) -> None:
        """Release all that is counted for the request."""
        self._body.end()

    def hand_over(self, other: Exchange) -> None:
        """Give the body, which has been read, to another exchange of this request."""
        self._body.hand_over(other._body)
        other._body_complete.set()

    async def _maybe_in_thread(self, work: Callable[[], Result]) -> Result:
        """Run what takes milliseconds for a long body in a thread, so that it does not block the streams."""
        return await self._pools.text.run(work) if self._body.size > INLINE_BYTES else work()

    async def run_blocking(self, work: Callable[[], Result], pool: Literal["text", "disk"] = "text") -> Result:
        return await (self._pools.text if pool == "text" else self._pools.disk).run(work)

    async def unless_gone(self, work: Awaitable[Result]) -> Result:
        self.drop_body()
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._until_gone())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not working.done():
                working.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)
        try:
            if working.cancelled():
                raise Cancelled("The client left, or stopped reading, before the answer was complete.")
            return working.result()
        finally:
            del working, leaving  # they refer to their errors, whose tracebacks have this frame

    @asynccontextmanager
    async def until_left(self) -> AsyncIterator[None]:
        """For the duration, raise Cancelled when the client leaves, without reading the body while its operation is
        not known."""
        task, has_left = asyncio.current_task(), False
        assert task is not None

        def leave() -> None:
            nonlocal has_left
            if not has_left:
                has_left = True
                task.cancel()

        self._extensions[ON_LEFT] = leave
        try:
            yield
        except asyncio.CancelledError:
            if has_left and not task.uncancel():
                raise Cancelled("The client left before its request was begun.") from None
            raise
        finally:
            del self._extensions[ON_LEFT]

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
        if content_type.startswith("text/html"):
            kind |= page_security_headers(body)
        # The length in a 304 is that of the contents that are not sent.
        length = {} if status == 304 else {"content-length": str(len(body))}
        head = {**kind, **length, **headers}
        await self.unless_gone(self._write_whole(status, head, body))

    async def reply_text(self, text: str, *, status: int = 200, headers: Mapping[str, str] = NONE) -> None:
        await self.reply(text.encode(), status=status, content_type=TEXT, headers=headers)

    async def answer(self, answer: ErrorResponse) -> None:
        """Answer with a dialect's error."""
        await self.reply(answer.body_of(self.request_id), status=answer.status, headers=answer.headers)

    async def stream(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        content_type: str = "text/event-stream; charset=utf-8",
        headers: Mapping[str, str] | Head = NONE,
        at_once: bool = False,
        keep_alive: KeepAlive | None = None,
    ) -> None:
        self.drop_body()

        def head() -> Mapping[str, str]:
            return {**EVENTS, "content-type": content_type, **(headers() if callable(headers) else headers)}

        self._is_streaming, self._keep_alive = True, keep_alive
        is_events = content_type.startswith("text/event-stream")
        try:
            await self.unless_gone(self._write_stream(chunks, head, is_events=is_events, at_once=at_once))
        except Abort:
            await self._break_off()

    async def copy(self, head: CopiedHead, parts: AsyncGenerator[bytes, None]) -> None:
        """Answer with status, headers and parts of another answer, as they come. Where ``parts`` raise ``Abort``, the
        connection is closed after what was written."""

        async def write() -> None:
            async with aclosing(parts):
                await self._start(*await head())
                async for part in parts:
                    await self._write(part, True)
                await self._write(b"", False)

        try:
            await self.unless_gone(write())
        except Abort:
            await self._break_off()

    async def _write_whole(self, status: int, head: Mapping[str, str], body: bytes) -> None:
        await self._start(status, head)
        # A long answer is written in pieces, each when the client has read enough of the earlier ones.
        written = 0
        while len(body) - written > PIECE_BYTES:
            await self._write(body[written : written + PIECE_BYTES], True)
            written += PIECE_BYTES
        body = body[written:]
        if self._body_complete.is_set() or status == 408:
            await self._write(body, False)
            return
        # The client has its answer, but may read it only when it has sent its whole request.
        await self._write(body, True)
        # Who leaves without sending the rest was answered all the same.
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(self._limits.linger_s):
                await self._body_complete.wait()
        await self._write(b"", False)

    async def _write_stream(
        self, chunks: AsyncGenerator[bytes, None], head: Head, *, is_events: bool, at_once: bool
    ) -> None:
        async with aclosing(chunks):
            if at_once:
                await self._begin(head)
            comments = self._comments(head) if is_events else None
            beside = None if comments is None else asyncio.create_task(comments)
            try:
                first = await anext(chunks, b"")
                await self._begin(head)
                if first:
                    await self._write(first, True)
                async for chunk in chunks:
                    await self._write(chunk, True)
            finally:
                if beside is not None:
                    beside.cancel()
                    await asyncio.gather(beside, return_exceptions=True)
            await self._write(b"", False)

    async def _begin(self, head: Head) -> None:
        async with self._beginning:
            if not self._has_begun:
                await self._start(200, head())
                self._has_begun = True

    def show_progress(self) -> None:
        if self._progress is None:
            self._progress = ProgressReport(self._progressed.set)
            current_progress.set(self._progress)

    @asynccontextmanager
    async def progress_before(self, table: Table | None) -> AsyncIterator[None]:
        """For the duration, send progress of a model's load to a client that asks for it, where it asks for a
        stream: the stream begins before its operation begins it."""
        dialect, body = self.dialect, None
        has_streams = table is not None and any(field.name == "stream" for field in table.fields)
        if self._progress is not None and dialect is not None and dialect.stream_error is not None and has_streams:
            body = await self.peek(self.body_limit(dialect))
        if not isinstance(body, dict) or body.get("stream") is not True:
            yield
            return
        beside = asyncio.create_task(self._write_comments(lambda: EVENTS, b"", inf))
        try:
            yield
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
            if self._progress is not None:
                self._progress.now = None

    @property
    def began_early(self) -> bool:
        """Return whether ``progress_before`` began the answer before its operation did."""
        return self._has_begun and not self._is_streaming

    async def finish_early(self, error: DragomanError) -> None:
        """End an answer that began early."""
        assert self.dialect is not None and self.dialect.stream_error is not None  # noqa: PT018
        self.fault = error
        await self._write(self.dialect.stream_error(error), False)

    def _comments(self, head: Head) -> Coroutine[None, None, None] | None:
        """Return the coroutine that writes comments during a stream; None where there is nothing to write."""
        server_s = self._limits.keep_alive_comment_s
        dialect = self.dialect if server_s and self.dialect is not None and self.dialect.keep_alive else None
        if dialect is None:
            return None if self._progress is None else self._write_comments(head, b"", inf)
        first_s, later_s = (min(server_s, each) for each in dialect.keep_alive_s)
        comment = dialect.keep_alive
        later = self._keep_alive or KeepAlive(lambda: comment, later_s)
        return self._write_comments(head, comment, first_s, later._replace(silence_s=min(server_s, later.silence_s)))

    async def _write_comments(self, head: Head, first: bytes, first_s: float, later: KeepAlive = NEVER) -> None:
        """Write comments in a task parallel to the stream, so that looking at the clock costs its chunks nothing.

        ``first_s``: of silence before an answer begins with the comment ``first``; ``later``: between all that it has.
        """
        self._written, told = self._clock(), None
        while True:
            now = None if self._progress is None else self._progress.now
            quiet_s, silence_s = self._clock() - self._written, later.silence_s if self._has_begun else first_s
            if self._writing_since is not None:  # another chunk is being written, to a client that reads slowly
                wait_s = COMMENT_S
            elif now is not None and now != told:
                told = now
                await self._begin(head)
                await self._write(b": progress " + _encode(now) + b"\n\n", True)
                await asyncio.sleep(COMMENT_S)
                continue
            elif quiet_s >= silence_s:
                comment = later.event() if self._has_begun else first
                await self._begin(head)
                await self._write(comment, True)
                continue
            elif self._has_begun:
                wait_s = silence_s - quiet_s
            else:
                wait_s = min(silence_s - quiet_s, later.silence_s)  # it may begin meanwhile, and be silent then
            self._progressed.clear()
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that comes with the event.
                async with asyncio.timeout(None if wait_s == inf else wait_s):
                    await self._progressed.wait()

    async def _break_off(self) -> None:
        """Close the connection of an unfinished answer: after the written bytes, and without the last chunk."""
        if self._cut is not None:
            self._cut()
            while (await self._receive())["type"] != "http.disconnect":
                pass

    async def _start(self, status: int, head: Mapping[str, str]) -> None:
        self.started, self.status = True, status
        headers = [(name.encode("latin-1"), _header_value(value)) for name, value in self._complete(head).items()]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _complete(self, head: Mapping[str, str]) -> dict[str, str]:
        """Return the answer's own headers, with those that its dialect adds to all, and those about its request."""
        dialect, whole = self.dialect, {name.lower(): value for name, value in head.items()}
        if warnings := self._warnings():
            whole[WARNINGS] = warnings
        if dialect is not None and dialect.headers is not None:
            whole = {**dialect.headers(self), **whole}
        whole |= self.more_headers
        if self.limit_headers is not None:
            whole |= self.limit_headers()
        if dialect is not None and self.origins is not None:
            whole |= self.origins.answer_headers(self.page, dialect.cors, whole)
        return whole

    def _warnings(self) -> str:
        reading = self._reading or NOTHING_READ
        if self.ignored_headers:
            reading = msgspec.structs.replace(reading, reported=self.ignored_headers + reading.reported)
        return reading.warnings

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
        """Return when the client has left, or has left an answer unread for the whole write timeout."""
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
                # The client has left.
                message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            # The rest of an unwanted body. A source that never waits must not keep others from running.
            await asyncio.sleep(0)


def error_answer(dialect: Dialect, error: DragomanError) -> ErrorResponse:
    """Return the error in the dialect's words. A status 429 or 503 always has a Retry-After."""
    answer = error_response(dialect, error)
    if answer.status not in (429, 503) or "retry-after" in answer.headers:
        return answer
    wait_s = error.retry_after_s if isinstance(error, EngineUnavailable | Overloaded) else 1.0
    return msgspec.structs.replace(answer, headers={**answer.headers, "retry-after": str(max(1, ceil(wait_s)))})


def _header_value(value: str) -> bytes:
    """Return the value as printable ASCII on one line, whatever a client has put into a name that is reported back."""
    return "".join(c if " " <= c <= "~" else "?" for c in value[:4096]).encode()
