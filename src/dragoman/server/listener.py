"""Accepting connections: many in one turn of the event loop, and only as many as there is room for."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from dragoman.server.address import listen
from dragoman.server.connection import Connection, connection_class
from dragoman.server.connection_context import ConnectionContext
from dragoman.server.connections import Connections, Slot, client_of
from dragoman.server.proxies import TrustedProxies
from dragoman.server.settings import ServerSettings
from dragoman.server.sockets import SocketConnection
from dragoman.server.tls import Certificates

log = logging.getLogger("dragoman.server")

BATCH = 64
"""Connections that are accepted in one turn. uvloop's own server takes one: of 600 that wait, the last is accepted
601 turns later, here 12. One costs 40 µs more than there (85 µs on a busy core), which 64 times keeps a turn below 6
ms."""

BACKLOG = 4096
"""Connections that may wait in the kernel; it takes the lower of this and net.core.somaxconn (4096 since Linux 5.4).
At 3,000 accepted a second the last of them waits 1.4 s; uvicorn's 2048 would drop openings of a burst, which clients
try again only after a second."""

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

AGAIN_S = 0.05
"""Seconds between attempts while there is no room, or no descriptor."""

COMPLAIN_S = 60.0

NO_PROXIES = TrustedProxies()


GOODBYE_S = 5.0
"""Seconds for requests that still run after the drain to send their clients an error."""


def configuration(app: ASGIApp, context: ConnectionContext, settings: ServerSettings) -> uvicorn.Config:
    """Return uvicorn's configuration of a port for clients, with our connections and limits in place of its own."""
    return uvicorn.Config(
        app,
        http=connection_class(context),
        ws=SocketConnection,
        ws_max_size=settings.max_message_bytes,
        ws_ping_timeout=settings.write_timeout_s,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=settings.drain_s + GOODBYE_S,  # type: ignore[arg-type]
    )


class ListeningServer(uvicorn.Server):
    """uvicorn's server, whose connections are accepted here."""

    def __init__(
        self, config: uvicorn.Config, *, certificates: Certificates | None = None, backlog: int = BACKLOG
    ) -> None:
        super().__init__(config)
        self.certificates = certificates
        self._backlog = backlog

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        protocol: Any = self.config.http_protocol_class
        settings = protocol.context.settings

        def made() -> Connection:
            connection: Connection = protocol(self.config, self.server_state, self.lifespan.state)
            return connection

        servers: list[Any] = [
            Listener(
                each,
                made,
                protocol.context.connections,
                proxies=protocol.context.proxies,
                certificates=self.certificates,
                backlog=self._backlog,
                handshake_timeout_s=settings.header_timeout_s,
                write_timeout_s=settings.write_timeout_s,
            )
            for each in sockets or ()
        ]
        self.servers = servers


class Listener:
    """Accepts from one bound socket. ``close`` and ``wait_closed`` are those of ``asyncio.Server``."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], Connection],
        connections: Connections,
        *,
        proxies: TrustedProxies = NO_PROXIES,
        certificates: Certificates | None = None,
        backlog: int = BACKLOG,
        handshake_timeout_s: float = 20.0,
        write_timeout_s: float = 60.0,
    ) -> None:
        self._socket, self._protocol, self._connections = listening, protocol, connections
        self._proxies = proxies
        self._certificates = certificates
        self._handshake_timeout_s, self._write_timeout_s = handshake_timeout_s, write_timeout_s
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._later: asyncio.TimerHandle | None = None
        self._complained = -COMPLAIN_S
        self._is_open = True
        listening.setblocking(False)
        if listening.family != socket.AF_UNIX:
            # Accepted sockets have what the listening one has: small parts of a stream leave at once.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listen(listening, backlog)
        self._loop.add_reader(listening.fileno(), self._accept_batch)

    def close(self) -> None:
        """Stop accepting, and close the socket; accepted connections continue."""
        if self._is_open:
            self._is_open = False
            self._stop_waiting()
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    async def wait_closed(self) -> None:
        """Return at once: open connections belong to the server."""

    def _accept_batch(self) -> None:
        self._connections.begin_turn()
        for _ in range(BATCH):
            if not self._connections.has_room():
                self._pause()
                return
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    self._complain(f"a connection cannot be accepted: {error.strerror}")
                elif self._connections.drop_one():
                    self._complain(f"{error.strerror}: idle connections are closed for new ones")
                else:
                    self._complain(f"{error.strerror}: new connections have to wait")
                self._pause()
                return
            accepted.setblocking(False)
            # With a proxy in front requests are counted for their clients, not connections for the proxy.
            is_proxy = self._proxies.trusts(address[0] if isinstance(address, tuple) else "")
            self._open(accepted, "" if is_proxy else client_of(address))

    def _open(self, accepted: socket.socket, client: str) -> None:
        slot = self._connections.enter(client)
        if slot is None:
            accepted.close()
            return

        def protocol() -> Connection:
            made = self._protocol()
            made.slot = slot
            return made

        tls: dict[str, Any] = {}
        if self._certificates is not None:
            tls = {
                "ssl": self._certificates.context,
                "ssl_handshake_timeout": self._handshake_timeout_s,
                "ssl_shutdown_timeout": self._write_timeout_s,  # what is written last is read before
            }
        opening = self._loop.create_task(self._loop.connect_accepted_socket(protocol, accepted, **tls))
        if tls:
            # A slow handshake is closed for others like any idle connection. Without TLS the protocol exists a turn
            # later, and uvloop would close the cancelled connection without notifying it.
            slot.drop = opening.cancel
        self._opening.add(opening)
        opening.add_done_callback(lambda done: self._opened(done, slot, accepted))

    def _opened(self, opening: asyncio.Task[Any], slot: Slot, accepted: socket.socket) -> None:
        """Handle the end of an opening: the connection has its protocol, or the handshake failed and TLS itself
        notified the client."""
        self._opening.discard(opening)
        if opening.cancelled() or opening.exception() is not None:
            self._connections.leave(slot)
            accepted.close()

    def _pause(self) -> None:
        """Leave waiting connections to the kernel until there may be room."""
        if self._later is None:
            self._loop.remove_reader(self._socket.fileno())
            self._connections.on_room = self._resume
            self._later = self._loop.call_later(AGAIN_S, self._resume)

    def _resume(self) -> None:
        if self._later is not None and self._is_open:
            self._stop_waiting()
            self._loop.add_reader(self._socket.fileno(), self._accept_batch)

    def _stop_waiting(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._connections.on_room = None

    def _complain(self, text: str) -> None:
        """Log the error, but not for every connection of a crowd."""
        now = self._loop.time()
        if now - self._complained >= COMPLAIN_S:
            self._complained = now
            log.warning("%s", text)
