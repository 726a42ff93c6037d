"""Answers of the Ollama dialect, whole and as lines, to a model that says what the test wants."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from model_cards import card_of
from scripted import ScriptedServer, can_follow, scripted_server

from dragoman.dialects.ollama.durations import parsed
from dragoman.dialects.ollama.models import parameter_size
from dragoman.dialects.ollama.names import close_name, shown_name, spellings
from dragoman.dialects.ollama.translate import droppable, template_messages
from dragoman.text import ChatTemplate

ASK: dict[str, Any] = {"model": "stub", "messages": [{"role": "user", "content": "Hi."}]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
SOURCE = (
    "{% for m in messages %}[{{ m.role }}: {{ m.reasoning_content }}{{ m.content }}]{% endfor %}{{ enable_thinking }}"
    "{# <think></think> #}"
)
THOUGHT = "<think>\nIs it?\n</think>\n\nIt is."
RAW_CONFLICT = "raw mode does not support template, system, or context"
NO_TEMPLATE = "this server renders the model's own chat template"
NO_VISION = "stub does not support vision"
NUMBERS = {
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
}


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


def post(server: ScriptedServer, path: str, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=20, headers=headers)


def ask(server: ScriptedServer, text: str, path: str = "/api/chat", **fields: Any) -> dict[str, Any]:
    """The whole answer, which is also what the lines come to."""
    server.engine.texts = [text]
    body = {**(ASK if path == "/api/chat" else {"model": "stub"}), **fields}
    whole = post(server, path, body | {"stream": False})
    assert whole.status_code == 200, whole.text
    assert whole.headers["content-type"] == "application/json; charset=utf-8"
    streamed = post(server, path, body)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    assert streamed.text.endswith("\n")
    *lines, last = map(json.loads, streamed.text.removesuffix("\n").split("\n"))
    assert not any(line["done"] or NUMBERS & line.keys() for line in lines)
    assert last.keys() >= NUMBERS
    assert all(last[number] >= 1 for number in NUMBERS)
    found: dict[str, Any] = whole.json()
    assert (last["done"], last["done_reason"]) == (found["done"], found["done_reason"])
    for name in ("content", "thinking"):
        texts = ((line.get("message") or {}).get(name, "") for line in [*lines, last])
        assert "".join(texts) == found.get("message", {}).get(name, "")
    assert "".join(line.get("response", "") for line in [*lines, last]) == found.get("response", "")
    calls = [call for line in lines for call in line.get("message", {}).get("tool_calls", ())]
    assert without_ids(calls) == without_ids(found.get("message", {}).get("tool_calls", []))
    return found


def without_ids(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for call in calls:
        assert re.fullmatch("call_[0-9a-z]{8}", call.pop("id"))
    return calls


def test_a_chat(calling: ScriptedServer) -> None:
    answer = ask(calling, "Hello there.")
    assert answer["message"] == {"role": "assistant", "content": "Hello there."}
    assert list(answer)[:5] == ["model", "created_at", "message", "done", "done_reason"]
    assert answer["done_reason"] == "stop"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", answer["created_at"])


def test_a_generation_has_its_context_last(calling: ScriptedServer) -> None:
    answer = ask(calling, "Hello there.", "/api/generate", prompt="Hi.", options={"num_predict": 2})
    assert answer["done_reason"] == "length"
    assert answer["context"][: -answer["eval_count"]] == list(calling.engine.requests[-1].prompt)
    assert "context" not in ask(calling, "Hello.", "/api/generate", prompt="Hi.", raw=True)
    assert calling.engine.prompt().endswith("Hi.")


def test_calls_are_whole_lines(calling: ScriptedServer) -> None:
    answer = ask(calling, f"Let me see.\n{CALL}", tools=[WEATHER])
    assert answer["message"]["content"] == "Let me see."
    function = {"index": 0, "name": "weather", "arguments": {"city": "Köln"}}
    assert answer["message"]["tool_calls"] == [{"function": function}]
    assert answer["done_reason"] == "stop"
    own = post(calling, "/api/chat", ASK | {"tools": [WEATHER], "stream": False}, **{"user-agent": "Zed/0.9"}).json()
    assert list(own["message"]["tool_calls"][0]) == ["function"]


def test_a_call_that_is_cut_is_no_call(calling: ScriptedServer) -> None:
    answer = ask(calling, CALL, tools=[WEATHER], options={"num_predict": 20})
    assert "tool_calls" not in answer["message"]
    assert answer["done_reason"] == "length"


def test_results_find_their_calls(calling: ScriptedServer) -> None:
    call = {"function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    turns = [*ASK["messages"], {"role": "assistant", "tool_calls": [call]}, {"role": "Tool", "content": "Sunny."}]
    ask(calling, "It is sunny.", messages=turns)
    assert '"city": "Bonn"' in calling.engine.prompt()
    assert "Sunny." in calling.engine.prompt()


def test_thinking_is_apart_or_left_out(reasoning: ScriptedServer) -> None:
    shown = ask(reasoning, THOUGHT)["message"]
    assert (shown["thinking"].strip(), shown["content"].strip()) == ("Is it?", "It is.")
    assert reasoning.engine.prompt().endswith("True")
    hidden = ask(reasoning, THOUGHT, think=False)
    assert (hidden["message"].get("thinking"), hidden["message"]["content"].strip()) == (None, "It is.")
    assert reasoning.engine.prompt().endswith("False")
    assert hidden["eval_count"] > 5
    told = post(reasoning, "/api/chat", ASK | {"think": "high", "stream": False})
    assert told.headers["x-dragoman-warnings"] == "ignored: think"


def test_a_format_binds_the_answer_and_calls_stay_possible(calling: ScriptedServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    ask(calling, '{"a": 1}', format=schema)
    assert can_follow(calling, '{"a": 1}')
    assert not can_follow(calling, "Hello.")
    ask(calling, '{"a": 1}', format=schema, tools=[WEATHER])
    assert can_follow(calling, '{"a": 1}')
    assert can_follow(calling, CALL)


def test_logprobs_are_those_of_the_line(calling: ScriptedServer) -> None:
    answer = ask(calling, "Hello there.", logprobs=True, top_logprobs=2)
    assert "".join(each["token"] for each in answer["logprobs"]) == "Hello there."
    assert all(each["logprob"] == -0.5 and len(each["top_logprobs"]) == 2 for each in answer["logprobs"])
    lines = post(calling, "/api/chat", ASK | {"logprobs": True}).text.splitlines()
    for line in map(json.loads, lines[:-1]):
        assert "".join(each["token"] for each in line["logprobs"]) == line["message"]["content"]


def nested(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


DEEP, TOO_DEEP = nested(66), "'tools[0].function.parameters': nested more than 32 levels deep"


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        ("/api/chat", {"model": ""}, 400, "model is required"),
        ("/api/chat", {"model": None}, 400, "model is required"),
        ("/api/chat", {"model": "nobody"}, 404, "model 'nobody' not found"),
        ("/api/generate", {"prompt": "Hi", "images": ["a"]}, 400, NO_VISION),
        ("/api/generate", {"model": "", "prompt": "Hi"}, 404, "model '' not found"),
        ("/api/chat", {"think": True}, 400, '"stub" does not support thinking'),
        (
            "/api/chat",
            {"think": "x"},
            400,
            'invalid think value: "x" (must be "high", "medium", "low", "max", true, or false)',
        ),
        ("/api/chat", {"options": {"top_k": "x"}}, 400, 'option "top_k" must be of type integer'),
        ("/api/chat", {"options": {"stop": [1]}}, 400, 'option "stop" must be of an array of strings'),
        ("/api/chat", {"keep_alive": "1d"}, 400, 'time: unknown unit "d" in duration "1d"'),
        ("/api/chat", {"top_logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
        ("/api/generate", {"prompt": "Hi", "raw": True, "system": "x"}, 400, RAW_CONFLICT),
        ("/api/generate", {"prompt": "Hi", "template": "{{ .Prompt }}"}, 400, NO_TEMPLATE),
        ("/api/chat", {"messages": [{"role": "user", "content": "Hi", "images": ["a"]}]}, 400, NO_VISION),
        ("/api/embed", {"model": "nobody", "input": "Hi"}, 404, 'model "nobody" not found, try pulling it first'),
        ("/api/embed", {"model": "", "input": "Hi"}, 400, "model is required"),
        ("/api/embed", {"input": 7}, 400, "invalid input type"),
        ("/api/embed", {"input": ["a", 7]}, 400, "invalid input type"),
        ("/api/embed", {"input": "a " * 9000}, 400, "the input length exceeds the context length"),
        ("/api/embeddings", {"prompt": "a " * 9000}, 400, "the input length exceeds the context length"),
        ("/api/embeddings", {"model": "nobody"}, 404, 'model "nobody" not found, try pulling it first'),
        ("/api/chat", {"format": DEEP}, 400, "'format': nested more than 64 levels deep"),
        ("/api/chat", {"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]}, 400, TOO_DEEP),
        ("/api/delete", {}, 405, None),
        ("/api/nothing", {}, 404, None),
        ("/api/create", {}, 403, "models are offered by the operator of this server; see --offer NAME=SOURCE"),
    ],
)  # fmt: skip
def test_errors_have_ollamas_words(
    calling: ScriptedServer, path: str, fields: dict[str, Any], status: int, message: str | None
) -> None:
    body = (ASK if path == "/api/chat" else {"model": "stub"}) | fields
    answer = post(calling, path, body)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert message is None or answer.json()["error"] == message


def test_a_body_of_any_content_type_is_json(calling: ScriptedServer) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = httpx.post(f"{calling.url}/api/chat", content=json.dumps(ASK), headers=form)
    assert answer.status_code == 200
    empty = httpx.post(f"{calling.url}/api/chat", content=b"")
    assert (empty.status_code, empty.json()) == (400, {"error": "missing request body"})


def test_lines_end_where_every_client_sees_their_end(calling: ScriptedServer) -> None:
    text = "one\u2028two\u2029three\x85four"
    calling.engine.texts = [text]
    with httpx.stream("POST", f"{calling.url}/api/chat", json=ASK, timeout=20) as answer:
        lines = [json.loads(line) for line in answer.iter_lines()]
    assert "".join(line["message"]["content"] for line in lines) == text


def test_a_chat_that_is_too_long_is_refused_or_told(calling: ScriptedServer) -> None:
    system = {"role": "system", "content": "Calm."}
    old = [{"role": role, "content": "a b c d " * 400} for role in ("user", "assistant") * 3]
    body = ASK | {"messages": [system, *old, *ASK["messages"]], "stream": False}
    refused = post(calling, "/api/chat", body)
    assert refused.status_code == 400
    assert re.search(r"^the prompt is longer than .* \(\d+ tokens, of 4096\)$", refused.json()["error"])
    told = post(calling, "/api/chat", body | {"truncate": True})
    assert told.status_code == 200, told.text
    dropped = told.json()["truncated_messages"]
    assert told.headers["x-dragoman-warnings"] == f"truncated: messages 2-{dropped + 1}"
    assert calling.engine.prompt().count("a b c d") == 400 * (6 - dropped)
    assert "Calm." in calling.engine.prompt()
    assert post(calling, "/api/chat", body | {"messages": old[:1] * 20, "truncate": False}).status_code == 400


def test_what_cannot_be_left_out_stays() -> None:
    roles = ["system", "user", "assistant", "tool", "tool", "system", "user", "assistant", "tool"]
    assert droppable([{"role": role} for role in roles]) == [(1,), (2, 3, 4), (6,)]


def test_options_without_effect_are_named(calling: ScriptedServer) -> None:
    options = {"num_ctx": 10**6, "num_gpu": 3, "num_thread": 0, "temprature": 1, "num_keep": 4}
    answer = post(calling, "/api/chat", ASK | {"options": options, "keep_alive": "5m"})
    unknown = "unknown: options.temprature; ignored: options.num_gpu, options.num_ctx, keep_alive"
    assert answer.headers["x-dragoman-warnings"] == unknown


@pytest.mark.parametrize("agent", ["ollama-python/0.6.3 (x)", "ollama-js/0.6", "ollama/0.32.0 (amd64) Go/go1.25"])
def test_the_root_is_ollamas_for_its_clients(calling: ScriptedServer, agent: str) -> None:
    answer = httpx.get(f"{calling.url}/", headers={"user-agent": agent})
    assert (answer.text, answer.headers["content-type"]) == ("Ollama is running", "text/plain; charset=utf-8")
    assert httpx.head(f"{calling.url}/", headers={"user-agent": agent}).status_code == 200
    assert httpx.get(f"{calling.url}/", headers={"user-agent": "curl/8"}).text != "Ollama is running"
    assert httpx.get(f"{calling.url}/ollama/", headers={"user-agent": "curl/8"}).text == "Ollama is running"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(5, 5), (0.5, 0.5), (-1, None), ("5m", 300), ("1h30m", 5400), ("300ms", 0.3), ("-1m", None), ("-1", None)],
)
def test_durations(value: float | str, seconds: float | None) -> None:
    assert parsed(value) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["abc", "", "5", "1.", "-", "1d", "m"])
def test_what_is_no_duration(text: str) -> None:
    if text in ("5", "1."):
        assert parsed(text) == float(text)
        return
    with pytest.raises(ValueError, match=r"^time: "):
        parsed(text)


def test_names() -> None:
    assert list(spellings("hf.co/own/name:latest"))[-1] == "own/name"
    assert close_name("qwen2.5-coder:1.5b-base", ["Q/Qwen2.5-Coder-1.5B-Base", "other"]) == "Q/Qwen2.5-Coder-1.5B-Base"
    assert close_name("a:b", ["x/a-b", "y/a-b"]) is None
    assert (shown_name("own/name"), shown_name("own/name:Q4")) == ("own/name:latest", "own/name:Q4")


@pytest.mark.parametrize(
    ("count", "text"),
    [(7_000_000_000, "7B"), (7_615_616_512, "7.6B"), (494_032_768, "494.03M"), (270_000_000, "270M"), (12_000, "12K")],
)
def test_sizes(count: int, text: str) -> None:
    assert parameter_size(count) == text


def test_a_long_duration_is_refused_at_once() -> None:
    began = time.thread_time()
    for text in ("1" * 20_000 + "x", "1ns" * 200_000):
        with pytest.raises(ValueError, match=r"^time: invalid duration"):
            parsed(text)
    assert time.thread_time() - began < 1


CARD = card_of()


def test_many_results_take_no_longer_each_than_few() -> None:
    nothing = {"content": "", "thinking": None, "tool_calls": None, "tool_name": None, "name": None}
    calls = [{"id": f"c{i}", "function": {"name": f"f{i % 7}", "arguments": None}} for i in range(15_000)]
    results = [nothing | {"role": "tool", "tool_call_id": f"x{i}"} for i in range(15_000)]
    turns = [nothing | {"role": "assistant", "tool_calls": [call]} for call in calls]
    began = time.thread_time()
    *_, last = template_messages(
        [*turns, *results, nothing | {"role": "tool", "tool_call_id": None, "name": "f3"}], CARD
    )
    assert time.thread_time() - began < 2
    assert (last["name"], last["tool_call_id"]) == ("f3", "c3")


def test_a_page_may_send_what_its_clients_send(calling: ScriptedServer) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type,x-stainless-os"}
    for origin in ("http://localhost:3000", "app://obsidian.md", "vscode-webview://a1b2"):
        answer = httpx.options(f"{calling.url}/api/chat", headers={"origin": origin, **asked}, timeout=20)
        allowed = answer.headers["access-control-allow-headers"].split(",")
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
        assert {"authorization", "content-type", "x-stainless-os", "x-stainless-retry-count"} <= set(allowed)
