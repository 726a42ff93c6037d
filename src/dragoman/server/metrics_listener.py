"""A second port that answers ``GET /metrics`` and nothing else, for scrapers that must not reach the first."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import uvicorn

from dragoman.core.errors import (
    DragomanError,
    EngineUnavailable,
    Forbidden,
    GenerationFailed,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    RequestTimeout,
    Unauthorized,
)
from dragoman.core.serving import Serving
from dragoman.dialects.api import Dialect, ErrorResponse
from dragoman.server.address import address_of, bound
from dragoman.server.app import create_figures_app
from dragoman.server.app_context import chosen_dialect
from dragoman.server.connection import connection_class
from dragoman.server.connection_context import connection_context
from dragoman.server.keys import Keyring
from dragoman.server.listener import ListeningServer
from dragoman.server.metrics import Metrics
from dragoman.server.settings import BrowserSettings, NetworkSettings, ServerSettings

log = logging.getLogger("dragoman.server")

MAX_CONNECTIONS = 32
FEW = NetworkSettings(reserved_connections=8, max_buffered_bytes=1024 * 1024)
"""The limits of the metrics port: collectors are few. Their descriptors are among those reserved for all but
clients."""

STATUSES: dict[type[DragomanError], int] = {
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    MethodNotAllowed: 405,
    RequestTimeout: 408,
    PayloadTooLarge: 413,
    Overloaded: 429,
    GenerationFailed: 500,
    EngineUnavailable: 503,
}


def metrics_socket(
    settings: ServerSettings, dialects: Sequence[Dialect], clients: socket.socket | None = None
) -> socket.socket | None:
    """Return the socket for ``--metrics-port``, or for the port where clients of the operator's dialect expect metrics.

    ``clients``: the bound socket that all others use. None where there is no such port, or it cannot be bound: serving
    goes on without it.
    """
    port = settings.metrics_port
    if port is None and settings.dialect != "auto":
        port = chosen_dialect(dialects, settings).metrics_port
    if port is None:
        return None
    try:
        listener = bound(settings.metrics_host, port)
    except DragomanError as error:
        log.warning("no metrics on a port of their own: %s; they are at /metrics", error.message)
        return None
    if clients is not None and _is_same_port(listener, clients):
        listener.close()
        log.warning("no metrics on a port of their own: port %d is the one for clients; they are at /metrics", port)
        return None
    return listener


def _is_same_port(one: socket.socket, other: socket.socket) -> bool:
    """Return whether only one of two bound sockets can listen."""
    if other.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    (host, port), (other_host, other_port) = one.getsockname()[:2], other.getsockname()[:2]
    return bool(port == other_port and (host == other_host or {host, other_host} & {"0.0.0.0", "::"}))


@asynccontextmanager
async def serve_figures(
    listener: socket.socket | None,
    serving: Serving,
    metrics: Metrics,
    settings: ServerSettings,
    *,
    keys: Keyring,
    browsers: BrowserSettings,
) -> AsyncIterator[None]:
    """Answer at the socket for the duration: with ``protect_all`` only callers with a key."""
    if listener is None:
        yield
        return
    config = uvicorn.Config(
        create_figures_app(serving, settings, metrics, _render_error, keys=keys, browsers=browsers),
        http=connection_class(
            connection_context(
                msgspec.structs.replace(settings, max_connections=MAX_CONNECTIONS), _render_error, network=FEW
            )
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,  # it is uvicorn's main loop that keeps it true
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    config.load()
    server = ListeningServer(config)
    server.lifespan = config.lifespan_class(config)
    with contextlib.closing(listener):
        try:
            await server.startup(sockets=[listener])
        except DragomanError as error:
            log.warning("no metrics on a port of their own: %s; they are at /metrics", error.message)
            yield
            return
        log.info("metrics at %s/metrics", address_of(listener))
        try:
            yield
        finally:
            await server.shutdown(sockets=[listener])


def _render_error(error: DragomanError) -> ErrorResponse:
    status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 400)
    return ErrorResponse(status=status, body={"error": error.message})
