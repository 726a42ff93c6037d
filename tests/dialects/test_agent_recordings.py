"""Conversations of coding agents, replayed whole: each turn finds the one before it in the cache.

One that does not fit is refused in the words from which its agent compacts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest
from agent_recordings import CLAUDE_HEADERS, CODEX_HEADERS, PIXEL, TURNS, claude_code, codex
from stub_runtime import QUICK, STUB, RunningServer, running_server

SHORT, LONG_RESULTS, WHOLE = (1_200, 120), (1_200, 1_800), (48_000, 4_800)
CONTEXT = 8192
BLOCK = 32
WORLDS = [(SHORT, CONTEXT), pytest.param((WHOLE, 65_536), marks=pytest.mark.thorough)]
"""The sizes of a recording, and a context that has room for it."""


def server_of(context: int) -> AbstractContextManager[RunningServer]:
    stub = msgspec.structs.replace(STUB, max_context=context, num_blocks=2 * context // BLOCK, max_tokens=4096)
    return running_server(QUICK, stub)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with server_of(CONTEXT) as server:
        yield server


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[tuple[RunningServer, tuple[int, int]]]:
    """A server, and the sizes of a recording for which it has room."""
    sizes, context = request.param
    if context == CONTEXT:
        yield request.getfixturevalue("server"), sizes
        return
    with server_of(context) as server:
        yield server, sizes


def ask_codex(server: RunningServer, body: Any) -> list[dict[str, Any]]:
    """The events of a stream, which is cut short: the model says nothing of use."""
    answer = httpx.post(f"{server.url}/v1/responses", json=body | {"max_output_tokens": 2}, headers=CODEX_HEADERS)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def ask_claude(server: RunningServer, body: Any, **more: Any) -> httpx.Response:
    path = f"{server.url}/v1/messages?beta=true"
    return httpx.post(path, json=body | {"max_tokens": 2} | more, headers=CLAUDE_HEADERS)


def found_again(counts: list[tuple[int, int]]) -> None:
    """Of each prompt its tokens, and those from the cache: all of the prompt before, but for its last block."""
    assert len(counts) == TURNS
    for (before, _), (tokens, cached) in pairwise(counts):
        assert before < tokens
        assert before - BLOCK <= cached <= tokens, counts


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_codex_finds_its_conversation_in_the_cache(world: tuple[RunningServer, tuple[int, int]]) -> None:
    server, sizes = world
    counts = []
    for body in codex(TURNS, *sizes):
        *_, last = ask_codex(server, body)
        assert last["type"] in ("response.completed", "response.incomplete"), last
        usage = last["response"]["usage"]
        counts.append((usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]))
    found_again(counts)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_claude_code_finds_its_conversation_in_the_cache(world: tuple[RunningServer, tuple[int, int]]) -> None:
    server, sizes = world
    assert httpx.head(f"{server.url}/api/hello").status_code == 404
    counts = []
    for body in claude_code(TURNS, *sizes):
        answer = ask_claude(server, body)
        assert answer.status_code == 200, answer.text
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        usage = next(event["message"]["usage"] for event in events if event["type"] == "message_start")
        assert events[-1]["type"] == "message_stop"
        cached = usage["cache_read_input_tokens"]
        counts.append((usage["input_tokens"] + cached, cached))
    found_again(counts)
    counted = {name: body[name] for name in ("model", "system", "tools", "messages", "thinking", "context_management")}
    answer = httpx.post(f"{server.url}/v1/messages/count_tokens?beta=true", json=counted, headers=CLAUDE_HEADERS)
    assert answer.json()["input_tokens"] == counts[-1][0]


def test_codex_drops_the_oldest_items_of_a_conversation_that_does_not_fit(server: RunningServer) -> None:
    """It knows an overflow by the code of ``response.failed`` alone; then an item and what belongs to it goes."""
    *_, body = codex(TURNS, *LONG_RESULTS)
    dropped = 0
    while True:
        *_, error, last = ask_codex(server, body)
        if last["type"] != "response.failed":
            break
        assert last["response"]["error"]["code"] == error["error"]["code"] == "context_length_exceeded"
        calls = {body["input"][0].get("call_id")} - {None}
        body = body | {"input": [item for item in body["input"][1:] if item.get("call_id") not in calls]}
        dropped += 1
        assert body["input"]
    assert dropped
    assert last["response"]["usage"]["input_tokens"] < CONTEXT


def test_claude_code_compacts_a_conversation_that_does_not_fit(server: RunningServer) -> None:
    """It reads both numbers of the refusal, and begins again from a summary."""
    *_, body = claude_code(TURNS, *LONG_RESULTS)
    answer = ask_claude(server, body, max_tokens=32_000)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    numbers = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", answer.json()["error"]["message"])
    assert numbers is not None, answer.text
    tokens, most = map(int, numbers.groups())
    assert tokens > most == CONTEXT - 1
    summary = {"role": "user", "content": [{"type": "text", "text": "This session is continued from a summary."}]}
    answer = ask_claude(server, body | {"messages": [summary, *body["messages"][-3:]]})
    assert answer.status_code == 200, answer.text


def test_claude_code_takes_an_image_out_and_goes_on(server: RunningServer) -> None:
    *_, body = claude_code(2, *SHORT)
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    result = body["messages"][-2]["content"][0]
    texts, result["content"] = result["content"], [*result["content"], {"type": "image", "source": source}]
    answer = ask_claude(server, body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert ": Could not process image: " in answer.json()["error"]["message"]
    result["content"] = texts
    assert ask_claude(server, body).status_code == 200


def test_a_full_queue_is_refused_in_words_by_which_agents_send_again(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (asked,), (of_codex,) = claude_code(1, *SHORT), codex(1, *SHORT)
    counted = {name: asked[name] for name in ("model", "system", "tools", "messages")}
    with monkeypatch.context() as full:
        full.setattr(server.runtime.serving.admission, "max_waiting", 0)
        refused = ask_claude(server, asked)
        error = {"type": "overloaded_error", "message": "Overloaded"}
        assert (refused.status_code, refused.json()["error"]) == (529, error)
        assert int(refused.headers["retry-after"]) >= 1
        assert "x-should-retry" not in refused.headers
        # It takes no place among those that wait.
        path = f"{server.url}/v1/messages/count_tokens?beta=true"
        assert httpx.post(path, json=counted, headers=CLAUDE_HEADERS).status_code == 200
        refused = httpx.post(f"{server.url}/v1/responses", json=of_codex, headers=CODEX_HEADERS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
    assert ask_claude(server, asked).status_code == 200
    assert ask_codex(server, of_codex)[-1]["type"] == "response.incomplete"
