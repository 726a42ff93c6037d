"""What replicas store for themselves is found behind the ingress: responses, conversations and their items."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster_stub import Cluster, cluster_of
from stub_runtime import RunningServer

from dragoman.cluster.routing import ReplicaChoice, Wanted
from dragoman.cluster.stored_ids import StoredIds
from dragoman.core.elsewhere import HEADER
from dragoman.core.errors import NotFound
from dragoman.core.journal import Journal, current_journal
from dragoman.core.observer import ObservedRequest, current_request
from dragoman.serving.batch_store import SqliteBatchStore
from dragoman.serving.response_store import SqliteResponseStore
from dragoman.serving.settings import BatchSettings

pytestmark = pytest.mark.anyio

PATH = "/v1/responses"
ASK: dict[str, Any] = {"input": "Tell me about the sea.", "max_output_tokens": 3, "ignore_eos": True, "seed": 1}


def two(servers: list[RunningServer]) -> list[tuple[str, int]]:
    return [(f"replica-{number}", server.port) for number, server in enumerate(servers)]


def forget(cluster: Cluster) -> None:
    """As after a start of the ingress."""
    cluster.ingress._stored = StoredIds()


async def created(cluster: Cluster, **fields: Any) -> dict[str, Any]:
    answer = await cluster.client.post(PATH, json=ASK | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def everywhere(cluster: Cluster, prompt: str) -> list[dict[str, Any]]:
    """Responses of both replicas, each known by the name of its own."""
    found: dict[str, dict[str, Any]] = {}
    for number in range(40):
        response = await created(cluster, input=f"{prompt} {number}")
        digits = response["id"].removeprefix("resp_").encode()
        found[cluster.ingress._stored.replica_of([digits])] = response
        if len(found) == 2:
            break
    assert len(found) == 2
    return list(found.values())


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "after a start"])
async def test_responses_are_read_from_the_replica_that_has_them(servers: list[RunningServer], is_known: bool) -> None:
    async with cluster_of(two(servers)) as cluster:
        for response in await everywhere(cluster, "Read"):
            if not is_known:
                forget(cluster)
            for _ in range(3):
                answer = await cluster.client.get(f"{PATH}/{response['id']}")
                assert (answer.status_code, answer.json()) == (200, response)
                assert "x-dragoman-elsewhere" not in answer.headers
            listed = await cluster.client.get(f"{PATH}/{response['id']}/input_items")
            assert len(listed.json()["data"]) == 1
            streamed = await cluster.client.get(f"{PATH}/{response['id']}", params={"stream": "true"})
            assert json.loads(streamed.text.rstrip().rpartition("data: ")[2])["response"] == response


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "after a start"])
async def test_chains_and_references_go_where_they_were_begun(servers: list[RunningServer], is_known: bool) -> None:
    async with cluster_of(two(servers)) as cluster:
        for response in await everywhere(cluster, "Chain"):
            previous = response
            for _ in range(2):
                if not is_known:
                    forget(cluster)
                previous = await created(cluster, previous_response_id=previous["id"])
            assert previous["usage"]["input_tokens"] > 2 * response["usage"]["input_tokens"]
            if not is_known:
                forget(cluster)
            items = [{"type": "item_reference", "id": response["output"][0]["id"]}, {"role": "user", "content": "And?"}]
            assert (await created(cluster, input=items))["status"] == "incomplete"


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "after a start"])
async def test_conversations_stay_on_one_replica(servers: list[RunningServer], is_known: bool) -> None:
    async with cluster_of(two(servers)) as cluster:
        ids = [(await cluster.client.post("/v1/conversations", json={})).json()["id"] for _ in range(8)]
        for _ in range(2):
            for id in ids:
                if not is_known:
                    forget(cluster)
                assert (await created(cluster, conversation=id))["conversation"] == {"id": id}
        for id in ids:
            listed = await cluster.client.get(f"/v1/conversations/{id}/items")
            assert len(listed.json()["data"]) == 4


async def test_deletion_reaches_the_replica_too(servers: list[RunningServer]) -> None:
    async with cluster_of(two(servers)) as cluster:
        for response in await everywhere(cluster, "Delete"):
            forget(cluster)
            assert (await cluster.client.delete(f"{PATH}/{response['id']}")).json()["deleted"] is True
            assert (await cluster.client.get(f"{PATH}/{response['id']}")).status_code == 404


async def test_a_store_without_what_is_named_tells_an_ingress_and_nobody_else(tmp_path: Path) -> None:
    """Files and batches too, which these servers have not."""
    for journal, told in ((Journal(), {HEADER: "it does not have what the request names"}), (None, {})):
        for lacks in ("file", "batch", "response", "conversation"):
            observed = ObservedRequest("openai", PATH, "GET", "r")
            tokens = current_journal.set(journal), current_request.set(observed)
            batches, responses = SqliteBatchStore(BatchSettings(), tmp_path), SqliteResponseStore()
            with contextlib.suppress(NotFound):
                if lacks in ("file", "batch"):
                    await getattr(batches, lacks)("tenant", f"{lacks}-0")
                elif lacks == "response":
                    await responses.find("tenant", "resp_0")
                else:
                    await responses.find_conversation("tenant", "conv_0")
            assert observed.answer_headers == told, lacks
            await batches.close()
            await responses.close()
            current_journal.reset(tokens[0])
            current_request.reset(tokens[1])


async def test_what_no_replica_has_is_told_in_the_dialects_words(servers: list[RunningServer]) -> None:
    def plain(answer: httpx.Response) -> dict[str, str]:
        return {n: v for n, v in answer.headers.items() if n not in ("x-request-id", "date")}

    async with cluster_of(two(servers)) as cluster:
        id = "resp_" + "0" * 32
        answer = await cluster.client.get(f"{PATH}/{id}")
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, f"Response with id '{id}' not found.")
        assert "x-dragoman-elsewhere" not in plain(answer)
        refused = await cluster.client.post(PATH, json=ASK | {"previous_response_id": id})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
        assert "x-dragoman-elsewhere" not in plain(refused)


def test_ids_are_found_in_paths_and_bodies() -> None:
    ids, one, other = StoredIds(), "ab" * 16, "cd" * 16
    assert ids.named(f"/openai/v1/responses/resp_{one}?stream=true".encode(), b"") == [one.encode()]
    body = json.dumps({"input": [{"id": f"msg_{one}_0"}], "conversation": f"conv_{other}"}).encode()
    assert ids.named(b"/v1/responses", body) == [one.encode(), other.encode()]
    assert ids.named(b"/v1/chat/completions", body) == ()
    ids.learn_from(f'{{"id":"resp_{one}","output":[{{"id":"msg_{other}_0"}}]}}'.encode(), "a")
    assert (ids.replica_of([one.encode()]), ids.replica_of([other.encode()])) == ("a", "")


def test_the_replica_that_has_it_comes_first_however_busy() -> None:
    choice = ReplicaChoice(seed=1)
    for _ in range(30):
        choice.begin("b")
    assert choice.rank(["a", "b", "c"], Wanted(prefer="b"))[0] == "b"
    assert choice.rank(["a", "b", "c"], Wanted(prefer="b", avoid=frozenset("b")))[0] != "b"
    assert choice.rank(["a", "c"], Wanted(prefer="b"))[0] in "ac"
