"""While a client waits: comments that keep a stream open, and what those that ask are told of their request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from stub_runtime import DIALECTS, QUICK, STUB, LocalServer, local_server, running_server

from dragoman.core.errors import EngineUnavailable
from dragoman.core.events import ProgressEvent, TokenEvent
from dragoman.core.progress import current_progress
from dragoman.core.request import EngineRequest
from dragoman.dialects.api import KeepAlive
from dragoman.engine.engine import Engine
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.stub import StubRunner
from dragoman.server.exchange import Exchange
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

QUIET = msgspec.structs.replace(QUICK, keep_alive_comment_s=0.03, write_timeout_s=60.0)
LONG = " ".join(["Once upon a time"] * 40)
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/openai/v1/completions", {"prompt": "Once", "max_tokens": 4, "stream": True}),
    "openai chat": ("/openai/v1/chat/completions", CHAT),
    "tgi": ("/tgi/generate_stream", {"inputs": "Once", "parameters": {"max_new_tokens": 4}}),
    "tgi chat": ("/tgi/v1/chat/completions", CHAT),
    "tgi completions": ("/tgi/v1/completions", {"model": "tgi", "prompt": "Once", "max_tokens": 4, "stream": True}),
    "friendli": ("/friendli/v1/completions", {"prompt": "Once", "max_tokens": 4, "stream": True}),
    "friendli chat": ("/friendli/v1/chat/completions", CHAT),
    "octoai": ("/octoai/v1/completions", {"model": "stub", "prompt": "Once", "max_tokens": 4, "stream": True}),
    "octoai chat": ("/octoai/v1/chat/completions", {**CHAT, "model": "stub"}),
    "locallab": ("/locallab/generate", {"prompt": "Once", "max_tokens": 4, "stream": True}),
}
COMMENTED = {"openai": ": keep-alive", "tgi": ":"}
"""Dialects whose clients can read comments that they have not asked for."""
PING = 'event: ping\ndata: {"type":"ping"}'


@pytest.fixture
async def quiet(template: ChatTemplate) -> AsyncIterator[LocalServer]:
    async with local_server(template, QUIET) as runtime:
        yield runtime


async def held_up(runtime: LocalServer, path: str, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
    """The answer to a request whose engine stands still for a while."""
    runtime.engine.free.clear()
    before = len(runtime.engine.requests)
    asking = asyncio.create_task(runtime.client.post(path, json=body, headers=headers))
    while len(runtime.engine.requests) == before and not asking.done():
        await asyncio.sleep(0.01)
    for _ in range(20):  # and not at once: where the machine is busy, all timers would be due together
        await asyncio.sleep(0.015)
    runtime.engine.free.set()
    return await asking


def comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(":")]


def progress(text: str) -> list[dict[str, Any]]:
    mark = ": progress "
    return [json.loads(line.removeprefix(mark)) for line in comments(text) if line.startswith(mark)]


@pytest.mark.parametrize("name", STREAMS)
async def test_silence_is_filled_where_clients_can_read_it(quiet: LocalServer, name: str) -> None:
    path, body = STREAMS[name]
    answer = await held_up(quiet, path, body, {})
    assert answer.status_code == 200
    assert set(comments(answer.text)) == {COMMENTED[dialect] for dialect in COMMENTED if dialect == name.split()[0]}
    assert "data: " in answer.text


@pytest.mark.parametrize("name", STREAMS)
async def test_who_asks_by_header_is_told_the_place_in_the_queue_in_every_dialect(
    quiet: LocalServer, name: str
) -> None:
    path, body = STREAMS[name]
    answer = await held_up(quiet, path, body, {"x-dragoman-progress": "1"})
    assert progress(answer.text)[0] == {"state": "queued", "position": 1}
    assert "data: " in answer.text
    assert not progress(answer.text[answer.text.index("data: ") :])


@pytest.mark.parametrize("name", [name for name in STREAMS if name not in ("tgi", "locallab")])
async def test_who_asks_by_stream_options_is_told_too(quiet: LocalServer, name: str) -> None:
    path, body = STREAMS[name]
    asked = {**body, "stream_options": {"include_progress": True}}
    assert progress((await held_up(quiet, path, asked, {})).text)
    assert not progress((await held_up(quiet, path, {**body, "stream_options": {"include_progress": False}}, {})).text)


async def test_the_text_is_the_same_with_and_without(quiet: LocalServer) -> None:
    body = {"prompt": LONG, "max_tokens": 6, "seed": 3, "stream": True}
    texts = []
    for headers in ({}, {"x-dragoman-progress": "1"}):
        answer = await quiet.client.post("/v1/completions", json=body, headers=headers)
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        texts.append("".join(json.loads(event)["choices"][0]["text"] for event in events))
    assert texts[0] == texts[1] != ""


async def test_what_is_refused_at_once_has_its_own_status_all_the_same(quiet: LocalServer) -> None:
    body = {"prompt": "x", "max_tokens": 4, "stream": True, "stream_options": {"include_progress": True}}
    for wrong in ({"model": "none"}, {"temperature": -1}, {"prompt": [10**6]}):
        assert (await quiet.client.post("/v1/completions", json=body | wrong)).status_code in (400, 404)
    quiet.serving.admission.close("The server is shutting down.")
    assert (await quiet.client.post("/v1/completions", json=body)).status_code == 503


async def test_what_fails_behind_a_comment_is_the_last_event(quiet: LocalServer) -> None:
    quiet.engine.free.clear()
    asking = asyncio.create_task(quiet.client.post("/v1/completions", json={"prompt": "x", "stream": True}))
    while not quiet.engine.streams:
        await asyncio.sleep(0.01)
    for _ in range(20):
        await asyncio.sleep(0.01)
    for request_id in list(quiet.engine.streams):
        quiet.engine.cancel(request_id)
    answer = await asking
    assert answer.status_code == 200
    assert json.loads(answer.text.strip().split("data: ")[-1])["error"]["type"] == "server_error"


async def test_whole_answers_and_other_values_of_the_header_have_no_comments(quiet: LocalServer) -> None:
    body = {"prompt": "Once", "max_tokens": 2}
    whole = await held_up(quiet, "/v1/completions", body, {"x-dragoman-progress": "1"})
    assert whole.json()["choices"]
    other = await held_up(quiet, "/v1/completions", {**body, "stream": True}, {"x-dragoman-progress": "yes"})
    assert not progress(other.text)


async def test_no_comments_where_the_operator_wants_none(template: ChatTemplate) -> None:
    async with local_server(template, msgspec.structs.replace(QUIET, keep_alive_comment_s=0.0)) as runtime:
        answer = await held_up(runtime, *STREAMS["openai"], {})
        assert not comments(answer.text)


async def test_anthropics_clients_get_pings(quiet: LocalServer) -> None:
    body = {"model": "stub", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
    answer = await held_up(quiet, "/v1/messages", body, {})
    first, *_, last = answer.text.removesuffix("\n\n").split("\n\n")
    assert first == PING
    assert last == 'event: message_stop\ndata: {"type":"message_stop"}'
    assert not comments(answer.text)


@pytest.mark.parametrize(("server_s", "waits"), [(15.0, (5.0, 10.0)), (3.0, (3.0, 3.0))])
async def test_a_dialect_may_break_its_silence_sooner(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch, server_s: float, waits: tuple[float, float]
) -> None:
    asked: list[tuple[float, float]] = []

    async def told(self: Exchange, head: Any, first: bytes, first_s: float, later: KeepAlive) -> None:
        asked.append((first_s, later.silence_s))

    monkeypatch.setattr(Exchange, "_write_comments", told)
    async with local_server(template, msgspec.structs.replace(QUIET, keep_alive_comment_s=server_s)) as runtime:
        await runtime.client.post("/anthropic/v1/messages", json=CHAT | {"model": "stub"})
        await runtime.client.post("/openai/v1/chat/completions", json=CHAT)
    assert asked == [waits, (server_s, server_s)]


def test_every_dialect_has_decided() -> None:
    decided = COMMENTED | {"anthropic": PING, "llamacpp": ":"}
    assert {each.name: each.keep_alive.decode().strip() for each in DIALECTS if each.keep_alive} == decided


def test_prefill_is_told_step_by_step() -> None:
    settings = SchedulerSettings(step_tokens=32) if "step_tokens" in SchedulerSettings.__struct_fields__ else None
    engine = Engine(StubRunner(msgspec.structs.replace(STUB, max_tokens=32)), settings)
    asked = EngineRequest(request_id="a", prompt=tuple(range(100)), seeds=(1,), max_tokens=2, progress=True)
    engine.submit(asked)
    engine.submit(EngineRequest(request_id="b", prompt=tuple(range(50)), seeds=(1,), max_tokens=2))
    told: list[ProgressEvent] = []
    begun = False
    while engine.has_work:
        for event in engine.step().events:
            begun |= isinstance(event, TokenEvent) and event.request_id == "a"
            if isinstance(event, ProgressEvent):
                assert not begun
                told.append(event)
    done = [event.done for event in told if not event.position]
    assert {event.request_id for event in told} == {"a"}
    assert done == sorted(set(done))
    assert len(done) >= 3
    assert all(0 < event.done < event.total == 100 for event in told if not event.position)
    assert not engine._progress._reported


def test_who_waits_is_told_when_the_place_changes() -> None:
    engine = Engine(StubRunner(msgspec.structs.replace(STUB, max_sequences=1)))
    for i in range(4):
        request_id = f"r{i}"
        engine.submit(
            EngineRequest(request_id=request_id, prompt=(1, 2, 3), seeds=(1,), max_tokens=3, progress=True, tenant="t")
        )
    places: dict[str, list[int]] = {}
    while engine.has_work:
        for event in engine.step().events:
            if isinstance(event, ProgressEvent) and event.position:
                places.setdefault(event.request_id, []).append(event.position)
    assert places["r1"] == [1]
    assert places["r3"] == [3, 2, 1]


async def test_an_answer_that_ends_with_the_last_progress_ends() -> None:
    """The news of progress and the end of the answer come in one turn of the event loop."""
    loop, exchange = asyncio.get_running_loop(), object.__new__(Exchange)
    exchange._clock, exchange._progressed = loop.time, asyncio.Event()
    exchange._progress = exchange._writing_since = None
    exchange._has_begun = False
    comments = asyncio.create_task(exchange._write_comments(dict, b": ", 60.0, KeepAlive(bytes, 60.0)))
    await asyncio.sleep(0.01)
    exchange._progressed.set()
    loop.call_soon(comments.cancel)
    await asyncio.wait([comments], timeout=60)
    assert comments.cancelled()


def test_progress_is_told_over_a_real_engine_and_after_its_death() -> None:
    slow = msgspec.structs.replace(STUB, step_s=0.2, max_tokens=32)
    with running_server(QUICK, slow) as server:
        for attempt in range(100):  # while this process stands still, several steps are reported as one
            body = {"prompt": list(range(100 + attempt, 300 + attempt)), "max_tokens": 2, "stream": True}
            headers = {"x-dragoman-progress": "1"}
            text, killed = "", False
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers) as answer:
                for part in answer.iter_text():
                    text += part
                    if "prefill" in text and not killed:
                        killed = True
                        server.runtime.engine._process.kill()
            told = [each["done"] for each in progress(text) if each["state"] == "prefill"]
            assert max(told, default=0) < 200
            assert text.rstrip().endswith("data: [DONE]")
            if killed and len(told) >= 3:
                break
        assert killed
        assert len(told) >= 3


# A model that is loaded first -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in STREAMS if name not in ("tgi", "locallab")])
@pytest.mark.parametrize("fails", [False, True])
async def test_who_asks_is_told_how_far_a_model_is_loaded(
    quiet: LocalServer, name: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def lease(model: str | None = None) -> AsyncIterator[None]:
        report = current_progress.get()
        if report is not None:
            for share in (0.25, 0.75):
                report.loading("reading weights", share)
                await asyncio.sleep(0.15)
        if fails:
            raise EngineUnavailable("no model is loaded")
        yield

    monkeypatch.setattr(quiet.serving, "lease", lease)
    path, body = STREAMS[name]
    told = await quiet.client.post(path, json=body, headers={"x-dragoman-progress": "1"})
    states = [each for each in progress(told.text) if each["state"] == "loading"]
    assert states == [{"state": "loading", "stage": "reading weights", "share": share} for share in (0.25, 0.75)]
    assert told.status_code == 200
    if fails:
        assert "error" in told.text.rsplit("data: ", 1)[1]
    else:
        assert told.text.count("data: ") > 1
        assert '"error"' not in told.text
    untold = await quiet.client.post(path, json=body)
    assert (untold.status_code, progress(untold.text)) == (503 if fails else 200, [])


async def test_a_wrong_request_behind_a_load_is_told_in_the_stream(
    quiet: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def lease(model: str | None = None) -> AsyncIterator[None]:
        report = current_progress.get()
        assert report is not None
        report.loading("reading weights", 0.5)
        await asyncio.sleep(0.1)
        yield

    monkeypatch.setattr(quiet.serving, "lease", lease)
    body = {"prompt": "x", "stream": True, "temperature": -1}
    answer = await quiet.client.post("/v1/completions", json=body, headers={"x-dragoman-progress": "1"})
    assert answer.status_code == 200
    assert "temperature" in json.loads(answer.text.rsplit("data: ", 1)[1])["error"]["message"]
