"""Settings and services shared by the operations of all dialects, and the precedence of dialects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from dragoman.core.errors import DragomanError, ModelNotFound
from dragoman.core.observer import Observers
from dragoman.core.serving import Serving
from dragoman.dialects.api import Cors, Dialect, MetricsContext, Operation, RouteHint, SocketOperation
from dragoman.server.accounts import Accounts
from dragoman.server.body_budget import BodyBudget
from dragoman.server.cors import OriginPolicy, PageHeaders
from dragoman.server.exchange import NONE, Exchange
from dragoman.server.idempotency import KeptAnswer, KeptAnswers
from dragoman.server.keys import Keyring
from dragoman.server.scope_reader import Ready
from dragoman.server.settings import ServerSettings
from dragoman.server.vllm_metrics import VllmMetrics
from dragoman.serving.worker_pool import WorkerPools

NO_NAMES = "none"
"""As the only value of ``--metric-names``: no names but the server's own."""

VLLM_NAMES = "vllm"
"""In ``--metric-names``: the names that routers of clusters read."""

MakePage = Callable[[MetricsContext], Callable[[], str]]


class AppContext(NamedTuple):
    """Settings and services shared by all operations."""

    serving: Serving
    settings: ServerSettings
    keys: Keyring
    ready: Ready
    ended: Callable[[], bool]
    accounts: Accounts
    observers: Observers
    pools: WorkerPools
    origins: OriginPolicy
    bodies: BodyBudget = BodyBudget()
    kept_answers: KeptAnswers = KeptAnswers()

    def exchange_for(self, exchange: Exchange, answer: KeptAnswer, scope: Scope) -> Exchange:
        """Return an exchange of the same request, with its body, that writes into an answer to be kept. Headers that
        are about one page or one moment are left to those that read it."""
        own = {**scope, "extensions": answer.extensions}
        # Its readers have their own limits. It waits for the slowest of them, which is to be dropped first.
        patient = msgspec.structs.replace(self.settings, write_timeout_s=2 * self.settings.write_timeout_s)
        inner = self._replace(settings=patient).exchange(own, answer.receive, answer.send, exchange.dialect)
        inner.origins = None
        inner.tenant, inner.scopes, inner.more_headers = exchange.tenant, exchange.scopes, exchange.more_headers
        inner.operation = exchange.operation
        exchange.hand_over(inner)
        exchange.more_headers = NONE
        return inner

    def exchange(self, scope: Scope, receive: Receive, send: Send, dialect: Dialect | None) -> Exchange:
        """Return the exchange of a request, in the format of ``dialect`` until an operation is chosen."""
        return Exchange(
            scope,
            receive,
            send,
            self.settings,
            self.pools,
            dialect=dialect,
            ready=self.ready,
            bodies=self.bodies,
            origins=self.origins,
            sees_images=self._sees_images,
        )

    def hint(self, headers: Mapping[str, str], body: Any) -> RouteHint:
        """Return the properties of a call that select among the dialects of its path."""
        return route_hint(self.serving, self.settings, headers, body)

    def _sees_images(self) -> bool:
        return any(card.images is not None for card in self.serving.models())

    def check_page(self, page: PageHeaders, cors: Cors | None, method: str) -> None:
        """Raise Forbidden for a request that matches no operation and comes from a page that may send no requests at
        all.

        Such a page does not learn which paths and methods exist. (A browser's preflight request need not be refused:
        the page sees only that it failed.)
        """
        self.origins.check_host(page)
        self.origins.check_request(page, cors, method=method, scope="infer", needs_key=bool(self.keys))


def route_hint(serving: Serving, settings: ServerSettings, headers: Mapping[str, str], body: Any) -> RouteHint:
    """Return the properties of a call by which operations claim it."""
    return RouteHint(headers=headers, body=body, dialect=settings.dialect, is_model=partial(_is_model, serving))


def _is_model(serving: Serving, name: str) -> bool:
    """Return whether requests may give a model, or an adapter, this name."""
    try:
        serving.model(name)
    except ModelNotFound:
        return serving.catalog.named(name) is not None
    return True


class Endpoint(NamedTuple):
    """An operation, and the dialect that words its errors."""

    dialect: Dialect
    operation: Operation


class SocketPlace(NamedTuple):
    """A WebSocket operation, and the dialect that words its errors."""

    dialect: Dialect
    operation: SocketOperation


def chosen_dialect(dialects: Sequence[Dialect], settings: ServerSettings) -> Dialect:
    """Return the operator's choice, whose wording the server uses where nothing says which dialect the client speaks.

    Raises DragomanError when it is not among the given dialects.
    """
    if settings.dialect == "auto":
        return dialects[0]
    for dialect in dialects:
        if dialect.name == settings.dialect:
            return dialect
    raise DragomanError(f"--dialect {settings.dialect}: there is only {', '.join(d.name for d in dialects)}")


def in_precedence(dialects: Sequence[Dialect], chosen: str, own: Dialect) -> tuple[Dialect, ...]:
    """Return the dialects in precedence: the operator's choice, then the server's own, then the others as
    registered."""
    first = [dialect for dialect in dialects if dialect.name == chosen]
    return (*first, own, *(dialect for dialect in dialects if dialect.name != chosen))


def named_in_metrics(dialects: Sequence[Dialect], settings: ServerSettings) -> dict[str, MakePage]:
    """Return what makes the pages under whose names ``/metrics`` shows the measurements too, by the option's names.

    Raises DragomanError for a name that is neither a dialect's with metric names nor ``vllm``.
    """
    pages: dict[str, MakePage] = {each.name: each.metrics for each in dialects if each.metrics is not None}
    names = settings.metric_names or ({settings.dialect} & pages.keys())
    pages[VLLM_NAMES] = lambda context: VllmMetrics(context).text
    if names == (NO_NAMES,):
        return {}
    for name in names:
        if name not in pages:
            raise DragomanError(f"--metric-names {name[:64]}: there is only {', '.join(pages)}, and {NO_NAMES} alone")
    return {name: pages[name] for name in names}
