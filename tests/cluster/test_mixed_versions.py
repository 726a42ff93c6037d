"""Replicas of several versions and models at one time, as in the middle of a rolling update."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cluster_stub import PATIENT, SLOW, UNLIMITED, cluster_of, cut, engines_stopped, until
from stub_runtime import RunningServer, running_server

from dragoman.cluster.routing import Wanted
from dragoman.cluster.running import RunningRequest
from dragoman.server.settings import NetworkSettings

pytestmark = pytest.mark.anyio

BODY = {
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "max_tokens": 200,
    "ignore_eos": True,
    "seed": 1,
}


@pytest.fixture(scope="module")
def newer(secret_file: Path) -> Iterator[RunningServer]:
    """A replica that has another model, under another name."""
    network = NetworkSettings(cluster_secret_file=str(secret_file))
    settings = msgspec.structs.replace(PATIENT, name="newer", alias=())
    with running_server(settings, SLOW, dialects=UNLIMITED, network=network) as server:
        yield server


def ranked(order: Sequence[str]) -> Any:
    """Return a choice of replicas in this order, but for those to avoid."""

    def rank(replicas: Sequence[str], wanted: Wanted) -> list[str]:
        return sorted(replicas, key=lambda name: (name in wanted.avoid, order.index(name)))

    return rank


def text_of(reply: str) -> str:
    """Return the text of an answer, streamed or whole. An error in it is an error here."""
    if reply.startswith("{"):
        return str(json.loads(reply)["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in reply.splitlines() if line.startswith("data: {")]
    assert reply.endswith("data: [DONE]\n\n"), events[-1]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("change", ["version", "model"])
async def test_a_lost_request_is_continued_by_the_replica_that_answers_alike(
    servers: list[RunningServer],
    newer: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    is_stream: bool,
) -> None:
    """The first one that is asked has another version, or no model of that name any more."""
    body = BODY | {"stream": is_stream} | ({"model": "stub"} if change == "model" else {})
    if change == "version":
        monkeypatch.setattr(newer.runtime.serving._serving.journaled, "_fingerprint", "another")
    recorded = 0
    record = RunningRequest.record

    def counted(running: RunningRequest, entry: bytes) -> None:
        nonlocal recorded
        recorded += 1
        record(running, entry)

    monkeypatch.setattr(RunningRequest, "record", counted)
    addresses = [("first", servers[0].port), ("newer", newer.port), ("second", servers[1].port)]
    async with cluster_of(addresses) as cluster:
        monkeypatch.setattr(cluster.table.choice, "rank", ranked(["first", "newer", "second"]))
        expected = text_of((await cluster.client.post("/v1/chat/completions", json=body)).text)
        recorded = 0
        reply = asyncio.create_task(cluster.client.post("/v1/chat/completions", json=body))
        await until(lambda: recorded > 20)
        with engines_stopped(servers):
            cut(servers[0])
            await until(lambda: cluster.ingress.counts.lost == 1)
        assert text_of((await reply).text) == expected


async def test_a_request_goes_to_the_replicas_that_have_its_model(
    servers: list[RunningServer], newer: RunningServer
) -> None:
    async with cluster_of([("older", servers[0].port), ("newer", newer.port)]) as cluster:
        for model in ("stub", "other", "newer") * 4:
            reply = await cluster.client.post("/v1/chat/completions", json=BODY | {"model": model, "max_tokens": 2})
            assert (reply.status_code, reply.json()["model"]) == (200, model)
