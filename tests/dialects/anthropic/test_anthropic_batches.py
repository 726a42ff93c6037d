"""Message batches, as the contract says; ``check_a_batch`` is the package's view of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from batch_world import ANN, BOB, LONG, PROXY, batch_server, client_of, held
from stub_runtime import LocalServer, RunningServer

from dragoman.dialects.anthropic import batches

pytestmark = pytest.mark.anyio
PATH = "/v1/messages/batches"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with batch_server(tmp_path_factory.mktemp("state")) as server:
        yield server


@pytest.fixture(scope="module")
def ann(server: RunningServer) -> Iterator[httpx.Client]:
    with of_key(server, ANN) as client:
        yield client


def of_key(server: RunningServer, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"x-api-key": key}, timeout=30)


def request(custom_id: str, **params: Any) -> dict[str, Any]:
    asked = {"model": "stub", "max_tokens": 4, "messages": [{"role": "user", "content": f"Say {custom_id}"}]}
    return {"custom_id": custom_id, "params": asked | params}


def begin(client: httpx.Client, requests: Sequence[Any], path: str = PATH) -> dict[str, Any]:
    answer = client.post(path, json={"requests": requests})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def until(client: httpx.Client, batch: dict[str, Any], holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    for _ in range(1500):
        batch = client.get(f"{PATH}/{batch['id']}").json()
        if holds(batch):
            return batch
        time.sleep(0.02)
    raise AssertionError(f"it stays as it is: {batch}")


def ended(client: httpx.Client, batch: dict[str, Any]) -> dict[str, Any]:
    return until(client, batch, lambda batch: batch["processing_status"] == "ended")


def results(client: httpx.Client, batch: dict[str, Any]) -> dict[str, Any]:
    answer = client.get(batch["results_url"])
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-jsonl"
    lines = [httpx.Response(200, content=each).json() for each in answer.content.splitlines()]
    found = {each["custom_id"]: each["result"] for each in lines}
    assert len(found) == len(lines), "each request once"
    return found


def test_a_batch_is_as_the_contract_words_it(server: RunningServer, ann: httpx.Client) -> None:
    batch = begin(ann, [request("a", seed=1), request("b", max_tokens=0), request("c", model="nobody")])
    assert list(batch) == [
        "id",
        "type",
        "processing_status",
        "request_counts",
        "ended_at",
        "created_at",
        "expires_at",
        "archived_at",
        "cancel_initiated_at",
        "results_url",
    ]
    counts = {"processing": 3, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    assert (batch["type"], batch["processing_status"], batch["request_counts"]) == (
        "message_batch",
        "in_progress",
        counts,
    )
    batch = ended(ann, batch)
    assert batch["request_counts"] == {**counts, "processing": 0, "succeeded": 1, "errored": 2}
    assert batch["results_url"] == f"{server.url}{PATH}/{batch['id']}/results"
    prefixed = ann.get(f"/anthropic{PATH}/{batch['id']}").json()
    assert prefixed["results_url"] == f"{server.url}/anthropic{PATH}/{batch['id']}/results"
    proxied = {"x-forwarded-proto": "https", "x-forwarded-prefix": "/llm", "host": "llm.example.org"}
    with httpx.Client(base_url=server.url, transport=httpx.HTTPTransport(local_address=PROXY)) as proxy:
        answer = proxy.get(f"{PATH}/{batch['id']}", headers={**ann.headers, **proxied})
    assert answer.json()["results_url"] == f"https://llm.example.org/llm{PATH}/{batch['id']}/results"
    claimed = ann.get(f"{PATH}/{batch['id']}", headers={**proxied, "host": httpx.URL(server.url).netloc.decode()})
    assert claimed.json()["results_url"] == batch["results_url"], "no trusted proxy says so"
    found = results(ann, batch)
    alone = ann.post("/v1/messages", json=request("a", seed=1)["params"]).json()
    assert found["a"]["type"] == "succeeded"
    assert found["a"]["message"]["content"] == alone["content"]
    for name, kind in (("b", "invalid_request_error"), ("c", "not_found_error")):
        assert (found[name]["type"], found[name]["error"]["type"]) == ("errored", "error")
        assert found[name]["error"]["error"]["type"] == kind


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "requests: List should have at least 1 item"),
        ([request("a"), request("a")], "requests.1.custom_id: 'a' is that of an earlier request"),
        ([request("a b")], "requests.0.custom_id: String should match pattern"),
        ([{"custom_id": "a"}], "requests.0.params: Field required"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(ann: httpx.Client, requests: Any, message: str) -> None:
    answer = ann.post(PATH, json={"requests": requests})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert message in answer.json()["error"]["message"]


def test_what_is_cancelled_or_late_says_so(server: RunningServer, ann: httpx.Client) -> None:
    requests = [request(f"c{i}", max_tokens=LONG, ignore_eos=True) for i in range(24)]
    with held(server, 2):
        batch = begin(ann, requests)
        for answer in (ann.get(f"{PATH}/{batch['id']}/results"), ann.delete(f"{PATH}/{batch['id']}")):
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        cancelled = ann.post(f"{PATH}/{batch['id']}/cancel").json()
    assert (cancelled["processing_status"], cancelled["results_url"]) == ("canceling", None)
    assert cancelled["cancel_initiated_at"] is not None
    batch = ended(ann, batch)
    kinds = [each["type"] for each in results(ann, batch).values()]
    assert len(kinds) == 24
    assert kinds.count("canceled") == batch["request_counts"]["canceled"] > 0
    late = ann.post(f"{PATH}/{batch['id']}/cancel")
    message = f"Batch {batch['id']} cannot be canceled: it has ended."
    assert (late.status_code, late.json()["error"]) == (400, {"type": "invalid_request_error", "message": message})
    store = server.runtime.serving.batches
    store._clock = lambda: time.time() + batches.WINDOW_S + 1
    try:
        batch = ended(ann, begin(ann, requests[:3]))
    finally:
        store._clock = time.time
    assert batch["request_counts"]["expired"] == 3
    assert {each["type"] for each in results(ann, batch).values()} == {"expired"}


def test_batches_are_listed_both_ways_and_deleted_with_their_files(server: RunningServer, ann: httpx.Client) -> None:
    made = [ended(ann, begin(ann, [request("a")])) for _ in range(3)]
    ids = [each["id"] for each in made]
    page = ann.get(PATH, params={"limit": 2}).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
    assert (page["first_id"], page["last_id"]) == (ids[2], ids[1])
    page = ann.get(PATH, params={"limit": 1, "after_id": ids[2]}).json()
    assert [each["id"] for each in page["data"]] == [ids[1]]
    page = ann.get(PATH, params={"limit": 1, "before_id": ids[0]}).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([ids[1]], True)
    contents = server.runtime.serving.batches.folder / "files"
    before = len(list(contents.iterdir()))
    assert ann.delete(f"{PATH}/{ids[0]}").json() == {"id": ids[0], "type": "message_batch_deleted"}
    assert ann.get(f"{PATH}/{ids[0]}").status_code == 404
    assert len(list(contents.iterdir())) == before - 2


def test_nobody_sees_what_is_of_another_key_or_dialect(server: RunningServer, ann: httpx.Client) -> None:
    batch = ended(ann, begin(ann, [request("a")]))
    path = f"{PATH}/{batch['id']}"
    with of_key(server, BOB) as bob:
        assert bob.get(PATH).json()["data"] == []
        calls = [bob.get(path), bob.get(path + "/results"), bob.post(path + "/cancel"), bob.delete(path)]
        assert [each.status_code for each in calls] == [404] * 4
        assert {each.json()["error"]["type"] for each in calls} == {"not_found_error"}
    with client_of(server) as openai:
        assert list(openai.files.list()) == list(openai.batches.list()) == []


def test_results_that_are_not_kept_any_more_are_archived(ann: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = ended(ann, begin(ann, [request("a")]))
    monkeypatch.setattr(batches, "wall_time", lambda: time.time() + 30 * 86400)
    archived = ann.get(f"{PATH}/{batch['id']}").json()
    assert archived["archived_at"] is not None
    assert archived["results_url"] is None
    assert ann.get(batch["results_url"]).status_code == 404


async def test_without_a_store_there_are_no_such_paths(runtime: LocalServer) -> None:
    answer = await runtime.client.get(PATH)
    assert (answer.status_code, answer.json()["error"]) == (404, {"type": "not_found_error", "message": "Not found"})
