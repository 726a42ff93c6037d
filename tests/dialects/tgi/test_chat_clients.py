"""The clients of TGI's chats as witnesses: ``openai``, ``huggingface_hub`` and ``text-generation``.

The model's logits are arithmetic: a call or a document that is valid is so because the grammar makes it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from native import tgi_served
from stub_runtime import TOKENIZER, RunningServer, running_server

from dragoman.engine.messages import StubModel

USER: Any = {"role": "user", "content": "How is the weather?"}
WEATHER: Any = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", "Paris"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days"],
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Looks it up.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}},
]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
ANSWER: Any = {
    "type": "object",
    "properties": {
        "sure": {"type": "boolean"},
        "words": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["sure", "words"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    stub = StubModel(vocab_size=TOKENIZER.vocab_size, max_context=1024, num_blocks=96)
    with running_server(tgi_served(), stub=stub) as server:
        yield server


def check_call(function: Any) -> str:
    """The name of a call whose arguments are those of its tool."""
    jsonschema.validate(json.loads(function.arguments), SCHEMAS[function.name])
    return str(function.name)


# openai ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["", "/tgi"], ids=["bare", "prefix"])
def client(request: pytest.FixtureRequest, served: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}{request.param}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"model": "tgi", "messages": [USER], "seed": 3, "max_tokens": 8} | fields
    return client.chat.completions.create(**fields)


def test_openai_chat(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=2)
    (choice,) = answer.choices
    assert answer.model == "stub"
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens == len(choice.logprobs.content) <= 8
    assert all(len(entry.top_logprobs) >= 2 for entry in choice.logprobs.content)
    assert chat(client).choices[0].message.content == choice.message.content, "the seed decides"


def test_openai_stream(client: openai.OpenAI) -> None:
    whole = chat(client)
    *chunks, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == whole.choices[0].message.content
    assert {chunk.choices[0].delta.role for chunk in chunks} == {"assistant"}
    assert last.choices == []
    assert last.usage == whole.usage
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len(chunks) == whole.usage.completion_tokens


def test_openai_tools(client: openai.OpenAI) -> None:
    called = set()
    for seed in range(8):
        answer = chat(client, tools=TOOLS, tool_choice="required", seed=seed, max_tokens=200)
        (choice,) = answer.choices
        (call,) = choice.message.tool_calls
        called.add(check_call(call.function))
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert called == {"weather", "get_time"}
    named = {"type": "function", "function": {"name": "get_time"}}
    (call,) = chat(client, tools=TOOLS, tool_choice=named, max_tokens=200).choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_time", "{}")


def test_openai_auto(client: openai.OpenAI) -> None:
    outcomes = set()
    for seed in range(100):
        choice = chat(client, tools=TOOLS, seed=seed, temperature=1.5, max_tokens=200).choices[0]
        for call in choice.message.tool_calls or ():
            check_call(call.function)
        assert bool(choice.message.tool_calls) != bool(choice.message.content)
        outcomes.add(bool(choice.message.tool_calls))
        if seed >= 12 and len(outcomes) == 2:
            break
    assert outcomes == {True, False}, "some call, and some decline"


def test_openai_streamed_tools(client: openai.OpenAI) -> None:
    for seed in range(4):
        asked: Any = {"tools": TOOLS, "tool_choice": "required", "seed": seed, "max_tokens": 200}
        chunks = list(chat(client, stream=True, **asked))
        calls = [chunk.choices[0].delta.tool_calls[0] for chunk in chunks]
        assert calls[0].function.name in SCHEMAS
        assert {call.function.name for call in calls[1:]} <= {None}
        arguments = "".join(call.function.arguments for call in calls)
        jsonschema.validate(json.loads(arguments), SCHEMAS[calls[0].function.name])
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        (whole,) = chat(client, **asked).choices[0].message.tool_calls
        assert json.loads(whole.function.arguments) == json.loads(arguments)


def test_openai_a_conversation_with_tools(client: openai.OpenAI) -> None:
    (call,) = chat(client, tools=TOOLS, tool_choice="weather", max_tokens=200).choices[0].message.tool_calls
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "Rain."},
    ]
    assert chat(client, messages=messages).usage.prompt_tokens > chat(client).usage.prompt_tokens
    (again, *_) = chat(client, messages=messages, tools=TOOLS, tool_choice="required", max_tokens=200, stream=True)
    assert again.choices[0].delta.tool_calls[0].id == "1"


def test_openai_response_format(client: openai.OpenAI) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER, "strict": True}}
    for seed in range(4):
        answer = chat(client, response_format=schema, seed=seed, max_tokens=100)
        jsonschema.validate(json.loads(answer.choices[0].message.content), ANSWER)
        assert answer.choices[0].finish_reason == "stop"
        assert "\n" not in answer.choices[0].message.content


def test_openai_completions(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tgi", "prompt": ["Once", "And then"], "seed": 3, "max_tokens": 6}
    whole = client.completions.create(**asked, logprobs=2)
    assert [choice.index for choice in whole.choices] == [0, 1]
    texts = ["", ""]
    for chunk in client.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) <= 6


@pytest.mark.parametrize("stream", [False, True])
def test_openai_errors_are_typed(client: openai.OpenAI, stream: bool) -> None:
    for fields in ({"top_p": 7}, {"max_tokens": 100_000}, {"tools": TOOLS, "tool_choice": "other"}):
        with pytest.raises(openai.UnprocessableEntityError) as raised:
            chat(client, stream=stream, **fields)
        assert raised.value.status_code == 422
        assert str(raised.value.body).startswith(("Input validation error: ", "Tool error: "))
    with pytest.raises(openai.UnprocessableEntityError):
        client.completions.create(model="tgi", prompt="a", suffix="b", stream=stream)


def test_openai_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.owned_by, model.created) == ("stub", "stub", 0)


# huggingface_hub ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["", "/tgi", "/tgi/v1/"])
def hub(request: pytest.FixtureRequest, served: RunningServer) -> InferenceClient:
    return InferenceClient(served.url + request.param, timeout=20)


def ask(hub: InferenceClient, **fields: Any) -> Any:
    fields = {"messages": [USER], "seed": 3, "max_tokens": 8} | fields
    return hub.chat_completion(**fields)


def test_hub_chat(hub: InferenceClient) -> None:
    options: Any = {
        "frequency_penalty": 0.25,
        "presence_penalty": -0.25,
        "temperature": 0.75,
        "top_p": 0.9,
        "stop": ["never to be seen"],
        "logprobs": True,
        "top_logprobs": 2,
        "n": 1,
        "logit_bias": [0.0],
    }
    answer = ask(hub, **options)
    (choice,) = answer.choices
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    *chunks, last = ask(hub, stream=True, stream_options={"include_usage": True}, **options)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == choice.message.content
    assert last.usage.completion_tokens == answer.usage.completion_tokens
    assert last.usage.total_tokens == answer.usage.total_tokens


def test_hub_tools(hub: InferenceClient) -> None:
    asked: Any = {"tools": TOOLS, "tool_choice": "required", "tool_prompt": "Call one of these.", "max_tokens": 200}
    (choice,) = ask(hub, **asked).choices
    name = check_call(choice.message.tool_calls[0].function)
    assert choice.finish_reason == "tool_calls"
    arguments = ""
    for chunk in ask(hub, stream=True, **asked):
        (call,) = chunk.choices[0].delta.tool_calls
        assert call.function.name in (name, None)
        arguments += call.function.arguments
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def test_hub_response_format(hub: InferenceClient) -> None:
    for format in (
        {"type": "json", "value": ANSWER},
        {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}},
    ):
        text = ask(hub, response_format=format, max_tokens=100).choices[0].message.content
        jsonschema.validate(json.loads(text), ANSWER)
    pattern: Any = {"type": "regex", "value": "[0-9]{3}-[0-9]{4}"}
    streamed = ask(hub, response_format=pattern, max_tokens=20, stream=True)
    text = "".join(chunk.choices[0].delta.content for chunk in streamed)
    assert [len(part) for part in text.split("-")] == [3, 4]


@pytest.mark.parametrize("stream", [False, True])
def test_hub_errors_are_typed(hub: InferenceClient, stream: bool) -> None:
    with pytest.raises(HfHubHTTPError) as raised:
        list(ask(hub, top_p=7, stream=stream))
    assert raised.value.response.status_code == 422


def test_hub_asynchronously(served: RunningServer) -> None:
    async def talk() -> None:
        async with AsyncInferenceClient(served.url, timeout=20) as hub:
            asked: Any = {"messages": [USER], "seed": 3, "max_tokens": 8}
            whole, tools = await asyncio.gather(
                hub.chat_completion(**asked),
                hub.chat_completion(
                    [USER], tools=TOOLS, tool_choice="weather", seed=3, max_tokens=200, response_format=None
                ),
            )
            check_call(tools.choices[0].message.tool_calls[0].function)
            texts = [
                chunk.choices[0].delta.content or "" async for chunk in await hub.chat_completion(stream=True, **asked)
            ]
            assert "".join(texts) == whole.choices[0].message.content
            formatted = await hub.chat_completion(
                [USER], response_format={"type": "json", "value": ANSWER}, seed=3, max_tokens=100
            )
            jsonschema.validate(json.loads(formatted.choices[0].message.content), ANSWER)

    asyncio.run(talk())


# text-generation ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
def test_text_generation_chat(served: RunningServer) -> None:
    """Unstreamed: the package on PyPI cannot read any stream of TGI's chats."""
    text_generation = pytest.importorskip("text_generation")
    types = pytest.importorskip("text_generation.types")
    client = text_generation.Client(served.url, timeout=20)
    messages = [types.Message(role="user", content="How is it?")]
    answer = client.chat(messages=messages, seed=3, max_tokens=8, temperature=0.75, top_p=0.9, logprobs=True)
    assert answer.choices[0].message.content
    assert answer.usage["completion_tokens"] <= 8
    tools = client.chat(messages=messages, seed=3, max_tokens=200, tools=TOOLS, tool_choice="get_time")
    assert tools.choices[0].message.tool_calls[0]["function"]["name"] == "get_time"

    async def talk() -> Any:
        return await text_generation.AsyncClient(served.url, timeout=20).chat(messages=messages, seed=3, max_tokens=8)

    assert asyncio.run(talk()).choices[0].message.content
