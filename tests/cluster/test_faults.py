"""Clusters that lack replicas, and replicas that are slow, lie, or belong to somebody else."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import httpx
import msgspec
import pytest
from cluster_stub import IN_A_HURRY, LASTING, READY, SECRET, cluster_of, cut, front_of, imposter, port_of, until
from stub_runtime import RunningServer

from dragoman.cluster.attempts import MOST_LOSSES
from dragoman.cluster.sockets import _Lost
from dragoman.cluster.upstream import MOST_HEAD
from dragoman.core.errors import DragomanError
from dragoman.core.journal import Found, frame_entry
from dragoman.server.relay import BODY_FRAME, END_FRAME, HEAD_FRAME, JOURNAL_FRAME, frame, read_secret
from dragoman.server.relay import SECRET as SECRET_HEADER

pytestmark = pytest.mark.anyio

BODY = {"prompt": "Once upon a time", "max_tokens": 4, "seed": 1, "ignore_eos": True}
LENGTH_OF_NINE, REFUSAL_OF_NINE = (
    frame(HEAD_FRAME, msgspec.msgpack.encode([status, [[b"content-length", b"9"]]])) for status in (200, 503)
)


def relayed(*frames: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-dragoman-relay\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in frames) + b"0\r\n\r\n"


async def test_no_replica_is_an_error_of_every_dialect() -> None:
    async with cluster_of([], settings=IN_A_HURRY) as cluster:
        paths = (
            "/v1/completions",
            "/v1/chat/completions",
            "/friendli/v1/completions",
            "/octoai/v1/completions",
            "/locallab/generate",
            "/alexandria/api/generate-one",
            "/v1beta/models/stub:generateContent",
        )
        for path in paths:
            reply = await cluster.client.post(path, json=BODY)
            assert reply.status_code == 503, path
            assert "there are no replicas" in reply.text, path
            assert int(reply.headers["retry-after"]) >= 1
        tgi = await cluster.client.post("/generate_stream", json=BODY)
        assert tgi.json() == {"error": "unhealthy", "error_type": "healthcheck"}  # its contract has no more words
        anthropic = await cluster.client.post("/v1/messages", json=BODY, headers={"x-request-id": "mine"})
        assert anthropic.json()["request_id"] == "mine"
        health = await cluster.client.get("/readyz")
        assert health.status_code == 503
        assert health.json()["reason"] == "there are no replicas"
        assert (await cluster.client.get("/livez")).status_code == 200


async def test_dead_replicas_are_named() -> None:
    """Nothing listens where they should be."""
    async with cluster_of([("a", 9), ("b", 9)], settings=IN_A_HURRY, ready=0) as cluster:
        reply = await cluster.client.post("/v1/completions", json=BODY)
        assert reply.status_code == 503
        assert "no replica of 2 is ready" in reply.json()["error"]["message"]


async def test_all_replicas_lost_ends_a_begun_stream_with_an_event(
    servers: list[RunningServer], parts: list[bytes]
) -> None:
    async with cluster_of([("replica-0", servers[0].port)], settings=IN_A_HURRY) as cluster:
        body = {**BODY, "stream": True, "max_tokens": 300}
        reply = asyncio.create_task(cluster.client.post("/v1/completions", json=body))
        await until(lambda: len(parts) > 5)
        cluster.table._secret = b"so that it does not come back"
        cut(servers[0])
        events = (await reply).text.strip().split("\n\n")
        assert "text" in events[0]
        error = next(event for event in events if "error" in event)
        assert "The replica of this request was lost (its connection was lost)" in error


async def test_a_silent_replica_is_left_for_another(
    servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, and takes connections, but says nothing any more."""
    monkeypatch.setattr("dragoman.cluster.ingress.WATCH_S", 0.05)
    monkeypatch.setattr("dragoman.cluster.replica_state.ANSWER_S", 0.2)
    is_silent = asyncio.Event()

    def go_silent(head: bytes, writer: object) -> None:
        is_silent.set()

    async with (
        imposter(go_silent, is_silent) as port,
        cluster_of([("slow", port), ("well", servers[0].port)], settings=LASTING) as cluster,
    ):
        replies = await asyncio.gather(*(cluster.client.post("/v1/completions", json=BODY) for _ in range(6)))
        assert is_silent.is_set()
        assert {reply.status_code for reply in replies} == {200}
        assert cluster.ingress.counts.lost


async def test_a_replica_that_stands_still_does_not_hold_up_what_all_are_asked(
    servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cluster.ingress.ALL_S", 0.2)
    async with (
        imposter(lambda head, writer: None) as port,
        cluster_of([("still", port), ("well", servers[0].port)]) as cluster,
        asyncio.timeout(30),
    ):
        reply = await cluster.client.get("/requests")
        assert (reply.status_code, reply.json()) == (200, {"requests": []})


@pytest.mark.parametrize(
    "lie",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n",
        b"not HTTP at all\r\n\r\n",
        relayed(b"\x00\xff\xff\xff\xff"),
        relayed(frame(HEAD_FRAME, b"no msgpack")),
        relayed(frame(HEAD_FRAME, msgspec.msgpack.encode([101, []])), frame(END_FRAME, b"")),
        relayed(
            frame(HEAD_FRAME, msgspec.msgpack.encode([200, [[b"x", b"y\r\nset-cookie: z"]]])), frame(END_FRAME, b"")
        ),
        relayed(frame(BODY_FRAME, b"a body without a head"), frame(END_FRAME, b"")),
        relayed(LENGTH_OF_NINE, frame(BODY_FRAME, b"much too long"), frame(END_FRAME, b"")),
        relayed(LENGTH_OF_NINE, frame(END_FRAME, b"")),
        relayed(REFUSAL_OF_NINE, frame(BODY_FRAME, b"short"), frame(END_FRAME, b"")),
        relayed(),
        b"HTTP/1.1 200 OK\r\nx-endless: " + b"a" * MOST_HEAD + b"a" * MOST_HEAD,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MOST_HEAD,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffffff\r\naaaa",
    ],
)
async def test_a_replica_that_lies_is_left_for_another(lie: bytes, servers: list[RunningServer]) -> None:
    async with (
        imposter(lambda head, writer: writer.write(lie)) as port,
        cluster_of([("liar", port), ("well", servers[0].port)], settings=LASTING) as cluster,
    ):
        replies = await asyncio.gather(*(cluster.client.post("/v1/completions", json=BODY) for _ in range(4)))
        assert {reply.status_code for reply in replies} == {200}
        assert len({reply.json()["choices"][0]["text"] for reply in replies}) == 1
        assert cluster.ingress.counts.lost


async def test_an_answer_that_is_shorter_than_it_says_is_not_passed_on_as_whole(servers: list[RunningServer]) -> None:
    """Its client has a part of it, and another replica answers differently: nothing is left but to break off."""
    short = relayed(LENGTH_OF_NINE, frame(BODY_FRAME, b"short"), frame(END_FRAME, b""))
    async with (
        imposter(lambda head, writer: writer.write(short)) as port,
        cluster_of([("liar", port)], settings=IN_A_HURRY) as cluster,
        front_of(cluster) as front,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port_of(front)}", timeout=60) as client,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/completions", json=BODY)
        assert cluster.ingress.counts.lost


async def test_a_replica_whose_state_cannot_be_read_is_left_for_another(
    servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets without end: what the ingress asks it must not end the watch over all replicas."""
    monkeypatch.setattr("dragoman.cluster.ingress.WATCH_S", 0.05)
    states = [READY]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /cluster/state"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(states[-1]) + states[-1])
        else:
            states.append(b"[" * 100_000)
        await reader.read()
        writer.close()

    odd = await asyncio.start_server(serve, "127.0.0.1", 0)
    addresses = [("odd", odd.sockets[0].getsockname()[1]), ("well", servers[0].port)]
    async with odd, cluster_of(addresses) as cluster, asyncio.timeout(60):
        replies = await asyncio.gather(*(cluster.client.post("/v1/completions", json=BODY) for _ in range(6)))
        assert {reply.status_code for reply in replies} == {200}
        assert cluster.ingress.counts.lost


async def test_no_replica_is_lost_where_the_ingress_lacks_descriptors(
    servers: list[RunningServer], parts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """New requests are refused, and streams go on: that of the replica whose connection still is, and that of a lost
    one when there is room again."""
    monkeypatch.setattr("dragoman.cluster.ingress.WATCH_S", 0.02)
    monkeypatch.setattr("dragoman.cluster.replica_table.PROBE_S", 0.02)
    attempts = 0

    async def fail(*arguments: object, **named: object) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError(errno.EMFILE, "Too many open files")

    async with cluster_of([(f"r{number}", each.port) for number, each in enumerate(servers)]) as cluster:
        body = {**BODY, "stream": True, "max_tokens": 200}
        expected = (await cluster.client.post("/v1/completions", json=body)).text
        parts.clear()
        streams = [asyncio.create_task(cluster.client.post("/v1/completions", json=body)) for _ in range(2)]
        await until(lambda: len(parts) > 10 and cluster.ingress.counts.running == 2)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "create_connection", fail)
            await until(lambda: attempts > 20)
            refused = await cluster.client.post("/v1/completions", json=BODY)
            assert refused.status_code == 503
            assert "The ingress has no room for a connection to a replica: Too many open files." in refused.text
            assert len(cluster.table.ready) == 2
            assert not cluster.ingress.counts.lost
            cut(servers[0])
            cut(servers[1])
            await until(lambda: cluster.ingress.counts.lost == 2)
        texts = [text_of((await stream).text) for stream in streams]
        assert texts == [text_of(expected)] * 2


def text_of(events: str) -> str:
    lines = [line[6:] for line in events.splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for line in lines for choice in msgspec.json.decode(line)["choices"])


async def test_a_replica_that_refuses_what_it_has_begun_is_left_for_another(servers: list[RunningServer]) -> None:
    """As where its engine ends for good: the request was accepted, so it waits as if its replica were lost."""
    begun = frame(JOURNAL_FRAME, frame_entry(Found(b"key", b"")))
    refusal = relayed(begun, frame(HEAD_FRAME, msgspec.msgpack.encode([503, []])), frame(END_FRAME, b""))
    async with (
        imposter(lambda head, writer: writer.write(refusal)) as port,
        cluster_of([("broken", port), ("well", servers[0].port)]) as cluster,
    ):
        replies = await asyncio.gather(*(cluster.client.post("/v1/completions", json=BODY) for _ in range(4)))
        assert {reply.status_code for reply in replies} == {200}
        assert cluster.ingress.counts.retried


async def test_a_socket_that_ends_all_its_replicas_ends(
    servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 0

    async def run(socket: object, replica: object, most: int) -> None:
        nonlocal runs
        runs += 1
        raise _Lost("it ended")

    monkeypatch.setattr("dragoman.cluster.sockets._Socket.run", run)
    monkeypatch.setattr("dragoman.cluster.replica_table.ReplicaTable.lose", lambda *lost: None)
    async with cluster_of([(f"r{number}", each.port) for number, each in enumerate(servers)]) as cluster:
        told: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            told.append(message)

        path = "/alexandria/api/ws"
        scope = {"type": "websocket", "path": path, "headers": [], "scheme": "ws"}
        async with asyncio.timeout(60):
            await cluster.ingress(scope, receive, send)
        assert runs == MOST_LOSSES
        assert told[0]["status"] == 500
        assert b"6 replicas of this socket ended" in told[1]["body"]


async def test_a_replica_that_claims_a_prefix_it_lacks_computes_it(servers: list[RunningServer]) -> None:
    async with cluster_of([(f"r{number}", each.port) for number, each in enumerate(servers)]) as cluster:
        for probe in cluster.table._probes.values():
            probe.cancel()  # from here on they say what this test says
        choice = cluster.table.choice
        for name in ("r0", "r1"):
            choice.forget(name)
        body = {**BODY, "prompt": "no merchant spoke of the far sea, and yet he went " * 12}
        first = (await cluster.client.post("/v1/completions", json=body)).json()
        ((honest, names),) = [(name, list(held)) for name, held in choice._index._held.items() if held]
        choice.forget(honest)
        choice.report("r1" if honest == "r0" else "r0", {"blocks": 10**9, "prefixes": names})
        second = (await cluster.client.post("/v1/completions", json=body)).json()
        assert second["choices"][0]["text"] == first["choices"][0]["text"]
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        # Its answer names what it has now, so that the claim is true from here on.
        third = (await cluster.client.post("/v1/completions", json=body)).json()
        assert third["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_a_replica_answers_nobody_without_the_secret(servers: list[RunningServer]) -> None:
    async with httpx.AsyncClient(base_url=servers[0].url) as client:
        assert (await client.post("/v1/completions", json=BODY)).status_code == 403
        assert (await client.get("/cluster/state")).status_code == 403
        wrong = {SECRET_HEADER.decode(): "another secret, as long as it"}
        assert (await client.post("/v1/completions", json=BODY, headers=wrong)).status_code == 403
        assert (await client.get("/metrics", headers=wrong)).status_code == 403
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        # With it, but without what else an ingress says.
        right = {SECRET_HEADER.decode(): SECRET.decode()}
        assert (await client.post("/v1/completions", json=BODY, headers=right)).status_code == 403
        state = (await client.get("/cluster/state", headers=right)).json()
        assert state["ready"] is True
        assert state["models"][0] == "stub"


async def test_an_ingress_of_another_cluster_gets_nothing(servers: list[RunningServer]) -> None:
    addresses = [("replica-0", servers[0].port)]
    async with cluster_of(addresses, secret=b"of another cluster", settings=IN_A_HURRY, ready=0) as cluster:
        reply = await cluster.client.post("/v1/completions", json=BODY)
        assert reply.status_code == 503
        assert "its state has status 403: is the secret the same?" in reply.json()["error"]["message"]


async def test_a_client_cannot_pose_as_the_ingress(servers: list[RunningServer]) -> None:
    """Its own headers of that kind do not get through: it has a new id, and its journal is no journal."""
    async with cluster_of([("replica-0", servers[0].port)]) as cluster:
        headers = {
            "x-dragoman-relay-entropy": "00" * 16,
            "x-dragoman-relay-journal": "10",
            "x-dragoman-relay-client": "127.0.0.1 1",
        }
        replies = [await cluster.client.post("/v1/completions", json=BODY, headers=headers) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 200]
        assert len({reply.json()["id"] for reply in replies}) == 2
        assert all("x-dragoman-prefix" not in reply.headers for reply in replies)


async def test_refusals_of_replicas_are_passed_on(servers: list[RunningServer]) -> None:
    async with cluster_of([(f"r{number}", each.port) for number, each in enumerate(servers)]) as cluster:
        reply = await cluster.client.post("/v1/completions", json={**BODY, "temperature": "hot"})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "temperature"
        assert (await cluster.client.get("/nowhere")).status_code == 404
        assert (await cluster.client.head("/v1/models")).status_code == 200
        assert cluster.ingress.counts.lost == 0


async def test_bodies_are_bounded(servers: list[RunningServer]) -> None:
    async with cluster_of([("replica-0", servers[0].port)]) as cluster:
        reply = await cluster.client.post("/v1/completions", content=b"x" * (5 * 1024 * 1024))
        assert reply.status_code == 413
        assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_a_page_of_metrics_has_a_label_for_each_replica(servers: list[RunningServer]) -> None:
    async with cluster_of([("one", servers[0].port), ("two", servers[1].port)]) as cluster:
        await cluster.client.post("/v1/completions", json=BODY)
        page = (await cluster.client.get("/metrics")).text
        lines = page.splitlines()
        for name in ("one", "two"):
            assert any(line.startswith(f'dragoman_kv_blocks{{replica="{name}"}}') for line in lines)
            assert any(line.startswith(f'dragoman_requests_total{{replica="{name}",') for line in lines) or name
        assert "dragoman_cluster_replicas_ready 2" in lines
        families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert len(families) == len(set(families))


@pytest.mark.parametrize("content", [None, b"short", b"\xff" * 20])
def test_a_secret_that_is_none_is_refused_at_start(content: bytes | None, tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DragomanError, match="--cluster-secret-file"):
        read_secret(str(file))
