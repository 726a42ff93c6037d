"""One HTTP/1.1 connection: uvicorn's protocol with the limits that it leaves to others.

Whatever a client does or does not do, a connection costs bounded memory and ends in bounded time: headers must be short
and arrive in time, an answer that nobody reads does not outlive the write timeout, and what a refused request still
sends is read for a moment only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dragoman.core.errors import BadRequest, DragomanError, PayloadTooLarge, RequestTimeout
from dragoman.dialects.wire import Answer
from dragoman.server.cork import Corked
from dragoman.server.exchange import ABORT, BODY, CUT
from dragoman.server.gate import CROWDED
from dragoman.server.settings import ServerSettings
from dragoman.server.upgrade import DecliningParser

HEAD_TOO_LARGE = "The request's line and headers are too large."


def connection_class(
    settings: ServerSettings, render_error: Callable[[DragomanError], Answer], socket_paths: Container[bytes] = ()
) -> type[Connection]:
    """The class as uvicorn wants it: complete, and made without arguments of ours.

    ``socket_paths``: where WebSockets may be opened.
    """
    members = {"settings": settings, "render_error": staticmethod(render_error), "socket_paths": socket_paths}
    return type("LimitedConnection", (Connection,), members)


class Connection(HttpToolsProtocol):
    """Adds one timer, for what the client is to do next, and one count, of the bytes of a request's head."""

    settings: ServerSettings
    render_error: Callable[[DragomanError], Answer]
    socket_paths: Container[bytes]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser: DecliningParser = DecliningParser(self, self.socket_paths)  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = self._in_body = False
        self._deaf = False
        self._head_bytes = 0
        self._unanswered: list[RequestResponseCycle] = []

    # The transport ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Corked(transport, self.loop))  # type: ignore[arg-type]
        limit = self.settings.max_connections
        if len(self.connections) > 2 * limit:
            transport.abort()
        elif len(self.connections) > limit:
            self.app_state = {**self.app_state, CROWDED: True}
        self._expect(self.settings.header_timeout_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        # uvicorn tells only the newest request; with pipelining it is an older one that is being answered.
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        self._unanswered.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.get_protocol() is not self:  # a WebSocket now
            self._expect_nothing()
            return
        if self._deaf or self.transport.is_closing():
            return
        if self._in_head and self._head_bytes > self.settings.max_header_bytes:
            self._refuse(431, PayloadTooLarge(HEAD_TOO_LARGE))
        elif self._timer is None and not self._unanswered:
            self._expect(self.settings.header_timeout_s, self._head_is_late)

    # The parser ------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort, CUT: self._close_when_read}  # type: ignore[dict-item]
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        # The exact count: what came with its first byte was not counted, what came with its last was counted whole.
        self._head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self._head_bytes > self.settings.max_header_bytes:
            raise PayloadTooLarge(HEAD_TOO_LARGE)  # the parser stops, and uvicorn calls send_400_response
        if self.parser.declines:
            return
        if self.parser.opens_socket:
            if self._unanswered:
                raise BadRequest("a WebSocket cannot be opened behind a request")  # uvicorn calls send_400_response
            super().on_headers_complete()
            return
        self._in_head, self._in_body = False, True
        self._expect_nothing()
        super().on_headers_complete()
        self.scope["extensions"][BODY] = self.cycle.send  # type: ignore[assignment]
        self._unanswered.append(self.cycle)

    def on_message_complete(self) -> None:
        if self.parser.declines:
            return
        super().on_message_complete()
        self._in_body = False
        if not self._unanswered:
            self._expect_nothing()

    # Answers ---------------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._unanswered = [cycle for cycle in self._unanswered if not cycle.response_complete]
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect(self.settings.write_timeout_s, self.transport.abort)
        elif self._in_body and not self._unanswered:
            self._expect(self.settings.linger_s, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect(self.settings.write_timeout_s, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > self.settings.max_header_bytes:
            self._refuse(431, PayloadTooLarge(HEAD_TOO_LARGE))
        else:
            self._refuse(400, BadRequest("The request is not valid HTTP."))

    def _head_is_late(self) -> None:
        if self._in_head:
            self._refuse(408, RequestTimeout("The request's headers did not arrive in time."))
        else:
            self._close_when_read()

    def _close_when_read(self) -> None:
        """Close behind what was written, which the client has some time to read."""
        self.transport.close()
        self._expect(self.settings.write_timeout_s, self.transport.abort)

    def _refuse(self, status: int, error: DragomanError) -> None:
        """Answer what is no request, or stopped being one half way, and close. Not into another answer."""
        if not any(cycle.response_started for cycle in self._unanswered) and len(self._unanswered) < 2:
            content = self.render_error(error).body
            body = content if isinstance(content, bytes) else msgspec.json.encode(content)
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            self._deaf = True
            self.transport.write_eof()
            for cycle in self._unanswered:
                cycle.disconnected = True
                cycle.message_event.set()
            self._expect(self.settings.linger_s, self.transport.abort)
        else:
            self._close_when_read()

    # The timer -------------------------------------------------------------------------------------------------------

    def _expect(self, seconds: float, otherwise: Callable[[], None]) -> None:
        """Unless something is expected anew within so many seconds, do this."""
        self._expect_nothing()
        self._timer = self.loop.call_later(seconds, otherwise)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
