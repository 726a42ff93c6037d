"""Reasoning in Friendli's chats: set apart where that is asked for, by the request or by the operator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted import ScriptedEngine, ScriptedHouse, scripted_house
from stub_house import QUICK, STUB, local_model

from dragoman.dialects import made_dialects
from dragoman.dialects.friendli.settings import FriendliSettings
from dragoman.server.app import create_app
from dragoman.server.metrics import Metrics
from dragoman.server.serving import EngineServing
from dragoman.text import ChatTemplate

SOURCE = "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ reasoning_effort }}{# <think></think> #}"
TEXT = "<think>\nIs it?\n</think>\n\nIt is."
CHAT: dict[str, Any] = {"model": "stub", "messages": [{"role": "user", "content": "Hi."}], "seed": 3}


@pytest.fixture(scope="module")
def house() -> Iterator[ScriptedHouse]:
    template = ChatTemplate({"default": SOURCE})
    with scripted_house(template) as house:
        house.engine.texts = [TEXT]
        yield house
    template.close()


def ask(house: ScriptedHouse, **fields: Any) -> httpx.Response:
    answer = httpx.post(f"{house.url}/serverless/v1/chat/completions", json=CHAT | fields, timeout=20)
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
def test_reasoning_whole_and_streamed(house: ScriptedHouse, fields: dict[str, Any], message: dict[str, Any]) -> None:
    whole = ask(house, **fields).json()["choices"][0]["message"]
    assert whole == {"role": "assistant"} | message
    lines = ask(house, **fields, stream=True).text.split("\n\n")
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    joined = {
        name: "".join(delta.get(name) or "" for delta in deltas)
        for name in ("content", "reasoning_content")
        if any(delta.get(name) for delta in deltas)
    }
    assert joined == message
    kinds = [name for delta in deltas for name in ("reasoning_content", "content") if delta.get(name)]
    assert kinds == sorted(kinds, reverse=True), "reasoning comes first"


def test_efforts_are_for_templates_that_read_them(house: ScriptedHouse) -> None:
    answer = ask(house, reasoning_effort="high")
    assert house.engine.prompt().endswith("high")
    assert "x-dragoman-warnings" not in answer.headers
    ask(house, reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "own"})
    assert house.engine.prompt().endswith("own")


def test_a_budget_is_refused_for_models_that_reason(house: ScriptedHouse) -> None:
    answer = httpx.post(f"{house.url}/serverless/v1/chat/completions", json=CHAT | {"reasoning_budget": 9}, timeout=20)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "reasoning_budget")


@pytest.mark.anyio
async def test_the_operator_may_set_reasoning_apart() -> None:
    template, engine = ChatTemplate({"default": SOURCE}), ScriptedEngine()
    engine.texts = [TEXT]
    serving = EngineServing(engine, local_model(QUICK, STUB, template), Metrics())
    app = create_app(
        serving, QUICK, dialects=made_dialects({"friendli": FriendliSettings(friendli_parse_reasoning=True)})
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        for fields, content in (({}, "It is."), ({"parse_reasoning": False}, TEXT)):
            answer = await client.post("/serverless/v1/chat/completions", json=CHAT | fields)
            assert answer.json()["choices"][0]["message"]["content"] == content
    template.close()
