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
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.core.errors import Cancelled, DragomanError, GenerationFailed, NotFound
from dragoman.core.serving import Serving
from dragoman.dialects import made_dialects
from dragoman.dialects.wire import Answer, Dialect
from dragoman.server.documents import with_documents
from dragoman.server.exchange import Exchange, Ready
from dragoman.server.gate import Gate
from dragoman.server.health import PROBES, scrape
from dragoman.server.hosting import Hosting, chosen_dialect, in_precedence
from dragoman.server.keys import Keyring
from dragoman.server.metrics import Metrics
from dragoman.server.routing import routes_of
from dragoman.server.settings import ServerSettings


def create_app(
    serving: Serving,
    settings: ServerSettings,
    *,
    metrics: Metrics | None = None,
    ready: Ready = lambda: "",
    ended: Callable[[], bool] = lambda: False,
    dialects: Sequence[Dialect] | None = None,
    keys: Keyring = Keyring(),  # noqa: B008 (without keys it has no state)
) -> Starlette:
    """Everything behind the port.

    ``ready`` says why requests cannot be served now, or nothing; ``ended``, whether what still ran was given up because
    the server ends.

    Raises DragomanError when the settings name a dialect that is not among those given.
    """
    metrics = metrics or Metrics()
    dialects = made_dialects() if dialects is None else dialects
    chosen = chosen_dialect(dialects, settings)
    for dialect in dialects:
        if dialect.observer is not None:
            metrics.admit(dialect.name, dialect.observer, serving.models)
    own = Dialect(
        name="server", title="Server", operations=(*PROBES, scrape(metrics)), render_error=chosen.render_error
    )
    bare, prefixed = with_documents(
        in_precedence(dialects, settings.dialect, own),
        [_with_figures(dialect, metrics) for dialect in dialects],
        own,
        secured=bool(keys),
    )
    hosting = Hosting(serving, settings, keys, ready, ended, metrics.observers)
    return _assembled(prefixed, bare, chosen, hosting, metrics)


def create_figures_app(
    serving: Serving, settings: ServerSettings, metrics: Metrics, render_error: Callable[[DragomanError], Answer]
) -> Starlette:
    """What is behind a port for the metrics alone."""
    own = Dialect(name="server", title="Server", operations=(scrape(metrics),), render_error=render_error)
    hosting = Hosting(serving, settings, Keyring(), lambda: "", lambda: False, ())
    return _assembled((), (own,), own, hosting, metrics)


def _assembled(
    prefixed: Sequence[Dialect], bare: Sequence[Dialect], first: Dialect, hosting: Hosting, metrics: Metrics
) -> Starlette:
    """Routes, and what is around them. ``first``: whose words are used where nothing says which dialect is spoken."""
    settings = hosting.settings
    errors = _Errors(prefixed, bare, first, settings)
    app = Starlette(
        routes=list(routes_of(prefixed, bare, hosting)),
        middleware=[Middleware(Gate, metrics=metrics, access_log=settings.access_log, refuse=errors.refusal)],
        exception_handlers={HTTPException: errors.unrouted, Exception: errors.failed},
    )
    # A client that is sent elsewhere repeats its POST as a GET, or not at all: better to be told.
    app.router.redirect_slashes = False
    return app


def _with_figures(dialect: Dialect, metrics: Metrics) -> Dialect:
    """With the metrics under its prefix, unless it has them already."""
    if any(operation.path == "/metrics" for operation in dialect.operations):
        return dialect
    return msgspec.structs.replace(dialect, operations=(*dialect.operations, scrape(metrics)))


class _Errors:
    """Errors outside of any operation, in the words of the dialect that the path's first part belongs to."""

    def __init__(
        self, prefixed: Sequence[Dialect], bare: Sequence[Dialect], first: Dialect, settings: ServerSettings
    ) -> None:
        self._settings = settings
        self._by_part = {dialect.name: dialect for dialect in prefixed}
        self._first = first
        for dialect in bare:
            for operation in dialect.operations:
                self._by_part.setdefault(_first_part(operation.path), dialect)

    def refusal(self, error: DragomanError) -> ASGIApp:
        return self._answer("", error, {"connection": "close"})

    async def unrouted(self, request: Request, error: Exception) -> Response:
        path = request.url.path[:256]
        return self._answer(path, NotFound(f"Unknown URL: {request.method} {path}"))

    async def failed(self, request: Request, error: Exception) -> Response:
        return self._answer(request.url.path, GenerationFailed("The server had an internal error."))

    def _answer(self, path: str, error: DragomanError, headers: dict[str, str] | None = None) -> _ErrorResponse:
        part = _first_part(path)
        dialect = self._by_part.get(part, self._first) if part else self._first
        answer = dialect.render_error(error)
        answer = msgspec.structs.replace(answer, headers={**answer.headers, **(headers or {})})
        return _ErrorResponse(dialect, answer, self._settings)


def _first_part(path: str) -> str:
    return path.strip("/").partition("/")[0]


class _ErrorResponse(Response):
    """A dialect's error as Starlette's exception handlers return it."""

    def __init__(self, dialect: Dialect, answer: Answer, settings: ServerSettings) -> None:
        super().__init__(status_code=answer.status)
        self._dialect = dialect
        self._answer = answer
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(Cancelled):
            exchange = Exchange(scope, receive, send, self._settings, dialect=self._dialect)
            await exchange.answer(self._answer)
