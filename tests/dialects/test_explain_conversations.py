"""Conversations with tools, explained in other dialects: the same prompt, in the form that each of them has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from plain_model import BUILTIN
from stub_runtime import TOKENIZER, LocalServer, local_server

from dragoman.core.image_sources import ImageSource, image_part
from dragoman.dialects import made_dialects
from dragoman.dialects.explain_messages import choice_forms, conversations, tool_forms
from dragoman.dialects.explain_translation import Source, first_bodies
from dragoman.dialects.locallab.fields import CHAT as LOCALLAB_CHAT
from dragoman.text import ChatTemplate

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "sky", "description": "Now.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
FLAT = {"name": "sky", "description": "Now.", "input_schema": SCHEMA}
CALL = {"id": "a", "type": "function", "function": {"name": "sky", "arguments": '{"city": "Paris"}'}}
MESSAGES = [
    {"role": "system", "content": "Hi."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "b"}]},
    {"role": "tool", "tool_call_id": "a", "content": "cloudy"},
    {"role": "tool", "tool_call_id": "b", "content": "sunny"},
]
OPENAI = "/openai/v1/chat/completions"


@pytest.fixture(scope="module")
async def house(anyio_backend: str) -> AsyncIterator[LocalServer]:
    template = ChatTemplate.load(BUILTIN, TOKENIZER.special_tokens)
    async with local_server(template, dialects=made_dialects()) as house:
        yield house
    template.close()


async def explained(house: LocalServer, path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = await house.client.post("/explain", json={"path": path, "body": body, **more})
    told: dict[str, Any] = answer.json()
    assert told["accepted"], told
    return told


@pytest.mark.anyio
@pytest.mark.parametrize("choice", ["auto", "required", "none", {"type": "function", "function": {"name": "sky"}}])
async def test_calls_results_and_tools_have_the_same_prompt_everywhere(house: LocalServer, choice: Any) -> None:
    body = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": choice, "max_tokens": 5}
    told = await explained(house, OPENAI, body)
    others = {each["dialect"]: each for each in told["others"]}
    for name in ("anthropic", "ollama", "friendli", "octoai", "gemini"):
        other = others[name]
        assert not other["error"], name
        if name == "ollama" and choice == "none":
            continue  # it has no such choice: the tools are shown
        there = await explained(house, other["path"], other["body"], others=False)
        assert there["requests"][0]["prompt"]["token_ids"] == told["requests"][0]["prompt"]["token_ids"], name
    assert others["ollama"]["body"]["think"] is False


@pytest.mark.anyio
async def test_a_call_that_nobody_made_is_no_refusal(house: LocalServer) -> None:
    """TGI reads a call off every answer with tools; what is only explained has none."""
    told = await explained(house, OPENAI, {"messages": MESSAGES[1:2], "tools": [TOOL], "max_tokens": 5})
    (tgi,) = (each for each in told["others"] if each["dialect"] == "tgi")
    assert not tgi["error"]
    assert tgi["body"]["tools"] == [TOOL]


@pytest.mark.anyio
async def test_anthropics_tools_become_openais(house: LocalServer) -> None:
    (form,) = [form for form in conversations(core_messages()) if form[-1]["role"] == "user"]
    body = {"model": "stub", "max_tokens": 5, "tools": [FLAT], "tool_choice": {"type": "any"}, "messages": form}
    told = await explained(house, "/anthropic/v1/messages", body)
    (openai,) = (each for each in told["others"] if each["dialect"] == "openai")
    assert openai["body"]["tools"] == [TOOL]
    assert openai["body"]["tool_choice"] == "required"
    assert not [each for each in openai["lost"] if each["parameter"] in ("prompt", "constraint")]


def core_messages() -> list[dict[str, Any]]:
    """The messages as serving reads them."""
    function = {"name": "sky", "arguments": {"city": "Paris"}}
    calls = [{"id": id, "type": "function", "function": function} for id in "ab"]
    return [{**message, "tool_calls": calls} if "tool_calls" in message else message for message in MESSAGES]


def test_the_forms_of_a_conversation_with_calls() -> None:
    openai, ollama, anthropic = conversations(core_messages())
    assert openai == MESSAGES
    assert ollama[2]["tool_calls"][0] == {"function": {"name": "sky", "arguments": {"city": "Paris"}}}
    assert [message["role"] for message in anthropic] == ["system", "user", "assistant", "user"]
    assert [block["type"] for block in anthropic[2]["content"]] == ["tool_use", "tool_use"]
    assert [block["tool_use_id"] for block in anthropic[3]["content"]] == ["a", "b"]
    assert not list(conversations(MESSAGES[:2])), "texts are written alike everywhere"


def test_what_a_dialect_does_not_read_in_messages_is_not_shown_there() -> None:
    """LocalLab's messages have texts alone."""
    image = image_part(ImageSource(url="data:image/png;base64,iVBORw0KGgo=", param="messages"))
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}]
    source = Source(values={}, wires={}, body={}, text=None, messages=messages)
    bodies = [body["messages"] for body in first_bodies(LOCALLAB_CHAT, source, "stub")]
    assert bodies == [[{"role": "user", "content": "What is it?"}]]


def test_the_forms_of_tools_and_choices() -> None:
    assert list(tool_forms([TOOL])) == [[FLAT]]
    assert list(tool_forms([FLAT])) == [[TOOL]]
    assert not list(tool_forms(["odd"]))
    for ours, theirs in [
        ("auto", {"type": "auto"}),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ({"type": "function", "function": {"name": "f"}}, {"type": "tool", "name": "f"}),
    ]:
        assert list(choice_forms(ours)) == [theirs]
        assert list(choice_forms(theirs)) == [ours]
    assert not list(choice_forms(7))
