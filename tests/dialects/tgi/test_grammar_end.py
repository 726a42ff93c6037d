"""The end-of-sequence token behind a complete grammar: generated, counted and shown as the last token."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from native import events_of, tgi_served
from stub_runtime import TOKENIZER, RunningServer, running_server

PATTERN = {"type": "regex", "value": "[a-c]{5}"}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with running_server(tgi_served()) as server:
        yield server


def generate(served: RunningServer, path: str = "/generate", **parameters: Any) -> httpx.Response:
    body = {"inputs": "Once", "parameters": {"grammar": PATTERN, "max_new_tokens": 60, "details": True, **parameters}}
    return httpx.post(served.url + path, json=body, timeout=30)


def test_it_is_the_last_token_of_the_details(served: RunningServer) -> None:
    answer = generate(served, top_n_tokens=2).json()
    details = answer["details"]
    assert len(answer["generated_text"]) == 5
    assert details["finish_reason"] == "eos_token"
    assert details["generated_tokens"] == len(details["tokens"])
    last = details["tokens"][-1]
    assert last["id"] in TOKENIZER.eos_ids
    assert last["special"]
    ends = sum(math.exp(token["logprob"]) for token in details["top_tokens"][-1] if token["id"] in TOKENIZER.eos_ids)
    assert ends > 0.99, "nothing but end tokens is possible"
    assert "".join(token["text"] for token in details["tokens"][:-1]) == answer["generated_text"]


def test_log_probabilities_are_of_what_the_grammar_allows(served: RunningServer) -> None:
    details = generate(served, top_n_tokens=4).json()["details"]
    for alternatives in details["top_tokens"][:-1]:
        shown = {token["text"] for token in alternatives if token["logprob"] is not None}
        assert all(set(text) <= set("abc") for text in shown)


def test_it_is_the_last_event_of_a_stream(served: RunningServer) -> None:
    *_, last = events_of(generate(served, "/generate_stream").text)
    assert last["token"]["id"] in TOKENIZER.eos_ids
    assert last["token"]["special"]
    assert len(last["generated_text"]) == 5
    assert last["details"]["generated_tokens"] == last["index"]


def test_without_room_for_it_the_length_is_the_end(served: RunningServer) -> None:
    tokens = generate(served, seed=4, do_sample=True).json()["details"]["generated_tokens"]
    details = generate(served, seed=4, do_sample=True, max_new_tokens=tokens - 1).json()["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", tokens - 1)


def test_the_last_chunk_of_a_chat_is_empty_then(served: RunningServer) -> None:
    body = {
        "messages": [{"role": "user", "content": "Say."}],
        "response_format": {"type": "json_object", "value": SCHEMA},
        "stream": True,
        "max_tokens": 60,
    }
    text = httpx.post(served.url + "/v1/chat/completions", json=body, timeout=30).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    contents = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert set(json.loads("".join(contents))) == {"ok"}
    assert contents[-1] == ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_the_parts_of_a_step_are_measured(served: RunningServer) -> None:
    generate(served)
    figures = httpx.get(served.url + "/metrics").text
    for part in ("inference", "forward", "decode", "filter"):
        assert f'tgi_batch_{part}_duration_count{{method="decode"}}' in figures
