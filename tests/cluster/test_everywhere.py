"""The requests that run: of all replicas, whichever the ingress would ask."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from cluster_stub import cluster_of
from stub_runtime import RunningServer

from dragoman.cluster.answer import Frames
from dragoman.cluster.everywhere import merged
from dragoman.cluster.upstream import ReplicaLost
from dragoman.server.relay import BODY_FRAME, END_FRAME, HEAD_FRAME

pytestmark = pytest.mark.anyio

LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


async def test_requests_of_all_replicas_are_listed_and_cancelled(servers: list[RunningServer]) -> None:
    addresses = [(f"replica-{number}", server.port) for number, server in enumerate(servers)]
    async with cluster_of(addresses) as cluster:

        async def ask(name: str) -> int:
            """Ask until the answer is no whole one: the machine may stand still for longer than one takes."""
            status = 200
            while status == 200:
                reply = await cluster.client.post("/v1/completions", json=LONG, headers={"x-request-id": name})
                status = reply.status_code
            return status

        async def listed() -> list[str]:
            return sorted(each["id"] for each in (await cluster.client.get("/requests")).json()["requests"])

        asking = [asyncio.create_task(ask(name)) for name in ("r0", "r1")]
        async with asyncio.timeout(60):
            while await listed() != ["r0", "r1"] or not all(
                server.runtime.serving.admission.running for server in servers
            ):
                await asyncio.sleep(0.01)
            for name, task in zip(("r0", "r1"), asking, strict=True):
                while not task.done():
                    reply = await cluster.client.delete(f"/requests/{name}")
                    assert reply.json() == {"cancelled": 1} or reply.status_code == 404
                    await asyncio.sleep(0.01)
                assert task.result() >= 400
        assert (await cluster.client.delete("/requests/r0")).status_code == 404


def answer(status: int, content: object) -> Frames:
    body = msgspec.json.encode(content)
    head = msgspec.msgpack.encode((status, [(b"content-length", b"%d" % len(body))]))
    return [(HEAD_FRAME, head), (BODY_FRAME, body), (END_FRAME, b"")]


def test_answers_become_one() -> None:
    old, new = ({"id": name, "age_s": age_s} for name, age_s in (("old", 2.0), ("new", 1.0)))
    unknown = answer(404, {"error": "there is none"})
    joined = merged([answer(200, {"requests": [new]}), unknown, answer(200, {"requests": [old]})])
    assert joined == answer(200, {"requests": [old, new]})
    assert merged([unknown, answer(200, {"cancelled": 1}), answer(200, {"cancelled": 2})]) == answer(
        200, {"cancelled": 3}
    )
    assert merged([unknown, answer(503, {})]) == unknown
    assert merged([answer(200, {"cancelled": 1}), answer(200, {"cancelled": 1})]) == answer(200, {"cancelled": 2})


@pytest.mark.parametrize(
    "odd", [{"requests": 5}, {"requests": [1]}, {"requests": [{"id": "x"}]}, [1], {"cancelled": "1"}]
)
def test_an_answer_that_cannot_be_read_is_left_out(odd: object) -> None:
    good = answer(200, {"requests": [{"id": "a", "age_s": 1.0}]})
    assert merged([answer(200, odd), good]) == good
    assert merged([good, answer(200, {"requests": [], "more": None})])[1] == (
        BODY_FRAME,
        b'{"requests":[{"id":"a","age_s":1.0}],"more":null}',
    )
    with pytest.raises(ReplicaLost):
        merged([answer(200, odd)])
