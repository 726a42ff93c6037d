"""Responses, whole and streamed, of a model that says what the test wants."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted import ScriptedServer, can_follow, scripted_server
from scripted_responses import ASK, CALL, SQL, WEATHER, ask, events_of, get, post

from dragoman.dialects.reasoning import hidden
from dragoman.grammar.process import GrammarProcess
from dragoman.text import ChatTemplate

SOURCE = (
    "{% for m in messages %}[{{ m.role }}: {{ m.reasoning_content }}{{ m.content }}]{% endfor %}"
    "{{ reasoning_effort }}{{ enable_thinking }}{# <think></think> #}"
)
THOUGHT = "<think>\nHm.\n</think>\n\nIt is."
KEYS = """
id object created_at completed_at status background error incomplete_details instructions max_output_tokens
max_tool_calls model output parallel_tool_calls previous_response_id conversation prompt_cache_key reasoning
safety_identifier seed service_tier store temperature text tool_choice tools top_logprobs top_p truncation usage user
metadata
"""
ODD = WEATHER | {"name": "odd", "parameters": {"type": "object", "unevaluatedProperties": {"not": {}}}}


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


def refused(answer: httpx.Response, param: str | None, code: str | None, words: str = "", status: int = 400) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code), answer.text
    assert words in error["message"]


# Text ----------------------------------------------------------------------------------------------------------------


def test_a_text(calling: ScriptedServer) -> None:
    response = ask(calling, "It is four.")
    digits = response["id"].removeprefix("resp_")
    assert list(response) == KEYS.split()
    assert response["output"] == [
        {
            "id": f"msg_{digits}_0",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "It is four."}],
        }
    ]
    assert (response["status"], response["seed"], response["model"]) == ("completed", 1, "stub")
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert (usage["input_tokens_details"]["cache_write_tokens"], usage["output_tokens_details"]) == (
        0,
        {"reasoning_tokens": 0},
    )


def test_each_token_is_a_delta(calling: ScriptedServer) -> None:
    calling.engine.texts = ["The capital"]
    events = events_of(post(calling, ASK | {"stream": True}))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "The capital"
    assert len(deltas) > 1
    assert [event["type"] for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_nothing_is_one_empty_message(calling: ScriptedServer) -> None:
    assert ask(calling, "")["output"][0]["content"][0]["text"] == ""


def test_a_cut_text_is_incomplete(calling: ScriptedServer) -> None:
    response = ask(calling, "One two three four.", max_output_tokens=2)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"


def test_a_length_is_lowered_to_the_room(calling: ScriptedServer) -> None:
    assert ask(calling, "Yes.", max_output_tokens=10**6)["status"] == "completed"


def test_prewarming_generates_nothing(calling: ScriptedServer) -> None:
    ask(calling, "", prompt_cache_options={"prewarm": True})
    assert calling.engine.requests[-1].max_tokens == 0


def test_log_probabilities(calling: ScriptedServer) -> None:
    response = ask(calling, "Yes it is.", include=["message.output_text.logprobs"], top_logprobs=1)
    (part,) = response["output"][0]["content"]
    assert "".join(each["token"] for each in part["logprobs"]) == "Yes it is."
    assert list(part["logprobs"][0]) == ["token", "bytes", "logprob", "top_logprobs"]
    answer = post(calling, ASK | {"include": ["message.output_text.logprobs"], "stream": True})
    deltas = [event for event in events_of(answer) if event["type"] == "response.output_text.delta"]
    assert all(list(event["logprobs"][0]) == ["token", "logprob", "top_logprobs"] for event in deltas)


def test_what_is_sent_is_answered(calling: ScriptedServer) -> None:
    given = {
        "instructions": "Calm.",
        "metadata": {"a": "b"},
        "max_output_tokens": 9,
        "truncation": "auto",
        "temperature": 0.5,
        "top_p": 0.25,
        "parallel_tool_calls": False,
    }
    echoed = {"user": "me", "safety_identifier": "s", "prompt_cache_key": "k"}
    answer = post(calling, ASK | given | echoed)
    assert answer.json().items() >= (given | echoed).items()
    assert answer.headers["x-dragoman-warnings"] == "ignored: user, safety_identifier, prompt_cache_key"
    assert answer.headers["x-dragoman-seed"] == "1"


# Reasoning -----------------------------------------------------------------------------------------------------------


def test_reasoning_is_an_item_of_its_own(reasoning: ScriptedServer) -> None:
    response = ask(reasoning, THOUGHT)
    thought, message = response["output"]
    digits = response["id"].removeprefix("resp_")
    content = [{"type": "reasoning_text", "text": "Hm."}]
    assert thought == {
        "id": f"rs_{digits}_0",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": content,
    }
    assert (message["id"], message["content"][0]["text"]) == (f"msg_{digits}_1", "It is.")
    assert 0 < response["usage"]["output_tokens_details"]["reasoning_tokens"] < response["usage"]["output_tokens"]


def test_a_summary_is_the_same_text(reasoning: ScriptedServer) -> None:
    fields = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    thought = ask(reasoning, THOUGHT, **fields)["output"][0]
    assert thought["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert "content" not in thought
    assert thought["encrypted_content"] == hidden("Hm.") == "dgm1z.eNrzyNUDAAHjAOQ"


@pytest.mark.parametrize(
    "item",
    [
        {"content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []},
        {"content": [], "summary": [], "encrypted_content": hidden("Hm."), "status": "in_progress"},
        {"summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "gAAAA"},
    ],
)
def test_reasoning_comes_back(reasoning: ScriptedServer, item: dict[str, Any]) -> None:
    given = [{"role": "user", "content": "Is it?"}, {"type": "reasoning", "id": "rs_1", **item}]
    ask(reasoning, "Yes.", input=[*given, {"role": "assistant", "content": "It is."}, {"role": "user", "content": "?"}])
    assert "[assistant: Hm.It is.]" in reasoning.engine.prompt()


def test_reasoning_without_text_is_reported(reasoning: ScriptedServer) -> None:
    lost = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    answer = post(reasoning, ASK | {"input": [{"role": "user", "content": "A"}, lost]})
    assert answer.headers["x-dragoman-warnings"] == "ignored: input[1]"


@pytest.mark.parametrize(("effort", "shown"), [("none", "noneFalse"), ("low", "lowTrue"), ("xhigh", "highTrue")])
def test_efforts_are_the_templates(reasoning: ScriptedServer, effort: str, shown: str) -> None:
    ask(reasoning, "Yes.", reasoning={"effort": effort})
    assert reasoning.engine.prompt().endswith(shown)


# Tools ---------------------------------------------------------------------------------------------------------------


def test_a_call(calling: ScriptedServer) -> None:
    response = ask(calling, CALL, tools=[WEATHER])
    digits = response["id"].removeprefix("resp_")
    assert response["output"] == [
        {
            "id": f"fc_{digits}_0",
            "type": "function_call",
            "status": "completed",
            "call_id": f"call_{digits}_0",
            "name": "weather",
            "arguments": '{"city": "Köln"}',
        }
    ]
    assert response["tools"] == [{**WEATHER, "description": None, "strict": True}]


def test_text_and_two_calls_are_three_items(calling: ScriptedServer) -> None:
    types = [item["type"] for item in ask(calling, f"Yes. {CALL}\n{CALL}", tools=[WEATHER])["output"]]
    assert types == ["message", "function_call", "function_call"]


def test_a_cut_call_is_incomplete_and_stays_open(calling: ScriptedServer) -> None:
    whole = ask(calling, CALL, tools=[WEATHER])["usage"]["output_tokens"]
    response = ask(calling, CALL, tools=[WEATHER], max_output_tokens=whole - 5)
    (call,) = response["output"]
    assert (call["status"], response["status"]) == ("incomplete", "incomplete")
    assert not call["arguments"].endswith("}")


def test_a_custom_tool_gets_its_text(calling: ScriptedServer) -> None:
    called = (
        '<tool_call>\n{"name": "write_sql", "arguments": {"input": "SELECT \\"a\\" \\ud83d\\ude00\\n"}}\n</tool_call>'
    )
    (call,) = ask(calling, called, tools=[SQL])["output"]
    assert (call["type"], call["id"][:4], call["input"]) == ("custom_tool_call", "ctc_", 'SELECT "a" \U0001f600\n')


def test_a_regex_holds_in_a_custom_tool(calling: ScriptedServer) -> None:
    tool = SQL | {"format": {"type": "grammar", "syntax": "regex", "definition": "[ab]+"}}
    ask(calling, "No.", tools=[tool])
    written = '<tool_call>\n{{"name": "write_sql", "arguments": {{"input": "{}"}}}}\n</tool_call>'
    assert can_follow(calling, written.format("abba"))
    assert not can_follow(calling, written.format("abc"))


def test_a_lark_grammar_is_shown_and_reported(calling: ScriptedServer) -> None:
    tool = SQL | {"format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}}
    answer = post(calling, ASK | {"tools": [tool]})
    assert answer.headers["x-dragoman-warnings"] == "ignored: tools[0].format"
    assert "The input follows this grammar" in calling.engine.prompt()


def test_a_namespace_is_joined_with_a_dot(calling: ScriptedServer) -> None:
    tool = {"type": "namespace", "name": "mcp", "description": "Far away.", "tools": [WEATHER]}
    (call,) = ask(calling, CALL.replace("weather", "mcp.weather"), tools=[tool])["output"]
    assert (call["name"], call["namespace"]) == ("weather", "mcp")
    ask(calling, "No.", tools=[tool], tool_choice={"type": "function", "name": "weather", "namespace": "mcp"})


def test_tools_of_openais_servers_are_left_out(calling: ScriptedServer) -> None:
    answer = post(calling, ASK | {"tools": [{"type": "web_search"}, WEATHER]})
    assert answer.headers["x-dragoman-warnings"] == "ignored: tools[0]"
    assert [tool["name"] for tool in answer.json()["tools"]] == ["weather"]
    refused(post(calling, ASK | {"tool_choice": {"type": "web_search"}}), "tool_choice.type", "invalid_value")
    choice = {"tools": [{"type": "web_search"}], "tool_choice": "required"}
    refused(post(calling, ASK | choice), "tool_choice", "invalid_value")


def test_a_schema_that_cannot_be_enforced_is_not_unless_that_is_asked(calling: ScriptedServer) -> None:
    response = ask(calling, "No.", tools=[WEATHER, ODD])
    assert [tool["strict"] for tool in response["tools"]] == [True, False]
    strict = ODD | {"strict": True}
    refused(post(calling, ASK | {"tools": [WEATHER, strict]}), "tools[1].parameters", "unsupported_parameter")


def test_each_schema_is_tried_alone(calling: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    check = GrammarProcess.check
    monkeypatch.setattr(GrammarProcess, "check", lambda self, *given: tried.append(given[0]) or check(self, *given))
    new = secrets.token_hex(4)  # what was tried is known
    tools = [WEATHER | {"name": f"weather_{new}_{i}"} for i in range(6)]
    response = ask(calling, "Yes.", tools=[*tools, ODD | {"name": f"odd_{new}"}])
    assert [tool["strict"] for tool in response["tools"]] == [True] * 6 + [False]
    first, *alone, _ = (len(str(constraint)) for constraint in dict.fromkeys(tried))
    assert len(alone) == 7
    assert sum(alone) < 2 * first


def test_allowed_tools(calling: ScriptedServer) -> None:
    other = WEATHER | {"name": "other"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    ask(calling, CALL.replace("weather", "other"), tools=[WEATHER, other], tool_choice=allowed)
    assert not can_follow(calling, CALL)
    assert can_follow(calling, CALL.replace("weather", "other"))


def test_a_form_besides_tools(calling: ScriptedServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"format": {"type": "json_schema", "name": "it", "schema": schema}}
    ask(calling, '{"a": 1}', tools=[WEATHER], text=form)
    assert can_follow(calling, '{"a": 1}')
    assert can_follow(calling, CALL)
    assert not can_follow(calling, "No.")


# Input ---------------------------------------------------------------------------------------------------------------


def test_calls_and_results_are_turns_as_in_chat(calling: ScriptedServer) -> None:
    call = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Köln"}'}
    items = [
        {"role": "user", "content": "Sun?"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
            "id": "msg_1",
        },
        {**call, "status": "completed", "id": "fc_1"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "Yes."}]},
    ]
    ask(calling, "Sun.", input=items, tools=[WEATHER], instructions="Calm.")
    prompt = calling.engine.prompt()
    function = {"name": "weather", "arguments": call["arguments"]}
    messages = [
        {"role": "system", "content": "Calm."},
        {"role": "user", "content": "Sun?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "Yes."},
    ]
    named = {name: WEATHER[name] for name in ("name", "parameters")}
    calling.ask("Sun.", messages, tools=[{"type": "function", "function": named}])
    assert calling.engine.prompt() == prompt


def test_later_system_messages_stay_where_they_are(calling: ScriptedServer) -> None:
    items = [{"role": role, "content": text} for role, text in (("user", "A"), ("developer", "B"), ("user", "C"))]
    ask(calling, "D", input=[{"role": "developer", "content": "Head"}, *items])
    prompt = calling.engine.prompt()
    assert prompt.index("Head") < prompt.index("A") < prompt.index("B") < prompt.index("C")


def test_pictures_in_results_are_left_out(calling: ScriptedServer) -> None:
    call = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"}
    output = [{"type": "input_image", "image_url": "data:,", "detail": "auto"}]
    result = {"type": "function_call_output", "call_id": "a", "output": output}
    answer = post(calling, ASK | {"input": [{"role": "user", "content": "A"}, call, result]})
    assert answer.headers["x-dragoman-warnings"] == "ignored: input[2].output[0]"
    assert "[image omitted: the model sees no images]" in calling.engine.prompt()


def test_text_files_are_documents(calling: ScriptedServer) -> None:
    file = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGFsbG8="}
    ask(calling, "Yes.", input=[{"role": "user", "content": [file]}])
    assert '<document title="a.txt">\nHallo\n</document>' in calling.engine.prompt()


@pytest.mark.parametrize(
    ("fields", "param", "code", "words"),
    [
        ({"input": None}, "input", "missing_required_parameter", "Missing required parameter: 'input'."),
        ({"input": []}, "input", "missing_required_parameter", ""),
        ({"max_output_tokens": 3, "min_tokens": 9}, "min_tokens", None, "more than 'max_output_tokens' (3)"),
        ({"input": [{"type": "dream"}]}, "input[0].type", "invalid_value", "'item_reference'"),
        ({"input": [{"type": "mcp_call"}]}, "input[0]", "unsupported_parameter", "mcp_call"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].image_url",
            "invalid_value",
            "",
        ),
        ({"background": True, "store": False}, "background", None, "Background mode requires store to be true."),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value", ""),
        ({"include": ["all"]}, "include[0]", "invalid_value", ""),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type", ""),
        ({"tools": [{"type": "function", "name": "a"}] * 2}, "tools[1].name", "invalid_value", ""),
        (
            {"previous_response_id": "resp_x"},
            "previous_response_id",
            "previous_response_not_found",
            "Previous response with id 'resp_x' not found.",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {"type": "string"}}}}},
            "text.format.schema",
            "unsupported_parameter",
            "",
        ),
    ],
)
def test_refusals(calling: ScriptedServer, fields: dict[str, Any], param: str, code: str | None, words: str) -> None:
    refused(post(calling, ASK | fields), param, code, words)


def test_calls_and_results_belong_together(calling: ScriptedServer) -> None:
    user = {"role": "user", "content": "A"}
    result = {"type": "function_call_output", "call_id": "x", "output": "B"}
    words = "No tool call found for function call output with call_id x."
    refused(post(calling, ASK | {"input": [user, result]}), "input", None, words)
    call = {"type": "function_call", "call_id": "x", "name": "a", "arguments": "{}"}
    words = "No tool output found for function call x."
    refused(post(calling, ASK | {"input": [user, call, user]}), "input", None, words)


def test_unknown_items_are_not_found(calling: ScriptedServer) -> None:
    answer = post(calling, ASK | {"input": [{"role": "user", "content": "A"}, {"id": "rs_x"}]})
    refused(answer, "input", None, "Item with id 'rs_x' not found.", status=404)


# A prompt that is too long -------------------------------------------------------------------------------------------


def test_a_prompt_that_is_too_long(calling: ScriptedServer) -> None:
    body = ASK | {"input": "word " * 6000}
    refused(post(calling, body), "input", "context_length_exceeded")
    refused(post(calling, body | {"background": True}), "input", "context_length_exceeded")
    created, progress, error, failed = events_of(post(calling, body | {"stream": True}))
    assert [created["type"], progress["type"]] == ["response.created", "response.in_progress"]
    assert (error["type"], error["code"], error["error"]["code"]) == ("error", *["context_length_exceeded"] * 2)
    assert error["error"]["type"] == "invalid_request_error"
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "context_length_exceeded"
    assert failed["response"]["store"] is False
    assert [event["sequence_number"] for event in (created, progress, error, failed)] == [0, 1, 2, 3]
    assert get(calling, f"/{failed['response']['id']}").status_code == 404


def test_truncation_leaves_the_oldest_items_out(calling: ScriptedServer) -> None:
    items = [{"role": "system", "content": "Head"}]
    for i in range(6):
        items += [{"role": "user", "content": f"Q{i} " + "word " * 900}, {"role": "assistant", "content": f"A{i}."}]
    answer = post(calling, ASK | {"input": [*items, {"role": "user", "content": "Last?"}], "truncation": "auto"})
    assert answer.status_code == 200, answer.text
    prompt = calling.engine.prompt()
    assert "Head" in prompt
    assert "Last?" in prompt
    assert "Q0" not in prompt
    assert "Q5" in prompt
    assert answer.headers["x-dragoman-warnings"].startswith("truncated: items 2-")


def test_tokens_are_counted_without_the_engine(calling: ScriptedServer) -> None:
    asked = {"model": "stub", "input": "Hi.", "instructions": "Calm.", "tools": [WEATHER]}
    response = ask(calling, "Yes.", **{name: value for name, value in asked.items() if name != "model"})
    before = len(calling.engine.requests)
    counted = post(calling, asked, "/v1/responses/input_tokens")
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": response["usage"]["input_tokens"]}
    assert len(calling.engine.requests) == before


def test_tokens_beyond_the_context_are_counted_too(calling: ScriptedServer) -> None:
    asked = {"model": "stub", "input": "word " * 6000}
    assert post(calling, asked, "/v1/responses/input_tokens").json()["input_tokens"] > 4096
    messages = {"model": "stub", "messages": [{"role": "user", "content": asked["input"]}]}
    assert post(calling, messages, "/v1/messages/count_tokens").json()["input_tokens"] > 4096


def test_keys_of_the_error_event(calling: ScriptedServer) -> None:
    body = ASK | {"input": "word " * 6000, "stream": True}
    error = events_of(post(calling, body))[2]
    assert list(error) == ["type", "sequence_number", "code", "message", "param", "error"]
    assert list(error["error"]) == ["type", "code", "message", "param"]
    assert json.dumps(error["error"]["message"])


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/responses/compact"), ("GET", "/v1/responses"), ("GET", "/v1/chat/completions")],
)
def test_operations_that_there_are_none_of(calling: ScriptedServer, method: str, path: str) -> None:
    """Not as a method that another path's pattern does not allow."""
    for prefix in ("", "/openai"):
        answer = httpx.request(method, calling.url + prefix + path, timeout=60)
        refused(answer, None, "unknown_url", f"Unknown URL: {method} {prefix}{path}", 404)
    assert httpx.request("POST", f"{calling.url}/v1/responses/resp_0", timeout=60).status_code == 405
