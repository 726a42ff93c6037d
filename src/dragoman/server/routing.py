"""From operations to routes: every dialect under its prefix, and bare; and which dialect answers where several could.

One route for each path. Behind it, in order of precedence, the operations of all dialects that have the path; the
method and, where they differ in that, what the call looks like say which of them answers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from starlette.datastructures import URLPath
from starlette.routing import BaseRoute, Match, NoMatchFound, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from dragoman.core.errors import (
    Cancelled,
    DragomanError,
    EngineUnavailable,
    GenerationFailed,
    MethodNotAllowed,
    Unauthorized,
)
from dragoman.core.observer import ObservedRequest, RequestEnd, current_request
from dragoman.dialects.wire import Answer, Call, Dialect, Operation
from dragoman.server.cors import is_preflight, preflight_headers
from dragoman.server.exchange import Exchange, body_limit
from dragoman.server.hosting import Endpoint, Hosting, SocketPlace
from dragoman.server.sockets import SocketEndpoint

log = logging.getLogger("dragoman.server")

CLIENT_GONE = 499
"""Of a request whose client left before its answer began, as nginx's log has it."""


def routes_of(prefixed: Sequence[Dialect], bare: Sequence[Dialect], hosting: Hosting) -> Iterator[BaseRoute]:
    """All routes. ``prefixed``: those to be found under their name; ``bare``: the same and more, in precedence."""
    paths: dict[str, list[Endpoint]] = {}
    sockets: dict[str, list[SocketPlace]] = {}
    for dialect, prefix in [*((each, "") for each in bare), *((each, f"/{each.name}") for each in prefixed)]:
        for operation in dialect.operations:
            paths.setdefault(prefix + operation.path, []).append(Endpoint(dialect, operation))
            if prefix and operation.path == "/":
                # A client whose base is the prefix asks for it as it is.
                paths.setdefault(prefix, []).append(Endpoint(dialect, operation))
        for opening in dialect.sockets:
            sockets.setdefault(prefix + opening.path, []).append(SocketPlace(dialect, opening))
    for path, places in sockets.items():
        yield WebSocketRoute(path, SocketEndpoint(places, hosting))
    # A path that is spelled out comes before one that would match it too.
    yield LiteralPaths({path: PathEndpoint(paths[path], hosting) for path in paths if "{" not in path})
    for path in paths:
        if "{" in path:
            yield Route(path, PathEndpoint(paths[path], hosting))


class LiteralPaths(BaseRoute):
    """The paths without parameters, found at once: trying two hundred patterns in turn costs every request 0.2 ms."""

    def __init__(self, endpoints: Mapping[str, PathEndpoint]) -> None:
        self._endpoints = endpoints

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        return (Match.NONE, {}) if endpoint is None else (Match.FULL, {"endpoint": endpoint})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope["endpoint"](scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: object) -> URLPath:
        raise NoMatchFound(name, path_params)


class PathEndpoint:
    """All operations of one path as an ASGI application."""

    def __init__(self, endpoints: Sequence[Endpoint], hosting: Hosting) -> None:
        self._hosting = hosting
        self._first = endpoints[0]
        self._by_method: dict[str, list[Endpoint]] = {}
        for endpoint in endpoints:
            candidates = self._by_method.setdefault(endpoint.operation.method, [])
            # Who comes later and claims nothing is never chosen.
            if not candidates or endpoint.operation.claims is not None:
                candidates.append(endpoint)
        self._allowed = ", ".join("GET, HEAD" if method == "GET" else method for method in self._by_method)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosting = self._hosting
        exchange = Exchange(scope, receive, send, hosting.settings, dialect=self._first.dialect, ready=hosting.ready)
        if is_preflight(exchange.method, exchange.headers) and await self._told_a_browser(exchange):
            return
        candidates = self._by_method.get("GET" if exchange.method == "HEAD" else exchange.method)
        # For the log and the metrics: what the client asked for, without what it put into the path.
        scope["dialect"], scope["operation"] = self._first.dialect.name, self._first.operation.path
        try:
            await self._answer(exchange, candidates, scope)
        except Cancelled:
            scope["gone"] = True

    async def _told_a_browser(self, exchange: Exchange) -> bool:
        asked = self._by_method.get(exchange.headers["access-control-request-method"], [])
        dialect = next((endpoint.dialect for endpoint in asked if endpoint.dialect.cors is not None), None)
        if dialect is None or dialect.cors is None:
            return False
        exchange.dialect = msgspec.structs.replace(dialect, cors=None)
        headers = preflight_headers(dialect.cors, exchange.headers)
        await exchange.reply_text(dialect.cors.preflight_body, headers=headers)
        return True

    async def _answer(self, exchange: Exchange, candidates: list[Endpoint] | None, scope: Scope) -> None:
        """Run the handler, and answer what it raises. Raises Cancelled when nobody is there to be answered."""
        dialect = self._first.dialect
        seen: ObservedRequest | None = None
        fault: Exception | None = None
        try:
            if candidates is None:
                where = f"{exchange.method} is not allowed on {exchange.path[:256]}"
                raise MethodNotAllowed(f"{where}, only {self._allowed}.")
            exchange.dialect = dialect = candidates[0].dialect
            dialect, operation = await self._chosen(exchange, candidates)
            exchange.dialect = dialect
            scope["dialect"], scope["operation"] = dialect.name, operation.path
            self._let_in(exchange, dialect, operation)
            seen = self._arrived(exchange, dialect, operation)
            if exchange.method == "POST" and operation.scope == "infer":
                async with self._hosting.serving.held():
                    await operation.handler(self._hosting.serving, exchange)
            else:
                await operation.handler(self._hosting.serving, exchange)
        except Exception as error:
            fault = error
            if exchange.started or isinstance(error, Cancelled):
                raise
            await exchange.answer(self._worded(error, exchange, dialect))
        finally:
            if seen is not None:
                self._ended(exchange, seen, fault)

    async def _chosen(self, exchange: Exchange, candidates: list[Endpoint]) -> Endpoint:
        """The first that claims the call as its own, or else the first. The body is read for it, if there is one."""
        if len(candidates) == 1:
            return candidates[0]
        settings = self._hosting.settings
        body = None
        if exchange.method not in ("GET", "HEAD"):
            body = await exchange.peek(max(body_limit(endpoint.dialect, settings) for endpoint in candidates))
        call = Call(headers=exchange.headers, body=body, dialect=settings.dialect)
        claimed = (each for each in candidates if each.operation.claims is not None and each.operation.claims(call))
        return next(claimed, candidates[0])

    def _let_in(self, exchange: Exchange, dialect: Dialect, operation: Operation) -> None:
        """Raises Unauthorized or Forbidden."""
        keys = self._hosting.keys
        if keys and not keys.is_open(operation):
            holder = keys.holder(exchange.headers, dialect.key_headers, operation.scope)
            exchange.tenant, exchange.scopes = holder.tenant, holder.scopes

    def _arrived(self, exchange: Exchange, dialect: Dialect, operation: Operation) -> ObservedRequest:
        seen = ObservedRequest(dialect.name, operation.path, operation.method, exchange.request_id, exchange.headers)
        for observer in self._hosting.observers:
            observer.arrived(seen)
        exchange.more_headers = seen.answer_headers
        # Whatever tasks the handler starts have it too, and nobody in between needs to know.
        current_request.set(seen)
        return seen

    def _ended(self, exchange: Exchange, seen: ObservedRequest, fault: Exception | None) -> None:
        gone = exchange.status == 0 or isinstance(fault, Cancelled)
        error = Cancelled("The client left.") if gone else exchange.fault or fault
        end = RequestEnd(status=exchange.status or CLIENT_GONE, seconds=exchange.elapsed_s, error=error)
        for observer in self._hosting.observers:
            observer.ended(seen, end)

    def _worded(self, error: Exception, exchange: Exchange, dialect: Dialect) -> Answer:
        if not isinstance(error, DragomanError):
            log.exception("%s %s failed, request %s", exchange.method, exchange.path[:256], exchange.request_id)
            error = GenerationFailed("The server had an internal error. Its log has more, by this request's id.")
        elif isinstance(error, GenerationFailed) and self._hosting.ended():
            # Nothing is wrong with the request: another server, or the next one here, will answer it.
            error = EngineUnavailable("The server is shutting down.")
        answer = dialect.render_error(error)
        more: dict[str, str] = {}
        if isinstance(error, MethodNotAllowed):
            more["allow"] = self._allowed
        elif isinstance(error, Unauthorized):
            more["www-authenticate"] = "Bearer"
        return msgspec.structs.replace(answer, headers={**answer.headers, **more}) if more else answer
