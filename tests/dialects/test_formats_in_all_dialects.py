"""Answers between marks and calls of models, read by one parser in all dialects that have chats, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted import ScriptedServer, scripted_server
from stub_runtime import TOKENIZER

from dragoman.text import ChatTemplate
from dragoman.text.tagged_calls import DSML

CHAT = {
    "openai": "/v1/chat/completions",
    "tgi": "/tgi/v1/chat/completions",
    "octoai": "/octoai/v1/chat/completions",
    "friendli": "/serverless/v1/chat/completions",
    "ollama": "/api/chat",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/stub:generateContent",
}
CHANNELS = (
    "{% if tools %}Call functions.{{ tools[0].function.name }} in <|channel|>commentary.{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
    "{# <|channel|>analysis<|message|> #}"
)
DEEPSEEK = (
    "{% if tools %}{{ tools }}{% endif %}{# "
    + f'<{DSML}function_calls><{DSML}invoke name="f"><{DSML}parameter name="a"'
    " #}{% for m in messages %}[{{ m.content }}]{% endfor %}"
)
QWEN = (
    "{% if tools %}{{ tools }}{% endif %}{# <tool_call><function=f><parameter=a> #}"
    "{% for m in messages %}[{{ m.content }}]{% endfor %}"
)
ARGUMENTS: dict[str, Any] = {"city": "Köln", "days": 2}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
CALLS = {
    "channels": '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Köln", "days": 2}',
    "deepseek": f'<{DSML}function_calls>\n<{DSML}invoke name="weather">\n'
    f'<{DSML}parameter name="city" string="true">Köln</{DSML}parameter>\n'
    f'<{DSML}parameter name="days" string="false">2</{DSML}parameter>\n'
    f"</{DSML}invoke>\n</{DSML}function_calls>",
    "qwen": "<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n"
    "</tool_call>",
}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, ScriptedServer]]:
    sources = {"channels": CHANNELS, "deepseek": DEEPSEEK, "qwen": QWEN}
    templates = {name: ChatTemplate({"default": source}, TOKENIZER.special_tokens) for name, source in sources.items()}
    with (
        scripted_server(templates["channels"]) as channels,
        scripted_server(templates["deepseek"]) as deepseek,
        scripted_server(templates["qwen"]) as qwen,
    ):
        yield {"channels": channels, "deepseek": deepseek, "qwen": qwen}
    for template in templates.values():
        template.close()


def ask(server: ScriptedServer, dialect: str, text: str, **fields: Any) -> tuple[str, list[tuple[str, Any]]]:
    """The content and the calls of an answer, the same whole and streamed."""
    server.engine.texts = [text]
    body = {"model": "stub", "messages": [{"role": "user", "content": "Is it?"}], "max_tokens": 400} | fields
    path = streams = server.url + CHAT[dialect]
    if dialect == "gemini":
        body = {"contents": [{"parts": [{"text": "Is it?"}]}], "generationConfig": {"maxOutputTokens": 400}} | fields
        streams = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
    whole = httpx.post(path, json=body | {"stream": False}, timeout=60)
    assert whole.status_code == 200, whole.text
    stream = httpx.post(streams, json=body | {"stream": True}, timeout=60).text
    lines = [
        line.removeprefix("data:") for line in stream.splitlines() if line.removeprefix("data:").strip()[:1] == "{"
    ]
    found = of_whole(dialect, whole.json())
    assert of_stream(dialect, [json.loads(line) for line in lines]) == found
    return found


def of_whole(dialect: str, answer: Any) -> tuple[str, list[tuple[str, Any]]]:
    if dialect == "anthropic":
        calls = [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]
        return "".join(block.get("text", "") for block in answer["content"]), calls
    if dialect == "gemini":
        return of_stream(dialect, [answer])
    message = answer["message"] if dialect == "ollama" else answer["choices"][0]["message"]
    made = [call["function"] for call in message.get("tool_calls") or ()]
    return message.get("content") or "", [(call["name"], as_object(call["arguments"])) for call in made]


def of_stream(dialect: str, events: list[Any]) -> tuple[str, list[tuple[str, Any]]]:
    if dialect == "anthropic":
        names = [e["content_block"]["name"] for e in events if e.get("content_block", {}).get("type") == "tool_use"]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        text = "".join(delta.get("text", "") for delta in deltas)
        given = "".join(delta.get("partial_json", "") for delta in deltas)
        return text, [(name, json.loads(given)) for name in names]
    if dialect == "gemini":
        parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
        called = [part["functionCall"] for part in parts if "functionCall" in part]
        return "".join(part.get("text", "") for part in parts), [(call["name"], call["args"]) for call in called]
    deltas = [event["message"] if dialect == "ollama" else event["choices"][0]["delta"] for event in events]
    text = "".join(delta.get("content") or "" for delta in deltas)
    made = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    if dialect == "ollama":
        return text, [(call["name"], call["arguments"]) for call in made]
    given = "".join(call.get("arguments") or "" for call in made)
    return text, [(call["name"], json.loads(given)) for call in made if call.get("name")]


def as_object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


@pytest.mark.parametrize("dialect", CHAT)
def test_the_content_of_an_answer_in_channels_is_its_final_text(
    servers: dict[str, ScriptedServer], dialect: str
) -> None:
    final = "<|channel|>final<|message|>It is. No."
    analysis = "<|channel|>analysis<|message|>In final\nhm.<|end|><|start|>assistant"
    for text in (analysis + final, final):
        assert ask(servers["channels"], dialect, text) == ("It is. No.", [])
    assert ask(servers["deepseek"], dialect, "<|channel|>final")[0] == "<|channel|>final"


@pytest.mark.parametrize("format", CALLS)
@pytest.mark.parametrize("dialect", [name for name in CHAT if name != "tgi"])  # its calls follow TGI's own grammar
def test_a_call_is_read_alike(servers: dict[str, ScriptedServer], dialect: str, format: str) -> None:
    function = {"name": "weather", "description": "Looks it up.", "parameters": PARAMETERS}
    tool: dict[str, Any] = {"type": "function", "function": function}
    if dialect == "anthropic":
        tool = {"name": "weather", "description": "Looks it up.", "input_schema": PARAMETERS}
    elif dialect == "gemini":
        tool = {"functionDeclarations": [function]}
    assert ask(servers[format], dialect, CALLS[format], tools=[tool]) == ("", [("weather", ARGUMENTS)])
