"""Reasoning in Friendli's chats: set apart where that is asked for, by the request or by the operator."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from scripted import ScriptedEngine, ScriptedServer, scripted_server
from stub_runtime import QUICK, STUB, TOKENIZER, LocalServer, local_model, local_server

from dragoman.core.observer import Observers
from dragoman.core.request import ChatPrompt, GenerationRequest
from dragoman.core.resume import ResumeProgress, SavedSequence
from dragoman.core.sampling import EndingParams
from dragoman.dialects import made_dialects
from dragoman.dialects.friendli.settings import FriendliSettings
from dragoman.server.app import create_app
from dragoman.serving.serving import EngineServing
from dragoman.text import ChatTemplate

SOURCE = "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ reasoning_effort }}{# <think></think> #}"
TEXT = "<think>\nIs it?\n</think>\n\nIt is."
CHAT: dict[str, Any] = {"model": "stub", "messages": [{"role": "user", "content": "Hi."}], "seed": 3}


@pytest.fixture(scope="module")
def runtime() -> Iterator[ScriptedServer]:
    template = ChatTemplate({"default": SOURCE})
    with scripted_server(template) as runtime:
        runtime.engine.texts = [TEXT]
        yield runtime
    template.close()


def ask(runtime: ScriptedServer, **fields: Any) -> httpx.Response:
    answer = httpx.post(f"{runtime.url}/serverless/v1/chat/completions", json=CHAT | fields, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, {"content": TEXT}),
        ({"parse_reasoning": False}, {"content": TEXT}),
        ({"parse_reasoning": True}, {"content": "It is.", "reasoning_content": "Is it?"}),
        ({"parse_reasoning": True, "include_reasoning": False}, {"content": "It is."}),
        ({"include_reasoning": True}, {"content": TEXT}),
    ],
)
def test_reasoning_whole_and_streamed(runtime: ScriptedServer, fields: dict[str, Any], message: dict[str, Any]) -> None:
    whole = ask(runtime, **fields).json()["choices"][0]["message"]
    assert whole == {"role": "assistant"} | message
    lines = ask(runtime, **fields, stream=True).text.split("\n\n")
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    joined = {
        name: "".join(delta.get(name) or "" for delta in deltas)
        for name in ("content", "reasoning_content")
        if any(delta.get(name) for delta in deltas)
    }
    assert joined == message
    kinds = [name for delta in deltas for name in ("reasoning_content", "content") if delta.get(name)]
    assert kinds == sorted(kinds, reverse=True), "reasoning comes first"


def test_efforts_are_for_templates_that_read_them(runtime: ScriptedServer) -> None:
    answer = ask(runtime, reasoning_effort="high")
    assert runtime.engine.prompt().endswith("high")
    assert "x-dragoman-warnings" not in answer.headers
    ask(runtime, reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "own"})
    assert runtime.engine.prompt().endswith("own")


@pytest.mark.anyio
async def test_the_operator_may_set_reasoning_apart() -> None:
    template, engine = ChatTemplate({"default": SOURCE}), ScriptedEngine()
    engine.texts = [TEXT]
    serving = EngineServing(engine, local_model(QUICK, STUB, template), Observers())
    app = create_app(
        serving, QUICK, dialects=made_dialects({"friendli": FriendliSettings(friendli_parse_reasoning=True)})
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for fields, content in (({}, "It is."), ({"parse_reasoning": False}, TEXT)):
            answer = await client.post("/serverless/v1/chat/completions", json=CHAT | fields)
            assert answer.json()["choices"][0]["message"]["content"] == content
    template.close()


# The budget ----------------------------------------------------------------------------------------------------------

CALLS = """{% if tools %}{# <tool_call>{"name": "f", "arguments": {}}</tool_call> #}{% endif %}"""
BEGUN = SOURCE + CALLS + "<think>\n"
PATH = "/serverless/v1/chat/completions"
LONG = CHAT | {"max_tokens": 60, "parse_reasoning": True}
MARK = TOKENIZER.encode_inside("</think>")
FLAG = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}


@pytest.fixture
async def thinking(anyio_backend: str) -> AsyncIterator[LocalServer]:
    """A model that begins in its block and says anything at all, so that it never comes to the end by itself."""
    template = ChatTemplate({"default": BEGUN})
    async with local_server(template) as runtime:
        yield runtime
    template.close()


async def answer(runtime: LocalServer, **fields: Any) -> dict[str, Any]:
    got = await runtime.client.post(PATH, json=LONG | fields)
    assert got.status_code == 200, got.text
    assert "x-dragoman-warnings" not in got.headers
    told: dict[str, Any] = got.json()
    return told


@pytest.mark.anyio
@pytest.mark.parametrize("budget", [1, 7, 30])
async def test_a_budget_ends_the_reasoning_and_the_answer_follows(thinking: LocalServer, budget: int) -> None:
    endless = (await answer(thinking))["choices"][0]["message"]
    assert endless["content"] == ""
    told = await answer(thinking, reasoning_budget=budget)
    message = told["choices"][0]["message"]
    assert message["content"]
    assert endless["reasoning_content"].startswith(message.get("reasoning_content", "").strip())
    assert told["usage"]["completion_tokens"] == 60, "the mark is generated like all else"
    plain = (await answer(thinking, reasoning_budget=budget, parse_reasoning=False, logprobs=True))["choices"][0]
    tokens = [entry["token"] for entry in plain["logprobs"]["content"]]
    assert "".join(tokens[budget : budget + len(MARK)]) == "</think>"
    assert plain["message"]["content"].partition("</think>")[2].strip() == message["content"].strip()


@pytest.mark.anyio
async def test_a_stream_brings_the_same_and_every_choice_keeps_it(thinking: LocalServer) -> None:
    whole = (await answer(thinking, reasoning_budget=9, n=3))["choices"]
    lines = (await thinking.client.post(PATH, json=LONG | {"reasoning_budget": 9, "n": 3, "stream": True})).text
    events = [json.loads(line[6:])["choices"][0] for line in lines.split("\n\n") if line.startswith("data: {")]
    for choice in whole:
        deltas = [event["delta"] for event in events if event["index"] == choice["index"]]
        for name in ("reasoning_content", "content"):
            assert "".join(delta.get(name) or "" for delta in deltas) == choice["message"][name] != ""
    assert len({choice["message"]["content"] for choice in whole}) == 3


@pytest.mark.anyio
async def test_a_stop_phrase_and_the_length_count_in_the_block_too(thinking: LocalServer) -> None:
    stopped = await answer(thinking, reasoning_budget=5, stop=["</think>"])
    assert (stopped["choices"][0]["finish_reason"], stopped["usage"]["completion_tokens"]) == ("stop", 5 + len(MARK))
    cut = await answer(thinking, reasoning_budget=5, max_tokens=6)
    assert (cut["choices"][0]["finish_reason"], cut["choices"][0]["message"]["content"]) == ("length", "")


@pytest.mark.anyio
async def test_a_generation_that_goes_on_has_one_budget_for_all_calls(thinking: LocalServer) -> None:
    def call(max_tokens: int, resumed: SavedSequence | None = None) -> GenerationRequest:
        return GenerationRequest(
            request_id=f"r{max_tokens}",
            prompt=ChatPrompt(messages=tuple(CHAT["messages"])),
            seeds=(3,),
            ending=EndingParams(max_tokens=max_tokens),
            reasoning_budget=10,
            resumable=True,
            resumed=resumed,
        )

    whole = (await thinking.serving.generate(call(40))).generations[0].token_ids
    assert whole[10 : 10 + len(MARK)] == MARK
    for lengths in ((4, 36), (10, 30), (11, 29), (13, 27), (25, 15)):
        progress = ResumeProgress()
        for length in lengths:
            before = progress.sequence if progress.new_tokens else None
            progress.note_result(await thinking.serving.generate(call(length, before)))
        assert progress.sequence.output == whole


@pytest.mark.anyio
async def test_a_format_of_the_whole_text_leaves_nothing_to_count(thinking: LocalServer) -> None:
    fields = {"response_format": {"type": "regex", "schema": "[a-z]{12}"}, "reasoning_budget": 3}
    for told in ({"parse_reasoning": False}, {"parse_reasoning": None}):
        got = await thinking.client.post(PATH, json=LONG | fields | told)
        assert got.headers["x-dragoman-warnings"] == "ignored: reasoning_budget"
        content = got.json()["choices"][0]["message"]["content"]
        assert (len(content), content.isalpha()) == (12, True)
    free = await thinking.client.post(PATH, json=LONG | {"response_format": {"type": "text"}, "reasoning_budget": 3})
    assert "x-dragoman-warnings" not in free.headers
    assert free.json()["choices"][0]["message"]["content"]


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("format", "pattern"),
    [
        ({"type": "regex", "schema": "[a-z]{12}"}, "[a-z]{12}"),
        ({"type": "json_schema", "json_schema": {"schema": FLAG}}, r'\{\s*"a"\s*:\s*(true|false)\s*\}'),
    ],
    ids=["regex", "schema"],
)
async def test_a_format_is_that_of_the_answer_behind_the_reasoning(
    thinking: LocalServer, seed: int, format: dict[str, Any], pattern: str
) -> None:
    fields = {"response_format": format, "reasoning_budget": 7, "seed": seed, "n": 2}
    whole = (await answer(thinking, **fields))["choices"]
    lines = (await thinking.client.post(PATH, json=LONG | fields | {"stream": True})).text
    events = [json.loads(line[6:])["choices"][0] for line in lines.split("\n\n") if line.startswith("data: {")]
    for choice in whole:
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["message"]["content"])
        deltas = [event["delta"] for event in events if event["index"] == choice["index"]]
        for name in ("reasoning_content", "content"):
            assert "".join(delta.get(name) or "" for delta in deltas) == choice["message"][name] != ""
    hidden = (await answer(thinking, include_reasoning=False, **fields))["choices"]
    assert [choice["message"]["content"] for choice in hidden] == [choice["message"]["content"] for choice in whole]
    assert not any("reasoning_content" in choice["message"] for choice in hidden)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(4))
async def test_a_required_call_is_made_behind_the_reasoning(thinking: LocalServer, seed: int) -> None:
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": empty}}
    fields = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 150}
    choice = (await answer(thinking, seed=seed, reasoning_budget=8, **fields))["choices"][0]
    assert choice["message"]["reasoning_content"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"


@pytest.mark.anyio
@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True, 2**31])
async def test_budgets_are_whole_and_positive(thinking: LocalServer, value: Any) -> None:
    refused = await thinking.client.post(PATH, json=LONG | {"reasoning_budget": value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "reasoning_budget")
    assert refused.json()["detail"][0]["loc"] == ["body", "reasoning_budget"]
    assert (await thinking.client.post(PATH, json=LONG | {"reasoning_budget": None})).status_code == 200
