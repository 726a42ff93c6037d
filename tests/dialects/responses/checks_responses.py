"""The package ``openai`` with the Responses API: what its users do, with what they must see. Run by
``test_responses_package``."""

from __future__ import annotations

import json
from typing import Any

import openai
from checking import raised, run
from pydantic import BaseModel

ASK = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Sure(BaseModel):
    sure: bool


def client(url: str, *, strict: bool = False) -> openai.OpenAI:
    """``strict``: what an answer lacks of its type raises."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=strict)


def create(url: str, **fields: Any) -> Any:
    return client(url).responses.create(**{"model": "embedded", "input": ASK, "temperature": 0} | fields)


def check_a_response(url: str) -> None:
    response = create(url)
    assert (response.output_text, response.status) == (ANSWER, "completed")
    assert response.usage.input_tokens_details.cached_tokens >= 0
    again = client(url).responses.retrieve(response.id)
    assert again == response


def check_a_stream(url: str) -> None:
    with client(url).responses.stream(model="embedded", input=ASK, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == ANSWER


async def check_an_async_stream(url: str) -> None:
    asking = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    async with asking, asking.responses.stream(model="embedded", input=ASK, max_output_tokens=3) as stream:
        kinds = [event.type async for event in stream]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.incomplete"), kinds


def check_a_parsed_response(url: str) -> None:
    response = client(url).responses.parse(model="embedded", input=ASK, temperature=0, text_format=Sure)
    assert isinstance(response.output_parsed, Sure), response


def check_a_loop_of_tools(url: str) -> None:
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = create(url, input=asked, tools=[WEATHER], tool_choice="required")
    (call,) = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 20 degrees."}
    whole = create(url, input=[*asked, *first.output, result], tools=[WEATHER])
    chained = create(url, input=[result], tools=[WEATHER], previous_response_id=first.id)
    assert whole.output[-1].type == "message", whole
    assert chained.output_text == whole.output_text


def check_calls_are_streamed(url: str) -> None:
    weather = openai.pydantic_function_tool(Sure, name="get_weather")["function"]
    tool: Any = {"type": "function", "strict": True, **{name: weather[name] for name in ("name", "parameters")}}
    body: Any = {"model": "embedded", "input": ASK, "tools": [tool], "tool_choice": "required", "temperature": 0}
    with client(url).responses.stream(**body) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_response().output
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= kinds
    assert isinstance(call.parsed_arguments, dict | Sure), call


def check_a_background_response(url: str) -> None:
    asking = client(url)
    begun = create(url, background=True)
    assert begun.status == "queued", begun
    with asking.responses.stream(response_id=begun.id, starting_after=4) as stream:
        numbers = [event.sequence_number for event in stream]
        final = stream.get_final_response()
    assert numbers == list(range(5, numbers[-1] + 1))
    assert final.output_text == ANSWER
    assert asking.responses.retrieve(begun.id).status == "completed"
    assert asking.responses.cancel(begun.id).status == "completed"


def check_a_cancelled_response(url: str) -> None:
    asking = client(url)
    begun = create(url, background=True, extra_body={"ignore_eos": True}, temperature=1)
    cancelled = asking.responses.cancel(begun.id)
    assert cancelled.status in ("cancelled", "incomplete"), cancelled
    assert asking.responses.retrieve(begun.id) == cancelled
    asking.responses.delete(begun.id)
    raised(openai.NotFoundError, asking.responses.retrieve, begun.id)


def check_input_items_and_tokens(url: str) -> None:
    asking = client(url)
    response = create(url, instructions="Calm.")
    (item,) = list(asking.responses.input_items.list(response.id))
    assert item.content[0].text == ASK
    counted = asking.responses.input_tokens.count(model="embedded", input=ASK, instructions="Calm.")
    assert counted.input_tokens == response.usage.input_tokens


def check_listed_items_have_their_types(url: str) -> None:
    """As short as they may be sent: the lists have what the types of the package require."""
    asking = client(url, strict=True)
    items: Any = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Calm."}]},
        {"role": "user", "content": ASK},
        {"type": "reasoning", "id": "rs_9", "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "g", "input": "x"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "text", "text": "Sun."}]},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Rain."},
        {"role": "assistant", "content": "Both."},
        {"role": "user", "content": [{"type": "text", "text": ASK}]},
    ]
    begun = asking.conversations.create(items=items)
    added = asking.conversations.items.create(begun.id, items=items)
    assert [item.type for item in added.data] == [item.get("type", "message") for item in items]
    listed = asking.conversations.items.list(begun.id, order="asc", limit=100).data
    assert listed[10:] == added.data
    for item in added.data:
        assert asking.conversations.items.retrieve(str(item.id), conversation_id=begun.id) == item
    response = asking.responses.create(model="embedded", input=items, max_output_tokens=1)
    given = asking.responses.input_items.list(response.id, order="asc", limit=100).data
    assert [(item.type, getattr(item, "status", "completed")) for item in given if item.type != "reasoning"] == [
        (item.get("type", "message"), "completed") for item in items if item.get("type") != "reasoning"
    ]
    asking.responses.create(model="embedded", input=ASK, conversation=begun.id, max_output_tokens=1)
    assert len(asking.conversations.items.list(begun.id, limit=100).data) == 22
    assert asking.conversations.update(begun.id, metadata=None).metadata == {}


def check_errors(url: str) -> None:
    for fields, kind, code in (
        ({"input": "a " * 9000}, openai.BadRequestError, "context_length_exceeded"),
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found"),
        ({"previous_response_id": "resp_x"}, openai.BadRequestError, "previous_response_not_found"),
    ):
        assert raised(kind, create, url, **fields).code == code
    error = raised(openai.APIError, list, create(url, input="a " * 9000, stream=True))
    assert error.code == "context_length_exceeded"


def check_codex_turns(url: str) -> None:
    """The requests of Codex: everything is sent again, reasoning is encrypted, nothing is stored."""
    hosted = {"type": "web_search", "external_web_access": False}
    patch = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /(.|\\n)*/'},
    }
    turns: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be short."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is the weather?"}]},
    ]
    cached = 0
    for turn in range(4):
        body: Any = {
            "instructions": "You are a coding agent.",
            "input": turns,
            "tools": [WEATHER | {"strict": False}, patch, hosted],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "thread",
            "text": {"verbosity": "low"},
            "max_output_tokens": 24,
        }
        events = list(create(url, **body))
        done = [event.item.model_dump(exclude_none=True) for event in events if event.type.endswith("output_item.done")]
        assert events[-1].type in ("response.completed", "response.incomplete"), events[-1]
        assert done
        cached = events[-1].response.usage.input_tokens_details.cached_tokens
        assert cached > 0 or turn == 0
        turns += [item for item in done if item["type"] == "message"]
        turns += [
            {"type": "function_call", "call_id": f"c{turn}", "name": "get_weather", "arguments": '{"city": "Paris"}'},
            {"type": "function_call_output", "call_id": f"c{turn}", "output": f"Sunny, {turn} degrees."},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Go on."}]},
        ]


run(globals())
