"""The port of an ingress: the server's own connections, with all their limits, in front of replicas."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence

import msgspec

from dragoman.cluster.ingress import Ingress
from dragoman.core.errors import DragomanError
from dragoman.dialects.api import Dialect
from dragoman.server.app_context import chosen_dialect
from dragoman.server.connection_context import connection_context
from dragoman.server.listener import ListeningServer, configuration
from dragoman.server.open_files import allow_connections
from dragoman.server.settings import NetworkSettings, ServerSettings
from dragoman.server.sockets import socket_paths
from dragoman.server.tls import Certificates

log = logging.getLogger("dragoman.cluster")

RENEWED_S = 10.0
"""Seconds between two looks whether the certificate was renewed."""
LEAVE_S = 0.5
"""Seconds for the first requests of connections that were accepted last."""


class FrontServer(ListeningServer):
    """Serves an ingress at a port until ``should_exit``: then running answers get ``drain_s`` seconds. Those that are
    not finished by then end with an error."""

    def __init__(
        self,
        ingress: Ingress,
        settings: ServerSettings,
        network: NetworkSettings,
        dialects: Sequence[Dialect],
        certificates: Certificates | None = None,
    ) -> None:
        self._is_leaving = False
        self._ingress, self._drain_s = ingress, settings.drain_s
        # What is answered has two descriptors: that of the client, and that of the replica.
        possible, reserve = allow_connections(settings.max_connections, network.reserved_connections, descriptors=2)
        settings = msgspec.structs.replace(settings, max_connections=possible)
        network = msgspec.structs.replace(network, reserved_connections=reserve)
        context = connection_context(
            settings,
            chosen_dialect(dialects, settings).render_error,
            socket_paths(dialects),
            network=network,
            is_ending=lambda: self.should_exit or self._is_leaving,
        )
        config = configuration(ingress, context, settings)
        super().__init__(config, certificates=certificates, backlog=network.backlog)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process, which has more to do than this."""
        yield

    async def serve_on(self, listening: socket.socket) -> None:
        """Serve until ``should_exit``."""
        watching = asyncio.create_task(self._watch_certificates())
        try:
            await self.serve(sockets=[listening])
        finally:
            watching.cancel()

    async def _watch_certificates(self) -> None:
        """Take a certificate that was renewed: nobody can send SIGHUP to an ingress wherever Ray runs it."""
        while self.certificates is not None:
            await asyncio.sleep(RENEWED_S)
            try:
                if await asyncio.to_thread(self.certificates.reload_if_changed):
                    log.info("the certificate has changed: new connections get the one that is there now")
            except DragomanError as error:
                log.error("the certificate has changed and cannot be used, the one from before stays: %s", error)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_after_drain())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_after_drain(self) -> None:
        await asyncio.sleep(self._drain_s)
        if cut := self._ingress.end():
            log.warning("%g s are over: %d answers are cut off", self._drain_s, cut)

    async def leave_port(self) -> None:
        """Accept no more connections, which are another ingress's from now on, and end when the accepted ones have
        their answers."""
        self._is_leaving = True
        for listener in self.servers:
            listener.close()
        await asyncio.sleep(LEAVE_S)
        self.should_exit = True
