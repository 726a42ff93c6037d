"""Routes of all operations, prefixed and bare, and the choice of the dialect that answers a path several have.

One route for each path. It holds the operations of all dialects that have the path, in order of precedence; the method
and, where several match, the form of the request choose one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from urllib.parse import quote

import msgspec
from starlette.datastructures import URLPath
from starlette.routing import BaseRoute, Match, NoMatchFound, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from dragoman.core.caller import Caller, current_caller
from dragoman.core.catalog import may_have_loaded
from dragoman.core.errors import (
    Cancelled,
    DragomanError,
    EngineUnavailable,
    Forbidden,
    GenerationFailed,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    ShuttingDown,
    Unauthorized,
    drop_tracebacks,
)
from dragoman.core.journal import current_journal
from dragoman.core.observer import ObservedRequest, RequestEnd, current_request
from dragoman.dialects.api import Dialect, ErrorResponse, Operation, keeps_answers
from dragoman.server import idempotency
from dragoman.server.app_context import AppContext, Endpoint, SocketPlace
from dragoman.server.cors import Standing, is_preflight
from dragoman.server.exchange import Exchange, error_answer
from dragoman.server.explain_choice import claiming
from dragoman.server.health import METRICS_PATH
from dragoman.server.idempotency import KeptAnswer
from dragoman.server.key_file import Scope as KeyScope
from dragoman.server.middleware import IS_CHECK, OBSERVED
from dragoman.server.quotas import has_quotas
from dragoman.server.sockets import SocketEndpoint

log = logging.getLogger("dragoman.server")

WITHOUT_ADMIN: tuple[KeyScope, ...] = ("infer",)
"""The scopes of pages of origins that the operator has not named, whatever key they have."""

PROGRESS = "x-dragoman-progress"
"""The request header that, with ``1``, asks for the progress of the request."""

CLIENT_GONE = 499
"""The status of a request whose client left before its answer began, as in nginx's log."""


def routes_of(prefixed: Sequence[Dialect], bare: Sequence[Dialect], context: AppContext) -> Iterator[BaseRoute]:
    """Return all routes. ``prefixed``: dialects to route under their name; ``bare``: the same and more, in
    precedence."""
    paths = endpoints_by_path(prefixed, bare)
    sockets: dict[str, list[SocketPlace]] = {}
    for dialect, prefix in [*((each, "") for each in bare), *((each, f"/{each.name}") for each in prefixed)]:
        for opening in dialect.sockets:
            sockets.setdefault(prefix + opening.path, []).append(SocketPlace(dialect, opening))
    for path, places in sockets.items():
        yield WebSocketRoute(path, SocketEndpoint(places, context))

    def endpoint(path: str) -> PathEndpoint:
        return PathEndpoint(paths[path], context, [dialect for dialect in bare if _is_absent(path, dialect)])

    # A literal path precedes a pattern that would match it too.
    yield LiteralPaths({path: endpoint(path) for path in paths if "{" not in path})
    for path in paths:
        if "{" in path:
            yield Route(path, endpoint(path))


def _is_absent(path: str, dialect: Dialect) -> bool:
    """Return whether a bare path is unknown to the clients of a dialect, though another one has it."""
    return any(path == absent or path.startswith(f"{absent}/") for absent in dialect.absent_paths)


def endpoints_by_path(prefixed: Sequence[Dialect], bare: Sequence[Dialect]) -> dict[str, list[Endpoint]]:
    """Return the operations of every path, those that share it in order of precedence."""
    paths: dict[str, list[Endpoint]] = {}
    for dialect, prefix in [*((each, "") for each in bare), *((each, f"/{each.name}") for each in prefixed)]:
        for operation in dialect.operations:
            endpoint = Endpoint(dialect.worded_for(operation), operation)
            paths.setdefault(prefix + operation.path, []).append(endpoint)
            if prefix and operation.path == "/":
                # A client whose base address is the prefix requests it as it is.
                paths.setdefault(prefix, []).append(endpoint)
    # A pattern whose end takes any text would match the longer paths of others too.
    return dict(sorted(paths.items(), key=lambda item: item[0].endswith(":path}")))


def _queried_key(exchange: Exchange, names: Sequence[str]) -> str:
    """Return the API key in the query, if there is one."""
    return next((value for name in names if (value := exchange.query.get(name, ""))), "") if names else ""


def check_named_paths(bare: Sequence[Dialect]) -> None:
    """Raise DragomanError for an operation at a path of the operator's that would never run, since another one answers
    there. Of two health checks it does not matter which answers."""
    for path, endpoints in endpoints_by_path((), bare).items():
        for _, operation in endpoints:
            first = next(each for _, each in endpoints if each.method == operation.method)
            is_hidden = operation.claims is None and first is not operation and not (first.probe and operation.probe)
            if operation.named_by and is_hidden:
                words = f"another operation of this server answers {operation.method} {path}"
                raise DragomanError(f"{operation.named_by} {path}: {words}: {first.summary}")


class LiteralPaths(BaseRoute):
    """The paths without parameters, in a dictionary: trying two hundred patterns in turn costs every request 0.2 ms."""

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

    def __init__(self, endpoints: Sequence[Endpoint], context: AppContext, absent: Sequence[Dialect] = ()) -> None:
        """``absent``: dialects for whose clients there is no such path."""
        self._context = context
        self._absent = absent
        self._first = endpoints[0]
        self._by_method: dict[str, list[Endpoint]] = {}
        for endpoint in endpoints:
            candidates = self._by_method.setdefault(endpoint.operation.method, [])
            # An operation that comes later and claims nothing is never chosen.
            if not candidates or endpoint.operation.claims is not None:
                candidates.append(endpoint)
        self._allowed = ", ".join("GET, HEAD" if method == "GET" else method for method in self._by_method)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        exchange = context.exchange(scope, receive, send, self._first.dialect)
        candidates = self._by_method.get("GET" if exchange.method == "HEAD" else exchange.method)
        # For the log and the metrics: the pattern of the path, without the client's parameters.
        scope["dialect"], scope["operation"] = self._first.dialect.name, self._first.operation.path
        try:
            await self._answer(exchange, candidates, scope)
        except Cancelled:
            scope["gone"] = True
        finally:
            exchange.end()

    async def _answer_preflight(self, exchange: Exchange, asked: Sequence[Endpoint]) -> None:
        """Answer a preflight request with the permissions of the first operation that the page may use.

        Raises Forbidden where it may use none.
        """
        refusal: Forbidden | None = None
        for dialect, operation in asked:
            try:
                headers = self._context.origins.preflight_headers(
                    exchange.page, dialect.cors, exchange.headers, scope=operation.scope
                )
            except Forbidden as error:
                refusal = refusal or error
                continue
            exchange.dialect, exchange.origins = dialect, None
            await exchange.reply_text("" if dialect.cors is None else dialect.cors.preflight_body, headers=headers)
            return
        assert refusal is not None
        raise refusal

    async def _answer(self, exchange: Exchange, candidates: list[Endpoint] | None, scope: Scope) -> None:
        """Run the handler, and answer with the errors it raises. Raises Cancelled when the client has left."""
        dialect = self._first.dialect
        seen: ObservedRequest | None = None
        fault: Exception | None = None
        try:
            self._context.origins.check_host(exchange.page)
            if is_preflight(exchange.method, exchange.headers):
                method = exchange.headers["access-control-request-method"]
                if asked := self._by_method.get("GET" if method == "HEAD" else method):
                    await self._answer_preflight(exchange, asked)
                    return
            for absent in self._absent:
                if absent.is_client is not None and absent.is_client(exchange.headers):
                    exchange.dialect = dialect = absent
                    self._context.check_page(exchange.page, dialect.cors, exchange.method)
                    raise NotFound(f"Unknown URL: {exchange.method} {exchange.path[:256]}")
            if candidates is None:
                self._context.check_page(exchange.page, dialect.cors, exchange.method)
                method = "GET" if exchange.method == "HEAD" else exchange.method
                if (method, exchange.path.removeprefix(f"/{dialect.name}")) in dialect.unknown:
                    raise NotFound(f"Unknown URL: {exchange.method} {exchange.path[:256]}")
                where = f"{exchange.method} is not allowed on {exchange.path[:256]}"
                raise MethodNotAllowed(f"{where}, only {self._allowed}.")
            if len(candidates) > 1:
                apparent = self._apparent(exchange, candidates)
                exchange.dialect = dialect = apparent.dialect
                caller = self._check_before_body(exchange, candidates)
                if caller is not None:
                    try:
                        self._context.accounts.check_request(caller)
                    except RateLimited:
                        self._set_caller(exchange, caller)
                        seen = self._arrived(exchange, *apparent)
                        raise
            else:
                exchange.dialect = dialect = candidates[0].dialect
            dialect, operation = await self._resolve(exchange, candidates)
            exchange.dialect, exchange.operation = dialect, operation
            scope["dialect"], scope["operation"] = dialect.name, operation.path
            scope[IS_CHECK] = operation.probe or operation.path == METRICS_PATH
            self._authorize(exchange, dialect, operation, self._check_page(exchange, dialect, operation))
            if exchange.headers.get(PROGRESS) == "1":
                exchange.show_progress()
            seen = scope[OBSERVED] = self._arrived(exchange, dialect, operation)
            has_key = idempotency.HEADER in exchange.headers
            if not keeps_answers(operation):
                exchange.ignored_headers = (idempotency.NAME,) * has_key
                await operation.handler(self._context.serving, exchange)
                return
            self._context.accounts.admit(seen.caller)
            if not has_key:
                await self._generate(exchange, operation)
                return
            answer, is_first = await self._kept_answer(exchange, Endpoint(dialect, operation), scope, seen)
            if is_first:
                seen = None  # it ends with the answer, which its client may leave
            with answer.reading(exchange.abort) as reader:
                await exchange.copy(answer.begun, answer.parts(reader))
            exchange.fault = answer.fault
        except Exception as error:
            fault = error
            await self._answer_fault(error, exchange, dialect)
        finally:
            if seen is not None:
                self._ended(exchange, seen, fault)
            drop_tracebacks(exchange.fault)
            fault = None  # an error that is raised has this frame in its traceback

    async def _generate(self, exchange: Exchange, operation: Operation) -> None:
        """Run the handler of an operation that generates."""
        serving, dialect = self._context.serving, exchange.dialect
        choice = "current" if dialect is None else dialect.model_choice
        # Read first: a client that sends its body slowly keeps no model in memory.
        model = await self._named_model(exchange) if choice == "body" else None
        await exchange.read_body()
        async with AsyncExitStack() as stack:
            async with exchange.progress_before(operation.table), exchange.until_left():
                if model is not None:
                    lease = serving.lease(model)
                else:
                    lease = serving.lease(wake=False) if choice == "handler" else serving.lease()
                await stack.enter_async_context(lease)
            await operation.handler(self._context.serving, exchange)

    async def _named_model(self, exchange: Exchange) -> str | None:
        """Return the id of the model that the body names, where that is not the current one. Raises Forbidden for one
        that the caller may not have loaded."""
        assert exchange.dialect is not None
        body = await exchange.peek(exchange.body_limit(exchange.dialect))
        name = body.get("model") if isinstance(body, dict) else None
        catalog = self._context.serving.catalog
        if not isinstance(name, str) or (found := catalog.named(name)) is None:
            return None
        now = catalog.current() or catalog.asleep
        if now is not None and now.id == found:
            return None
        if not catalog.is_resident(found):
            if catalog.request_loads == "never":
                return None
            if not may_have_loaded(catalog, exchange.scopes):
                raise Forbidden(f"The model '{name[:256]}' is not loaded, and this API key may not have it loaded.")
        return found

    async def _kept_answer(
        self, exchange: Exchange, endpoint: Endpoint, scope: Scope, seen: ObservedRequest
    ) -> tuple[KeptAnswer, bool]:
        """Return the answer under the request's key, and whether it is begun for this request.

        Raises IdempotencyError, Overloaded, and what reading the body raises.
        """
        kept, (dialect, operation) = self._context.kept_answers, endpoint
        key = idempotency.read_key(scope)
        body = await exchange.read_body()
        names = [header.name for header in operation.reads]
        request = idempotency.fingerprint(scope, exchange.headers, names, f"{dialect.name} {operation.path}", body)
        owner = seen.caller.tenant or seen.caller.share_key
        answer = kept.attach(owner, key, request)
        if answer is not None:
            exchange.drop_body()
            exchange.more_headers = {**seen.answer_headers, **idempotency.replay_headers(answer)}
            return answer, False
        answer = kept.begin(owner, key, request, exchange.request_id)
        inner = self._context.exchange_for(exchange, answer, scope)
        kept.run(answer, partial(self._write_kept, inner, endpoint, seen, answer))
        return answer, True

    async def _write_kept(
        self, exchange: Exchange, endpoint: Endpoint, seen: ObservedRequest, answer: KeptAnswer
    ) -> DragomanError | None:
        """Run the handler for an answer that is kept, and return the fault in it. Raises what breaks the answer off."""
        fault: Exception | None = None
        journal = current_journal.get()
        if journal is not None and journal.abandon is not None:
            journal.abandon = answer.give_up  # all its clients are to be served elsewhere, and the first may have left
        try:
            if exchange.headers.get(PROGRESS) == "1":
                exchange.show_progress()
            await self._generate(exchange, endpoint.operation)
        except Exception as error:
            fault = error
            await self._answer_fault(error, exchange, endpoint.dialect)
        finally:
            exchange.end()
            self._ended(exchange, seen, fault)
            drop_tracebacks(exchange.fault)
        return exchange.fault or (fault if isinstance(fault, DragomanError) else None)

    async def _answer_fault(self, error: Exception, exchange: Exchange, dialect: Dialect) -> None:
        """Answer with the error. Raises it again where that is too late, or the client has left."""
        if isinstance(error, Cancelled) or (exchange.started and not exchange.began_early):
            raise error
        told = self._client_error(error, exchange)
        drop_tracebacks(error)  # the client may read its answer slowly
        if exchange.began_early:
            await exchange.finish_early(told)
        else:
            await exchange.answer(self._answer_to(told, dialect))

    def _apparent(self, exchange: Exchange, candidates: list[Endpoint]) -> Endpoint:
        """Return the operation that the headers alone choose."""
        call = self._context.hint(exchange.headers, None)
        return claiming(candidates, call) or candidates[0]

    def _check_before_body(self, exchange: Exchange, candidates: list[Endpoint]) -> Caller | None:
        """Refuse a caller that no candidate would accept, before a body is read to choose between them.

        Returns the caller whose limit of requests counts, whichever candidate is chosen; None where that is not known
        yet. Raises Unauthorized or Forbidden.
        """
        refusal: Forbidden | None = None
        for dialect, operation in candidates:
            try:
                self._check_page(exchange, dialect, operation)
                break
            except Forbidden as error:
                refusal = refusal or error
        else:
            assert refusal is not None
            raise refusal
        keys = self._context.keys
        if not keys:
            caller = keys.anybody(exchange.client, ())
        elif any(keys.is_open(operation) for _, operation in candidates):
            return None
        else:
            names = [name for dialect, _ in candidates for name in dialect.key_headers]
            params = [name for dialect, _ in candidates for name in dialect.key_params]
            queried = _queried_key(exchange, params)
            caller = keys.known_caller(exchange.headers, names, address=exchange.client, queried=queried)
        is_counted = all(operation.method == "POST" and operation.scope == "infer" for _, operation in candidates)
        return caller if is_counted else None

    def _check_page(self, exchange: Exchange, dialect: Dialect, operation: Operation) -> Standing:
        """Return who sends the request, as far as a browser tells. Raises Forbidden for a page that may not."""
        keys = self._context.keys
        return self._context.origins.check_request(
            exchange.page,
            dialect.cors,
            method=exchange.method,
            scope=operation.scope,
            needs_key=bool(keys) and not keys.is_open(operation),
        )

    async def _resolve(self, exchange: Exchange, candidates: list[Endpoint]) -> Endpoint:
        """Return the first operation that claims the call, or else the first. The body is read for it, if there is
        one."""
        if len(candidates) == 1:
            return candidates[0]
        body = None
        if exchange.method not in ("GET", "HEAD"):
            first, *others = candidates
            limiting = [first.dialect, *(dialect for dialect, operation in others if operation.extends_limit)]
            body = await exchange.peek(exchange.body_limit(*limiting))
        return claiming(candidates, self._context.hint(exchange.headers, body)) or candidates[0]

    def _authorize(self, exchange: Exchange, dialect: Dialect, operation: Operation, standing: Standing) -> None:
        """Set the request's caller. Raises Unauthorized or Forbidden."""
        keys = self._context.keys
        if not standing.is_trusted:
            exchange.scopes = WITHOUT_ADMIN
        if (accepted := exchange.accepted_caller) is not None:
            caller = keys.renewed(accepted, operation.scope)
            exchange.tenant, exchange.scopes = caller.tenant, caller.scopes
        elif keys and not keys.is_open(operation):
            address, queried = exchange.client, _queried_key(exchange, dialect.key_params)
            caller = keys.caller(
                exchange.headers, dialect.key_headers, operation.scope, address=address, queried=queried
            )
            if not standing.is_trusted:
                scopes = tuple(scope for scope in caller.scopes if scope in WITHOUT_ADMIN)
                caller = msgspec.structs.replace(caller, scopes=scopes)
            exchange.tenant, exchange.scopes = caller.tenant, caller.scopes
        else:
            caller = keys.anybody(exchange.client, exchange.scopes)
        self._set_caller(exchange, caller)

    def _set_caller(self, exchange: Exchange, caller: Caller) -> None:
        if has_quotas(caller.limits):
            exchange.limit_headers = partial(self._context.accounts.headers, caller)
        # Tasks that the handler starts inherit it, as they do the observed request.
        current_caller.set(caller)

    def _arrived(self, exchange: Exchange, dialect: Dialect, operation: Operation) -> ObservedRequest:
        seen = ObservedRequest(
            dialect.name,
            operation.path,
            operation.method,
            exchange.request_id,
            exchange.headers,
            caller=current_caller.get(),
        )
        for tell in self._context.observers.arrived:
            tell(seen)
        exchange.more_headers = seen.answer_headers
        # Tasks that the handler starts inherit it, without the code between passing it on.
        current_request.set(seen)
        return seen

    def _ended(self, exchange: Exchange, seen: ObservedRequest, fault: Exception | None) -> None:
        gone = exchange.status == 0 or isinstance(fault, Cancelled)
        error = Cancelled("The client left.") if gone else exchange.fault or fault
        end = RequestEnd(status=exchange.status or CLIENT_GONE, seconds=exchange.elapsed_s, error=error)
        for tell in self._context.observers.ended:
            tell(seen, end)

    def _client_error(self, error: Exception, exchange: Exchange) -> DragomanError:
        """Return the error as it may be sent to a client. Unexpected errors are logged."""
        if isinstance(error, MemoryError):  # of a limit (ulimit -v): requests that end give theirs back
            path = quote(exchange.path[:256])
            log.error("%s %s: there is no memory for request %s", exchange.method, path, exchange.request_id)
            error = EngineUnavailable("The server has no memory for this request now. Try again later.")
        elif not isinstance(error, DragomanError):
            log.exception("%s %s failed, request %s", exchange.method, quote(exchange.path[:256]), exchange.request_id)
            error = GenerationFailed("The server had an internal error. Its log has more, by this request's id.")
        elif isinstance(error, GenerationFailed) and self._context.ended():
            error = ShuttingDown()
        return error

    def _answer_to(self, error: DragomanError, dialect: Dialect) -> ErrorResponse:
        answer = error_answer(dialect, error)
        more: dict[str, str] = {}
        if isinstance(error, MethodNotAllowed):
            more["allow"] = self._allowed
        elif isinstance(error, Unauthorized):
            more["www-authenticate"] = "Bearer"
        return msgspec.structs.replace(answer, headers={**answer.headers, **more}) if more else answer
