"""LocalLab's paths over the stub engine: answers, streams, refusals, and what its manual promises."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
from locallab_server import BODY, CHAT, HERE, last, prompt_text
from stub_runtime import STUB, TOKENIZER, LocalServer, local_server

from dragoman.core.errors import GenerationFailed
from dragoman.core.events import FinishEvent, FinishReason, PromptEvent, TokenEvent
from dragoman.core.observer import RequestEnd
from dragoman.dialects.locallab import dialect as locallab
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

# Whole answers -------------------------------------------------------------------------------------------------------


async def test_generate_answers_callers_of_both_generations(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/generate", json=BODY)).json()
    assert answer["response"] == answer["text"] != ""
    assert answer["model"] == answer["model_id"] == answer["modelId"] == "stub"
    counts = answer["usage"]
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]
    assert (counts["completion_tokens"], counts["completionTokens"], counts["totalTokens"]) == (
        12,
        12,
        counts["total_tokens"],
    )
    assert answer["finish_reason"] == "length"


async def test_prefix_and_bare_path_are_the_same(client: httpx.AsyncClient) -> None:
    bare = await client.post("/generate", json=BODY)
    prefixed = await client.post("/locallab/generate", json=BODY)
    assert prefixed.json() == bare.json()


async def test_documents_are_where_its_users_look(client: httpx.AsyncClient) -> None:
    for path in ("/docs", "/redoc", "/locallab/docs", "/locallab/redoc"):
        page = await client.get(path)
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), path


async def test_chat_has_one_choice(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/chat", json=CHAT)).json()
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == choice["finishReason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["model"] == "stub"


async def test_batch_keeps_the_order_of_the_prompts(client: httpx.AsyncClient) -> None:
    prompts = ["one", "two two", "three three three"]
    answer = (await client.post("/generate/batch", json=BODY | {"prompts": prompts})).json()
    singles = [(await client.post("/generate", json=BODY | {"prompt": prompt})).json() for prompt in prompts]
    assert answer["responses"] == [single["response"] for single in singles]
    assert answer["usage"]["completion_tokens"] == 36
    assert answer["usage"]["prompt_tokens"] == sum(single["usage"]["prompt_tokens"] for single in singles)
    empty = (await client.post("/generate/batch", json={"prompts": []})).json()
    assert empty["responses"] == []
    assert empty["usage"]["total_tokens"] == 0


async def test_json_is_read_whatever_the_header_says(client: httpx.AsyncClient) -> None:
    answer = await client.post("/generate", content=json.dumps(BODY), headers={"content-type": "text/plain"})
    assert answer.status_code == 200


async def test_every_answer_is_timed_and_counted(client: httpx.AsyncClient) -> None:
    first = await client.post("/generate", json=BODY)
    await client.get("/health")
    refused = await client.post("/generate", json={})
    assert float(first.headers["x-process-time"]) > 0
    assert int(refused.headers["x-request-count"]) == int(first.headers["x-request-count"]) + 1


# What is asked of the engine -----------------------------------------------------------------------------------------


async def test_defaults_are_those_of_the_manual(runtime: LocalServer) -> None:
    await runtime.client.post("/generate", json={"prompt": "x", "max_length": 4})
    sampling = last(runtime).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 80)
    assert sampling.repetition_penalty == 1.15


async def test_a_default_length_never_fails_on_a_small_context(runtime: LocalServer) -> None:
    answer = await runtime.client.post("/generate", json={"prompt": "x", "temperature": 0})
    assert answer.status_code == 200
    counts = answer.json()["usage"]
    assert counts["total_tokens"] <= 256


@pytest.mark.parametrize("name", ["max_length", "max_tokens", "max_new_tokens", "maxLength"])
async def test_the_length_has_four_names(runtime: LocalServer, name: str) -> None:
    await runtime.client.post("/generate", json={"prompt": "x", name: 3, "top_p": None})
    assert last(runtime).max_tokens == 3


async def test_of_several_names_the_first_with_a_value_counts(runtime: LocalServer) -> None:
    body = {"prompt": "x", "max_length": None, "max_tokens": 5, "maxLength": 9, "topK": 7, "repetitionPenalty": 1.5}
    await runtime.client.post("/generate", json=body)
    assert last(runtime).max_tokens == 5
    assert last(runtime).sampling.top_k == 7
    assert last(runtime).sampling.repetition_penalty == 1.5


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"do_sample": False}, {"doSample": False}])
async def test_greedy_in_two_ways(runtime: LocalServer, greedy: dict[str, Any]) -> None:
    await runtime.client.post("/generate", json={"prompt": "x", "max_length": 2} | greedy)
    assert last(runtime).sampling.temperature == 0


async def test_a_prompt_goes_through_the_chat_template(runtime: LocalServer) -> None:
    await runtime.client.post("/generate", json=BODY | {"system_prompt": "Be brief."})
    assert "Be brief." in prompt_text(runtime)
    assert "Once upon a time" in prompt_text(runtime)
    assert prompt_text(runtime).endswith("assistant\n")


async def test_a_raw_prompt_stays_as_it_is(
    anyio_backend: str, template: ChatTemplate, settings: locallab.LocalLabSettings
) -> None:
    raw = msgspec.structs.replace(settings, locallab_prompt_mode="raw")
    async with local_server(template, HERE, dialects=(locallab.make(raw),)) as runtime:
        await runtime.client.post("/generate", json=BODY)
        assert prompt_text(runtime) == "Once upon a time"
        await runtime.client.post("/generate", json=BODY | {"system_prompt": "Be brief."})
        assert prompt_text(runtime) == "Be brief.\n\nOnce upon a time"


async def test_without_a_template_a_chat_is_laid_out_as_text(
    anyio_backend: str, settings: locallab.LocalLabSettings
) -> None:
    async with local_server(ChatTemplate({}), HERE, dialects=(locallab.make(settings),)) as runtime:
        messages = [
            {"role": "System", "content": "Be brief."},
            {"role": "user", "content": "hello"},
            {"role": "narrator", "content": "It rains."},
        ]
        await runtime.client.post("/chat", json=CHAT | {"messages": messages})
        expected = "# System Instruction\nBe brief.\n\n\nUser: hello\n\nUser: Narrator: It rains.\n\nAssistant:"
        assert prompt_text(runtime) == expected
        await runtime.client.post("/generate", json=BODY)
        assert prompt_text(runtime) == "Once upon a time"


async def test_a_template_without_a_system_role_gets_it_with_the_first_question(
    anyio_backend: str, settings: locallab.LocalLabSettings
) -> None:
    strict = ChatTemplate(
        {
            "default": "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
            "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('take turns') }}{% endif %}"
            "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
        }
    )
    try:
        async with local_server(strict, HERE, dialects=(locallab.make(settings),)) as runtime:
            messages = [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "one"},
                {"role": "user", "content": "two"},
                {"role": "assistant", "content": "yes"},
                {"role": "user", "content": "three"},
            ]
            answer = await runtime.client.post("/chat", json=CHAT | {"messages": messages})
            assert answer.status_code == 200
            assert prompt_text(runtime) == "<user>Be brief.\n\none\n\ntwo<assistant>yes<user>three<assistant>"
            begun = [{"role": "assistant", "content": "I begin."}]
            answer = await runtime.client.post("/chat", json=CHAT | {"messages": begun})
            assert answer.status_code == 400
            assert answer.json()["detail"] == "take turns"
    finally:
        strict.close()


# Streams -------------------------------------------------------------------------------------------------------------


def spelled(text: str) -> str:
    return text.replace("\n", "\\n")


async def test_a_stream_is_the_whole_answer_in_lines(client: httpx.AsyncClient) -> None:
    whole = (await client.post("/generate", json=BODY | {"max_length": 100})).json()["response"]
    answer = await client.post("/generate", json=BODY | {"max_length": 100, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, end, nothing = answer.text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert "".join(event[6:] for event in events) == spelled(whole).rstrip()


async def test_a_chat_stream_has_two_lines_for_each_piece(client: httpx.AsyncClient) -> None:
    whole = (await client.post("/chat", json=CHAT)).json()["choices"][0]["message"]["content"]
    answer = await client.post("/chat", json=CHAT | {"stream": True})
    *events, last_event, end, _ = answer.text.split("\n\n")
    assert end == "data: [DONE]"
    said = ""
    for event in events:
        *lines, json_line = event.split("\n")
        value = json.loads(json_line)
        assert value["role"] == "assistant"
        assert value["choices"][0]["delta"]["content"] == value["content"]
        assert lines in ([], ["data: " + spelled(value["content"])])
        said += value["content"]
    assert said == whole
    final = json.loads(last_event)
    assert (final["content"], final["choices"][0]["finish_reason"]) == ("", "length")
    assert final["usage"]["completion_tokens"] == 12


async def test_generate_stream_is_plain_text(client: httpx.AsyncClient) -> None:
    whole = (await client.post("/generate", json=BODY)).json()["response"]
    answer = await client.post("/generate/stream", json=BODY)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == whole


async def test_chat_stream_is_json_with_a_role(client: httpx.AsyncClient) -> None:
    whole = (await client.post("/chat", json=CHAT)).json()["choices"][0]["message"]["content"]
    *events, end, _ = (await client.post("/chat/stream", json=CHAT)).text.split("\n\n")
    values = [json.loads(event.removeprefix("data: ")) for event in events]
    assert end == "data: [DONE]"
    assert all(value["role"] == "assistant" for value in values)
    assert "".join(value["content"] for value in values) == whole
    assert values[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("extra", "headers", "kind"),
    [
        ({"stream_format": "raw"}, {}, "text/plain; charset=utf-8"),
        ({}, {"accept": "text/plain"}, "text/plain; charset=utf-8"),
        ({"stream_format": "json"}, {"accept": "text/plain"}, "text/event-stream; charset=utf-8"),
    ],
)
async def test_a_client_may_choose_the_form(
    client: httpx.AsyncClient, extra: dict[str, Any], headers: dict[str, str], kind: str
) -> None:
    answer = await client.post("/generate", json=BODY | {"stream": True} | extra, headers=headers)
    assert answer.headers["content-type"] == kind


@pytest.mark.parametrize(
    ("path", "form", "said"),
    [
        ("/generate", {"stream": True}, b"data: Error: the model broke down\n\n"),
        ("/chat", {"stream": True}, b'data: Error: the model broke down\n{"error":"the model broke down"}\n\n'),
        ("/chat/stream", {}, b'data: {"error":"the model broke down"}\n\n'),
        ("/generate/stream", {}, b"\nError: the model broke down"),
    ],
)
async def test_a_fault_in_a_stream_is_said_and_not_done(
    runtime: LocalServer, path: str, form: dict[str, Any], said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[RequestEnd] = []
    monkeypatch.setattr(runtime.metrics.observers, "ended", [lambda request, end: ends.append(end)])
    runtime.engine.free.clear()
    asking = asyncio.create_task(
        runtime.client.post(path, json=(CHAT if "chat" in path else BODY) | form | {"max_length": 200})
    )
    while not runtime.engine.streams or not runtime.engine.requests:
        await asyncio.sleep(0)
    (request_id,) = runtime.engine.streams
    word = TOKENIZER.encode(" the", add_special_tokens=False)[0]
    runtime.engine.deliver(PromptEvent(request_id))
    runtime.engine.deliver(TokenEvent(request_id, 0, 0, word))
    runtime.engine.deliver(FinishEvent(request_id, 0, FinishReason.ERROR, "the model broke down"))
    answer = await asking
    assert answer.status_code == 200
    assert answer.content.endswith(said)
    assert b"[DONE]" not in answer.content
    assert isinstance(ends[0].error, GenerationFailed)


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, "prompt: is required"),
        ({"prompt": 3}, "prompt: must be a string, not 3"),
        ({"prompt": "x", "temperature": 2.5}, "temperature: must be between 0 and 2"),
        ({"prompt": "x", "top_k": 1001}, "top_k: must be between 0 and 1000"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens: must be between 1 and 32000"),
        ({"prompt": "x", "repetition_penalty": 0.5}, "repetition_penalty: must be between 1 and 2"),
        ({"prompt": "x", "stream_format": "xml"}, "stream_format: must be one of sse, json, raw, dual"),
    ],
)
async def test_a_wrong_value_is_named(client: httpx.AsyncClient, body: dict[str, Any], detail: str) -> None:
    answer = await client.post("/generate", json=body)
    assert answer.status_code == 400
    assert answer.json()["detail"] == detail
    assert answer.json()["errors"][0]["loc"] == ["body", detail.partition(":")[0]]


async def test_faults_of_a_body_come_before_a_stream(client: httpx.AsyncClient) -> None:
    answer = await client.post("/generate", json=BODY | {"stream": True, "model_id": "nobody"})
    assert answer.status_code == 404
    assert "model not found" in answer.json()["detail"]


async def test_a_prompt_that_fills_the_context_is_too_large(client: httpx.AsyncClient) -> None:
    answer = await client.post("/generate", json={"prompt": "many words " * 200})
    assert answer.status_code == 413
    assert "256" in answer.json()["detail"]


@pytest.mark.parametrize("messages", [[], "hello", [{"role": "user"}]])
async def test_a_chat_needs_messages(client: httpx.AsyncClient, messages: Any) -> None:
    answer = await client.post("/chat", json={"messages": messages})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("messages")


async def test_unknown_fields_are_reported(client: httpx.AsyncClient) -> None:
    answer = await client.post("/generate", json=BODY | {"mystery": 1})
    assert answer.status_code == 200
    assert "mystery" in answer.headers["x-dragoman-warnings"]


async def test_an_unknown_model_can_be_let_pass(
    anyio_backend: str, template: ChatTemplate, settings: locallab.LocalLabSettings
) -> None:
    lenient = msgspec.structs.replace(settings, locallab_lenient_model_id=True)
    async with local_server(template, HERE, dialects=(locallab.make(lenient),)) as runtime:
        answer = await runtime.client.post("/generate", json=BODY | {"model_id": "nobody"})
        assert answer.status_code == 200
        assert answer.headers["x-model-used"] == "stub"


@pytest.mark.parametrize("name", [None, "", "stub", "org/name", "NAME", "other"])
async def test_a_model_has_several_names(client: httpx.AsyncClient, name: str | None) -> None:
    answer = await client.post("/generate", json=BODY | {"model_id": name})
    assert answer.status_code == 200


async def test_too_many_requests(
    anyio_backend: str, template: ChatTemplate, settings: locallab.LocalLabSettings
) -> None:
    strict = msgspec.structs.replace(settings, locallab_rate_limit=3, locallab_burst=0)
    async with local_server(template, HERE, dialects=(locallab.make(strict),)) as runtime:
        answers = [await runtime.client.post("/chat", json=CHAT) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert answers[0].headers["x-ratelimit-remaining"] == "2"
        assert int(answers[3].headers["retry-after"]) > 0
        assert "rate limit" in answers[3].json()["detail"]
        assert (await runtime.client.get("/system/info")).status_code == 200


# Time ----------------------------------------------------------------------------------------------------------------


async def test_what_there_is_when_the_time_is_over_is_the_answer(
    anyio_backend: str, template: ChatTemplate, settings: locallab.LocalLabSettings
) -> None:
    slow = msgspec.structs.replace(STUB, step_s=0.01)
    async with local_server(template, HERE, slow, dialects=(locallab.make(settings),)) as runtime:
        answer = await runtime.client.post("/generate", json=BODY | {"max_time": 0.2, "max_length": 200})
        assert answer.status_code == 200
        assert answer.json()["finish_reason"] == "length"
        assert 0 < answer.json()["usage"]["completion_tokens"] < 200
