"""From operations to routes: every dialect under its prefix, and at its bare paths where nobody before claims them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dragoman.core.errors import Cancelled, DragomanError, GenerationFailed
from dragoman.core.serving import Serving
from dragoman.dialects.wire import Dialect, Operation
from dragoman.server.exchange import Exchange
from dragoman.server.settings import ServerSettings

log = logging.getLogger("dragoman.server")


def routes_of(dialects: Sequence[Dialect], serving: Serving, settings: ServerSettings) -> Iterator[Route]:
    """All routes of all dialects."""
    claimed: set[tuple[str, str]] = set()
    for dialect in dialects:
        for operation in dialect.operations:
            endpoint = Endpoint(dialect, operation, serving, settings)
            yield Route(f"/{dialect.name}{operation.path}", endpoint, methods=[operation.method])
            if (operation.method, operation.path) not in claimed:
                claimed.add((operation.method, operation.path))
                yield Route(operation.path, endpoint, methods=[operation.method])


class Endpoint:
    """An operation as an ASGI application: its errors are answered in the words of its dialect."""

    def __init__(self, dialect: Dialect, operation: Operation, serving: Serving, settings: ServerSettings) -> None:
        self._dialect, self._operation = dialect, operation
        self._serving, self._settings = serving, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # For the log and the metrics: what the client asked for, without what it put into the path.
        scope["dialect"], scope["operation"] = self._dialect.name, self._operation.path
        exchange = Exchange(scope, receive, send, self._settings)
        try:
            await self._answer(exchange)
        except Cancelled:
            scope["gone"] = True

    async def _answer(self, exchange: Exchange) -> None:
        """Run the handler, and answer what it raises. Raises Cancelled when nobody is there to be answered."""
        try:
            await self._operation.handler(self._serving, exchange)
        except Cancelled:
            raise
        except Exception as error:
            if exchange.started:
                raise
            if not isinstance(error, DragomanError):
                log.exception(
                    "%s %s failed, request %s", self._operation.method, self._operation.path, exchange.request_id
                )
                error = GenerationFailed("The server had an internal error. Its log has more, by this request's id.")
            await exchange.answer(self._dialect.render_error(error))
