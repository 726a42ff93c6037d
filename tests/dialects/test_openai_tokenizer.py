"""The tokenizer over HTTP as vLLM has it: what lm-eval's remote tokenizer asks of a server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from stub_runtime import STUB, TOKENIZER, LocalServer

from dragoman import __version__

pytestmark = pytest.mark.anyio

HI = {"role": "user", "content": "Hi there."}


async def post(runtime: LocalServer, path: str, body: dict[str, Any]) -> httpx.Response:
    return await runtime.client.post(path, json=body)


async def test_texts_and_back(runtime: LocalServer) -> None:
    """As the harness does it: a text without special tokens, and its tokens without a model."""
    found = (await post(runtime, "/tokenize", {"prompt": "Hello world", "add_special_tokens": False})).json()
    ids = TOKENIZER.encode("Hello world", add_special_tokens=False)
    assert found == {"count": len(ids), "max_model_len": STUB.max_context, "tokens": list(ids), "token_strs": None}
    assert (await post(runtime, "/detokenize", {"tokens": list(ids)})).json()["prompt"] == "Hello world"
    assert (await post(runtime, "/detokenize", {"tokens": []})).json()["prompt"] == ""
    refused = await post(runtime, "/detokenize", {"tokens": [10**9]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens")


async def test_special_tokens_and_the_text_of_each(runtime: LocalServer) -> None:
    found = (await post(runtime, "/tokenize", {"prompt": "Hello world", "return_token_strs": True})).json()
    assert found["tokens"] == list(TOKENIZER.encode("Hello world"))
    assert "".join(found["token_strs"]) == TOKENIZER.decode(found["tokens"], skip_special_tokens=False)
    assert len(found["token_strs"]) == found["count"]


async def test_a_conversation_has_the_tokens_that_it_runs_with(runtime: LocalServer) -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    for more in ({}, {"tools": [tool]}, {"add_generation_prompt": False}, {"continue_final_message": True}):
        found = (await post(runtime, "/tokenize", {"messages": [HI], **more})).json()
        ran = (await post(runtime, "/v1/chat/completions/render", {"messages": [HI], **more})).json()
        assert found["tokens"] == ran["token_ids"], more


async def test_a_text_goes_before_a_conversation_as_in_vllm(runtime: LocalServer) -> None:
    alone = await post(runtime, "/tokenize", {"prompt": "Hello world"})
    both = await post(runtime, "/tokenize", {"prompt": "Hello world", "messages": [HI], "add_generation_prompt": True})
    assert both.json() == alone.json()
    assert both.headers["x-dragoman-warnings"] == "ignored: messages, add_generation_prompt"


async def test_what_a_tokenizer_is(runtime: LocalServer) -> None:
    found = (await runtime.client.get("/tokenizer_info")).json()
    assert found.keys() >= {"tokenizer_class", "bos_token", "eos_token", "pad_token", "chat_template"}
    assert found["model_max_length"] == STUB.max_context
    assert (await runtime.client.get("/version")).json() == {"version": __version__}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"messages": [HI], "add_special_tokens": True}, "add_special_tokens"),
        ({"prompt": "a", "chat_template": "x"}, "chat_template"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ],
)
async def test_what_is_wrong_is_named(runtime: LocalServer, body: dict[str, Any], param: str) -> None:
    answer = await post(runtime, "/openai/tokenize", body)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["param"] == param


async def test_others_forms_of_the_paths_stay_theirs(runtime: LocalServer) -> None:
    assert "id" in (await post(runtime, "/tokenize", {"inputs": "Hello"})).json()[0]
    assert list((await post(runtime, "/tokenize", {"content": "Hello"})).json()) == ["tokens"]
    assert list((await post(runtime, "/llamacpp/detokenize", {"tokens": [5]})).json()) == ["content"]
    assert "content" in (await post(runtime, "/detokenize", {"tokens": [5]})).json()
