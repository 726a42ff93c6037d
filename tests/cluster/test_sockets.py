"""WebSockets through the ingress, also of replicas that are lost."""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cluster_stub import IN_A_HURRY, cluster_of, cut, imposter, until
from stub_runtime import RunningServer

from dragoman.cluster.ingress import Ingress
from dragoman.server.sockets import Socket

pytestmark = pytest.mark.anyio


class Client:
    """The client's side of a socket, in ASGI's messages."""

    def __init__(self) -> None:
        self.to_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.from_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            return await self.from_server.get()

    def send(self, value: Any) -> None:
        self.to_server.put_nowait({"type": "websocket.receive", "text": json.dumps(value)})


@asynccontextmanager
async def socket(ingress: Ingress, path: str, **headers: str) -> AsyncIterator[Client]:
    client = Client()
    client.to_server.put_nowait({"type": "websocket.connect"})
    scope = {
        "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "ws",
        "headers": [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()],
        "client": ("203.0.113.7", 1), "subprotocols": [],
    }  # fmt: skip
    running = asyncio.create_task(ingress(scope, client.to_server.get, client.from_server.put))  # type: ignore[arg-type]
    try:
        yield client
    finally:
        client.to_server.put_nowait({"type": "websocket.disconnect", "code": 1000})
        async with asyncio.timeout(60):
            await running


def fresh(name: str) -> str:
    """A key under which the servers have nothing."""
    return f"{name}-{secrets.token_hex(4)}"


def prompts(serial: str, tokens: int = 400) -> dict[str, Any]:
    row = {"request_id": serial, "prompt": "Once upon a time"}
    return {"prompts": [row], "generation_config": {"do_sample": False, "max_new_tokens": tokens}}


async def answers(client: Client, count: int) -> list[str]:
    return [(await client.receive())["text"] for _ in range(count)]


async def test_a_socket_survives_the_loss_of_its_replica(servers: list[RunningServer]) -> None:
    addresses = [(f"r{number}", each.port) for number, each in enumerate(servers)]
    async with cluster_of(addresses) as cluster:
        texts: list[list[str]] = []
        for lose, key in ((False, fresh("kept")), (True, fresh("lost"))):
            async with socket(cluster.ingress, "/alexandria/api/ws") as client:
                assert (await client.receive())["type"] == "websocket.accept"
                client.send(prompts(key))
                first = await answers(client, 5)
                if lose:
                    busy = next(iter(cluster.table.choice.running()))
                    cut(servers[int(busy[-1])])
                texts.append([each.replace(key, "key") for each in (*first, *(await answers(client, 20)))])
        assert texts[0] == texts[1]
        assert cluster.ingress.counts.lost == 1


async def test_a_socket_is_continued_after_whole_answers(servers: list[RunningServer]) -> None:
    """These name how long they took, which is another time when they are repeated."""
    addresses = [(f"r{number}", each.port) for number, each in enumerate(servers)]
    async with cluster_of(addresses) as cluster, socket(cluster.ingress, "/alexandria/api/ws") as client:
        assert (await client.receive())["type"] == "websocket.accept"
        client.send(prompts(fresh("whole"), tokens=3))
        while "COMPLETE" not in (await answers(client, 1))[0]:
            pass
        client.send(prompts(fresh("long"), tokens=60))
        await answers(client, 5)
        busy = next(iter(cluster.table.choice.running()))
        cut(servers[int(busy[-1])])
        while "COMPLETE" not in (frame := (await answers(client, 1))[0]):
            pass
        assert json.loads(frame)[0]["new_tokens_count"] == 60
        await until(lambda: cluster.ingress.counts.lost == 1)


async def test_a_lost_answer_is_not_continued_as_if_its_client_had_it(
    servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica has saved where the next call goes on, and then gets the same message again."""
    send, lost = Socket.send, list[str]()

    async def send_or_lose(socket: Socket, data: str | bytes) -> None:
        if not lost and "COMPLETE" in str(data) and "lost" in str(data):
            lost.append(str(data))
            cut(servers[0])
        else:
            await send(socket, data)

    monkeypatch.setattr(Socket, "send", send_or_lose)

    async def texts(name: str) -> list[str]:
        found, key = [], fresh(name)
        async with socket(cluster.ingress, "/alexandria/api/ws") as client:
            assert (await client.receive())["type"] == "websocket.accept"
            for _ in range(2):
                client.send(prompts(key, tokens=3) | {"stream_response": False})
                while "COMPLETE" not in (frame := (await answers(client, 1))[0]):
                    pass
                found.append(json.loads(frame)[0]["text"])
        return found

    async with cluster_of([("r0", servers[0].port)]) as cluster:
        assert await texts("lost") == await texts("undisturbed")
        assert len(lost) == 1


async def test_a_socket_whose_replica_stands_still_goes_on_elsewhere(
    servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is well where it is asked, and nothing on the socket any more."""
    monkeypatch.setattr("dragoman.cluster.sockets.PING_S", 0.05)
    monkeypatch.setattr("dragoman.cluster.sockets.PONG_S", 0.1)
    monkeypatch.setattr("dragoman.cluster.sockets.CLOSE_S", 0.1)

    def open_and_stop(head: bytes, writer: asyncio.StreamWriter) -> None:
        keys = [line.split(b": ")[1] for line in head.splitlines() if line.lower().startswith(b"sec-websocket-key")]
        if not keys:  # the ingress asks for changes
            return
        accept = base64.b64encode(hashlib.sha1(keys[0] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        switch = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        writer.write(switch + b"sec-websocket-accept: " + accept + b"\r\n\r\n")

    async with imposter(open_and_stop) as port, cluster_of([("a", port), ("b", servers[0].port)]) as cluster:
        monkeypatch.setattr(
            cluster.table.choice, "rank", lambda names, wanted: sorted(names, key=lambda n: (n in wanted.avoid, n))
        )
        async with socket(cluster.ingress, "/alexandria/api/ws") as client:
            assert (await client.receive())["type"] == "websocket.accept"
            client.send(prompts(fresh("still"), tokens=2))
            assert "error" not in json.loads((await client.receive())["text"])
        assert cluster.ingress.counts.lost == 1


async def test_a_path_without_a_socket_is_refused(servers: list[RunningServer]) -> None:
    addresses = [("r0", servers[0].port)]
    async with cluster_of(addresses) as cluster, socket(cluster.ingress, "/v1/completions") as client:
        refusal = await client.receive()
        assert refusal["status"] == 405
        assert (b"content-type", b"application/json") in refusal["headers"]
        assert "error" in json.loads((await client.receive())["body"])


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:65535"])
async def test_a_page_that_the_ingress_serves_opens_sockets(servers: list[RunningServer], host: str) -> None:
    """Its origin is the ingress's own, not that of the replica."""
    path, addresses = "/alexandria/api/ws", [("r0", servers[0].port)]
    async with cluster_of(addresses) as cluster:
        async with socket(cluster.ingress, path, host=host, origin=f"http://{host}") as client:
            assert (await client.receive())["type"] == "websocket.accept"
        async with socket(cluster.ingress, path, host=host, origin="http://evil.example") as client:
            assert (await client.receive())["status"] == 403
        async with socket(cluster.ingress, path, host="evil.example", origin="http://evil.example") as client:
            assert (await client.receive())["status"] == 403


@pytest.mark.parametrize("path", ["/alexandria/api/ws#part", "/alexandria/api/\x85"])
@pytest.mark.parametrize("host", ["a b", "user:secret@localhost", "localhost:99999"])
async def test_odd_targets_and_hosts_are_answered(servers: list[RunningServer], path: str, host: str) -> None:
    async with cluster_of([("r0", servers[0].port)]) as cluster:
        async with socket(cluster.ingress, path, host=host) as client:
            assert (await client.receive())["status"] == 404
        assert not cluster.ingress.counts.lost


async def test_a_socket_that_the_ingress_has_no_descriptor_for_is_refused(
    servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*arguments: Any, **named: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with cluster_of([("r0", servers[0].port)]) as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "create_connection", fail)
            async with socket(cluster.ingress, "/alexandria/api/ws") as client:
                assert (await client.receive())["status"] == 503
                assert b"Too many open files" in (await client.receive())["body"]
        assert cluster.table.ready == ["r0"]


async def test_a_socket_without_replicas_is_refused(servers: list[RunningServer]) -> None:
    async with cluster_of([], settings=IN_A_HURRY) as cluster, socket(cluster.ingress, "/alexandria/api/ws") as client:
        assert (await client.receive())["status"] == 503
