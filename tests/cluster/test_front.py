"""The port of an ingress: connections of real clients, in front of replicas."""

from __future__ import annotations

import asyncio
import logging
import resource
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import certificate, needs_openssl, shown_certificate
from cluster_stub import IN_A_HURRY, cluster_of, front_of, port_of, until
from stub_runtime import RunningServer
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from dragoman.server.open_files import OTHER_DESCRIPTORS
from dragoman.server.tls import Certificates

pytestmark = pytest.mark.anyio

SOCKET = "/alexandria/api/ws"
HANDSHAKE = b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: %s\r\n\r\n"


async def test_a_refused_socket_is_no_error_of_the_ingress(
    servers: list[RunningServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster_of([], settings=IN_A_HURRY) as cluster, front_of(cluster) as front:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{port_of(front)}{SOCKET}")
        assert refused.value.response.status_code == 503
        assert b"there are no replicas" in bytes(refused.value.response.body)
    async with cluster_of([("r0", servers[0].port)]) as cluster, front_of(cluster) as front:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{port_of(front)}{SOCKET}", origin="http://evil.example")  # type: ignore[arg-type]
        assert refused.value.response.status_code == 403
    assert not [each.getMessage() for each in caplog.records if "ASGI" in each.getMessage()]


@pytest.mark.parametrize("target", ["http://{}" + SOCKET, "ws://{}" + SOCKET + "?a=b", SOCKET])
async def test_a_target_with_the_whole_address_opens_a_socket(servers: list[RunningServer], target: str) -> None:
    """As clients that think of it as a proxy send it (RFC 9112, section 3.2.2)."""
    async with cluster_of([("r0", servers[0].port)]) as cluster, front_of(cluster) as front, asyncio.timeout(60):
        place = f"127.0.0.1:{port_of(front)}"
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(front))
        head = f"GET {target.format(place)} HTTP/1.1\r\nhost: {place}\r\n".encode()
        writer.write(head + HANDSHAKE % b"dGhlIHNhbXBsZSBub25jZQ==")
        assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")
        writer.close()


async def test_no_more_clients_are_accepted_than_have_a_descriptor_for_their_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (512, 512))
    async with cluster_of([], settings=IN_A_HURRY, ready=0) as cluster, front_of(cluster) as front:
        protocol: Any = front.config.http_protocol_class
        connections = protocol.context.connections
        assert 2 * connections.max_connections + connections.reserve <= 512 - OTHER_DESCRIPTORS


async def test_what_is_not_finished_when_the_ingress_ends_gets_the_reason(
    servers: list[RunningServer], parts: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """In its dialect's words, streams and sockets too."""
    caplog.set_level(logging.WARNING)
    body = {"prompt": "Once", "max_tokens": 450, "ignore_eos": True}
    async with cluster_of([("r0", servers[0].port)]) as cluster, front_of(cluster) as front:
        url = f"http://127.0.0.1:{port_of(front)}"
        async with (
            httpx.AsyncClient(base_url=url, timeout=60) as client,
            connect(url.replace("http", "ws") + SOCKET) as opened,
        ):
            whole, stream = (
                asyncio.create_task(client.post("/v1/completions", json=body | {"stream": each}))
                for each in (False, True)
            )
            await until(lambda: len(parts) > 5 and cluster.ingress.counts.running == 2)
            with servers[0].engine_stopped():
                front.should_exit = True
                replies = [await whole, await stream]
                with pytest.raises(ConnectionClosedError) as closed:
                    await opened.recv()
    assert (replies[0].status_code, replies[0].json()["error"]["message"]) == (503, "The server is shutting down.")
    assert replies[1].text.rstrip().splitlines()[-1].startswith('data: {"error":{"message":"The server is shutting')
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    assert not [each.getMessage() for each in caplog.records if "Exception" in each.getMessage()]


@needs_openssl
async def test_a_certificate_that_is_renewed_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file at a time: what does not belong together is not used."""
    monkeypatch.setattr("dragoman.cluster.front.RENEWED_S", 0.01)
    used, newer = certificate(tmp_path / "used"), certificate(tmp_path / "newer")
    certificates = Certificates(str(used[0]), str(used[1]))
    async with cluster_of([]) as cluster, front_of(cluster, certificates) as front:
        port = port_of(front)
        before = await asyncio.to_thread(shown_certificate, port)
        used[0].write_bytes(newer[0].read_bytes())
        await until(lambda: "the key does not belong to the certificate" in caplog.text)
        assert await asyncio.to_thread(shown_certificate, port) == before
        used[1].write_bytes(newer[1].read_bytes())
        async with asyncio.timeout(60):
            while await asyncio.to_thread(shown_certificate, port) == before:
                await asyncio.sleep(0.01)
        assert await asyncio.to_thread(shown_certificate, port) == newer[0].read_text()


async def test_heads_and_answers_of_all_lengths_are_passed_on(servers: list[RunningServer]) -> None:
    """The length in an answer to HEAD is that of a body which is not there."""
    async with (
        cluster_of([("r0", servers[0].port)]) as cluster,
        front_of(cluster) as front,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port_of(front)}", timeout=60) as client,
    ):
        for path in ("/v1/models", "/openapi.json", "/", "/docs"):
            whole, head = await client.get(path), await client.head(path)
            assert (head.status_code, head.content) == (whole.status_code, b"")
            assert head.headers["content-length"] == whole.headers["content-length"] == str(len(whole.content))
        assert not cluster.ingress.counts.lost
