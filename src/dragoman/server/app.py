"""The application: all dialects, health, metrics and documents, as one ASGI callable."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

import dragoman
from dragoman.core.errors import Cancelled, DragomanError, Forbidden, GenerationFailed, NotFound
from dragoman.core.observer import Observers
from dragoman.core.serving import Serving
from dragoman.dialects import made_dialects
from dragoman.dialects.api import Dialect, ErrorResponse, Operation, RequestContext
from dragoman.server.accounts import Accounts
from dragoman.server.app_context import AppContext, chosen_dialect, in_precedence, named_in_metrics
from dragoman.server.bandwidth import MemoryBandwidth
from dragoman.server.body_budget import BodyBudget
from dragoman.server.cors import OriginPolicy, check_dialects, page_headers
from dragoman.server.exchange import error_answer
from dragoman.server.explain import Explainer
from dragoman.server.health import probes, scrape
from dragoman.server.idempotency import KeptAnswers
from dragoman.server.keys import FAILURE_REASONS, Keyring
from dragoman.server.metrics import Metrics
from dragoman.server.middleware import AccessLogMiddleware
from dragoman.server.openapi import with_documents
from dragoman.server.playground import PLAYGROUND, with_playground
from dragoman.server.resident_models import OPERATIONS as RESIDENT_MODELS
from dragoman.server.routing import check_named_paths, endpoints_by_path, routes_of
from dragoman.server.running import RunningRequests
from dragoman.server.scope_reader import Ready
from dragoman.server.settings import BrowserSettings, ServerSettings
from dragoman.serving.settings import WorkSettings
from dragoman.serving.worker_pool import WorkerPools

log = logging.getLogger("dragoman.server")

NO_PAGES = BrowserSettings()
"""Settings under which pages of other origins are refused."""


async def welcome(serving: Serving, context: RequestContext) -> None:
    """``GET /``: the answer for a program that knows only the server's address. Browsers get a page."""
    await context.reply(
        {
            "name": "Dragoman",
            "version": dragoman.__version__,
            "models": [card.name for card in serving.models()],
            "openai_api": "/v1",
            "documents": "/docs",
            "health": "/health",
        }
    )


WELCOME = Operation(method="GET", path="/", summary="Say what runs here, and where to go on.", handler=welcome)


def create_app(
    serving: Serving,
    settings: ServerSettings,
    *,
    metrics: Metrics | None = None,
    ready: Ready = lambda: "",
    ended: Callable[[], bool] = lambda: False,
    failure: Ready = lambda: "",
    dialects: Sequence[Dialect] | None = None,
    keys: Keyring = Keyring(),  # noqa: B008 (without keys it has no state)
    pools: WorkerPools | None = None,
    bodies: BodyBudget | None = None,
    accounts: Accounts | None = None,
    browsers: BrowserSettings = NO_PAGES,
    kept_answers: KeptAnswers | None = None,
) -> Starlette:
    """Return the application that answers everything at the port.

    ``ready`` returns why requests cannot be served now, empty if they can; ``ended``, whether running requests were
    given up because the server ends; ``failure``, why it will never serve requests again, empty if it will. ``bodies``:
    the memory budget of all bodies; ``pools``: the threads for long work; ``accounts``: the use of callers;
    ``kept_answers``: those under an Idempotency-Key; each is made by default.

    Raises DragomanError when the settings name a dialect that is not among those given, or one without metric names for
    its metrics, and for invalid patterns of hosts and origins.
    """
    metrics = metrics or Metrics()
    dialects = made_dialects() if dialects is None else dialects
    chosen = chosen_dialect(dialects, settings)
    if keys:
        text = "Requests refused for their API key: it was missing, unknown, expired, or not good for what was asked."
        failures = keys.failures.counts
        metrics.watch_labelled(
            "auth_failures", text, ("reason",), lambda: {(name,): failures[name] for name in FAILURE_REASONS}
        )
    for dialect in dialects:
        if dialect.notes is not None:
            for note in dialect.notes(serving.models()[0]):
                log.warning("%s", note)
    for name, make in named_in_metrics(dialects, settings).items():
        metrics.show_names_of(name, make, serving.models)
    if settings.dialect == chosen.name and chosen.log is not None:
        metrics.observers.add_once(chosen.log)
    dialects = [with_playground(dialect) for dialect in dialects]
    explainer, running, bandwidth = Explainer(settings), RunningRequests(), MemoryBandwidth()
    metrics.observers.add(running)
    metrics.watch(bandwidth.gauges, dict)
    more = (explainer.operation, *running.operations, bandwidth.operation, *RESIDENT_MODELS)
    operations = (*probes(failure), scrape(metrics), WELCOME, *more, *PLAYGROUND)
    own = Dialect(name="server", title="Server", operations=operations, render_error=chosen.render_error)
    bare, prefixed = with_documents(
        in_precedence(dialects, settings.dialect, own),
        [_with_figures(dialect, metrics) for dialect in dialects],
        own,
        secured=bool(keys),
    )
    explainer.set_routes([each for each in bare if each.name != own.name], endpoints_by_path(prefixed, bare))
    check_named_paths(bare)
    origins = OriginPolicy(browsers, bound_host=settings.host, has_keys=bool(keys))
    check_dialects(dialects)
    pools = pools or WorkerPools(WorkSettings())
    accounts, bodies = accounts or Accounts(), bodies or BodyBudget()
    kept_answers = kept_answers or KeptAnswers()
    kept_answers.watch(metrics)
    context = AppContext(
        serving, settings, keys, ready, ended, accounts, metrics.observers, pools, origins, bodies, kept_answers
    )
    return _assembled(prefixed, bare, chosen, context, metrics)


def create_figures_app(
    serving: Serving,
    settings: ServerSettings,
    metrics: Metrics,
    render_error: Callable[[DragomanError], ErrorResponse],
    *,
    keys: Keyring = Keyring(),  # noqa: B008 (without keys it has no state)
    browsers: BrowserSettings = NO_PAGES,
) -> Starlette:
    """Return the application of a port for the metrics alone, under the same rules as the other port."""
    own = Dialect(name="server", title="Server", operations=(scrape(metrics),), render_error=render_error)
    origins = OriginPolicy(browsers, bound_host=settings.metrics_host, has_keys=bool(keys))
    pools = WorkerPools(WorkSettings())
    context = AppContext(serving, settings, keys, lambda: "", lambda: False, Accounts(), Observers(), pools, origins)
    return _assembled((), (own,), own, context, metrics)


def _assembled(
    prefixed: Sequence[Dialect], bare: Sequence[Dialect], first: Dialect, context: AppContext, metrics: Metrics
) -> Starlette:
    """Return the routes inside their middleware. ``first``: the dialect that words errors where the path names none."""
    settings = context.settings
    errors = _Errors(prefixed, bare, first, context)
    gate = Middleware(
        AccessLogMiddleware,
        metrics=metrics,
        access_log=settings.access_log,
        refuse=errors.refusal,
        always=_always_answered(prefixed, bare),
    )
    app = Starlette(
        routes=list(routes_of(prefixed, bare, context)),
        middleware=[gate],
        exception_handlers={HTTPException: errors.unrouted, Exception: errors.failed},
    )
    # A client that is redirected repeats its POST as a GET, or not at all: an error is better.
    app.router.redirect_slashes = False
    return app


def _with_figures(dialect: Dialect, metrics: Metrics) -> Dialect:
    """Return the dialect with the metrics under its prefix, unless it has them already."""
    if any(operation.path == "/metrics" for operation in dialect.operations):
        return dialect
    return msgspec.structs.replace(dialect, operations=(*dialect.operations, scrape(metrics)))


def _always_answered(prefixed: Sequence[Dialect], bare: Sequence[Dialect]) -> frozenset[str]:
    """Return the paths of health checks and metrics, bare and prefixed: they are needed most when the server is
    full."""
    found = set()
    for dialect, prefix in [*((each, "") for each in bare), *((each, f"/{each.name}") for each in prefixed)]:
        for operation in dialect.operations:
            if operation.probe or (operation.method, operation.path) == ("GET", "/metrics"):
                found.add(prefix + operation.path)
    return frozenset(found)


V1 = "/v1"
"""The beginning of OpenAI's paths: clients add the rest to a base address that includes it."""


class _Errors:
    """Errors outside of any operation, worded by the dialect that the path begins with, or whose client surely asks, or
    that the first parts of the path name: the two that it has alone, or else the first."""

    def __init__(
        self, prefixed: Sequence[Dialect], bare: Sequence[Dialect], first: Dialect, context: AppContext
    ) -> None:
        self._context = context
        self._prefixed = {dialect.name: dialect for dialect in prefixed}
        self._by_part = dict(self._prefixed)
        self._of_clients = [dialect for dialect in bare if dialect.is_client is not None]
        self._first = first
        self._meant = _mistaken_paths(prefixed, bare)
        self._paths = {path for _, _, path in _paths_of(prefixed, bare)}
        owners = dict[str, list[Dialect]]()
        for dialect in bare:
            for operation in dialect.operations:
                self._by_part.setdefault(_first_part(operation.path), dialect)
                owners.setdefault(_first_two_parts(operation.path), []).append(dialect)
        self._by_two_parts = {part: found[0] for part, found in owners.items() if len({d.name for d in found}) == 1}

    def refusal(self, error: DragomanError, path: str) -> ASGIApp:
        return self._answer(path, error)

    async def unrouted(self, request: Request, error: Exception) -> Response:
        path = request.url.path[:256]
        meant, why = self._meant_by(path)
        has_prefix = _first_part(path) in self._prefixed
        dialect = self._dialect_of(path if has_prefix else meant or path, request.headers)
        page = page_headers(request.scope["headers"])
        try:
            self._context.check_page(page, dialect.cors, request.method)
        except Forbidden as refusal:
            return self._answered(dialect, refusal)
        hint = f". {meant} is meant: {why}" if meant else ""
        return self._answered(dialect, NotFound(f"Unknown URL: {request.method} {path}{hint}"))

    def _meant_by(self, path: str) -> tuple[str, str]:
        """Return the path that is meant by an unknown one, and what is wrong with that; two empty texts where none
        is."""
        tidy = "/" + "/".join(part for part in path.split("/") if part)
        if tidy != path and tidy in self._paths:
            return tidy, "there is a slash too many"
        if found := self._meant.get(tidy):
            return found
        part = _first_part(tidy)
        bare = tidy.removeprefix(f"/{part}")
        if part in self._prefixed and bare in self._paths:
            return bare, f"under /{part} are only the paths of {self._prefixed[part].title} itself"
        return "", ""

    async def failed(self, request: Request, error: Exception) -> Response:
        return self._answer(request.url.path, GenerationFailed("The server had an internal error."))

    def _answer(self, path: str, error: DragomanError) -> _ErrorResponse:
        return self._answered(self._dialect_of(path, {}), error)

    def _answered(self, dialect: Dialect, error: DragomanError) -> _ErrorResponse:
        return _ErrorResponse(dialect, error_answer(dialect, error), self._context)

    def _dialect_of(self, path: str, headers: Mapping[str, str]) -> Dialect:
        part = _first_part(path)
        if part in self._prefixed:
            return self._prefixed[part]
        for dialect in self._of_clients:
            if dialect.is_client is not None and dialect.is_client(headers):
                return dialect
        if not part:
            return self._first
        return self._by_two_parts.get(_first_two_parts(path)) or self._by_part.get(part, self._first)


def _paths_of(prefixed: Sequence[Dialect], bare: Sequence[Dialect]) -> Iterator[tuple[Dialect, str, str]]:
    """Yield each path of a dialect, with the dialect and its prefix."""
    for dialect, prefix in [*((each, "") for each in bare), *((each, f"/{each.name}") for each in prefixed)]:
        for operation in dialect.operations:
            yield dialect, prefix, prefix + operation.path


def _mistaken_paths(prefixed: Sequence[Dialect], bare: Sequence[Dialect]) -> dict[str, tuple[str, str]]:
    """Return the paths that clients with a mistaken base address ask for, each with the one that is meant, and how the
    base address has to end."""
    found: dict[str, tuple[str, str]] = {}
    for dialect, prefix, path in _paths_of(prefixed, bare):
        if (own := dialect.clients_add) and path.startswith(f"{prefix}{own}/"):
            begun = path.removeprefix(prefix)
            ends = f"that ends in {prefix}" if prefix else "without a path"
            why = f"{dialect.title}'s clients add {own} themselves, to a base address {ends}"
            for mistaken in (own + begun, V1 + begun):
                found.setdefault(prefix + mistaken, (path, why))
            lacks = f"the base address of a client that does not add {own} by itself ends in {prefix}{own}"
            found.setdefault(prefix + begun.removeprefix(own), (path, lacks))
            continue
        base, v1, rest = path.partition(f"{V1}/")
        if v1:
            why = f"the base address of OpenAI's clients ends in {base}{V1}, once"
            for mistaken in (f"{base}/{rest}", f"{base}{V1}{V1}/{rest}"):
                found.setdefault(mistaken, (path, why))
    return found


def _first_part(path: str) -> str:
    return path.strip("/").partition("/")[0]


def _first_two_parts(path: str) -> str:
    """Return the first two parts of a path; empty where there are fewer."""
    first, _, rest = path.strip("/").partition("/")
    return f"{first}/{rest.partition('/')[0]}" if rest else ""


class _ErrorResponse(Response):
    """A dialect's error as Starlette's exception handlers return it."""

    def __init__(self, dialect: Dialect, answer: ErrorResponse, context: AppContext) -> None:
        super().__init__(status_code=answer.status)
        self._dialect = dialect
        self._answer = answer
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(Cancelled):
            await self._context.exchange(scope, receive, send, self._dialect).answer(self._answer)
