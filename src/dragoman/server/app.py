"""The application: all dialects, health, metrics and documents, as one ASGI callable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import dragoman
from dragoman.core.errors import Cancelled, DragomanError, GenerationFailed, MethodNotAllowed, NotFound
from dragoman.core.serving import Serving
from dragoman.dialects import DIALECTS
from dragoman.dialects.openapi import openapi_document
from dragoman.dialects.wire import Answer, Dialect
from dragoman.server.exchange import Exchange
from dragoman.server.gate import Gate
from dragoman.server.health import Ready, health_routes
from dragoman.server.metrics import Metrics
from dragoman.server.routing import routes_of
from dragoman.server.settings import ServerSettings


def create_app(
    serving: Serving,
    settings: ServerSettings,
    *,
    metrics: Metrics | None = None,
    ready: Ready = lambda: "",
    dialects: Sequence[Dialect] = DIALECTS,
) -> Starlette:
    """Everything behind the port. ``ready`` says why requests cannot be served now, or nothing."""
    metrics = metrics or Metrics()
    errors = _Errors(dialects, settings)
    app = Starlette(
        routes=[
            *routes_of(dialects, serving, settings),
            *health_routes(metrics, ready),
            *_document_routes(dialects),
        ],
        middleware=[Middleware(Gate, metrics=metrics, access_log=settings.access_log, refuse=errors.refusal)],
        exception_handlers={HTTPException: errors.unrouted, Exception: errors.failed},
    )
    # A client that is sent elsewhere repeats its POST as a GET, or not at all: better to be told.
    app.router.redirect_slashes = False
    return app


class _Errors:
    """Errors outside of any operation, in the words of the dialect that the path's first part belongs to."""

    def __init__(self, dialects: Sequence[Dialect], settings: ServerSettings) -> None:
        self._settings = settings
        self._first = dialects[0]
        self._by_part = {dialect.name: dialect for dialect in dialects}
        for dialect in dialects:
            for operation in dialect.operations:
                self._by_part.setdefault(_first_part(operation.path), dialect)

    def refusal(self, error: DragomanError) -> ASGIApp:
        return self._answer("", error, {"connection": "close"})

    async def unrouted(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path, method = request.url.path[:256], request.method
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            fault: DragomanError = MethodNotAllowed(f"{method} is not allowed on {path}, only {allowed}.")
            return self._answer(path, fault, {"allow": allowed})
        return self._answer(path, NotFound(f"Unknown URL: {method} {path}"))

    async def failed(self, request: Request, error: Exception) -> Response:
        return self._answer(request.url.path, GenerationFailed("The server had an internal error."))

    def _answer(self, path: str, error: DragomanError, headers: dict[str, str] | None = None) -> _ErrorResponse:
        dialect = self._by_part.get(_first_part(path), self._first)
        answer = dialect.render_error(error)
        answer = msgspec.structs.replace(answer, headers={**answer.headers, **(headers or {})})
        return _ErrorResponse(answer, self._settings)


def _first_part(path: str) -> str:
    return path.strip("/").partition("/")[0]


class _ErrorResponse(Response):
    """A dialect's error as Starlette's exception handlers return it."""

    def __init__(self, answer: Answer, settings: ServerSettings) -> None:
        super().__init__(status_code=answer.status)
        self._answer = answer
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(Cancelled):
            await Exchange(scope, receive, send, self._settings).answer(self._answer)


def _document_routes(dialects: Sequence[Dialect]) -> list[Route]:
    """``/openapi.json`` of all dialects at their bare paths, and one under each prefix."""

    def document_of(of: Sequence[Dialect], prefix: str) -> Callable[[Request], Response]:
        body = msgspec.json.encode(openapi_document(of, version=dragoman.__version__, prefix=prefix))

        async def document(request: Request) -> Response:
            return Response(body, media_type="application/json")

        return document  # type: ignore[return-value]

    prefixed = [Route(f"/{d.name}/openapi.json", document_of([d], f"/{d.name}")) for d in dialects]
    return [Route("/openapi.json", document_of(dialects, "")), *prefixed]
