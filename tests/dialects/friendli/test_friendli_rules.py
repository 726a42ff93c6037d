"""Friendli's rules: what goes together, what is out of range, and how it says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from stub_runtime import LocalServer

from dragoman.core.images import ImageInfo

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {"model": "stub", "prompt": "Once upon a time", "max_tokens": 4, "seed": 3}
CHAT: dict[str, Any] = {"model": "stub", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4, "seed": 3}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


async def refused(runtime: LocalServer, path: str, body: Any, param: str, status: int = 422) -> dict[str, Any]:
    answer = await runtime.client.post(f"/serverless/v1/{path}", json=body)
    told: dict[str, Any] = answer.json()
    assert answer.status_code == status, told
    assert (told["error"]["param"] or "").startswith(param), told
    return told


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tokens": [5]}, "tokens"),
        ({"max_total_tokens": 20}, "max_total_tokens"),
        ({"min_tokens": 2, "min_total_tokens": 9}, "min_total_tokens"),
        ({"min_tokens": 2, "response_format": {"type": "json_object"}}, "response_format"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"token_index_to_replace": [0]}, "embedding_to_replace"),
        ({"embedding_to_replace": [0.0]}, "token_index_to_replace"),
        ({"token_index_to_replace": [0, 0], "embedding_to_replace": [0.0, 0.0]}, "token_index_to_replace"),
        ({"seed": [1, 2, 3], "n": 2}, "seed"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"max_tokens": None, "max_total_tokens": 9, "min_total_tokens": 10}, "min_total_tokens"),
        ({"max_tokens": None, "max_total_tokens": 2}, "max_total_tokens"),
        ({"max_tokens": None, "max_total_tokens": 9, "min_tokens": 200}, "min_tokens"),
        ({"encoder_repetition_penalty": 1.1}, "encoder_repetition_penalty"),
        ({"encoder_no_repeat_ngram": 2}, "encoder_no_repeat_ngram"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 10**6}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"temperature": -0.1}, "temperature"),
        ({"min_p": 1.1}, "min_p"),
        ({"xtc_threshold": 2}, "xtc_threshold"),
        ({"xtc_probability": -1}, "xtc_probability"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 129}, "n"),
        ({"n": 0}, "n"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"timeout_microseconds": 0}, "timeout_microseconds"),
        ({"num_beams": 32}, "num_beams"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**4}, "prompt"),
        ({"eos_token": [10**6]}, "eos_token"),
        ({"stop_tokens": [{"tokens": [10**6]}]}, "stop_tokens"),
        ({"bad_word_tokens": [{"tokens": [10**6]}]}, "bad_word_tokens"),
        ({"forced_output_tokens": [10**6]}, "forced_output_tokens"),
        ({"forced_output_tokens": []}, "forced_output_tokens"),
        ({"forced_output_tokens": [[1], [2]]}, "forced_output_tokens"),
        ({"forced_output_tokens": [1], "response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": None, "tokens": [10**6]}, "tokens"),
        ({"prompt": None, "tokens": []}, "tokens"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"include_output_logits": True}, "include_output_logits"),
        ({"soft_prompts": []}, "soft_prompts"),
        ({"position_ids": [0]}, "position_ids"),
        ({"generation_offset": 0}, "generation_offset"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "regex"}}, "response_format"),
        ({"response_format": {"type": "regex", "schema": "(a"}}, "response_format"),
        ({"response_format": {"type": "regex", "schema": "^a$"}}, "response_format"),
        ({"response_format": {"type": "regex", "schema": "(?=a)a"}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": "not a schema"}}, "response_format"),
    ],
)
async def test_a_completion_is_refused_by_the_name_of_what_is_wrong(
    runtime: LocalServer, fields: dict[str, Any], param: str
) -> None:
    told = await refused(runtime, "completions", BODY | fields, param)
    assert told["detail"][0]["loc"][0] == "body"
    assert told["message"] == told["error"]["message"]
    assert told["error"]["code"] == "validation_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL], "min_tokens": 1}, "min_tokens"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "math:calculator"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0]",
        ),
    ],
)
async def test_a_chat_is_refused_by_the_name_of_what_is_wrong(
    runtime: LocalServer, fields: dict[str, Any], param: str
) -> None:
    await refused(runtime, "chat/completions", CHAT | fields, param)


@pytest.mark.parametrize(
    "fields",
    [
        # What old clients send with every request says nothing.
        {"min_tokens": 0, "n": 1, "top_k": 0, "no_repeat_ngram": 1, "encoder_no_repeat_ngram": 1, "top_p": 1.0},
        {"early_stopping": False, "beam_search_type": "DETERMINISTIC", "encoder_repetition_penalty": 1.0},
        {"min_tokens": 0, "response_format": {"type": "text"}, "min_total_tokens": 0},
        {"max_total_tokens": 256},
        {"include_output_logits": "false", "include_output_logprobs": "false", "stream": "false"},
        {"logit_bias": {"5": 100}, "echo": True, "no_persist": True, "user": "x"},
        dict.fromkeys(("stop", "tokens", "bad_words", "num_beams", "stream_options", "eos_token", "logprobs")),
        {"stop": ["", "\u2603"], "bad_words": [""], "bad_word_tokens": [{}, {"tokens": []}], "eos_token": []},
        {"length_penalty": 3.0, "early_stopping": True, "beam_search_type": "STOCHASTIC"},
        {"temperature": 1, "repetition_penalty": 1, "xtc_threshold": 0.5},
    ],
)
async def test_what_says_nothing_changes_nothing(runtime: LocalServer, fields: dict[str, Any]) -> None:
    plain = await runtime.client.post("/serverless/v1/completions", json=BODY)
    answer = await runtime.client.post("/serverless/v1/completions", json=BODY | fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain.json()["choices"]


async def test_batches_of_tokens_are_forced_batch_by_batch(runtime: LocalServer) -> None:
    body = {"model": "stub", "tokens": [[5, 6], [7]], "forced_output_tokens": [[8, 9], [10]], "seed": 1}
    answer = await runtime.client.post("/serverless/v1/completions", json=body | {"include_output_logprobs": True})
    choices = answer.json()["choices"]
    assert [choice["tokens"] for choice in choices] == [[8, 9], [10]]
    assert [len(choice["logprobs"]) for choice in choices] == [2, 1]
    ended = await runtime.client.post(
        "/serverless/v1/completions", json=BODY | {"forced_output_tokens": [8, 9], "eos_token": [9], "max_tokens": 1}
    )
    assert (ended.json()["choices"][0]["tokens"], ended.json()["choices"][0]["finish_reason"]) == ([8, 9], "stop")


async def test_numbers_of_embeddings_may_be_whole(runtime: LocalServer) -> None:
    width = runtime.serving.model(None).hidden_size
    fields = {"token_index_to_replace": [1], "embedding_to_replace": [0] * width}
    assert (await runtime.client.post("/serverless/v1/completions", json=BODY | fields)).status_code == 200
    batch = BODY | fields | {"prompt": ["a", "b"]}
    assert (await runtime.client.post("/serverless/v1/completions", json=batch)).status_code == 422


async def test_unknown_fields_are_ignored_and_reported(runtime: LocalServer) -> None:
    answer = await runtime.client.post("/serverless/v1/completions", json=BODY | {"no_persist": True, "best_of": 3})
    assert answer.headers["x-dragoman-warnings"] == "unknown: no_persist, best_of"


async def test_an_effort_that_the_template_does_not_read_is_reported(runtime: LocalServer) -> None:
    for path in ("chat/completions", "chat/render"):
        answer = await runtime.client.post(f"/serverless/v1/{path}", json=CHAT | {"reasoning_effort": "low"})
        assert answer.status_code == 200
        assert "reasoning_effort" in answer.headers["x-dragoman-warnings"]
    plain = await runtime.client.post("/serverless/v1/chat/completions", json=CHAT)
    assert "x-dragoman-warnings" not in plain.headers


async def test_a_chat_takes_what_the_old_client_sends_without_tools(runtime: LocalServer) -> None:
    fields = {"tools": None, "tool_choice": "auto", "max_completion_tokens": 4, "reasoning_budget": 5}
    answer = await runtime.client.post("/serverless/v1/chat/completions", json=CHAT | fields)
    assert answer.status_code == 200
    assert answer.headers["x-dragoman-warnings"] == "ignored: reasoning_budget", "this model does not reason"
    assert (await runtime.client.post("/serverless/v1/chat/completions", json=CHAT | {"tools": []})).status_code == 200


# Surfaces ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["completions", "chat/completions", "tokenize", "detokenize", "chat/render"])
async def test_hosted_surfaces_need_a_model(runtime: LocalServer, path: str) -> None:
    for surface in ("serverless", "dedicated"):
        answer = await runtime.client.post(f"/{surface}/v1/{path}", json={})
        assert answer.status_code == 422
        assert answer.json()["detail"][0] == {"loc": ["body", "model"], "msg": "Field required", "type": "missing"}


async def test_the_place_of_a_tool_is_a_path_as_that_of_any_field(runtime: LocalServer) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]
    for path in ("/friendli/v1/chat/completions", "/octoai/v1/chat/completions"):
        answer = await runtime.client.post(path, json=CHAT | {"tools": tools})
        assert answer.status_code in (400, 422)
        assert answer.json()["detail"][0]["loc"] == ["body", "tools", 0, "function", "parameters"]


async def test_tokens_that_no_model_has_are_refused_by_the_name_of_the_field(runtime: LocalServer) -> None:
    await refused(runtime, "detokenize", {"model": "stub", "tokens": [1, 1 << 20]}, "tokens")


async def test_the_container_does_without_and_shows_what_was_asked(runtime: LocalServer) -> None:
    nameless = await runtime.client.post("/friendli/v1/completions", json=without(BODY, "model"))
    assert nameless.status_code == 200
    assert "model" not in nameless.json()
    named = await runtime.client.post("/friendli/v1/completions", json=BODY)
    assert named.json()["model"] == "stub"
    unknown = await runtime.client.post("/friendli/v1/completions", json=BODY | {"model": "adapter"})
    assert unknown.status_code == 404


async def test_dedicated_endpoints_have_no_adapters_yet(runtime: LocalServer) -> None:
    for model, status in (("stub", 200), ("stub:route", 404), ("nobody:route", 404)):
        answer = await runtime.client.post("/dedicated/v1/completions", json=BODY | {"model": model})
        assert answer.status_code == status
    assert (
        "adapter 'route'"
        in (await runtime.client.post("/dedicated/v1/completions", json=BODY | {"model": "stub:route"})).text
    )


async def test_every_surface_answers_the_same(runtime: LocalServer) -> None:
    texts = set()
    for prefix in ("/serverless", "/dedicated", "/friendli", "/friendli/serverless"):
        answer = await runtime.client.post(f"{prefix}/v1/completions", json=BODY)
        texts.add(answer.json()["choices"][0]["text"])
    assert len(texts) == 1


@pytest.mark.parametrize(
    "path", ["responses", "messages", "audio/transcriptions", "images/generations", "knowledge/retrieve", "embeddings"]
)
async def test_what_is_out_of_scope_is_not_found(runtime: LocalServer, path: str) -> None:
    answer = await runtime.client.post(f"/serverless/v1/{path}", json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"
    assert isinstance(answer.json()["detail"], str)
    assert (await runtime.client.post("/serverless/tools/v1/chat/completions", json={})).status_code == 404


async def test_a_wrong_method_is_told(runtime: LocalServer) -> None:
    answer = await runtime.client.get("/serverless/v1/completions")
    assert (answer.status_code, answer.json()["error"]["type"]) == (405, "invalid_request_error")


async def test_accept_and_content_type_do_not_matter(runtime: LocalServer) -> None:
    headers = {"accept": "application/json;q=1, text/event-stream;q=0", "content-type": "text/plain"}
    content = b'{"model": "stub", "prompt": "x", "max_tokens": 2, "stream": true}'
    answer = await runtime.client.post("/serverless/v1/completions", content=content, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_text_without_tokens_is_refused(runtime: LocalServer) -> None:
    empty = await runtime.serving.tokenize_text("")
    answer = await runtime.client.post("/serverless/v1/completions", json=BODY | {"prompt": ""})
    assert answer.status_code == (200 if empty else 422)


# Calls about tokens --------------------------------------------------------------------------------------------------


async def test_tokens_there_and_back(runtime: LocalServer) -> None:
    there = await runtime.client.post("/serverless/v1/tokenize", json={"model": "stub", "prompt": "Hello there"})
    tokens = there.json()["tokens"]
    assert tokens == [token.token_id for token in await runtime.serving.tokenize_text("Hello there")]
    back = await runtime.client.post("/serverless/v1/detokenize", json={"model": "stub", "tokens": [2, *tokens, 2]})
    assert back.json() == {"text": "Hello there"}
    wrong = await runtime.client.post("/serverless/v1/detokenize", json={"model": "stub", "tokens": [10**6]})
    assert wrong.status_code == 422


async def test_rendering_is_what_a_chat_runs(runtime: LocalServer) -> None:
    rendered = await runtime.client.post("/serverless/v1/chat/render", json=without(CHAT, "max_tokens", "seed"))
    text = rendered.json()["text"]
    assert "Hi." in text
    tokens = await runtime.client.post("/serverless/v1/tokenize", json={"model": "stub", "prompt": text})
    chat = await runtime.client.post("/serverless/v1/chat/completions", json=CHAT)
    assert chat.json()["usage"]["prompt_tokens"] == len(tokens.json()["tokens"])
    tools = await runtime.client.post("/friendli/v1/chat/render", json={"messages": CHAT["messages"], "tools": [TOOL]})
    assert '"f"' in tools.json()["text"]


async def test_models_have_every_key_that_an_sdk_insists_on(runtime: LocalServer) -> None:
    for path in ("/serverless/v1/models", "/dedicated/v1/models", "/friendli/v1/models"):
        listed = (await runtime.client.get(path)).json()
        assert listed["object"] == "list"
        assert {item["id"] for item in listed["data"]} == {"stub", "other", "org/name"}
    (first, *_) = listed["data"]
    assert first["context_length"] == first["max_completion_tokens"] == 256
    assert set(map(type, first["pricing"].values())) <= {str, type(None)}
    assert first["mode"] == "chat"
    assert first["functionality"]["builtin_tool"] is False


@pytest.mark.parametrize("sees", [False, True])
async def test_models_say_whether_they_take_images(
    runtime: LocalServer, monkeypatch: pytest.MonkeyPatch, sees: bool
) -> None:
    images = ImageInfo(most_tokens=4, has_detail=False) if sees else None
    cards = tuple(msgspec.structs.replace(card, images=images) for card in runtime.serving.models())
    monkeypatch.setattr(runtime.serving, "models", lambda: cards)
    (first, *_) = (await runtime.client.get("/serverless/v1/models")).json()["data"]
    assert first["input_modalities"] == (["text", "image"] if sees else ["text"])
