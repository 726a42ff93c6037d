"""Calls that are made valid by a grammar, with a model that would say anything: its logits are arithmetic."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pydantic
import pytest
from scripted import calls_of
from stub_runtime import TOKENIZER, running_server

from dragoman.engine.messages import StubModel

ASK: Any = {"role": "user", "content": "How is the weather?"}
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", "Paris"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
EMPTY: Any = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": SCHEMA, "get_time": EMPTY}


def tools(strict: bool = False) -> Any:
    return [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
        for name, schema in SCHEMAS.items()
    ]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    stub = StubModel(vocab_size=TOKENIZER.vocab_size, max_context=1024, num_blocks=64)
    with (
        running_server(stub=stub) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(client: openai.OpenAI, seed: int, **fields: Any) -> Any:
    fields = {"tools": tools(), "temperature": 1.5} | fields
    return client.chat.completions.create(model="stub", messages=[ASK], seed=seed, **fields)


def check(message: Any) -> list[str]:
    """The names of the calls, all of which are valid."""
    for name, arguments in calls_of(message):
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    return [name for name, _ in calls_of(message)]


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_is_made_and_valid(client: openai.OpenAI, seed: int) -> None:
    (choice,) = ask(client, seed, tool_choice="required", parallel_tool_calls=False).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert len(check(choice.message)) == 1


@pytest.mark.parametrize("seed", range(2))
def test_a_named_tool_is_called_once_and_the_answer_says_stop(client: openai.OpenAI, seed: int) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    (choice,) = ask(client, seed, tool_choice=named).choices
    assert (choice.finish_reason, choice.message.content) == ("stop", None)
    assert check(choice.message) == ["weather"]


def test_several_calls_may_be_made_at_once(client: openai.OpenAI) -> None:
    counts = []
    for seed in range(6):
        (choice,) = ask(client, seed, tool_choice="required", max_tokens=300).choices
        names = [name for name, arguments in calls_of(choice.message)]
        if choice.finish_reason == "tool_calls":
            assert check(choice.message) == names
        counts.append(len(names))
    assert max(counts) > 1


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    for seed in range(3):
        message = ask(client, seed, tool_choice=choice, parallel_tool_calls=False).choices[0].message
        assert check(message) == ["get_time"]


def test_a_streamed_call_is_the_whole_one(client: openai.OpenAI) -> None:
    fields: Any = {"tool_choice": "required", "parallel_tool_calls": False, "n": 2}
    whole = ask(client, 5, **fields)
    with client.chat.completions.stream(
        model="stub", messages=[ASK], seed=5, tools=tools(), temperature=1.5, **fields
    ) as stream:
        final = stream.get_final_completion()
    for one, other in zip(whole.choices, final.choices, strict=True):
        assert calls_of(one.message) == calls_of(other.message)
        assert one.finish_reason == other.finish_reason


def test_a_call_the_model_chooses_to_make_is_valid_when_strict(client: openai.OpenAI) -> None:
    """The mark that opens a call is forced upon the model; what follows is its own."""
    marks = {str(token): 100 for token in TOKENIZER.encode("<tool_call>", add_special_tokens=False)}
    for seed in range(4):
        fields: Any = {"logit_bias": marks, "max_tokens": 200, "parallel_tool_calls": False}
        (choice,) = ask(client, seed, tools=tools(strict=True), **fields).choices
        assert choice.finish_reason == "tool_calls"
        assert len(check(choice.message)) == 1


class Unit(enum.StrEnum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


class Forecast(pydantic.BaseModel):
    """Looks up a forecast."""

    days: int = pydantic.Field(ge=1, le=9)
    unit: Unit


@pytest.mark.parametrize("streamed", [False, True])
def test_pydantic_tools_come_back_parsed(client: openai.OpenAI, streamed: bool) -> None:
    fields: Any = {
        "model": "stub",
        "messages": [ASK],
        "tools": [openai.pydantic_function_tool(Forecast)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "seed": 2,
    }
    if streamed:
        with client.chat.completions.stream(**fields) as stream:
            answer = stream.get_final_completion()
    else:
        answer = client.chat.completions.parse(**fields)
    (call,) = answer.choices[0].message.tool_calls or []
    parsed = call.function.parsed_arguments
    assert isinstance(parsed, Forecast)
    assert 1 <= parsed.days <= 9


@pytest.mark.parametrize(
    "schema",
    [{"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, {"properties": {"a": {"uniqueItems": True}}}],
)
def test_a_schema_that_cannot_be_enforced_is_refused_by_name(client: openai.OpenAI, schema: Any) -> None:
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    for more in ({}, {"response_format": {"type": "json_object"}}):
        with pytest.raises(openai.BadRequestError) as raised:
            ask(client, 0, tools=[other, tool], **more)
        assert raised.value.param == "tools[1].function.parameters"
        assert "Invalid 'tools[1].function.parameters': " in raised.value.message
    tool["function"]["strict"] = False
    ask(client, 0, tools=[other, tool], max_tokens=2)
    named = {"type": "function", "function": {"name": "other"}}
    ask(client, 0, tools=[other, tool], tool_choice=named, max_tokens=2)


def test_the_format_of_a_custom_tool_that_cannot_be_enforced_is_refused_by_name(client: openai.OpenAI) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "(?=a)b"}}
    tool = {"type": "custom", "custom": {"name": "f", "format": form}}
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, 0, tools=[tool])
    assert raised.value.param == "tools[0].custom.format"


def test_tools_and_a_form_of_json_both_hold(client: openai.OpenAI) -> None:
    form = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
    fields: Any = {"response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": form}}}
    seen = set()
    for seed in range(6):
        choice = ask(client, seed, **fields, max_tokens=300).choices[0]
        if choice.finish_reason == "length":
            continue
        if choice.message.tool_calls:
            assert check(choice.message)
            assert choice.message.content is None
        else:
            assert json.loads(choice.message.content).keys() == {"sure"}
        seen.add(choice.finish_reason)
    assert seen
    assert check(ask(client, 0, tool_choice="required", **fields, max_tokens=300).choices[0].message)
    assert ask(client, 0, tool_choice="none", **fields).choices[0].message.content.startswith("{")


def test_tools_and_other_forms_exclude_each_other(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, 0, extra_body={"guided_regex": "a+"})
    assert raised.value.param == "guided_regex"
