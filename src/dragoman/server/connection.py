"""An HTTP/1.1 connection: uvicorn's protocol with the limits that it lacks.

Whatever a client does, a connection costs bounded memory and ends in bounded time: headers must be short and arrive in
time, an unread answer ends with the write timeout, and the rest of a refused request is read for a moment only. Input
is parsed piece by piece, and only as far as it is needed: a few requests ahead, and a body as fast as it is read. The
rest stays in the socket's buffer, so that the client slows down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dragoman.core.errors import BadRequest, DragomanError, EngineUnavailable, PayloadTooLarge, RequestTimeout
from dragoman.server.connection_context import ConnectionContext
from dragoman.server.connections import FULL, GRACE_S, Slot, client_of, counted_as
from dragoman.server.exchange import ABORT, BODY, CUT, ON_LEFT
from dragoman.server.framing import EMPTY_LINES, Framing, origin_form, with_path
from dragoman.server.http_1_0 import end_with_connection
from dragoman.server.middleware import CROWDED
from dragoman.server.parsing import PIECES_AT_ONCE, ParsingTurns, ReadingOnDemand
from dragoman.server.refusal import head_fault, note_refusal, other_protocol, refusal_bytes
from dragoman.server.scope_reader import PROXIED_PREFIX
from dragoman.server.sockets import CLIENT, LEFT
from dragoman.server.upgrade import UpgradeIgnoringParser
from dragoman.server.write_buffer import BufferedTransport

NOT_HTTP = "The request is not valid HTTP."

HEAD_TOO_LARGE = "The request's line and headers are too large."

BUFFERED_BYTES = 64 * 1024
"""Bytes of a body that are parsed ahead of its reader."""


def connection_class(context: ConnectionContext) -> type[Connection]:
    """Return the connection class for uvicorn, which makes instances without our arguments."""
    return type("LimitedConnection", (Connection,), {"context": context, "turns": None})


class Connection(HttpToolsProtocol):
    """Adds to uvicorn's protocol a timer for the client's next step, a count of the bytes of a request's head, and a
    buffer of input that is not parsed yet."""

    context: ConnectionContext
    turns: ParsingTurns | None
    slot: Slot | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = self.context.settings
        self.parser: UpgradeIgnoringParser = UpgradeIgnoringParser(self, self.context.socket_paths)  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None
        self._framing = Framing()
        self._deaf = False
        self._fault = NOT_HTTP
        self._head_began = self.loop.time()
        self._unanswered: list[RequestResponseCycle] = []
        self._unparsed, self._at = b"", 0
        self._reserved_bytes = 0
        self._is_paused = False
        self._proxied = False
        self._proxied_for: list[tuple[RequestResponseCycle | None, str]] = []
        cls = type(self)
        if cls.turns is None:
            cls.turns = ParsingTurns(self.loop)
        self._turns = cls.turns

    # The transport ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(BufferedTransport(transport, self.loop))  # type: ignore[arg-type]
        self.flow = ReadingOnDemand(self.transport, self._read_on)
        self._proxied = self.context.proxies.trusts(self.client[0] if self.client else "")
        if self.slot is None:  # accepted by another loop's server
            self.slot = self.context.connections.enter("" if self._proxied else client_of(self.client))
        if self.slot is None:
            transport.abort()
            return
        self.slot.drop = self._make_room
        self._expect(self.settings.header_timeout_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        # uvicorn notifies only the newest request; with pipelining it is an older one that is being answered.
        self._tell_that_client_left()
        self._unanswered.clear()
        self._forget_unparsed()
        self._left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        if self._unparsed:  # was on its way when reading was paused
            self._unparsed, self._at = self._unparsed[self._at :] + data, 0
            self._hold(len(self._unparsed))
            return
        if not self._is_in_request and (other := other_protocol(data)) is not None:
            self._refuse(*other)
            return
        self._unparsed, self._at = data, 0
        self.parse(PIECES_AT_ONCE)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.slot is not None:
            self.context.connections.set_unread(self.slot)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.slot is not None:
            self.context.connections.set_read(self.slot)

    def _set_busy(self, slot: Slot) -> None:
        self.context.connections.set_busy(slot)
        if self.flow.write_paused:  # the client has left an earlier answer unread
            self.context.connections.set_unread(slot)

    def _tell_that_client_left(self) -> None:
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
            on_left: Any = cycle.scope["extensions"].get(ON_LEFT)
            if on_left is not None:
                on_left()

    def _left(self) -> None:
        """Release everything that the closed connection holds."""
        for _, client in self._proxied_for:
            self.context.connections.end_request(client)
        self._proxied_for.clear()
        if self.slot is not None:
            self.context.connections.leave(self.slot)

    def _make_room(self) -> None:
        """Close this connection to make room for others. A client that is sending a request, and reads, gets the
        reason."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        if self._is_in_request:
            self._refuse(503, EngineUnavailable(FULL))
        self.transport.close()
        # TLS waits for the client's close_notify; the slot is already another connection's.
        self._expect(GRACE_S, self.transport.abort)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            # Clients that hold a connection of TLS in reserve do not say that they close it.
            self._expect(self.settings.linger_s, self.transport.abort)

    # Parsing input ---------------------------------------------------------------------------------------------------

    def parse(self, pieces: int) -> None:
        """Parse at most so many pieces of the input, as far as it is needed. The rest is kept for another turn."""
        if self._deaf or self.transport.is_closing():
            self._forget_unparsed()
            return
        data, size = self._unparsed, len(self._unparsed)
        while self._at < size and pieces and self._takes_more():
            if data[self._at] in EMPTY_LINES and not self._is_in_request:
                self._at = size - len(data[self._at :].lstrip(EMPTY_LINES))
                continue
            begin, end = self._at, self._framing.piece_end(data, self._at)
            self._at = end
            pieces -= 1
            self._parse_piece(data if end - begin == size else data[begin:end])
            if self.transport.get_protocol() is not self:
                self._hand_over(data[end:])
                return
            if self._deaf or self.transport.is_closing():
                self._forget_unparsed()
                return
        if self._at == size:
            self._framing.end_input(data)
            self._forget_unparsed()
        elif not self._hold(size - self._at):
            return
        elif self._takes_more():
            self._turns.add(self)
        self._read_or_not()
        if self._timer is None and not self._unanswered:
            self._expect(self.settings.header_timeout_s, self._head_is_late)

    @property
    def _is_in_request(self) -> bool:
        """Whether the client has begun to send a request, and not finished it."""
        return self._framing.in_head or self._framing.in_body

    def _parse_piece(self, piece: bytes) -> None:
        framing, most = self._framing, self.settings.max_header_bytes
        before = framing.begin_piece(len(piece))
        super().data_received(piece)
        if self._deaf or self.transport.is_closing():
            return
        if framing.in_head and framing.head_bytes > most:
            self._refuse(431, PayloadTooLarge(HEAD_TOO_LARGE))
        elif framing.is_mostly_framing(most):
            self._refuse(400, BadRequest("The request's body has more framing than content: its chunks are too small."))
        else:
            framing.end_piece(len(piece), before)

    def _takes_more(self) -> bool:
        """Return whether more of the client's input is needed."""
        if self._framing.in_body:
            return self.cycle.response_complete or len(self.cycle.body) < BUFFERED_BYTES
        return len(self._unanswered) < self.context.network.max_pipelined

    def _hold(self, size: int) -> bool:
        """Count the unparsed bytes, within what all connections together may hold; refuse the client where they do
        not fit."""
        if self._reserved_bytes == size:
            return True
        self.context.bodies.release(self._reserved_bytes)
        self._reserved_bytes = size if self.context.bodies.can_hold(size) else 0
        if not self._reserved_bytes:
            self._forget_unparsed()
            self._refuse(503, EngineUnavailable("The server has no room for what this connection sends now."))
        return self._reserved_bytes > 0

    def _forget_unparsed(self) -> None:
        self._unparsed, self._at = b"", 0
        if self._reserved_bytes:
            self.context.bodies.release(self._reserved_bytes)
            self._reserved_bytes = 0

    def _read_on(self) -> None:
        """Parse what is there, and resume reading, where a reader needs more."""
        if self._unparsed:
            if self._takes_more():
                self._turns.add(self)
        elif self._is_paused:
            self._read_or_not()

    def _read_or_not(self) -> None:
        is_paused = not self._deaf and (bool(self._unparsed) or not self._takes_more())
        if is_paused != self._is_paused and not self.transport.is_closing():
            self._is_paused = is_paused
            if is_paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _hand_over(self, rest: bytes) -> None:
        """Hand the rest of the input to the WebSocket's protocol, unless the handshake was refused."""
        self._expect_nothing()
        self._forget_unparsed()
        if self.transport.is_closing():
            response = getattr(self.transport.get_protocol(), "response", None)
            status = 400 if response is None else response.status_code
            seconds = self.loop.time() - self._head_began
            note_refusal(self.context.requests, (), status, seconds, self.client, self.scope["method"], self.url)
            self._expect(self.settings.linger_s, self.transport.abort)
            return
        if self._is_paused:
            self.transport.resume_reading()
        if rest:
            self.transport.get_protocol().data_received(rest)  # type: ignore[attr-defined]

    # The parser ------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort, CUT: self._close_when_read}  # type: ignore[dict-item]
        self._framing.begin_head()
        self._fault = NOT_HTTP
        self._head_began = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._framing.in_head:  # not after a body: trailers are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size, hosts, length, codings = len(self.url), 0, 0, []
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                codings.append(value)
        # The exact count: what came with its first byte was not counted, what came with its last was counted whole.
        self._framing.head_bytes = size
        if size > self.settings.max_header_bytes:
            raise PayloadTooLarge(HEAD_TOO_LARGE)  # the parser stops, and uvicorn calls send_400_response
        if fault := head_fault(self.parser.get_http_version(), hosts, codings):
            self._fault = fault
            raise BadRequest(fault)  # as above
        if self.parser.declines:
            return
        self.url = with_path(self.url)
        opens_socket = self.parser.opens_socket
        if opens_socket and (self._unanswered or length or codings):
            self._fault = "A WebSocket cannot be opened with a body, nor behind a request that is not answered yet."
            raise BadRequest(self._fault)
        slot, refusal = self.slot, None
        assert slot is not None
        if not self._unanswered:
            refusal = self.context.connections.refusal(slot)
        if opens_socket:
            self.url = origin_form(self.url)
            self._open_socket(slot, refusal)
            return
        self._framing.begin_body(length, is_chunked=bool(codings))
        self._expect_nothing()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            end_with_connection(self.cycle)
        self.scope["extensions"][BODY] = self.cycle.send  # type: ignore[assignment]
        if not self._unanswered and (codings or length):
            self.context.connections.set_uploading(slot)
        else:
            self._set_busy(slot)
        self._unanswered.append(self.cycle)
        if self.context.is_ending():
            self.cycle.keep_alive = False
        if self._proxied:
            refusal = self._name_client(self.cycle) or refusal
        if refusal is not None:
            self.scope["state"][CROWDED] = refusal

    def on_body(self, body: bytes) -> None:
        """Wake the body's reader when enough of it has arrived, not for every byte."""
        self._framing.add_content(len(body))
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) >= BUFFERED_BYTES:
                cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self.parser.declines:
            return
        super().on_message_complete()
        self._framing.end_request()
        if self._unanswered:
            self._set_busy(self.slot)  # type: ignore[arg-type]
        else:
            self._expect_nothing()

    def _open_socket(self, slot: Slot, refusal: DragomanError | None) -> None:
        """Give the WebSocket's protocol its context. The socket keeps the slot, and is not closed for other
        connections."""
        self.context.connections.set_busy(slot)
        state: dict[str, Any] = {LEFT: self._left}
        if self._proxied:
            state[CLIENT] = self._forwarded_client()
            refusal = self._count_client(None, state[CLIENT][0][0]) or refusal
        if refusal is not None:
            state[CROWDED] = refusal
        self.app_state = {**self.app_state, **state}
        super().on_headers_complete()

    def _name_client(self, cycle: RequestResponseCycle) -> DragomanError | None:
        """Put the client that the proxy names into the request; return why it is refused, empty if it is not."""
        client, scheme = self._forwarded_client()
        self.scope["client"], self.scope["scheme"] = client, scheme or self.scope["scheme"]
        self.scope[PROXIED_PREFIX] = self.context.proxies.prefix(self.headers)  # type: ignore[literal-required]
        return self._count_client(cycle, client[0])

    def _forwarded_client(self) -> tuple[tuple[str, int], str | None]:
        peer, proxies = self.client or ("", 0), self.context.proxies
        found = proxies.client(peer[0], self.headers)
        return (peer if found == peer[0] else (found, 0)), proxies.scheme(self.headers)

    def _count_client(self, cycle: RequestResponseCycle | None, host: str) -> DragomanError | None:
        client = counted_as(host)
        self._proxied_for.append((cycle, client))
        return self.context.connections.begin_request(client)

    # Answers ---------------------------------------------------------------------------------------------------------

    def announce_end(self) -> None:
        """Mark the newest answer that has not begun as the last one of this connection."""
        if self._unanswered:
            self._unanswered[-1].keep_alive = False

    def on_response_complete(self) -> None:
        self._unanswered = [cycle for cycle in self._unanswered if not cycle.response_complete]
        if self._proxied_for:
            for cycle, client in self._proxied_for:
                if cycle is not None and cycle.response_complete:
                    self.context.connections.end_request(client)
            self._proxied_for = [each for each in self._proxied_for if each[0] and not each[0].response_complete]
        if not self._unanswered:
            self.context.connections.set_idle(self.slot)  # type: ignore[arg-type]
        elif self._framing.in_body and len(self._unanswered) == 1:
            # Its request was sent after the one that is answered now.
            self.context.connections.set_uploading(self.slot)  # type: ignore[arg-type]
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect(self.settings.write_timeout_s, self.transport.abort)
        elif self._framing.in_body and not self._unanswered:
            self._expect(self.settings.linger_s, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect(self.settings.write_timeout_s, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        if self._framing.head_bytes > self.settings.max_header_bytes:
            self._refuse(431, PayloadTooLarge(HEAD_TOO_LARGE))
        else:
            self._refuse(400, BadRequest(self._fault))

    def _head_is_late(self) -> None:
        if self._framing.in_head:
            self._refuse(408, RequestTimeout("The request's headers did not arrive in time."))
        else:
            self._close_when_read()

    def _close_when_read(self) -> None:
        """Close after the written bytes, which the client has some time to read."""
        self.transport.close()
        self._expect(self.settings.write_timeout_s, self.transport.abort)

    def _refuse(self, status: int, error: DragomanError, answer: bytes = b"", protocol: str = "-") -> None:
        """Answer input that is not a valid request, with the error or with ``answer``, and close; not in the middle of
        another answer. ``protocol``: what it is, in place of a method in the log."""
        if not any(cycle.response_started for cycle in self._unanswered) and len(self._unanswered) < 2:
            method, url = (self.scope.get("method", "-"), self.url) if self._framing.in_head else (protocol, b"")
            seconds = self.loop.time() - self._head_began
            request_id = note_refusal(
                self.context.requests, self._unanswered, status, seconds, self.client, method, url
            )
            self.transport.write(answer or refusal_bytes(self.context.render_error(error), status, request_id))
            self._deaf = True
            self._read_or_not()  # all of it: the client may send first and read then, and its end is seen
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:  # TLS ends connections itself
                self.transport.close()
            self._tell_that_client_left()
            self._expect(self.settings.linger_s, self.transport.abort)
        else:
            self._close_when_read()

    # The timer -------------------------------------------------------------------------------------------------------

    def _expect(self, seconds: float, otherwise: Callable[[], None]) -> None:
        """Set the timer: call ``otherwise`` unless it is set again within so many seconds."""
        self._expect_nothing()
        self._timer = self.loop.call_later(seconds, otherwise)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
