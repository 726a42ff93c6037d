"""OctoAI's rules, shapes and errors, and what its streams are made of."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from failing import WHY, failing_server
from model_cards import card_of
from scripted import ScriptedServer, scripted_server
from stub_runtime import QUICK, TOKENIZER, LocalServer, local_server

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.dialects import made_dialects
from dragoman.dialects.api import RouteHint
from dragoman.dialects.field_types import dotted
from dragoman.dialects.octoai.fields import COMPLETIONS
from dragoman.dialects.octoai.routes import claims
from dragoman.dialects.octoai.settings import OctoAISettings
from dragoman.dialects.octoai.translate import completion_requests, template_messages
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {"model": "stub", "prompt": "Once upon a time", "max_tokens": 4, "seed": 3}
USER = {"role": "user", "content": "Hi."}
CHAT: dict[str, Any] = {"model": "stub", "messages": [USER], "max_tokens": 4, "seed": 3}
TOOL = {"function": {"name": "f"}}
TEXT = "So it goes."


@pytest.fixture(scope="module")
def scripted(template: ChatTemplate) -> Iterator[ScriptedServer]:
    with scripted_server(template) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def failing(template: ChatTemplate) -> Iterator[str]:
    with failing_server(template) as url:
        yield url


# Rules ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"best_of": 0}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [[1], [10**6]]}, "prompt"),
        ({"prompt": [1], "suffix": "x"}, "suffix"),
        ({"model": None}, "model"),
    ],
)
async def test_a_completion_is_refused_by_the_name_of_what_is_wrong(
    runtime: LocalServer, fields: dict[str, Any], param: str
) -> None:
    answer = await runtime.client.post("/octoai/v1/completions", json=BODY | fields)
    told = answer.json()
    assert answer.status_code == 422, told
    (entry,) = told["detail"]
    assert entry["loc"][:2] == ["body", param], told
    assert (told["object"], told["type"]) == ("error", "invalid_request_error")
    assert answer.headers["x-user-request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 2}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "regex"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"octoai": {"vllm": {"use_beam_search": True}}}, "octoai.vllm.use_beam_search"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
async def test_a_chat_is_refused_by_the_name_of_what_is_wrong(
    runtime: LocalServer, fields: dict[str, Any], param: str
) -> None:
    answer = await runtime.client.post("/octoai/v1/chat/completions", json=CHAT | fields)
    assert answer.status_code == 422, answer.text
    first, *path = answer.json()["detail"][0]["loc"]
    assert first == "body"
    assert dotted(tuple(path)).startswith(param)


@pytest.mark.parametrize(
    "fields",
    [
        dict.fromkeys(("suffix", "stop", "logit_bias", "logprobs", "user", "stream_options", "best_of")),
        {"top_k": 1, "nothing": 2, "stream_options": {"include_usage": True}, "log_prompt": True},
        {"suffix": "", "stop": "", "logit_bias": {"5": None}, "best_of": 1, "user": "x"},
    ],
)
async def test_what_says_nothing_changes_nothing(runtime: LocalServer, fields: dict[str, Any]) -> None:
    plain = await runtime.client.post("/octoai/v1/completions", json=BODY)
    answer = await runtime.client.post("/octoai/v1/completions", json=BODY | fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain.json()["choices"]


async def test_a_chat_takes_what_the_old_sdk_sends(runtime: LocalServer) -> None:
    old = {"function_call": None, "functions": None, "logit_bias": None, "response_format": None, "stop": None, "n": 1}
    plain = await runtime.client.post("/octoai/v1/chat/completions", json=CHAT)
    answer = await runtime.client.post("/octoai/v1/chat/completions", json=CHAT | old | {"best_of": 3, "echo": True})
    assert answer.json()["choices"] == plain.json()["choices"]
    assert answer.json()["choices"][0]["message"]["function_call"] is None
    assert "delta" not in answer.json()["choices"][0]


async def test_the_old_extension_is_honoured(runtime: LocalServer) -> None:
    engine = {"top_k": 1, "ignore_eos": True, "stop_token_ids": [5], "skip_special_tokens": False}
    greedy = await runtime.client.post(
        "/octoai/v1/chat/completions", json=CHAT | {"temperature": 0, "ignore_eos": True}
    )
    answer = await runtime.client.post("/octoai/v1/chat/completions", json=CHAT | {"octoai": {"vllm": engine}})
    assert answer.json()["choices"] == greedy.json()["choices"]
    lora = await runtime.client.post("/octoai/v1/chat/completions", json=CHAT | {"octoai": {"loras": ["mine"]}})
    assert (lora.status_code, lora.json()["param"]) == (404, "peft")


async def test_a_prompt_longer_than_the_context_is_status_400(runtime: LocalServer) -> None:
    for body in (BODY | {"prompt": "word " * 400}, BODY | {"prompt": [5] * 300}):
        answer = await runtime.client.post("/octoai/v1/completions", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "context_length_exceeded")
    longer = await runtime.client.post("/octoai/v1/completions", json=BODY | {"max_tokens": 10**6, "ignore_eos": True})
    assert longer.json()["usage"]["total_tokens"] == 256
    assert longer.json()["choices"][0]["finish_reason"] == "length"


async def test_ids_are_echoed_as_their_text(runtime: LocalServer) -> None:
    ids = list(TOKENIZER.encode("Once upon a time", add_special_tokens=False))
    body = BODY | {"prompt": ids}
    plain = (await runtime.client.post("/octoai/v1/completions", json=body)).json()["choices"][0]["text"]
    echoed = (await runtime.client.post("/octoai/v1/completions", json=body | {"echo": True})).json()["choices"][0][
        "text"
    ]
    assert echoed == TOKENIZER.decode(ids) + plain


def test_models_without_marks_or_beginnings_say_so(runtime: LocalServer) -> None:
    card = msgspec.structs.replace(runtime.serving.model(None), has_fill_tokens=False, has_bos=False)
    reading = COMPLETIONS.read({"model": "stub", "prompt": "x", "suffix": "y"})
    with pytest.raises(UnsupportedFeature, match="suffix"):
        completion_requests(reading, "id", card)
    for prompt in (None, ""):
        reading = COMPLETIONS.read({"model": "stub", "prompt": prompt})
        with pytest.raises(BadRequest, match="begin"):
            completion_requests(reading, "id", card)


async def test_errors_are_flat_objects(runtime: LocalServer) -> None:
    told = (await runtime.client.post("/octoai/v1/completions", json=BODY | {"model": "x"})).json()
    message = "The model 'x' does not exist. This server has: stub, other, org/name."
    shape = {"message": message, "type": "not_found_error", "param": "model"}
    assert told == {
        "object": "error",
        **shape,
        "code": "model_not_found",
        "validation_errors": None,
        "error": shape | {"code": "model_not_found"},
    }
    for path in ("embeddings", "images", "nothing"):
        answer = await runtime.client.post(f"/octoai/v1/{path}", json={})
        assert (answer.status_code, answer.json()["type"]) == (404, "not_found_error")
        assert answer.headers["x-user-request-id"]


async def test_a_form_is_no_body(runtime: LocalServer) -> None:
    answer = await runtime.client.post("/octoai/v1/completions", data={"model": "stub", "prompt": "x"})
    assert (answer.status_code, answer.json()["detail"][0]["type"]) == (422, "json_invalid")
    bare = await runtime.client.post("/octoai/v1/completions", content=json.dumps(BODY).encode())
    assert bare.status_code == 200


async def test_health_and_models(runtime: LocalServer) -> None:
    assert (await runtime.client.get("/octoai/healthcheck")).status_code == 200
    listed = (await runtime.client.get("/octoai/v1/models")).json()["data"]
    assert [item["id"] for item in listed] == ["stub", "other", "org/name"]
    runtime.serving.admission.close("The server is shutting down.")
    full = await runtime.client.post("/octoai/v1/completions", json=BODY)
    assert (full.status_code, full.headers["retry-after"]) == (503, "5")


# The log of prompts --------------------------------------------------------------------------------------------------


async def test_prompts_are_stored_only_when_both_sides_want_it(template: ChatTemplate, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    with_log = made_dialects({"octoai": OctoAISettings(octoai_prompt_log=str(path), octoai_prompt_log_bytes=600)})
    async with local_server(template) as runtime:
        await runtime.client.post("/octoai/v1/completions", json=BODY | {"log_prompt": True})
    async with local_server(template, dialects=with_log) as runtime:
        await runtime.client.post("/octoai/v1/completions", json=BODY)
        await runtime.client.post("/octoai/v1/chat/completions", json=CHAT | {"log_prompt": False})
        assert not path.exists()
        await runtime.client.post("/octoai/v1/completions", json=BODY | {"log_prompt": True, "user": "ann"})
        await runtime.client.post("/octoai/v1/chat/completions", json=CHAT | {"log_prompt": True, "stream": True})
        refused = await runtime.client.post("/octoai/v1/completions", json=BODY | {"log_prompt": True, "peft": "x"})
        assert refused.status_code == 404
        assert path.stat().st_mode & 0o777 == 0o600
        first, second = map(json.loads, path.read_text().splitlines())
        assert (first["prompt"], first["user"], first["model"]) == (BODY["prompt"], "ann", "stub")
        assert second["messages"][0]["content"] == "Hi."
        for _ in range(5):
            answer = await runtime.client.post("/octoai/v1/completions", json=BODY | {"log_prompt": True})
            assert answer.status_code == 200
        assert path.stat().st_size <= 600


async def test_a_full_disk_leaves_whole_lines_in_the_log_of_prompts(
    template: ChatTemplate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "prompts.jsonl"
    dialects = made_dialects({"octoai": OctoAISettings(octoai_prompt_log=str(path))})
    body = BODY | {"log_prompt": True}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with local_server(template, dialects=dialects) as runtime:
        await runtime.client.post("/octoai/v1/completions", json=body)
        for most in (path.stat().st_size + 20, limits[0]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
            try:
                answers = [await runtime.client.post("/octoai/v1/completions", json=body) for _ in range(2)]
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert [answer.status_code for answer in answers] == [200, 200]
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert all(json.loads(line)["prompt"] == BODY["prompt"] for line in lines)
    assert caplog.text.count("prompts are not stored now") == 1


# Messages ------------------------------------------------------------------------------------------------------------


def message(**fields: Any) -> dict[str, Any]:
    return {"name": None, "tool_calls": None, "tool_call_id": None, "content": ""} | fields


CARD = card_of()


def test_results_without_an_id_answer_calls_in_order() -> None:
    call = {"function": {"name": "f", "arguments": '{"x": 1}'}}
    flat = template_messages(
        (
            message(role="user", content="Go."),
            message(role="assistant", tool_calls=(call, call | {"id": "own"}, call)),
            message(role="tool", content="b", tool_call_id="own"),
            message(role="tool", content="a"),
            message(role="tool", content="c"),
            message(role="tool", content="left over"),
        ),
        CARD,
    )
    first, own, last = (made["id"] for made in flat[1]["tool_calls"])
    assert own == "own"
    assert re.fullmatch(r"[a-z0-9]{9}", first)
    assert flat[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert [result.get("tool_call_id") for result in flat[2:]] == ["own", first, last, None]


TURNS = (
    "{% for m in messages %}{% if loop.index0 and m.role == messages[loop.index0 - 1].role %}"
    "{{ raise_exception('turns!') }}{% endif %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
)


async def test_one_speaker_may_speak_twice_in_a_row() -> None:
    turns = ChatTemplate({"default": TURNS})
    said = [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]
    async with local_server(turns) as runtime:
        answer = await runtime.client.post("/octoai/v1/chat/completions", json=CHAT | {"messages": said})
        assert answer.status_code == 200
        assert TOKENIZER.decode(runtime.engine.requests[-1].prompt) == "[user: One.\n\nTwo.]"
        refused = await runtime.client.post("/v1/chat/completions", json=CHAT | {"messages": said})
        assert refused.status_code == 400
    turns.close()


# Streams -------------------------------------------------------------------------------------------------------------


def stream(runtime: ScriptedServer, path: str, text: str = TEXT, **fields: Any) -> str:
    runtime.engine.texts = [text]
    body = {"model": "stub", "seed": 3, "stream": True} | fields
    answer = httpx.post(f"{runtime.url}/octoai/v1/{path}", json=body, timeout=20)
    assert answer.headers["content-type"].startswith("text/event-stream")
    return re.sub(r'"created":\d+', '"created":0', re.sub(r"cmpl-[0-9a-f]{32}", "cmpl-0", answer.text))


def pieces_of(text: str) -> list[str]:
    return [TOKENIZER.token_text(token) for token in TOKENIZER.encode(text, add_special_tokens=False)]


async def test_a_completions_stream_to_the_byte(scripted: ScriptedServer) -> None:
    head = '{"id":"cmpl-0","object":"text_completion","created":0,"model":"stub","system_fingerprint":"fingerprint",'
    expected = ""
    for piece in pieces_of(TEXT):
        choice = f'{{"index":0,"text":{json.dumps(piece)},"finish_reason":null,"logprobs":null}}'
        expected += f'data: {head}"choices":[{choice}]}}\n\n'
    prompt, made = len(TOKENIZER.encode("Once")), len(pieces_of(TEXT)) + 1
    counts = f'{{"prompt_tokens":{prompt},"completion_tokens":{made},"total_tokens":{prompt + made}}}'
    expected += f'data: {head}"choices":[{{"index":0,"text":"","finish_reason":"stop","logprobs":null}}]'
    assert stream(scripted, "completions", prompt="Once") == f"{expected}}}\n\ndata: [DONE]\n\n"
    counted = stream(scripted, "completions", prompt="Once", stream_options={"include_usage": True})
    assert counted == f'{expected},"usage":{counts}}}\n\ndata: [DONE]\n\n'


async def test_a_chat_stream_to_the_byte(scripted: ScriptedServer) -> None:
    head = (
        '{"id":"cmpl-0","object":"chat.completion.chunk","created":0,"model":"stub","system_fingerprint":"fingerprint",'
        '"choices":[{"index":0,"delta":{"role":"assistant","content":'
    )
    tail = '},"finish_reason":null,"logprobs":null}]}\n\n'
    expected = f"data: {head}null{tail}"
    for piece in pieces_of(TEXT):
        expected += f"data: {head}{json.dumps(piece)}{tail}"
    expected += f'data: {head}""}},"finish_reason":"stop","logprobs":null}}]}}\n\ndata: [DONE]\n\n'
    assert stream(scripted, "chat/completions", messages=[USER]) == expected


async def test_counts_are_on_the_very_last_chunk_that_has_choices(scripted: ScriptedServer) -> None:
    sent = stream(
        scripted, "completions", prompt=["a", "b"], n=2, stream_options={"include_usage": True}, echo=True, logprobs=0
    )
    chunks = [json.loads(line[6:]) for line in sent.split("\n\n") if line.startswith("data: {")]
    assert ["usage" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    texts = [""] * 4
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["a" + TEXT, "a" + TEXT, "b" + TEXT, "b" + TEXT]
    assert [line[:6] for line in sent.split("\n") if line] == ["data: "] * (len(chunks) + 1)


async def test_tool_calls_come_in_pieces(scripted: ScriptedServer) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    sent = stream(scripted, "chat/completions", text=text, messages=[USER], tools=[TOOL])
    choices = [json.loads(line[6:])["choices"][0] for line in sent.split("\n\n") if line.startswith("data: {")]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert (calls[0]["type"], calls[0]["function"]["name"]) == ("function", "f")
    assert "".join(call["function"]["arguments"] for call in calls) == '{"x": 1}'
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert all(choice["delta"]["role"] == "assistant" for choice in choices)
    assert all("message" not in choice for choice in choices)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_a_stream_that_fails_says_so_and_breaks_the_connection(failing: str, path: str) -> None:
    body = {"model": "stub", "prompt": "x", "messages": [USER], "stream": True}
    received: list[bytes] = []
    with httpx.stream("POST", f"{failing}/octoai/v1/{path}", json=body, timeout=20) as answer:
        pieces = answer.iter_raw()
        with pytest.raises(httpx.RemoteProtocolError):
            received.extend(pieces)
    *_, last = b"".join(received).decode().strip().split("\n\n")
    shape = {"message": WHY, "type": "internal_error"}
    assert json.loads(last.removeprefix("data: ")) == {"error": shape, **shape, "object": "error"}
    whole = httpx.post(f"{failing}/octoai/v1/{path}", json=body | {"stream": False}, timeout=20)
    assert whole.status_code == 500
    assert (whole.json()["message"], whole.json()["type"]) == (WHY, "internal_error")


# Whose call ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "body", "claimed"),
    [
        ({"x-fern-sdk-name": "octoai"}, {"prompt": "x"}, True),
        ({"x-fern-sdk-name": "cohere"}, {"prompt": "x"}, False),
        ({"user-agent": "octoai-0.10.1"}, {"prompt": "x"}, True),
        *(({}, {key: None}, True) for key in ("loglikelihood", "log_prompt", "peft", "ignore_eos", "octoai")),
        ({"user-agent": "OpenAI/Python 2.0"}, {"prompt": "x", "seed": 3}, False),
        ({}, None, False),
    ],
)
async def test_calls_of_its_clients_are_claimed_where_nobody_was_chosen(
    headers: dict[str, str], body: Any, claimed: bool
) -> None:
    assert claims(RouteHint(headers=headers, body=body, dialect="auto")) is claimed
    assert claims(RouteHint(headers=headers, body=body, dialect="openai")) is False


async def test_bare_paths_are_octoais_when_the_operator_says_so(template: ChatTemplate) -> None:
    for dialect, expected in (("octoai", True), ("openai", False)):
        async with local_server(template, msgspec.structs.replace(QUICK, dialect=dialect)) as runtime:
            answer = await runtime.client.post("/v1/completions", json=BODY)
            assert ("x-user-request-id" in answer.headers) is expected
