"""The second port, for metrics alone: where it is, and who may read there."""

from __future__ import annotations

import asyncio
import contextlib
import os

import httpx
import msgspec
import pytest
from stub_runtime import DIALECTS, QUICK, LocalServer

from dragoman.core.errors import DragomanError
from dragoman.dialects.api import ErrorResponse
from dragoman.server.address import bound
from dragoman.server.app import create_figures_app
from dragoman.server.key_file import hashed
from dragoman.server.keys import MAX_UNKNOWN_KEYS, Keyring
from dragoman.server.metrics_listener import FEW, MAX_CONNECTIONS, _render_error, metrics_socket, serve_figures
from dragoman.server.settings import BrowserSettings

KEY = "a-key-that-nobody-guesses"
BEARER = {"authorization": f"Bearer {KEY}"}
EVERYWHERE = msgspec.structs.replace(QUICK, host="0.0.0.0", metrics_port=0)


def render(error: DragomanError) -> ErrorResponse:
    return _render_error(error)


def client_of(runtime: LocalServer, keys: Keyring, **browsers: tuple[str, ...]) -> httpx.AsyncClient:
    app = create_figures_app(
        runtime.serving, QUICK, runtime.metrics, render, keys=keys, browsers=BrowserSettings(**browsers)
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.mark.parametrize(
    ("keys", "headers", "status"),
    [
        (Keyring(), {}, 200),
        (Keyring([hashed(KEY, "ann")]), {}, 200),
        (Keyring([hashed(KEY, "ann")], protect_all=True), {}, 401),
        (Keyring([hashed(KEY, "ann")], protect_all=True), {"authorization": "Bearer another-key"}, 401),
        (Keyring([hashed(KEY, "ann")], protect_all=True), BEARER, 200),
    ],
)
@pytest.mark.anyio
async def test_where_all_is_protected_figures_need_a_key_too(
    runtime: LocalServer, keys: Keyring, headers: dict[str, str], status: int
) -> None:
    async with client_of(runtime, keys) as client:
        assert (await client.get("/metrics", headers=headers)).status_code == status


@pytest.mark.anyio
async def test_who_tries_many_keys_is_told_to_wait(runtime: LocalServer) -> None:
    async with client_of(runtime, Keyring([hashed(KEY, "ann")], protect_all=True)) as client:
        wrong = {"authorization": "Bearer another-key"}
        statuses = [(await client.get("/metrics", headers=wrong)).status_code for _ in range(MAX_UNKNOWN_KEYS)]
        assert set(statuses) == {401}
        refused = await client.get("/metrics", headers=wrong)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert (await client.get("/metrics", headers=BEARER)).status_code == 200


@pytest.mark.anyio
async def test_figures_are_not_for_pages_that_have_rebound_their_name(runtime: LocalServer) -> None:
    async with client_of(runtime, Keyring()) as client:
        assert (await client.get("/metrics", headers={"host": "evil.example:9000"})).status_code == 403
    async with client_of(runtime, Keyring(), allow_host=("prometheus.lan",)) as client:
        assert (await client.get("/metrics", headers={"host": "prometheus.lan:9000"})).status_code == 200


@pytest.mark.parametrize(
    ("metrics_host", "bound"), [(None, "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0")]
)
def test_figures_are_for_this_machine_unless_an_operator_says_otherwise(metrics_host: str | None, bound: str) -> None:
    named = {} if metrics_host is None else {"metrics_host": metrics_host}
    listener = metrics_socket(msgspec.structs.replace(EVERYWHERE, **named), DIALECTS)
    assert listener is not None
    with contextlib.closing(listener):
        assert listener.getsockname()[0] == bound


@pytest.mark.parametrize(("host", "metrics_host"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")])
def test_the_port_for_clients_is_not_taken_from_them(host: str, metrics_host: str) -> None:
    """Two sockets may be bound to it, and the second one that listens fails."""
    with contextlib.closing(bound(host, 0)) as clients:
        port = clients.getsockname()[1]
        named = msgspec.structs.replace(EVERYWHERE, metrics_host=metrics_host, metrics_port=port)
        assert metrics_socket(named, DIALECTS, clients) is None
        another = metrics_socket(msgspec.structs.replace(named, metrics_port=0), DIALECTS, clients)
        assert another is not None
        another.close()


def test_friendlis_port_is_for_this_machine_too() -> None:
    friendli = next(dialect for dialect in DIALECTS if dialect.name == "friendli")
    assert friendli.metrics_port == 8281
    some_port = msgspec.structs.replace(friendli, metrics_port=0)  # the real one may be taken here
    chosen = msgspec.structs.replace(EVERYWHERE, metrics_port=None, dialect="friendli")
    listener = metrics_socket(chosen, [some_port])
    assert listener is not None
    with contextlib.closing(listener):
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.anyio
async def test_a_port_that_another_server_took_meanwhile_ends_nothing(
    runtime: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(bound("127.0.0.1", 0)) as other:
        listener = bound("127.0.0.1", other.getsockname()[1])
        other.listen()
        serving = serve_figures(
            listener, runtime.serving, runtime.metrics, QUICK, keys=Keyring(), browsers=BrowserSettings()
        )
        async with serving:
            assert "no metrics on a port of their own: cannot listen on 127.0.0.1" in caplog.text


@pytest.mark.anyio
async def test_the_port_takes_few_connections_however_many_come(runtime: LocalServer) -> None:
    """Those of the other port are what the descriptors are for."""
    listener = bound("127.0.0.1", 0)
    address, silent = listener.getsockname(), 3 * MAX_CONNECTIONS
    before = len(os.listdir("/proc/self/fd"))
    serving = serve_figures(
        listener, runtime.serving, runtime.metrics, QUICK, keys=Keyring(), browsers=BrowserSettings()
    )
    async with serving, contextlib.AsyncExitStack() as stack:
        for _ in range(silent):
            _, writer = await asyncio.open_connection(*address)
            stack.callback(writer.close)
        async with asyncio.timeout(60):
            while len(os.listdir("/proc/self/fd")) - before > silent + MAX_CONNECTIONS + FEW.reserved_connections:
                await asyncio.sleep(0.01)
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{address[1]}/metrics")).status_code == 200
