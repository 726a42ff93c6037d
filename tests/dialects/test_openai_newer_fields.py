"""The newer fields of OpenAI's chat: custom tools, efforts, counts, tiers, system messages behind the first turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted import ScriptedServer, can_follow, scripted_server
from test_openai_translate import CARD

from dragoman.dialects.openai.messages import template_messages
from dragoman.dialects.openai.settings import OpenAISettings
from dragoman.text import ChatTemplate

PATH = "/openai/v1/chat/completions"
ASK: dict[str, Any] = {"model": "stub", "messages": [{"role": "user", "content": "Hi."}], "seed": 1}
SOURCE = (
    "{% for m in messages %}[{{ m.role }}: {{ m.reasoning_content }}{{ m.content }}]{% endfor %}"
    "{{ reasoning_effort }}{{ enable_thinking }}{# <think></think> #}"
)
THOUGHT = "<think>\nHm.\n</think>\n\nIt is."
SQL = {"type": "custom", "custom": {"name": "write_sql", "description": "Writes SQL."}}
CALL = '<tool_call>\n{"name": "write_sql", "arguments": {"input": "SELECT \\"a\\" \\ud83d\\ude00\\n"}}\n</tool_call>'
INPUT = 'SELECT "a" \U0001f600\n'


@pytest.fixture(scope="module")
def calling(template: ChatTemplate) -> Iterator[ScriptedServer]:
    with scripted_server(template) as server:
        yield server


@pytest.fixture(scope="module")
def reasoning() -> Iterator[ScriptedServer]:
    template = ChatTemplate({"default": SOURCE})
    with scripted_server(template, openai=OpenAISettings(openai_separate_reasoning=True)) as server:
        yield server
    template.close()


def post(server: ScriptedServer, says: str, **fields: Any) -> httpx.Response:
    server.engine.texts = [says]
    return httpx.post(server.url + PATH, json=ASK | fields, timeout=20)


def ask(server: ScriptedServer, says: str, **fields: Any) -> dict[str, Any]:
    answer = post(server, says, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def chunks(server: ScriptedServer, says: str, **fields: Any) -> list[dict[str, Any]]:
    answer = post(server, says, stream=True, stream_options={"include_usage": True}, **fields)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# Custom tools --------------------------------------------------------------------------------------------------------


def test_a_custom_tool_gets_its_text(calling: ScriptedServer) -> None:
    (choice,) = ask(calling, CALL, tools=[SQL])["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call == {"id": call["id"], "type": "custom", "custom": {"name": "write_sql", "input": INPUT}}
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    plain = CALL.replace("\\ud83d\\ude00", "!")
    assert can_follow(calling, plain)
    assert not can_follow(calling, plain.replace("input", "query"))


def test_its_text_is_streamed_as_it_comes(calling: ScriptedServer) -> None:
    streamed = [chunk["choices"][0] for chunk in chunks(calling, CALL, tools=[SQL]) if chunk["choices"]]
    deltas = [call for choice in streamed for call in choice["delta"].get("tool_calls", ())]
    first, *more = deltas
    assert first == {"index": 0, "id": first["id"], "type": "custom", "custom": {"name": "write_sql", "input": ""}}
    assert len(more) > 2
    assert all(list(delta) == ["index", "custom"] and delta["custom"]["input"] for delta in more)
    assert "".join(delta["custom"]["input"] for delta in more) == INPUT
    assert streamed[-1]["finish_reason"] == "tool_calls"


def test_its_calls_come_back_as_the_model_wrote_them(calling: ScriptedServer) -> None:
    call = {"id": "call_1", "type": "custom", "custom": {"name": "write_sql", "input": "SELECT 1"}}
    messages = [
        *ASK["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    ]
    ask(calling, "One.", messages=messages, tools=[SQL])
    assert '{"name": "write_sql", "arguments": {"input": "SELECT 1"}}' in calling.engine.prompt()


def test_a_regex_holds_in_its_text(calling: ScriptedServer) -> None:
    format = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+"}}
    tool = {"type": "custom", "custom": {"name": "f", "format": format}}
    ask(calling, "Hi.", tools=[tool], tool_choice="required")
    call = '<tool_call>\n{"name": "f", "arguments": {"input": "%s"}}\n</tool_call>'
    assert can_follow(calling, call % "42")
    assert not can_follow(calling, call % "x")


def test_a_lark_grammar_is_shown_and_reported(calling: ScriptedServer) -> None:
    format = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: WORD"}}
    tool = {"type": "custom", "custom": {"name": "f", "description": "D.", "format": format}}
    answer = post(calling, "Hi.", tools=[tool])
    assert answer.headers["x-dragoman-warnings"] == "ignored: tools[0].custom.format"
    assert "D.\\n\\nThe input follows this grammar:\\nstart: WORD" in calling.engine.prompt()


FUNCTION = {"type": "function", "function": {"name": "time"}}
NAMED = {"type": "custom", "custom": {"name": "write_sql"}}


@pytest.mark.parametrize(
    "choice",
    [NAMED, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}],
)
def test_it_can_be_chosen(calling: ScriptedServer, choice: dict[str, Any]) -> None:
    ask(calling, CALL, tools=[FUNCTION, SQL], tool_choice=choice)
    assert can_follow(calling, CALL.replace("\\ud83d\\ude00", "!"))
    assert not can_follow(calling, '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>')


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom.name"),
        ({"tools": [SQL | {"function": {"name": "f"}}]}, "tools[0].function"),
        ({"tools": [FUNCTION | {"custom": {"name": "f"}}]}, "tools[0].custom"),
        ({"tools": [SQL, SQL]}, "tools[1].custom.name"),
        ({"tools": [SQL, {"type": "function", "function": {"name": "write_sql"}}]}, "tools[1].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "f", "format": {}}}]}, "tools[0].custom.format.type"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar": {}}}}]},
            "tools[0].custom.format.grammar.syntax",
        ),
        ({"tools": [SQL], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [SQL], "tool_choice": {"type": "custom", "custom": {"name": "other"}}}, "tool_choice"),
        ({"tools": [SQL], "tool_choice": {"type": "function", "function": {"name": "write_sql"}}}, "tool_choice"),
        (
            {"messages": [*ASK["messages"], {"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
            "messages[1].tool_calls[0].custom",
        ),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
    ],
)
def test_what_is_wrong_is_named(calling: ScriptedServer, fields: dict[str, Any], param: str) -> None:
    answer = post(calling, "Hi.", **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_length_has_the_name_that_was_sent(calling: ScriptedServer, name: str) -> None:
    error = post(calling, "Hi.", min_tokens=9, **{name: 5}).json()["error"]
    assert (error["message"], error["param"]) == (f"'min_tokens' (9) is more than '{name}' (5).", "min_tokens")


# Reasoning -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effort", "shown"), [("none", "noneFalse"), ("minimal", "minimalTrue"), ("max", "highTrue")])
def test_efforts_are_the_templates(reasoning: ScriptedServer, effort: str, shown: str) -> None:
    answer = post(reasoning, "Yes.", reasoning_effort=effort)
    assert reasoning.engine.prompt().endswith(shown)
    assert "x-dragoman-warnings" not in answer.headers
    post(reasoning, "Yes.", reasoning_effort=effort, chat_template_kwargs={"enable_thinking": "as told"})
    assert reasoning.engine.prompt().endswith("as told")


def test_an_effort_without_effect_is_reported(calling: ScriptedServer) -> None:
    assert post(calling, "Yes.", reasoning_effort="high").headers["x-dragoman-warnings"] == "ignored: reasoning_effort"
    assert "x-dragoman-warnings" not in post(calling, "Yes.", reasoning_effort="none").headers


def test_reasoning_is_separate_where_the_operator_says_so(reasoning: ScriptedServer) -> None:
    answer = ask(reasoning, THOUGHT)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "It is.")
    together = ask(reasoning, THOUGHT, separate_reasoning=False)
    assert together["choices"][0]["message"] == {"role": "assistant", "content": THOUGHT, "refusal": None}
    counts = answer["usage"]
    assert 0 < counts["completion_tokens_details"]["reasoning_tokens"] < counts["completion_tokens"]
    assert counts == together["usage"] == chunks(reasoning, THOUGHT)[-1]["usage"]
    twice = ask(reasoning, THOUGHT, n=2)["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert twice == 2 * counts["completion_tokens_details"]["reasoning_tokens"]


def test_reasoning_comes_back_under_both_names(reasoning: ScriptedServer) -> None:
    for given in ({"reasoning": "Hm."}, {"reasoning_content": "Hm.", "reasoning": "Other."}):
        message = {"role": "assistant", "content": "It is.", **given}
        ask(reasoning, "Yes.", messages=[*ASK["messages"], message, *ASK["messages"]])
        assert "[assistant: Hm.It is.]" in reasoning.engine.prompt()


# Envelope ------------------------------------------------------------------------------------------------------------


def test_counts_without_reasoning(calling: ScriptedServer) -> None:
    counts = ask(calling, "Hi.")["usage"]
    assert counts["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert counts["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}


def test_the_tier_is_answered_where_one_is_named(calling: ScriptedServer) -> None:
    assert "service_tier" not in ask(calling, "Hi.")
    assert ask(calling, "Hi.", service_tier="auto")["service_tier"] == "default"
    assert {chunk["service_tier"] for chunk in chunks(calling, "Hi.", service_tier="flex")} == {"default"}
    assert post(calling, "Hi.", service_tier="flex").headers["x-dragoman-warnings"] == "ignored: service_tier"


def test_breakpoints_of_the_cache_are_reported(calling: ScriptedServer) -> None:
    part = {"type": "text", "text": "Hi.", "prompt_cache_breakpoint": {"mode": "explicit"}}
    answer = post(calling, "Hi.", messages=[{"role": "user", "content": [part]}])
    warned = "ignored: messages[0].content[0].prompt_cache_breakpoint"
    assert (answer.status_code, answer.headers["x-dragoman-warnings"]) == (200, warned)


# System messages -----------------------------------------------------------------------------------------------------


def turns(*pairs: tuple[str, str]) -> tuple[dict[str, Any], ...]:
    return tuple({"role": role, "content": text} for role, text in pairs)


def checked(*messages: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    names = ("content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
    return tuple({**dict.fromkeys(names), **message} for message in messages)


NOTE = "<system-reminder>\nB\n</system-reminder>"
CALLS = {
    "role": "assistant",
    "tool_calls": [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(2)],
}
RESULTS = tuple({"role": "tool", "tool_call_id": f"c{i}", "content": f"r{i}"} for i in range(2))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (turns(("system", "A"), ("developer", "B"), ("user", "C")), [("system", "A"), ("system", "B"), ("user", "C")]),
        (turns(("user", "A"), ("developer", "B")), [("user", f"A\n\n{NOTE}")]),
        (
            turns(("user", "A"), ("assistant", "C"), ("system", "B"), ("user", "D")),
            [("user", "A"), ("assistant", "C"), ("user", NOTE), ("user", "D")],
        ),
        (
            (*turns(("user", "A")), CALLS, *turns(("system", "B")), *RESULTS, *turns(("user", "D"))),
            [("user", "A"), ("assistant", ""), ("tool", "r0"), ("tool", f"r1\n\n{NOTE}"), ("user", "D")],
        ),
        (
            (*turns(("user", "A")), CALLS, RESULTS[0], *turns(("system", "B")), RESULTS[1]),
            [("user", "A"), ("assistant", ""), ("tool", "r0"), ("tool", f"r1\n\n{NOTE}")],
        ),
        (
            (CALLS, *turns(("system", "A"), ("system", "")), *RESULTS, *turns(("system", "B"))),
            [("assistant", ""), ("tool", "r0"), ("tool", f"r1\n\n{NOTE.replace('B', 'A')}\n\n{NOTE}")],
        ),
        (turns(("user", "A"), ("system", "")), [("user", "A")]),
    ],
)
def test_system_messages_that_a_template_takes_at_the_head_only(
    given: tuple[dict[str, Any], ...], wanted: list[tuple[str, str]]
) -> None:
    made = template_messages(checked(*given), CARD, takes_later_system=False)
    assert [(message["role"], message["content"] or "") for message in made] == wanted
    kept = template_messages(checked(*given), CARD)
    assert [message["role"] for message in kept] == [
        message["role"].replace("developer", "system") for message in given
    ]
