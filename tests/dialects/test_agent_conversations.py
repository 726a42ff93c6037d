"""Whole conversations of coding agents with the embedded model, which really calls their tools.

What it answers is sent back in the next request, as Codex and Claude Code do it: every turn but the first finds all
that was computed before in the cache. A stream that is cut is repeated. When the context overflows, the agent has a
summary written, and goes on from that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from agent_recordings import CLAUDE_HEADERS, CODEX_HEADERS, TURNS, codex_tools, message, schema
from stub_runtime import FOLDER, RunningServer, running_server
from tiny_server import SETTINGS

from dragoman.engine.messages import LoadModel
from dragoman.models.settings import ModelSettings

BLOCK = 32
CONTEXT = 2048
CITIES = ("Paris", "Rome", "Berlin", "Madrid", "Vienna", "London", "Oslo", "Athens", "Dublin", "Lisbon", "Prague")
LOG = "The sky is blue over the city, and the wind comes from the sea. " * 150
SUMMARIZE = "Write a summary of this conversation, from which another agent can go on."


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    settings = ModelSettings(max_sequences=4, max_context=CONTEXT, cache_bytes=0)
    with running_server(
        msgspec.structs.replace(SETTINGS, name="embedded"), LoadModel(source=str(FOLDER), settings=settings), FOLDER
    ) as server:
        yield server


class Counts:
    """The tokens of a conversation's turns: prompt, those of it from the cache, answer."""

    def __init__(self) -> None:
        self.turns: list[tuple[int, int, int]] = []

    def add(self, prompt: int, cached: int, answer: int) -> None:
        """Add a turn; raises AssertionError where it has not found the one before it whole, prompt and answer."""
        if self.turns:
            before = self.turns[-1]
            assert cached >= (before[0] + before[2] - 1) // BLOCK * BLOCK, (self.turns, prompt, cached)
        self.turns.append((prompt, cached, answer))


def question(turn: int) -> str:
    return f"What is the weather in {CITIES[turn % len(CITIES)]}?"


# Codex ----------------------------------------------------------------------------------------------------------------


def codex_body(items: list[dict[str, Any]]) -> dict[str, Any]:
    weather = {
        "type": "function",
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "strict": False,
        "parameters": schema("city"),
    }
    return {
        "model": "embedded",
        "instructions": "You are a coding agent.",
        "input": items,
        "tools": [weather, codex_tools(0)[-1]],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "5d1f",
        "text": {"verbosity": "low"},
        "temperature": 0,
    }


def codex_events(server: RunningServer, body: dict[str, Any], most: int | None = None) -> list[dict[str, Any]]:
    """The events of a stream, or the first of them, after which the client has left."""
    events: list[dict[str, Any]] = []
    with httpx.stream("POST", f"{server.url}/v1/responses", json=body, headers=CODEX_HEADERS, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
            if len(events) == most:
                break
    return events


def codex_answer(server: RunningServer, body: dict[str, Any], counts: Counts) -> list[dict[str, Any]]:
    """The items of an answer, from the events that the agent takes them from."""
    events = codex_events(server, body)
    assert events[-1]["type"] == "response.completed", events[-1]
    usage = events[-1]["response"]["usage"]
    counts.add(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"])
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


def codex_results(answered: list[dict[str, Any]], result: str) -> list[dict[str, Any]]:
    calls = [item for item in answered if item["type"] == "function_call"]
    for call in calls:
        assert call["name"] == "get_weather"
        assert "city" in json.loads(call["arguments"])
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": result} for call in calls]


def test_codex_calls_tools_for_twenty_turns_overflows_and_goes_on(server: RunningServer) -> None:
    counts, called = Counts(), 0
    items = [message("developer", "Be brief."), message("user", question(0))]
    for turn in range(TURNS):
        if turn == 3:  # a stream that is cut; the agent sends the same once more
            created, *_ = codex_events(server, codex_body(items), most=5)
            assert created["type"] == "response.created"
        answered = codex_answer(server, codex_body(items), counts)
        results = codex_results(answered, "Sunny, 20 degrees.")
        called += len(results)
        items = [*items, *answered, *(results or [message("user", question(called))])]
    assert called >= TURNS // 2
    full = [*items, message("user", LOG + question(0))]
    *_, error, last = codex_events(server, codex_body(full))
    assert (error["type"], last["type"]) == ("error", "response.failed")
    assert last["response"]["error"]["code"] == error["error"]["code"] == "context_length_exceeded"
    assert error["error"]["type"] == "invalid_request_error"
    # Of what fits it has a summary made, without tools, which it puts before what the user has asked last.
    asked = codex_body([*items, message("user", SUMMARIZE)]) | {"tools": [], "parallel_tool_calls": False}
    *_, summary = codex_answer(server, asked, Counts())
    assert summary["type"] == "message"
    items = [items[0], message("user", summary["content"][0]["text"]), message("user", question(0))]
    counts = Counts()
    for turn in range(3):
        answered = codex_answer(server, codex_body(items), counts)
        results = codex_results(answered, "Sunny, 20 degrees.")
        items = [*items, *answered, *(results or [message("user", question(turn))])]


# Claude Code ----------------------------------------------------------------------------------------------------------


def claude_body(messages: list[dict[str, Any]], number: int) -> dict[str, Any]:
    billing = (
        f"x-anthropic-billing-header: cc_version=2.1.330.{number:03x}; cc_entrypoint=cli; cch={number * 7919:05x};"
    )
    weather = {"name": "get_weather", "description": "Get the weather of a city.", "input_schema": schema("city")}
    sent = json.loads(json.dumps(messages))
    sent[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return {
        "model": "claude-opus-5-5",
        "max_tokens": 32_000,
        "stream": True,
        "system": [{"type": "text", "text": text} for text in (billing, "You are an agent.", "Be brief.")],
        "tools": [weather],
        "messages": sent,
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": json.dumps({"session_id": "5d1f"})},
        "temperature": 0,
    }


def claude_post(server: RunningServer, body: dict[str, Any], path: str = "messages") -> httpx.Response:
    url = f"{server.url}/v1/{path}?beta=true"
    return httpx.post(url, json=body, headers=CLAUDE_HEADERS, timeout=60)


def claude_blocks(answer: httpx.Response) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The blocks of an answer as the agent puts them together from the events, and the counts of tokens."""
    assert answer.status_code == 200, answer.text
    blocks: list[dict[str, Any]] = []
    usage: dict[str, int] = {}
    inputs: dict[int, str] = {}
    for line in answer.text.splitlines():
        event = json.loads(line[6:]) if line.startswith("data: ") else {"type": ""}
        match event["type"]:
            case "content_block_start":
                blocks.append(event["content_block"])
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                blocks[event["index"]]["text"] += event["delta"]["text"]
            case "content_block_delta" if event["delta"]["type"] == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + event["delta"]["partial_json"]
            case "message_delta":
                usage = event["usage"]
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    return blocks, usage


def claude_answer(server: RunningServer, body: dict[str, Any], counts: Counts) -> list[dict[str, Any]]:
    answer = claude_post(server, body)
    blocks, usage = claude_blocks(answer)
    assert "system.x-anthropic-billing-header" in answer.headers["x-dragoman-warnings"]
    cached = usage["cache_read_input_tokens"]
    counts.add(usage["input_tokens"] + cached, cached, usage["output_tokens"])
    return blocks


def claude_turn(blocks: list[dict[str, Any]], asked: str) -> list[dict[str, Any]]:
    """What the agent adds: the answer, and the results of its calls or what the user says next."""
    uses = [block for block in blocks if block["type"] == "tool_use"]
    for use in uses:
        assert (use["name"], list(use["input"])) == ("get_weather", ["city"])
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": use["id"], "content": "Sunny, 20 degrees."} for use in uses
    ]
    return [
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": results or [{"type": "text", "text": asked}]},
    ]


def test_what_claude_code_asks_before_a_conversation(server: RunningServer) -> None:
    assert httpx.head(f"{server.url}/api/hello").status_code == 404
    models = httpx.get(f"{server.url}/v1/models?limit=1000", headers=CLAUDE_HEADERS).json()
    assert ("model", "embedded") in [(each["type"], each["id"]) for each in models["data"]]
    body = claude_body([{"role": "user", "content": [{"type": "text", "text": question(0)}]}], 1)
    form = {"type": "json_schema", "schema": schema("title")}
    titled = {k: v for k, v in body.items() if k not in ("tools", "thinking")} | {"output_config": {"format": form}}
    blocks, _ = claude_blocks(claude_post(server, titled | {"max_tokens": 200}))
    assert [block["type"] for block in blocks] == ["text"]
    # One request for each tool and text, beside a message of one word.
    foo = {"model": body["model"], "messages": [{"role": "user", "content": "foo"}]}
    counted = [
        claude_post(server, foo | more, "messages/count_tokens").json()["input_tokens"]
        for more in ({}, {"tools": body["tools"]}, {"system": body["system"]}, {"system": body["system"][1:]})
    ]
    assert counted[0] < counted[2] == counted[3] < counted[1]


def test_claude_code_calls_tools_for_twenty_turns_overflows_and_goes_on(server: RunningServer) -> None:
    counts, called = Counts(), 0
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": question(0)}]}]
    for turn in range(TURNS):
        body = claude_body(messages, turn)
        blocks = claude_answer(server, body, counts)
        if turn == 3:  # a stream without an end; the agent sends the same once more, unstreamed
            again = claude_post(server, body | {"stream": False}).json()
            assert [block | {"id": ""} for block in again["content"]] == [block | {"id": ""} for block in blocks]
        called += blocks[-1]["type"] == "tool_use"
        messages = [*messages, *claude_turn(blocks, question(called))]
    assert called >= TURNS // 2
    counted = claude_post(server, claude_body(messages, 99), "messages/count_tokens").json()["input_tokens"]
    full = [*messages[:-1], {"role": "user", "content": [{"type": "text", "text": LOG}]}]
    refused = claude_post(server, claude_body(full, 100))
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    found = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", refused.json()["error"]["message"])
    assert found is not None, refused.text
    assert int(found[1]) > int(found[2]) == CONTEXT - 1
    # Of what fits it has a summary made: the conversation, and one more instruction.
    asked = [
        *messages[:-1],
        {"role": "user", "content": [*messages[-1]["content"], {"type": "text", "text": SUMMARIZE}]},
    ]
    before = counts.turns[-1]
    summary = claude_answer(server, claude_body(asked, 101), counts)
    assert counts.turns[-1][0] > counted > before[0]
    text = "".join(block.get("text", "") for block in summary)
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": f"Summary: {text}"}, {"type": "text", "text": question(0)}],
        }
    ]
    counts = Counts()
    for turn in range(3):
        blocks = claude_answer(server, claude_body(messages, 200 + turn), counts)
        messages = [*messages, *claude_turn(blocks, question(turn))]
