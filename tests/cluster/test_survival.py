"""Requests of all dialects whose replicas are lost: their answers are those of undisturbed ones."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import msgspec
import pytest
from cluster_stub import LASTING, Cluster, cluster_of, cut, engines_stopped, until
from stub_runtime import RunningServer

from dragoman.cluster.running import RunningRequest
from dragoman.core.events import TokenEvent
from dragoman.core.journal import Entry, Recorded, split_entries
from dragoman.server.relay import _Relayed
from tests.simulation.clients import Answer
from tests.simulation.workload import Template, comparable, difference, error_of, templates

pytestmark = pytest.mark.anyio

CHAT = {"messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 40, "ignore_eos": True}
LONG = {**CHAT, "max_tokens": 200}
"""Two seconds, in which the machine may stand still."""


def two(servers: list[RunningServer]) -> list[tuple[str, int]]:
    return [(f"replica-{number}", server.port) for number, server in enumerate(servers)]


async def answered(cluster: Cluster, template: Template, serial: int) -> tuple[int, dict[str, list[str]]]:
    reply = await cluster.client.post(template.path, json=template.fields(serial))
    answer = Answer(status=reply.status_code, headers=dict(reply.headers), body=reply.content)
    assert reply.is_success, f"{template.kind}: {reply.text}"
    assert not error_of(answer), template.kind
    return reply.status_code, comparable(answer)


async def test_requests_of_all_dialects_survive_the_loss_of_their_replicas(
    servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = templates()[:45]
    rng = random.Random("losses")
    # On a machine that has much to do a request gets no token between losses: they become rarer until it does.
    monkeypatch.setattr("dragoman.cluster.attempts.MOST_LOSSES", 1000)
    async with cluster_of(two(servers), settings=LASTING) as cluster:
        due = await asyncio.gather(*(answered(cluster, template, template.number) for template in chosen))
        rounds = 0
        while cluster.ingress.counts.continued <= 10:
            rounds += 1
            serial = 1000 * rounds
            answers = asyncio.gather(*(answered(cluster, each, serial + each.number) for each in chosen))
            pause_s = 0.1
            while not answers.done():
                await asyncio.sleep(rng.uniform(0.5, 2.0) * pause_s)
                pause_s *= 1.05
                cut(rng.choice(servers))
            for template, got, wanted in zip(chosen, await answers, due, strict=True):
                assert got == wanted, f"{template.kind}: {difference(got[1], wanted[1])}"
    paths = {template.path.split("/")[1] for template in chosen}
    assert paths == {"v1", "tgi", "friendli", "octoai", "locallab", "alexandria"}


async def test_a_lost_answer_is_not_continued_as_if_its_client_had_it(
    servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica has saved where the next call goes on, and then gets the same request again."""
    write, lost = _Relayed._write, set()
    monkeypatch.setattr("dragoman.server.relay.FLUSH_S", 60.0)  # so that the ingress knows nothing of what was found

    async def write_and_lose(relayed: _Relayed, data: bytes, more: bool) -> None:
        await write(relayed, data, more)
        name = dict(relayed.scope["headers"])[b"x-request-id"]
        if not more and name.startswith(b"lost") and name not in lost:
            lost.add(name)
            assert relayed._drop is not None
            relayed._drop()

    monkeypatch.setattr(_Relayed, "_write", write_and_lose)
    config = {"do_sample": False, "max_new_tokens": 3}

    async def answers(client: httpx.AsyncClient, name: str) -> list[object]:
        batch = {"prompts": [{"request_id": name, "prompt": "once"}], "generation_config": config}
        had: list[object] = []
        for number in range(3):
            headers = {"x-request-id": f"{name}-{number}"}
            reply = await client.post("/alexandria/api/generate-batch", json=batch, headers=headers)
            had.append((reply.status_code, reply.headers["x-generation-state"], reply.json()[0]["response"]))
            headers = {"x-request-id": f"{name}-chat-{number}", "x-request-continue": name}
            body = {**CHAT, "max_tokens": 3, "temperature": 0}
            reply = await client.post("/v1/chat/completions", json=body, headers=headers)
            had.append((reply.headers["x-dragoman-continued"], reply.json()["choices"]))
        return had

    async with cluster_of([("replica-0", servers[0].port)]) as cluster:
        assert await answers(cluster.client, "lost") == await answers(cluster.client, "undisturbed")
        assert len(lost) == 6


async def test_a_continued_stream_has_the_same_bytes(servers: list[RunningServer], parts: list[bytes]) -> None:
    """Ids and times too. The seed is drawn by the ingress, so that the next replica draws the same."""
    async with cluster_of(two(servers)) as cluster:
        body = {**LONG, "stream": True, "temperature": 1.0}
        reply = asyncio.create_task(cluster.client.post("/v1/chat/completions", json=body))
        await until(lambda: len(parts) > 5)
        with engines_stopped(servers):
            (busy,) = cluster.table.choice.running()
            cut(servers[int(busy[-1])])
            await until(lambda: cluster.ingress.counts.lost == 1)
        events = [json.loads(line[6:]) for line in (await reply).text.split("\n\n")[:-2]]
        assert cluster.ingress.counts.continued == 1
        assert len({(event["id"], event["created"]) for event in events}) == 1
        seed = int((await reply).headers["x-dragoman-seed"])
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        again = await cluster.client.post("/v1/chat/completions", json={**LONG, "seed": seed, "temperature": 1.0})
        assert again.json()["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("query", ["", "?alt=sse"], ids=["array", "events"])
async def test_chunks_of_gemini_are_continued(servers: list[RunningServer], parts: list[bytes], query: str) -> None:
    """As the items of one JSON array, too."""
    model = "/v1beta/models/stub"
    contents = {"contents": [{"parts": [{"text": "Tell me about the sea."}]}]}
    body = {**contents, "generationConfig": {"maxOutputTokens": 120, "temperature": 0}}
    async with cluster_of(two(servers)) as cluster:
        whole = (await cluster.client.post(f"{model}:generateContent", json=body)).json()
        assert whole["usageMetadata"]["candidatesTokenCount"] == 120, whole
        reply = asyncio.create_task(cluster.client.post(f"{model}:streamGenerateContent{query}", json=body))
        await until(lambda: len(parts) > 20)
        cut(servers[int(next(iter(cluster.table.choice.running()))[-1])])
        text = (await reply).text
        assert cluster.ingress.counts.continued == 1
        chunks = [json.loads(line[6:]) for line in text.strip().split("\n\n")] if query else json.loads(text)
        said = "".join(chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in chunks)
        assert said == whole["candidates"][0]["content"]["parts"][0]["text"]
        assert len({chunk["responseId"] for chunk in chunks}) == 1


async def test_lines_of_ollama_are_continued(servers: list[RunningServer], parts: list[bytes]) -> None:
    """Each names a time."""
    body = {
        "model": "stub",
        "prompt": "Tell me about the sea.",
        "raw": True,
        "options": {"num_predict": 120, "temperature": 0},
    }
    async with cluster_of(two(servers)) as cluster:
        whole = (await cluster.client.post("/api/generate", json=body | {"stream": False})).json()
        assert whole.get("eval_count") == 120, whole
        reply = asyncio.create_task(cluster.client.post("/api/generate", json=body))
        await until(lambda: len(parts) > 20)
        cut(servers[int(next(iter(cluster.table.choice.running()))[-1])])
        lines = [json.loads(line) for line in (await reply).text.splitlines()]
        assert "".join(line["response"] for line in lines) == whole["response"]
        assert (lines[-1]["done"], lines[-1]["eval_count"]) == (True, 120)
        assert cluster.ingress.counts.continued == 1


async def test_continuing_computes_no_token_again(
    servers: list[RunningServer], parts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the tokens that the ingress has: more were perhaps on their way when the connection was lost."""
    known: list[int] = []
    begin, decoder = RunningRequest.begin, msgspec.msgpack.Decoder(Entry)

    def noted(running: RunningRequest, secret: bytes) -> Any:
        entries = map(decoder.decode, split_entries(bytes(running._journal)))
        known.append(sum(isinstance(each, Recorded) and isinstance(each.event, TokenEvent) for each in entries))
        return begin(running, secret)

    monkeypatch.setattr(RunningRequest, "begin", noted)
    async with cluster_of(two(servers)) as cluster:
        reply = asyncio.create_task(cluster.client.post("/v1/chat/completions", json={**LONG, "stream": True}))
        await until(lambda: len(parts) > 20)
        with engines_stopped(servers):
            (busy,) = cluster.table.choice.running()
            (other,) = (
                server for name, server in zip(("replica-0", "replica-1"), servers, strict=True) if name != busy
            )
            before = other.runtime.engine.stats().generated_tokens
            cut(servers[int(busy[-1])])
            await until(lambda: cluster.ingress.counts.lost == 1)
        assert (await reply).text.endswith("[DONE]\n\n")
        assert known[0] == 0
        assert known[-1] >= 15
        await until(lambda: other.runtime.engine.stats().generated_tokens - before == LONG["max_tokens"] - known[-1])


async def test_a_request_that_loses_every_replica_fails_in_its_own_words(servers: list[RunningServer]) -> None:
    async with cluster_of(two(servers), settings=LASTING) as cluster:
        task = asyncio.create_task(cluster.client.post("/tgi/generate", json={"inputs": "x", "parameters": {}}))

        async def lose() -> None:
            while not task.done():
                for server in servers:
                    cut(server)
                await asyncio.sleep(0.005)

        with engines_stopped(servers):
            await lose()
        reply = await task
        assert reply.status_code == 424  # as TGI has it
        assert reply.json()["error_type"] == "generation"
        assert "replicas ended while they computed this request" in reply.json()["error"]


async def test_another_version_is_named_in_the_dialects_error(
    servers: list[RunningServer], parts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text so far stays; what follows it says why it does not continue."""
    async with cluster_of(two(servers)) as cluster:
        body = {**LONG, "stream": True}
        reply = asyncio.create_task(cluster.client.post("/v1/chat/completions", json=body))
        await until(lambda: len(parts) > 5)
        with engines_stopped(servers):
            busy = servers[int(next(iter(cluster.table.choice.running()))[-1])]
            other = next(server for server in servers if server is not busy)
            monkeypatch.setattr(other.runtime.serving._serving.journaled, "_fingerprint", "another")
            cut(busy)
            await until(lambda: cluster.ingress.counts.lost == 1)
        events = (await reply).text.split("\n\n")
        assert "content" in events[3]
        error = json.loads(events[-2].removeprefix("data: ")) if "error" in events[-2] else json.loads(events[-3][6:])
        assert "it was begun by system_fingerprint stub-4096" in error["error"]["message"]
        assert "this server has system_fingerprint another" in error["error"]["message"]


async def test_a_client_that_leaves_ends_its_request(servers: list[RunningServer]) -> None:
    async with cluster_of(two(servers)) as cluster:
        sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        body = json.dumps({**CHAT, "stream": True, "max_tokens": 400}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        left = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions",
            "query_string": b"", "headers": [(b"host", b"localhost")], "client": ("203.0.113.7", 1), "scheme": "http",
        }  # fmt: skip
        running = asyncio.create_task(cluster.ingress(scope, receive, sent.put))  # type: ignore[arg-type]
        assert (await sent.get())["status"] == 200
        await sent.get()
        left.set()
        await running
        async with asyncio.timeout(60):
            while any(server.runtime.serving.admission.running for server in servers):
                await asyncio.sleep(0.01)
        assert not cluster.table.choice.running()


async def test_a_request_with_a_key_is_one_answer_in_the_cluster(
    servers: list[RunningServer], parts: list[bytes]
) -> None:
    """Also where the replica that computes it is lost, while several clients read it."""
    body = {**LONG, "stream": True, "temperature": 1.0}

    def begun() -> int:
        return sum(server.server.kept_answers.counts["begun"] for server in servers)

    async with cluster_of(two(servers)) as cluster:
        for key in ("undisturbed", "lost"):
            before, headers = begun(), {"idempotency-key": key}
            first = asyncio.create_task(cluster.client.post("/v1/chat/completions", json=body, headers=headers))
            had = len(parts)
            await until(lambda had=had: len(parts) > had + 5)
            with engines_stopped(servers):
                (busy,) = cluster.table.choice.running()
                second = asyncio.create_task(cluster.client.post("/v1/chat/completions", json=body, headers=headers))
                await until(lambda busy=busy: cluster.table.choice.running() == {busy: 2})
                # Lost before its first part, it would ask the same replica again, as of a connection that had waited.
                await until(lambda had=had: sum(part.startswith(parts[had]) for part in parts[had:]) == 2)
                if key == "lost":
                    cut(servers[int(busy[-1])])
                    await until(lambda: cluster.ingress.counts.lost == 2)
            texts = [(await each).text for each in (first, second)]
            later = await cluster.client.post("/v1/chat/completions", json=body, headers=headers)
            assert texts[0].endswith("data: [DONE]\n\n")
            assert comments_dropped(texts[0]) == comments_dropped(texts[1]) == comments_dropped(later.text)
            assert later.headers["idempotent-replayed"] == "true"
            assert begun() - before == (2 if key == "lost" else 1)


async def test_an_answer_with_a_key_outlives_its_ingress(servers: list[RunningServer], parts: list[bytes]) -> None:
    """The replica goes on with it for a while, and attaches the client that asks again through the next ingress."""
    body, headers = {**LONG, "stream": True, "temperature": 1.0}, {"idempotency-key": "of-the-ingress"}
    async with cluster_of(two(servers)) as ended, cluster_of(two(servers)) as following:
        reading = asyncio.create_task(ended.client.post("/v1/chat/completions", json=body, headers=headers))
        await until(lambda: len(parts) > 5)
        had = b"".join(parts)
        for connection in [each for _, answers in ended.ingress._open.values() for each in answers]:
            connection.close()
        reading.cancel()
        again = await following.client.post("/v1/chat/completions", json=body, headers=headers)
        assert again.headers["idempotent-replayed"] == "true"
        assert again.content.startswith(had)
        assert again.text.endswith("data: [DONE]\n\n")


def comments_dropped(text: str) -> list[str]:
    return [event for event in text.split("\n\n") if not event.startswith(":")]
