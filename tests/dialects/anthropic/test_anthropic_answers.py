"""Answers of the Anthropic dialect, whole and streamed, to a model that says what the test wants."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted import ScriptedServer, can_follow, scripted_server

from dragoman.dialects.anthropic.thinking import signature
from dragoman.text import ChatTemplate

ASK: dict[str, Any] = {"model": "stub", "max_tokens": 200, "messages": [{"role": "user", "content": "Hi."}]}
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
TIME = {"name": "get_time", "description": "The time.", "input_schema": {}}
TOOLS: dict[str, Any] = {"tools": [WEATHER, TIME]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
SOURCE = (
    "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}{{ enable_thinking }}{{ reasoning_effort }}"
    "{# <think></think> #}"
)
THOUGHT = "<think>\nIs it?\n</think>\n\nIt is."


@pytest.fixture(scope="module")
def calling(template: ChatTemplate) -> Iterator[ScriptedServer]:
    with scripted_server(template) as server:
        yield server


@pytest.fixture(scope="module")
def reasoning() -> Iterator[ScriptedServer]:
    template = ChatTemplate({"default": SOURCE})
    with scripted_server(template) as server:
        yield server
    template.close()


def post(server: ScriptedServer, path: str, body: Any, **more: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=20, **more)


def ask(server: ScriptedServer, text: str, **fields: Any) -> dict[str, Any]:
    """The whole answer, which is also what the stream comes to."""
    server.engine.texts = [text]
    answer = post(server, "/v1/messages", ASK | fields)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    streamed = gathered(events_of(post(server, "/v1/messages", ASK | fields | {"stream": True})))
    assert unnumbered(streamed) == unnumbered(whole)
    return whole


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = []
    for written in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = re.fullmatch(r"event: (\w+)\ndata: (\{.*\})", written).groups()  # type: ignore[union-attr]
        found.append(json.loads(data))
        assert found[-1]["type"] == name
    return found


def gathered(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream comes to, put together as the packages do it."""
    begin, *middle, last, end = events
    assert (begin["type"], last["type"], end) == ("message_start", "message_delta", {"type": "message_stop"})
    message: dict[str, Any] = begin["message"]
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    is_open, arguments = False, ""
    for event in middle:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                is_open, arguments = True, ""
            case "content_block_delta":
                assert event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], event["delta"]
                kind = delta.pop("type")
                ((name, text),) = delta.items()
                assert kind == {"partial_json": "input_json_delta"}.get(name, f"{name}_delta")
                if name == "partial_json":
                    arguments += text
                    try:
                        block["input"] = json.loads(arguments)
                    except ValueError:
                        continue
                else:
                    block[name] += text
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(message["content"]) - 1
                is_open = False
            case _:
                raise AssertionError(event)
    assert not is_open
    context = {name: last[name] for name in ("context_management",) if name in last}
    return message | last["delta"] | {"usage": message["usage"] | last["usage"]} | context


def unnumbered(message: dict[str, Any]) -> dict[str, Any]:
    assert re.fullmatch("msg_[0-9a-f]{24}", message["id"])
    made = json.loads(re.sub("toolu_[0-9a-f]{24}", "toolu_", json.dumps(message)))
    return {**made, "id": "", "usage": {**made["usage"], "cache_read_input_tokens": 0, "input_tokens": 0}}


# Text ----------------------------------------------------------------------------------------------------------------


def test_a_text(calling: ScriptedServer) -> None:
    answer = ask(calling, "It is four.")
    assert list(answer) == [
        "id",
        "type",
        "role",
        "model",
        "content",
        "stop_reason",
        "stop_sequence",
        "stop_details",
        "usage",
    ]
    assert answer["content"] == [{"type": "text", "text": "It is four."}]
    assert (answer["model"], answer["stop_reason"], answer["stop_sequence"]) == ("stub", "end_turn", None)
    assert answer["usage"]["output_tokens_details"] == {"thinking_tokens": 0}
    assert calling.engine.requests[-1].max_tokens == 200


def test_nothing_is_one_empty_text(calling: ScriptedServer) -> None:
    assert ask(calling, "")["content"] == [{"type": "text", "text": ""}]


def test_a_length_that_does_not_fit_is_lowered(calling: ScriptedServer) -> None:
    assert ask(calling, "Hm.", max_tokens=128_000)["stop_reason"] == "end_turn"
    assert ask(calling, "Once upon a time", max_tokens=2)["stop_reason"] == "max_tokens"
    told = ask(calling, "Once " * 4096, max_tokens=128_000)
    assert told["stop_reason"] == "model_context_window_exceeded"


def test_a_stop_sequence_is_named(calling: ScriptedServer) -> None:
    answer = ask(calling, "It is four. Or five.", stop_sequences=["six", " Or"])
    assert answer["content"][0]["text"] == "It is four."
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", " Or")


def test_a_turn_of_the_assistant_is_continued(calling: ScriptedServer) -> None:
    turns = [*ASK["messages"], {"role": "assistant", "content": "It is "}]
    assert ask(calling, "four.", messages=turns)["content"] == [{"type": "text", "text": "four."}]
    assert calling.engine.prompt().endswith("assistant\nIt is ")


def test_each_name_of_claude_means_the_default_model(calling: ScriptedServer) -> None:
    assert ask(calling, "Hm.", model="Claude-Opus-5-5")["model"] == "stub"
    missing = post(calling, "/v1/messages", ASK | {"model": "gpt-5"})
    assert (missing.status_code, missing.json()["error"]) == (
        404,
        {"type": "not_found_error", "message": "model: gpt-5"},
    )


def test_prompts_are_counted_as_they_run(calling: ScriptedServer) -> None:
    body = {name: value for name, value in ASK.items() if name != "max_tokens"} | TOOLS | {"system": "Calm."}
    counted = post(calling, "/v1/messages/count_tokens?beta=true", body).json()
    ask(calling, "Hm.", system="Calm.", **TOOLS)
    assert counted == {"input_tokens": len(calling.engine.requests[-1].prompt)}
    managed = post(calling, "/v1/messages/count_tokens", body | {"context_management": {"edits": []}}).json()
    assert managed["context_management"] == {"original_input_tokens": counted["input_tokens"]}


# Tools ---------------------------------------------------------------------------------------------------------------


def test_calls_behind_text(calling: ScriptedServer) -> None:
    answer = ask(calling, f"Let me look.\n{CALL}\n{NOW}", **TOOLS)
    text, first, second = answer["content"]
    assert text == {"type": "text", "text": "Let me look."}
    assert (first["name"], first["input"], second["name"], second["input"]) == (
        "weather",
        {"city": "Köln"},
        "get_time",
        {},
    )
    assert answer["stop_reason"] == "tool_use"


def test_calls_that_the_model_chooses_follow_a_grammar(calling: ScriptedServer) -> None:
    ask(calling, CALL, **TOOLS)
    assert can_follow(calling, f"Hm. {CALL}\n{NOW}")
    assert not can_follow(calling, "<tool_call>\nHm")
    once = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    ask(calling, CALL, **TOOLS, **once)
    assert can_follow(calling, CALL)
    assert not can_follow(calling, f"{CALL}\n{NOW}")


def test_a_tool_by_name_is_used(calling: ScriptedServer) -> None:
    answer = ask(calling, CALL, **TOOLS, tool_choice={"type": "tool", "name": "weather"})
    assert answer["stop_reason"] == "tool_use"
    assert can_follow(calling, CALL)
    assert not can_follow(calling, NOW)


def test_a_schema_that_cannot_be_enforced_is_refused_by_its_place(calling: ScriptedServer) -> None:
    tools = [WEATHER, {**TIME, "defer_loading": True}, {"name": "odd", "input_schema": {"type": "object", "if": {}}}]
    choice = {"tool_choice": {"type": "any"}}
    error = post(calling, "/v1/messages", ASK | {"tools": tools} | choice).json()["error"]
    assert error["message"].startswith("tools.2.input_schema: the schema cannot be enforced: 'if'")


def test_cut_arguments_are_closed(calling: ScriptedServer) -> None:
    calling.engine.texts = ['<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "day": "Mon']
    answer = post(calling, "/v1/messages", ASK | TOOLS | {"max_tokens": 200}).json()
    assert answer["content"][0]["input"] == {"city": "Köln"}


def test_stop_sequences_do_not_count_in_calls(calling: ScriptedServer) -> None:
    answer = ask(calling, f"Hm.\n{CALL}", **TOOLS, stop_sequences=["Köln", "}"])
    assert (answer["content"][1]["input"], answer["stop_reason"]) == ({"city": "Köln"}, "tool_use")
    assert ask(calling, f"In Köln.\n{CALL}", **TOOLS, stop_sequences=["Köln"])["stop_sequence"] == "Köln"


def test_deferred_tools_are_not_shown_until_they_are_named(calling: ScriptedServer) -> None:
    deferred = [WEATHER, {**TIME, "defer_loading": True}]
    ask(calling, CALL, tools=deferred)
    assert "get_time" not in calling.engine.prompt()
    assert not can_follow(calling, NOW)
    found = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "tool_reference", "tool_name": "get_time"}],
    }
    turns = [
        *ASK["messages"],
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]},
        {"role": "user", "content": [found]},
    ]
    ask(calling, NOW, tools=deferred, messages=turns)
    assert can_follow(calling, NOW)
    head = calling.engine.prompt().partition("</tools>")[0]
    assert "get_time" not in head
    every = [{**tool, "defer_loading": True} for tool in deferred]
    assert post(calling, "/v1/messages", ASK | {"tools": every}).status_code == 400


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools: Tool names must be unique."),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools.0.type: 'web_search_20250305' is a tool of Anthropic's servers; this server runs none",
        ),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}]},
            "tools.0.type: 'bash_20250124' is a tool whose schema only Anthropic's models know; "
            "give it as type 'custom', with its 'input_schema'",
        ),
        ({"tools": [{"name": "a"}]}, "tools.0.input_schema: Field required"),
        (
            TOOLS | {"tool_choice": {"type": "tool", "name": "dance"}},
            "tool_choice.name: Tool 'dance' not found in `tools`.",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice: only allowed when `tools` are specified"),
        ({"max_tokens": None}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": -1}, "max_tokens: Input should be greater than or equal to 0"),
        ({"temperature": 2.5}, "temperature: Input should be less than or equal to 2"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 200}},
            "`max_tokens` must be greater than `thinking.budget_tokens`",
        ),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, r"prompt is too long: \d+ tokens > 4095 maximum"),
        (
            TOOLS | {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
            "output_config.format.schema: not together with `tools` that may be called",
        ),
        (
            {"output_format": {"type": "json_schema", "schema": {"type": "banana"}}},
            "output_format.schema: .*",
        ),
    ],
)
def test_errors_are_anthropics(calling: ScriptedServer, fields: dict[str, Any], said: str) -> None:
    answer = post(calling, "/v1/messages", ASK | fields)
    error = answer.json()
    assert (answer.status_code, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
    message = error["error"]["message"]
    assert message == said or re.fullmatch(said, message), message
    assert error["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_errors_that_clients_act_on(calling: ScriptedServer) -> None:
    error = post(calling, "/v1/messages", ASK | {"thread": {"type": "create"}}).json()["error"]
    assert error == {
        "type": "invalid_request_error",
        "message": "thread: this server keeps no conversations",
        "details": {"error_code": "thread_unsupported_request", "unsupported": []},
    }
    packed = post(calling, "/v1/messages", ASK, headers={"content-encoding": "gzip"}).json()["error"]
    assert packed["details"] == {"error_code": "request_body_encoding_unsupported"}
    unknown = post(calling, "/v1/messages/nonsense", ASK)
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")


# Reasoning -----------------------------------------------------------------------------------------------------------


def test_reasoning_is_hidden_where_it_is_off(reasoning: ScriptedServer) -> None:
    for fields in ({}, {"thinking": {"type": "disabled"}}):
        answer = ask(reasoning, THOUGHT, **fields)
        assert answer["content"] == [{"type": "text", "text": "It is."}]
        assert 0 < answer["usage"]["output_tokens_details"]["thinking_tokens"] < answer["usage"]["output_tokens"]
        assert reasoning.engine.prompt().endswith("]False")


def test_reasoning_is_a_block_where_it_is_on(reasoning: ScriptedServer) -> None:
    answer = ask(reasoning, THOUGHT, thinking={"type": "adaptive"}, output_config={"effort": "max"})
    signed = signature("Is it?", hidden=False)
    assert answer["content"] == [
        {"type": "thinking", "thinking": "Is it?", "signature": signed},
        {"type": "text", "text": "It is."},
    ]
    assert reasoning.engine.prompt().endswith("]Truehigh")


def test_reasoning_is_kept_in_its_signature(reasoning: ScriptedServer) -> None:
    answer = ask(reasoning, THOUGHT, thinking={"type": "adaptive", "display": "omitted"})
    assert answer["content"][0] == {
        "type": "thinking",
        "thinking": "",
        "signature": signature("Is it?", hidden=True),
    }


def test_a_cut_block_is_the_whole_answer(reasoning: ScriptedServer) -> None:
    answer = ask(reasoning, "<think>\nIs it? Is it not?", thinking={"type": "adaptive"}, max_tokens=8)
    assert [block["type"] for block in answer["content"]] == ["thinking"]
    assert answer["stop_reason"] == "max_tokens"
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] == 8


def test_stop_sequences_do_not_count_in_reasoning(reasoning: ScriptedServer) -> None:
    answer = ask(reasoning, THOUGHT, stop_sequences=["it?", "is."], thinking={"type": "adaptive"})
    assert (answer["content"][1]["text"], answer["stop_sequence"]) == ("It ", "is.")


def test_a_budget_is_kept(reasoning: ScriptedServer) -> None:
    ask(reasoning, THOUGHT, thinking={"type": "enabled", "budget_tokens": 3})
    limit = reasoning.engine.requests[-1].reasoning
    assert limit is not None
    assert limit.tokens == 3


def test_what_has_no_effect_is_told(calling: ScriptedServer, reasoning: ScriptedServer) -> None:
    calling.engine.texts = reasoning.engine.texts = ["Hm."]
    fields = {
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "u"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "other"}]},
        "diagnostics": {},
        "cache_control": {"type": "ephemeral"},
        "service_tier": "standard_only",
    }
    answer = post(calling, "/v1/messages", ASK | fields)
    told = answer.headers["x-dragoman-warnings"]
    assert told == ("ignored: metadata, diagnostics, thinking, output_config.effort, context_management.edits[1]")
    assert answer.json()["context_management"] == {"applied_edits": []}
    assert answer.json()["diagnostics"] is None
    told = post(reasoning, "/v1/messages", ASK | fields).headers["x-dragoman-warnings"]
    assert told == "ignored: metadata, diagnostics, context_management.edits[1]"


# Models --------------------------------------------------------------------------------------------------------------


def test_models_are_anthropics_for_its_clients(calling: ScriptedServer) -> None:
    version = {"anthropic-version": "2023-06-01"}
    page = httpx.get(f"{calling.url}/v1/models?limit=1000", headers=version).json()
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "stub", page["data"][-1]["id"])
    entry = page["data"][0]
    assert (entry["type"], entry["id"], entry["max_input_tokens"]) == ("model", "stub", 4095)
    assert httpx.get(f"{calling.url}/v1/models/claude-x", headers=version).json() == entry
    assert httpx.get(f"{calling.url}/v1/models").json()["object"] == "list"
    bad = httpx.get(f"{calling.url}/v1/models?limit=0", headers=version)
    assert (bad.status_code, bad.json()["type"]) == (400, "error")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "path", ["/v1/files", "/v1/files/file-1", "/v1/files/file-1/content", "/v1/skills", "/v1/complete"]
)
def test_what_is_not_there_is_unknown_in_anthropics_words(calling: ScriptedServer, method: str, path: str) -> None:
    version = {"anthropic-version": "2023-06-01"}
    answer = httpx.request(method, calling.url + path + "?beta=true", headers=version, data={"a": "b"})
    error = {"type": "not_found_error", "message": f"Unknown URL: {method} {path}"}
    id = answer.headers["request-id"]
    assert (answer.status_code, answer.json()) == (404, {"type": "error", "error": error, "request_id": id})
    of_openai = httpx.request(method, f"{calling.url}/openai{path}", headers=version)
    assert "type" not in of_openai.json(), "the path names the dialect"
    assert "type" not in httpx.request(method, calling.url + path).json()


# Conversations -------------------------------------------------------------------------------------------------------


def test_each_turn_of_an_agent_begins_with_the_prompt_before_it(calling: ScriptedServer) -> None:
    """Twenty turns with tools, as a coding agent has them: a number in front that changes, and notes of its own behind
    each result."""
    turns: list[dict[str, Any]] = []
    before: tuple[int, ...] = ()
    for turn in range(20):
        turns.append({"role": "user", "content": [{"type": "text", "text": f"Question {turn}?"}]})
        for text in (f"Let me look.\n{CALL}", f"Answer {turn}."):
            calling.engine.texts = [text]
            number = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; nonce={len(turns)}"}
            body = ASK | TOOLS | {"system": [number, {"type": "text", "text": "You are an agent."}], "messages": turns}
            answered = post(calling, "/v1/messages?beta=true", body)
            assert answered.headers["x-dragoman-warnings"] == "ignored: system.x-anthropic-billing-header"
            answer = answered.json()
            prompt = calling.engine.requests[-1].prompt
            # The generation prompt at the end of the earlier one is the head of the assistant's turn.
            assert prompt[: len(before)] == before
            before = prompt
            turns.append({"role": "assistant", "content": answer["content"]})
            if answer["stop_reason"] == "tool_use":
                result = {"type": "tool_result", "tool_use_id": answer["content"][-1]["id"], "content": "Sunny."}
                note = f"It is {turn} o'clock."
                turns += [{"role": "user", "content": [result]}, {"role": "system", "content": [text_of(note)]}]
    assert len(before) > 800


def text_of(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}
