"""The package ``octoai-sdk``, version 0.10: chats, and calls of any endpoint. Run by ``test_octoai_sdk_package``."""

from __future__ import annotations

import json
from typing import Any

from checking import PROMPT, USER, raised, run
from octoai.client import Client
from octoai.errors import OctoAIClientError

MODEL = "tiny"
CHAT: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "temperature": 0.0}


def client(url: str) -> Any:
    made = Client(token="none")
    made.chat.completions.endpoint = f"{url}/octoai/v1/chat/completions"
    return made


def chat(url: str, **fields: Any) -> Any:
    return client(url).chat.completions.create(messages=[USER], **(CHAT | fields))


def check_a_chat(url: str) -> None:
    answer = chat(url)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.system_fingerprint


def check_a_stream_is_the_same(url: str) -> None:
    chunks = list(chat(url, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == chat(url).choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == chat(url).choices[0].finish_reason


def check_fields_have_their_effect(url: str) -> None:
    plain = chat(url).choices[0].message.content
    phrase = plain[4:8]
    assert chat(url, stop=phrase).choices[0].message.content == plain[: plain.index(phrase)]
    assert chat(url, max_tokens=3).usage.completion_tokens <= 3
    assert chat(url, max_tokens=60, presence_penalty=2.0).choices[0].message.content
    assert len({chat(url, temperature=1.5).choices[0].message.content for _ in range(3)}) > 1


def check_formats(url: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    form = {"type": "json_object", "schema": schema | {"additionalProperties": False}}
    answer = chat(url, response_format=form, max_tokens=60)
    assert list(json.loads(answer.choices[0].message.content)) == ["n"]


def check_generic_calls(url: str) -> None:
    where = f"{url}/octoai/v1/completions"
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "seed": 3}
    whole = client(url).infer(where, body)["choices"][0]["text"]
    parts = [chunk["choices"][0]["text"] for chunk in client(url).infer_stream(where, body | {"stream": True})]
    assert "".join(parts) == whole


def check_errors_are_the_callers(url: str) -> None:
    assert "nobody" in raised(OctoAIClientError, chat, url, model="nobody").message
    where = f"{url}/octoai/v1/chat/completions"
    error = raised(OctoAIClientError, client(url).infer, where, CHAT | {"messages": [USER], "temperature": 3})
    assert "422" in error.message, error.message


run(globals())
