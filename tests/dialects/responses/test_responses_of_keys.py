"""Responses of callers with keys, limits of the background, and responses that end in other ways than by themselves."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from stub_runtime import QUICK, LocalServer, local_server

from dragoman.dialects.openai import dialect as openai
from dragoman.dialects.openai.responses.background import NOT_STORED, OTHER_MODEL, BackgroundRuns
from dragoman.dialects.openai.responses.events import COMMENT, EventWriter
from dragoman.dialects.openai.responses.response import Head
from dragoman.dialects.openai.responses.routes import ResponsesApi
from dragoman.dialects.tools import PLAIN
from dragoman.server.app import create_app
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.serving.response_store import SqliteResponseStore
from dragoman.serving.settings import ResponseSettings
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

PATH = "/v1/responses"
LONG: dict[str, Any] = {"input": "Hi.", "seed": 3, "ignore_eos": True, "max_output_tokens": 200}
HOLDERS = {name: f"a long enough key of {name}" for name in ("ann", "bob")}


@pytest.fixture
async def runtime(template: ChatTemplate) -> AsyncIterator[LocalServer]:
    async with local_server(template) as server:
        yield server


async def ended(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    """A response at its end: until then its stream goes on."""
    answer = await client.get(f"{PATH}/{id}", params={"stream": "true"})
    response: dict[str, Any] = json.loads(answer.text.strip().rpartition("data: ")[2])["response"]
    return response


async def test_responses_of_another_key_are_unknown(runtime: LocalServer) -> None:
    keys = Keyring([hashed(key, name, ("infer",)) for name, key in HOLDERS.items()])
    app = create_app(runtime.serving, QUICK, keys=keys)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        ann, bob = ({"authorization": f"Bearer {key}"} for key in HOLDERS.values())
        body = {"input": "Hi.", "max_output_tokens": 3}
        first = (await client.post(PATH, json=body, headers=ann)).json()
        running = (await client.post(PATH, json=LONG | {"background": True}, headers=ann)).json()
        item = {"id": first["output"][0]["id"]}
        for id in (first["id"], running["id"]):
            for method, path in (
                ("GET", f"/{id}"),
                ("GET", f"/{id}?stream=true"),
                ("GET", f"/{id}/input_items"),
                ("POST", f"/{id}/cancel"),
                ("DELETE", f"/{id}"),
            ):
                theirs = await client.request(method, PATH + path, headers=bob)
                unknown = await client.request(method, PATH + path.replace(id, "resp_x"), headers=bob)
                assert (theirs.status_code, theirs.text) == (404, unknown.text.replace("resp_x", id))
            chained = await client.post(PATH, json=body | {"previous_response_id": id}, headers=bob)
            assert chained.json()["error"]["code"] == "previous_response_not_found"
        named = await client.post(PATH, json={"input": [{"role": "user", "content": "A"}, item]}, headers=bob)
        assert named.status_code == 404
        assert (await client.get(f"{PATH}/{first['id']}", headers=ann)).json() == first
        assert (await client.post(f"{PATH}/{running['id']}/cancel", headers=ann)).json()["id"] == running["id"]


async def test_a_timeout_is_not_tried_again(template: ChatTemplate) -> None:
    async with local_server(template, msgspec.structs.replace(QUICK, generation_timeout_s=0.01)) as server:
        answer = await server.client.post(PATH, json=LONG | {"max_output_tokens": 4000})
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
        assert answer.headers["x-should-retry"] == "false"


def test_a_silent_stream_repeats_its_last_number() -> None:
    writer = EventWriter(Head(response={"id": "resp_0"}, shape=PLAIN))
    assert writer.keep_alive() == COMMENT, "no package takes an event before the first"
    events = list(writer.begin())
    kept = b'event: keepalive\ndata: {"type":"keepalive","sequence_number":1}\n\n'
    assert (len(events), writer.keep_alive(), writer.keep_alive()) == (2, kept, kept)
    assert b'"sequence_number":2,' in next(writer.cancel())


async def test_a_cancelled_response_has_what_was_generated(runtime: LocalServer) -> None:
    begun = (await runtime.client.post(PATH, json=LONG | {"background": True})).json()
    cancelled = (await runtime.client.post(f"{PATH}/{begun['id']}/cancel")).json()
    assert (cancelled["status"], cancelled["error"]) == ("cancelled", None)
    assert cancelled["usage"]["total_tokens"] >= 0
    assert await ended(runtime.client, begun["id"]) == cancelled
    answer = await runtime.client.post(PATH, json={"input": "A", "previous_response_id": begun["id"]})
    assert "has status 'cancelled'" in answer.json()["error"]["message"]


async def test_too_many_in_the_background_are_refused(runtime: LocalServer) -> None:
    runtime.serving.responses = SqliteResponseStore(
        ResponseSettings(responses_store="memory", responses_max_background=1)
    )
    first = (await runtime.client.post(PATH, json=LONG | {"background": True})).json()
    second = await runtime.client.post(PATH, json=LONG | {"background": True})
    assert (second.status_code, second.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "retry-after" in second.headers
    # It is refused before anything is done about its prompt, which would have been wrong.
    wrong = {"background": True, "previous_response_id": "resp_0"}
    assert (await runtime.client.post(PATH, json=LONG | wrong)).status_code == 429
    assert (await runtime.client.post(f"{PATH}/{first['id']}/cancel")).json()["status"] == "cancelled"
    assert (await runtime.client.post(PATH, json=LONG | {"background": True})).status_code == 200


async def test_nothing_is_stored_where_the_operator_wants_nothing(runtime: LocalServer) -> None:
    runtime.serving.responses = SqliteResponseStore(ResponseSettings(responses_store="off"))
    answer = await runtime.client.post(PATH, json={"input": "Hi.", "max_output_tokens": 3})
    response = answer.json()
    assert response["store"] is False
    assert "x-dragoman-warnings" not in answer.headers
    assert (await runtime.client.get(f"{PATH}/{response['id']}")).status_code == 404
    for more in ({}, {"stream": True}):
        answer = await runtime.client.post(PATH, json={"input": "Hi.", "max_output_tokens": 3, "store": True} | more)
        assert answer.headers["x-dragoman-warnings"] == "ignored: store"
    assert (await runtime.client.post(PATH, json=LONG | {"background": True})).status_code == 400


async def test_another_server_goes_on_behind_the_journal(runtime: LocalServer) -> None:
    """Without a process: the first server's part stops, and a second one finds what it has left."""
    api, client = ResponsesApi(), runtime.client
    dialect = msgspec.structs.replace(openai.make(openai.OpenAISettings()), operations=api.operations())
    app = create_app(runtime.serving, QUICK, dialects=(dialect,))
    body = LONG | {"temperature": 1.0, "background": True}
    async with (
        api.service(runtime.serving),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as first,
    ):
        begun = (await first.post(PATH, json=body)).json()
        await asyncio.sleep(0)
    (stored,) = await runtime.serving.responses.unfinished()
    assert stored.id == begun["id"]
    for left in (client.post(f"{PATH}/{stored.id}/cancel"), client.delete(f"{PATH}/{stored.id}")):
        assert (await left).status_code == 503, "nothing generates it now, but it goes on"
    runs = BackgroundRuns()
    assert await runs.resume(runtime.serving) == 1
    run = runs.find("", begun["id"])
    assert run is not None
    events = [event async for event in run.follow(-1)]
    whole = (await client.post(PATH, json=body | {"background": False})).json()
    last = json.loads(events[-1].partition(b"data: ")[2])
    assert last["sequence_number"] == len(events) - 1
    assert last["response"]["output"][0]["content"] == whole["output"][0]["content"]
    assert (await client.get(f"{PATH}/{begun['id']}")).json() == last["response"]


async def test_another_model_cannot_go_on(runtime: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, store = BackgroundRuns(), runtime.serving.responses
    api = ResponsesApi()
    dialect = msgspec.structs.replace(openai.make(openai.OpenAISettings()), operations=api.operations())
    app = create_app(runtime.serving, QUICK, dialects=(dialect,))
    async with (
        api.service(runtime.serving),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as first,
    ):
        begun = (await first.post(PATH, json=LONG | {"background": True})).json()
    other = msgspec.structs.replace(runtime.serving.model(None), fingerprint="another")
    monkeypatch.setattr(runtime.serving, "model", lambda name: other)
    await runs.resume(runtime.serving)
    run = runs.find("", begun["id"])
    assert run is not None
    async for _ in run.follow(-1):
        pass
    stored = await store.find("", begun["id"])
    assert stored is not None
    failed = json.loads(stored.response)
    assert (failed["status"], failed["error"]["code"], failed["error"]["message"]) == (
        "failed",
        "server_error",
        OTHER_MODEL,
    )


def small_store() -> SqliteResponseStore:
    """One that keeps no response of more than 8 KiB."""
    return SqliteResponseStore(ResponseSettings(responses_store="memory", responses_max_bytes=65536))


def incompressible(count: int) -> dict[str, str]:
    """Metadata of about a KiB for each."""
    chars = random.Random(1)
    return {f"k{i}": "".join(chr(chars.randrange(0x4E00, 0x9000)) for _ in range(500)) for i in range(count)}


async def test_what_is_too_large_for_the_store_says_that_it_is_not_kept(runtime: LocalServer) -> None:
    runtime.serving.responses = small_store()
    body = {"input": "Hi.", "max_output_tokens": 3, "metadata": incompressible(16)}
    whole = await runtime.client.post(PATH, json=body)
    assert (whole.json()["store"], whole.headers["x-dragoman-warnings"]) == (False, "ignored: store")
    streamed = await runtime.client.post(PATH, json=body | {"stream": True})
    events = [json.loads(event.partition("data: ")[2]) for event in streamed.text.strip().split("\n\n")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (events[0]["response"]["store"], events[-1]["response"]["store"]) == (True, False)
    assert events[-1]["type"] == "response.incomplete"


async def test_a_background_response_that_outgrows_the_store_fails(runtime: LocalServer) -> None:
    runtime.serving.responses = small_store()
    body = LONG | {"background": True, "metadata": incompressible(5)}
    begun = (await runtime.client.post(PATH, json=body)).json()
    await ended(runtime.client, begun["id"])
    failed = (await runtime.client.get(f"{PATH}/{begun['id']}")).json()
    assert (failed["status"], failed["error"]["message"]) == ("failed", NOT_STORED)
    assert await ended(runtime.client, begun["id"]) == failed
    assert await runtime.serving.responses.unfinished() == [], "it would run again after each start"


async def test_cancelling_twice_does_not_interrupt_the_end(
    runtime: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_to_run, ending, may_end, has_ended = (asyncio.Event() for _ in range(4))

    async def stream(request: Any) -> AsyncGenerator[Any, None]:
        begun_to_run.set()
        try:
            await asyncio.Event().wait()
            yield None
        finally:
            ending.set()
            await may_end.wait()
            has_ended.set()

    monkeypatch.setattr(runtime.serving, "stream", stream)
    begun = (await runtime.client.post(PATH, json=LONG | {"background": True})).json()
    await begun_to_run.wait()
    cancel = f"{PATH}/{begun['id']}/cancel"
    first = asyncio.create_task(runtime.client.post(cancel))
    await ending.wait()
    second = asyncio.create_task(runtime.client.post(cancel))
    third = asyncio.create_task(runtime.client.delete(f"{PATH}/{begun['id']}"))
    await runtime.client.get(f"{PATH}/{begun['id']}")  # the store answers in order: both have found the response
    await asyncio.sleep(0)
    may_end.set()
    answers = await asyncio.gather(first, second, third)
    assert has_ended.is_set()
    assert [answer.json().get("status") for answer in answers] == ["cancelled", "cancelled", None]


async def test_what_ends_while_it_is_looked_up_has_its_end(
    runtime: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, has_ended, looked_up = runtime.serving.responses, asyncio.Event(), asyncio.Event()
    find = store.find
    begun = (await runtime.client.post(PATH, json=LONG | {"background": True})).json()

    async def slow(tenant: str, id: str) -> Any:
        found = await find(tenant, id)
        monkeypatch.setattr(store, "find", find)
        looked_up.set()
        await has_ended.wait()
        return found

    monkeypatch.setattr(store, "find", slow)
    late = asyncio.create_task(runtime.client.post(f"{PATH}/{begun['id']}/cancel"))
    await looked_up.wait()
    response = await ended(runtime.client, begun["id"])
    has_ended.set()
    assert (await late).json() == response
