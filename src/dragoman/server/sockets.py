"""WebSockets: the server's side of one for a dialect, and the connection below it with our limits and shutdown.

A socket ends when its handler returns, when the client leaves, or when the server stops: then ``receive`` raises,
earlier messages are still answered, and the socket closes when the handler has returned. A socket without messages for
a long time is closed: the pings of the connection below it only show that the client is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from time import perf_counter
from typing import Any, TypeVar

import msgspec
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from dragoman.core.caller import current_caller
from dragoman.core.errors import Cancelled, DragomanError, EngineUnavailable, Forbidden, PayloadTooLarge
from dragoman.core.journal import current_journal
from dragoman.core.observer import ObservedRequest, RequestEnd, current_request
from dragoman.dialects.api import Dialect, ErrorResponse, NotJson
from dragoman.server import idempotency
from dragoman.server.app_context import AppContext, SocketPlace
from dragoman.server.body import decode_json
from dragoman.server.cors import PageHeaders, page_headers
from dragoman.server.exchange import WARNINGS, error_answer
from dragoman.server.keys import KEY_PROTOCOL
from dragoman.server.middleware import CLIENT_GONE
from dragoman.server.scope_reader import ScopeReader

log = logging.getLogger("dragoman.server")

Result = TypeVar("Result")

# In ``scope["state"]``: an event that is set when the server begins to stop.
STOPPING = "dragoman.stopping"
# Also there: the event for a closed connection, and the client and scheme that a proxy names.
LEFT, CLIENT = "dragoman.left", "dragoman.client"

GOING_AWAY, NOT_UTF8, INTERNAL_ERROR, RESTARTING = 1001, 1007, 1011, 1012


def socket_paths(dialects: Sequence[Dialect]) -> frozenset[bytes]:
    """Return the paths of WebSockets, bare and prefixed."""
    paths = [f"{prefix}{each.path}" for d in dialects for each in d.sockets for prefix in ("", f"/{d.name}")]
    return frozenset(path.encode() for path in paths)


class SocketConnection(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, which a stopping server does not cut off, and a client that does not read cannot
    keep open."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stopping = asyncio.Event()

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["state"][STOPPING] = self._stopping
            if CLIENT in self.app_state:
                self.scope["client"], scheme = self.app_state[CLIENT]
                self.scope["scheme"] = {"http": "ws", "https": "wss"}.get(scheme, self.scheme)

    async def send(self, message: Message) -> None:  # type: ignore[override]
        await super().send(message)  # type: ignore[arg-type]
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # else uvicorn logs an error, as if it were not answered

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            text = b"".join(self.frames)
            self.frames = [text]
            try:
                text.decode()
            except UnicodeDecodeError:  # uvicorn logs it as an error of the server's, with a traceback
                self.frames = []
                self.conn.send_close(NOT_UTF8)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is None:  # frames that came with the handshake, before it was answered
            self.transport.abort()
        else:
            super().handle_parser_exception()

    def connection_lost(self, exc: Exception | None) -> None:
        self.app_state.get(LEFT, lambda: None)()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self.handshake_complete and not self.close_sent:
            self._stopping.set()
        else:
            super().shutdown()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()


class SocketEndpoint:
    """The sockets of one path as an ASGI application.

    Where several dialects have the path, the one that claims no messages has the socket at first; a first message that
    another claims hands it over.
    """

    def __init__(self, places: Sequence[SocketPlace], context: AppContext) -> None:
        self._context = context
        self._places = places
        self._quiet = next((place for place in places if place.operation.claims is None), places[0])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = Socket(scope, receive, send, self._quiet, self._context)
        dialect, operation = self._quiet
        scope["dialect"], scope["operation"] = dialect.name, operation.path
        try:
            keys = self._context.keys
            self._check_page(page_headers(scope["headers"]), needs_key=bool(keys))
            caller = keys.anybody(socket.client, ())
            if keys:
                names = [name for place in self._places for name in place.dialect.key_headers]
                offered = scope["subprotocols"]
                caller = keys.caller(socket.headers, names, operation.scope, offered, address=socket.client)
                socket.tenant = caller.tenant
            current_caller.set(caller)
        except DragomanError as error:
            await socket.refuse(error_answer(dialect, error))
            return
        try:
            await socket.accept(_agreed(scope["subprotocols"]))
            if len(self._places) == 1:
                await self._run(self._quiet, socket)
            else:
                await self._run_whichever(socket, scope)
        except Cancelled:
            pass
        except EngineUnavailable:  # the server stops
            await socket.close(RESTARTING)
        except Exception:
            log.exception("the socket %s failed, request %s", operation.path, socket.request_id)
            await socket.close(INTERNAL_ERROR)
        else:
            await socket.close(RESTARTING if socket.stopping else 1000)

    def _check_page(self, page: PageHeaders, *, needs_key: bool) -> None:
        """Raise Forbidden for a page that none of the dialects accepts."""
        origins = self._context.origins
        origins.check_host(page)
        refusal: Forbidden | None = None
        for dialect, operation in self._places:
            try:
                origins.check_request(
                    page, dialect.cors, method="WEBSOCKET", scope=operation.scope, needs_key=needs_key
                )
                return
            except Forbidden as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    async def _run(self, place: SocketPlace, socket: Socket) -> None:
        socket.place = place
        await place.operation.handler(self._context.serving, socket)

    async def _run_whichever(self, socket: Socket, scope: Scope) -> None:
        """Run the dialect that claims no messages, until a first message chooses another."""
        decided = asyncio.Event()
        quiet = asyncio.ensure_future(self._run(self._quiet, socket.behind(decided)))
        claimed = asyncio.ensure_future(self._claiming(socket))
        try:
            await asyncio.wait((claimed, quiet), return_when=asyncio.FIRST_COMPLETED)
            place = self._quiet if quiet.done() else claimed.result()
            if place is self._quiet:
                decided.set()
                await quiet
                return
        finally:
            for task in (claimed, quiet):
                task.cancel()
            await asyncio.gather(claimed, quiet, return_exceptions=True)
        scope["dialect"] = place.dialect.name
        await self._run(place, socket)

    async def _claiming(self, socket: Socket) -> SocketPlace:
        """Return the operation that claims the first message. Raises as ``receive`` does."""
        message = await socket.peek()
        body = None
        with contextlib.suppress(NotJson, PayloadTooLarge):
            content = message.encode() if isinstance(message, str) else message
            body = await socket.run_blocking(lambda: decode_json(content))
        call = self._context.hint(socket.headers, body)
        claims = (
            place for place in self._places if place.operation.claims is not None and place.operation.claims(call)
        )
        return next(claims, self._quiet)


def _agreed(offered: Sequence[str]) -> str | None:
    """Return the subprotocol that was offered along with a key, which is not sent back: a browser closes a socket that
    accepts none of its offers.

    No dialect defines a subprotocol. Where no offer holds a key, none is accepted.
    """
    if not any(name.startswith(KEY_PROTOCOL) for name in offered):
        return None
    return next((name for name in offered if not name.startswith(KEY_PROTOCOL)), None)


def _status(fault: Exception | None, dialect: Dialect) -> int:
    """Return the HTTP status of an answer with this fault."""
    match fault:
        case None:
            return 200
        case Cancelled():
            return CLIENT_GONE
        case DragomanError():
            return dialect.render_error(fault).status
        case _:
            return 500


class _Shared:
    """The state that a socket and its copies share: messages received and not taken yet, and whether it is over.

    ``answering``: messages that are being answered. ``active_at``: when the last message was received, sent, or
    answered, by ``clock``.
    """

    __slots__ = ("active_at", "answering", "clock", "gone", "pending")

    def __init__(self) -> None:
        self.pending: deque[str | bytes] = deque()
        self.gone = False
        self.answering = 0
        self.clock = asyncio.get_running_loop().time
        self.active_at = self.clock()

    def touch(self) -> None:
        """Note that the socket is in use."""
        self.active_at = self.clock()


class Socket(ScopeReader):
    """The server's side of ``dialects.api.Socket``."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, place: SocketPlace, context: AppContext) -> None:
        super().__init__(scope, context.ready)
        self.place = place
        self._idle_s = context.settings.websocket_idle_s
        self._pools = context.pools
        self._keys, self._accounts = context.keys, context.accounts
        self._observers = context.observers
        self._hear, self._send = receive, send
        self._shared = _Shared()
        self._behind: asyncio.Event | None = None
        self._stopping: asyncio.Event = scope.get("state", {}).get(STOPPING) or asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Return whether the server is stopping."""
        return self._stopping.is_set()

    async def receive(self) -> str | bytes:
        if self._behind is not None:
            await self._behind.wait()
        if self._shared.pending:
            return self._shared.pending.popleft()
        return await self._next()

    async def peek(self) -> str | bytes:
        """Return the next message, which ``receive`` will return again."""
        message = await self._next()
        self._shared.pending.append(message)
        return message

    def behind(self, event: asyncio.Event) -> Socket:
        """Return the same socket, which gives no message before the event."""
        other = copy(self)
        other._behind = event
        return other

    async def _next(self) -> str | bytes:
        if self._shared.gone:
            raise Cancelled("The client has left.")
        hearing = asyncio.ensure_future(self._hear())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while not hearing.done():
                # Messages that have arrived already are returned in any case.
                wait_s = max(self._remaining_s(), 0.01)
                await asyncio.wait((hearing, stopping), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if hearing.done():
                    break
                if stopping.done():
                    raise EngineUnavailable("Server is shutting down.")
                if self._remaining_s() <= 0:
                    await self.close(GOING_AWAY, f"nothing was sent for {self._idle_s:g} seconds")
                    raise Cancelled("The socket was idle.")
            message = hearing.result()
        finally:
            hearing.cancel()
            stopping.cancel()
            await asyncio.gather(hearing, stopping, return_exceptions=True)
        self._shared.touch()
        return self._content(message)

    def _remaining_s(self) -> float:
        """Return the seconds for which the socket may still be idle."""
        if self._shared.answering:
            return self._idle_s
        return self._shared.active_at + self._idle_s - self._shared.clock()

    @contextlib.contextmanager
    def answering(self, request_id: str) -> Iterator[None]:
        dialect, operation = self.place
        began = perf_counter()
        fault: Exception | None = None
        caller = current_caller.get()
        seen = ObservedRequest(dialect.name, operation.path, "MESSAGE", request_id, self.headers, caller=caller)
        for tell in self._observers.arrived:
            tell(seen)
        token, journal = current_request.set(seen), current_journal.get()
        own = current_journal.set(journal and journal.of_message(request_id))
        self._shared.answering += 1
        try:
            seen.caller = self._keys.renewed(caller, operation.scope)
            current_caller.set(seen.caller)
            self._accounts.admit(seen.caller)
            yield
        except asyncio.CancelledError:
            fault = Cancelled("The client has left.")
            raise
        except Exception as error:
            fault = error
            raise
        finally:
            self._shared.answering -= 1
            self._shared.touch()
            current_request.reset(token)
            current_journal.reset(own)
            end = RequestEnd(status=_status(fault, dialect), seconds=perf_counter() - began, error=fault)
            for tell_end in self._observers.ended:
                tell_end(seen, end)

    async def run_blocking(self, work: Callable[[], Result]) -> Result:
        return await self._pools.text.run(work)

    async def send(self, data: str | bytes) -> None:
        content = {"text": data} if isinstance(data, str) else {"bytes": data}
        await self._tell({"type": "websocket.send", **content})
        self._shared.touch()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        if not self._shared.gone:
            with contextlib.suppress(Cancelled):
                await self._tell({"type": "websocket.close", "code": code, "reason": reason[:100]})
            self._shared.gone = True

    async def accept(self, subprotocol: str | None = None) -> None:
        """Accept the handshake."""
        await self._hear()  # websocket.connect
        has_key = idempotency.HEADER in self.headers
        headers = [(WARNINGS.encode(), f"ignored: {idempotency.NAME}".encode())] if has_key else []
        await self._tell({"type": "websocket.accept", "subprotocol": subprotocol, "headers": headers})

    async def refuse(self, answer: ErrorResponse) -> None:
        """Answer as to any other request, instead of opening the socket."""
        body = answer.body
        content = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        head = {"content-type": "application/json", **answer.headers} if content else answer.headers
        headers = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in head.items()]
        await self._tell({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
        await self._tell({"type": "websocket.http.response.body", "body": content})

    async def _tell(self, message: Message) -> None:
        if self._shared.gone:
            raise Cancelled("The client has left.")
        try:
            await self._send(message)
        except Exception as error:  # uvicorn's own, when the connection is lost
            self._shared.gone = True
            raise Cancelled("The client has left.") from error

    def _content(self, message: Message) -> str | bytes:
        if message["type"] == "websocket.disconnect":
            self._shared.gone = True
            raise Cancelled("The client has left.")
        text = message.get("text")
        content: str | bytes = message["bytes"] if text is None else text
        return content
