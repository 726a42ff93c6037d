"""An ingress in front of servers on the stub model, all in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager

import httpx
import msgspec
from stub_runtime import DIALECTS, QUICK, STUB, RunningServer

from dragoman.cluster.errors import ErrorWriter
from dragoman.cluster.front import FrontServer
from dragoman.cluster.ingress import Ingress, IngressSettings
from dragoman.cluster.pages import Pages
from dragoman.cluster.port import bound_socket
from dragoman.cluster.replica_state import Replica
from dragoman.cluster.replica_table import ReplicaTable
from dragoman.cluster.routing import ReplicaChoice
from dragoman.cluster.sockets import SocketRelay
from dragoman.dialects import made_dialects
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.server.settings import NetworkSettings
from dragoman.server.tls import Certificates

SECRET = b"the secret of this cluster"
UNLIMITED = made_dialects({"locallab": LocalLabSettings(locallab_rate_limit=0)})
"""On a fast machine tests send more than LocalLab's dialect allows in a minute."""
SLOW = msgspec.structs.replace(STUB, step_s=0.01, max_context=512)
PATIENT = msgspec.structs.replace(QUICK, write_timeout_s=60.0)
IN_A_HURRY = IngressSettings(wait_s=0.3, continue_s=0.6)
READY = b'{"ready":true,"reason":"","models":["stub"],"waiting":0,"running":0,"blocks":10,"prefixes":[]}'
LASTING = IngressSettings(wait_s=60.0, continue_s=240.0)
"""On a machine that has much to do no replica may be ready for long."""


class Cluster:
    """``client`` speaks to the ingress directly."""

    def __init__(self, ingress: Ingress, table: ReplicaTable, client: httpx.AsyncClient) -> None:
        self.ingress, self.table, self.client = ingress, table, client


@asynccontextmanager
async def cluster_of(
    addresses: Sequence[tuple[str, int]],
    *,
    secret: bytes = SECRET,
    choice: ReplicaChoice | None = None,
    settings: IngressSettings | None = None,
    ready: int | None = None,
) -> AsyncIterator[Cluster]:
    """Yield a cluster of the replicas of these names and ports, once so many of them are ready."""
    choice, settings = choice or ReplicaChoice(seed=1), settings or LASTING
    table = ReplicaTable(choice, secret)
    errors = ErrorWriter(DIALECTS, "openai")
    pages = Pages(table, lambda: ingress.counts, lambda: choice)
    ingress = Ingress(table, secret, errors, settings, own=pages.find, dialects=DIALECTS)
    ingress.sockets = SocketRelay(table, secret, errors, settings, ingress.counts)
    for name, port in addresses:
        table.add(Replica(name, "127.0.0.1", port))
    async with asyncio.timeout(60):
        while len(table.ready) < (len(addresses) if ready is None else ready):
            await asyncio.sleep(0.01)
    transport = httpx.ASGITransport(ingress, client=("203.0.113.7", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
        watching = [asyncio.create_task(ingress.watch()), asyncio.create_task(ingress.changes.watch())]
        yield Cluster(ingress, table, client)
        for task in watching:
            task.cancel()
    await table.close()
    ingress.pool.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


@contextmanager
def engines_stopped(servers: Sequence[RunningServer]) -> Iterator[None]:
    """Meanwhile none of their requests gets a token."""
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(server.engine_stopped())
        yield


def cut(server: RunningServer) -> None:
    """Break off all answers of a server, as when its machine is lost."""

    def abort() -> None:
        for connection in list(server.server.server_state.connections):
            connection.transport.abort()

    server.loop.call_soon_threadsafe(abort)


@asynccontextmanager
async def front_of(cluster: Cluster, certificates: Certificates | None = None) -> AsyncIterator[FrontServer]:
    """Serve a cluster at a port, as an ingress does: ``port_of`` says which."""
    listening = bound_socket("127.0.0.1", 0)
    front = FrontServer(cluster.ingress, PATIENT, NetworkSettings(), DIALECTS, certificates)
    serving = asyncio.create_task(front.serve_on(listening))
    await until(lambda: front.started)
    try:
        yield front
    finally:
        front.should_exit = front.force_exit = True
        await serving


def port_of(front: FrontServer) -> int:
    """Return the port at which it listens."""
    port: int = front.servers[0]._socket.getsockname()[1]
    return port


@asynccontextmanager
async def imposter(
    answer: Callable[[bytes, asyncio.StreamWriter], object], is_silent: asyncio.Event | None = None
) -> AsyncIterator[int]:
    """Yield the port of something that says it is a ready replica, unless it ``is_silent``, and answers requests as
    ``answer`` writes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if is_silent is not None and is_silent.is_set():
                pass
            elif head.startswith(b"GET /cluster/state"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(READY) + READY)
            else:
                answer(head, writer)
            await writer.drain()
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
