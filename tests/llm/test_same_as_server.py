"""The same request gives the same tokens, whether it comes over HTTP or from Python."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from dragoman import LLM, SamplingParams

QUESTION = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tell me a story about a fox."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}

PARAMETERS: dict[str, dict[str, Any]] = {
    "nothing but a seed": {},
    "truncations": {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "temperature": 0.7},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.5, "temperature": 0},
    "other samplers": {"xtc_probability": 0.5, "typical_p": 0.9, "dry_multiplier": 0.8, "no_repeat_ngram_size": 3},
    "mirostat": {"mirostat_mode": 2, "mirostat_tau": 3.0},
    "bans": {"bad_words": ["the"], "bad_word_token_ids": [[405]], "logit_bias": {272: 2.0}},
    "ends": {"stop": ["a", "fox"], "min_tokens": 3, "include_stop_str_in_output": True},
    "several": {"n": 3},
    "beams": {"n": 2, "num_beams": 4},
    "a form": {"structured_outputs": {"regex": "[a-z ]{5,20}"}},
    "a watermark": {"watermark": True, "ignore_eos": True},
}


def over_http(server: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    if "logit_bias" in body:
        body = body | {"logit_bias": {str(token): bias for token, bias in body["logit_bias"].items()}}
    answer = server.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


@pytest.mark.parametrize("given", PARAMETERS.values(), ids=PARAMETERS)
def test_completions(llm: LLM, server: httpx.Client, given: dict[str, Any]) -> None:
    given = given | {"seed": 11, "max_tokens": 24}
    choices = over_http(server, "completions", {"prompt": "Once upon a time", "logprobs": 2, **given})
    outputs = llm.generate("Once upon a time", SamplingParams(logprobs=2, **given))[0].outputs
    assert [choice["text"] for choice in choices] == [output.text for output in outputs]
    assert [choice["finish_reason"] for choice in choices] == [output.finish_reason for output in outputs]
    for choice, output in zip(choices, outputs, strict=True):
        assert output.logprobs is not None
        shown = choice["logprobs"]["token_logprobs"]
        assert shown
        # Over HTTP, a token that ends a text without being part of it has no entry.
        assert shown == [token.logprob for token in output.logprobs][: len(shown)]
        assert len(output.logprobs) - len(shown) <= 2


@pytest.mark.parametrize("given", PARAMETERS.values(), ids=PARAMETERS)
def test_chats(llm: LLM, server: httpx.Client, given: dict[str, Any]) -> None:
    given = given | {"seed": 5, "max_tokens": 24}
    choices = over_http(server, "chat/completions", {"messages": QUESTION, **given})
    outputs = llm.chat(QUESTION, SamplingParams(**given))[0].outputs
    assert [choice["message"]["content"] for choice in choices] == [output.text for output in outputs]
    assert [choice["finish_reason"] for choice in choices] == [output.finish_reason for output in outputs]


def test_what_is_left_out_means_the_same(llm: LLM, server: httpx.Client) -> None:
    (choice,) = over_http(server, "completions", {"prompt": "Once", "seed": 1})
    assert choice["text"] == llm.generate("Once", SamplingParams(seed=1))[0].text
    (choice,) = over_http(server, "chat/completions", {"messages": QUESTION, "seed": 1})
    assert choice["message"]["content"] == llm.chat(QUESTION, SamplingParams(seed=1))[0].text


def test_tool_calls(llm: LLM, server: httpx.Client) -> None:
    tools = {"tools": [TOOL], "tool_choice": "required"}
    (choice,) = over_http(server, "chat/completions", {"messages": QUESTION, "seed": 2, **tools})
    (output,) = llm.chat(QUESTION, SamplingParams(seed=2), **tools)[0].outputs  # type: ignore[arg-type]
    shown = [call["function"] for call in choice["message"]["tool_calls"]]
    assert shown == [{"name": call.name, "arguments": call.arguments} for call in output.tool_calls]
    assert choice["finish_reason"] == output.finish_reason == "tool_calls"


def test_scores(llm: LLM, server: httpx.Client) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 0, "echo": True, "logprobs": 1}
    (choice,) = over_http(server, "completions", body)
    (score,) = llm.score("Once upon a time")
    assert choice["logprobs"]["token_logprobs"] == [token.logprob for token in score.logprobs]


def test_streams(llm: LLM, server: httpx.Client) -> None:
    (choice,) = over_http(server, "completions", {"prompt": "Once", "seed": 3, "max_tokens": 24})
    deltas = llm.stream("Once", SamplingParams(seed=3, max_tokens=24))
    assert choice["text"] == "".join(delta.text for delta in deltas)
