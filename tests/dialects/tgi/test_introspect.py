"""What is asked about the server: health, information, how a text is tokenized, figures."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from chat_runtime import chat_runtime
from native import ask, generate, native_server
from stub_runtime import QUICK, STUB, TOKENIZER, LocalServer, local_server

import dragoman
from dragoman.core.errors import (
    BadConstraint,
    Cancelled,
    ContextOverflow,
    DragomanError,
    EngineUnavailable,
    Forbidden,
    GenerationFailed,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ShuttingDown,
    TemplateFailed,
    TemplateMissing,
)
from dragoman.dialects.field_types import FieldError
from dragoman.dialects.tgi.errors import IncompleteStream, MissingVariable, ToolFault, failure_label
from dragoman.dialects.tgi.metrics import DURATION_BOUNDS, steps_to
from dragoman.server.app import create_app
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio


def all_kinds(kind: type[DragomanError]) -> list[type[DragomanError]]:
    """All kinds of an error, below it."""
    return [one for each in kind.__subclasses__() for one in (each, *all_kinds(each))]


@pytest.fixture
async def native(anyio_backend: str, template: ChatTemplate) -> AsyncIterator[LocalServer]:
    async with native_server(template) as runtime:
        yield runtime


@pytest.mark.parametrize("path", ["/", "/health", "/ping", "/tgi/", "/tgi/health"])
async def test_health_is_an_empty_200(native: LocalServer, path: str) -> None:
    for method in ("GET", "HEAD"):
        answer = await native.client.request(method, path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert "content-type" not in answer.headers


async def test_info(native: LocalServer) -> None:
    answer = await native.client.get("/info")
    assert answer.text.startswith(
        '{"model_id":"stub","model_sha":null,"model_pipeline_tag":null,"max_concurrent_requests":128,"max_best_of":2,'
        '"max_stop_sequences":4,"max_input_tokens":255,"max_total_tokens":256,"validation_workers":2,'
        f'"max_client_batch_size":4,"router":"text-generation-router","version":"{dragoman.__version__}","sha":null,'
        '"docker_label":null'
    )


async def test_tokens_have_byte_offsets(native: LocalServer) -> None:
    text = "Hé 👋"
    tokens = (await ask(native.client, "/tokenize", {"inputs": text})).json()
    assert [token["id"] for token in tokens] == list(TOKENIZER.encode(text))
    raw = text.encode()
    for token in tokens:
        assert list(token) == ["id", "text", "start", "stop"]
        assert raw[token["start"] : token["stop"]].decode("utf-8", "replace") == token["text"]
    assert tokens[-1]["stop"] == len(raw)


async def test_tokens_of_texts_that_no_context_holds(native: LocalServer) -> None:
    answer = await ask(native.client, "/tokenize", {"inputs": "a b é" * 10_000, "parameters": {"truncate": 1}})
    tokens = answer.json()
    assert len(tokens) > 30_000
    assert tokens[-1]["stop"] == len(("a b é" * 10_000).encode())
    for text in ("7 " * 40_000, "7 " * 400_000):
        answer = await ask(native.client, "/tokenize", {"inputs": text})
        assert (answer.status_code, answer.text) == (413, "Failed to buffer the request body: length limit exceeded")
        chat = {"messages": [{"role": "user", "content": text}]}
        assert (await ask(native.client, "/tgi/chat_tokenize", chat)).status_code in (413, 422)
        answer = await ask(native.client, "/generate", {"inputs": text, "parameters": {"truncate": 5}})
        assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
        assert "Given: more than 65536" in answer.json()["error"]
    assert (await ask(native.client, "/tokenize", {"inputs": ""})).json() == []


async def test_a_failure_makes_the_probe_generate(template: ChatTemplate) -> None:
    async with chat_runtime(template) as runtime:
        submit, count = runtime.engine.submit, 0

        def fail(request: object) -> object:
            raise GenerationFailed("the engine is gone")

        runtime.engine.submit = fail  # type: ignore[method-assign,assignment]
        answer = await runtime.post("/generate", {"inputs": "Hi"})
        assert answer.status_code == 424
        reason = "Request failed during generation: Server error: the engine is gone"
        assert answer.text == json.dumps({"error": reason, "error_type": "generation"}, separators=(",", ":"))
        sick = await runtime.client.get("/health")
        assert (sick.status_code, sick.text) == (503, '{"error":"unhealthy","error_type":"healthcheck"}')
        runtime.engine.submit = submit  # type: ignore[method-assign]
        count = len(runtime.engine.requests)
        assert (await runtime.client.get("/health")).status_code == 200
        assert len(runtime.engine.requests) == count + 1
        assert runtime.engine.requests[-1].max_tokens == 1
        assert (await runtime.client.get("/health")).status_code == 200
        assert len(runtime.engine.requests) == count + 1


async def test_metrics_have_the_originals_names(native: LocalServer) -> None:
    assert (await generate(native.client, max_new_tokens=3)).status_code == 200
    assert (await generate(native.client, top_k=0)).status_code == 422
    await ask(native.client, "/generate_stream", {"inputs": "x", "parameters": {"max_new_tokens": 2}})
    await ask(native.client, "/generate_stream", {"inputs": ""})
    answer = await native.client.get("/metrics")
    lines = answer.text.splitlines()
    assert "# TYPE tgi_request_count counter" in lines
    assert "# HELP tgi_request_count Total number of requests" in lines
    assert "tgi_request_count 4" in lines
    assert "tgi_request_success 2" in lines
    assert 'tgi_request_failure{err="validation"} 2' in lines
    for name in ("duration", "validation_duration", "queue_duration", "inference_duration", "input_length"):
        assert f"tgi_request_{name}_count 2" in lines
    assert "tgi_request_generated_tokens_sum 5" in lines
    assert "tgi_request_max_new_tokens_sum 5" in lines
    assert 'tgi_request_duration_bucket{le="0.00015"} 0' in lines
    assert 'tgi_request_generated_tokens_bucket{le="2.56"} 1' in lines
    assert "tgi_queue_size 0" in lines
    # A series appears with its first value, and the server's own metrics stay.
    assert "tgi_request_skipped_tokens" not in answer.text
    assert "dragoman_generated_tokens_total 5.0" in lines


async def test_requests_of_other_dialects_count_too(template: ChatTemplate) -> None:
    async with local_server(template, msgspec.structs.replace(QUICK, dialect="tgi"), STUB) as runtime:
        await runtime.client.post("/openai/v1/completions", json={"prompt": "a", "max_tokens": 2})
        await runtime.client.post("/openai/v1/completions", json={"prompt": 5})  # generates nothing
        await runtime.client.post("/tgi/tokenize", json={"inputs": "a"})
        lines = (await runtime.client.get("/metrics")).text.splitlines()
        assert "tgi_request_count 1" in lines
        assert "tgi_request_success 1" in lines
        assert not [line for line in lines if line.startswith("tgi_request_failure")]
        assert "tgi_request_duration_count 1" in lines
        assert "tgi_request_generated_tokens_sum 2" in lines
        assert "tgi_request_validation_duration_count 1" in lines


async def test_a_validation_lasts_from_the_arrival_of_the_request(template: ChatTemplate) -> None:
    async with local_server(template, msgspec.structs.replace(QUICK, dialect="tgi"), STUB) as runtime:

        async def body() -> AsyncIterator[bytes]:
            yield b'{"prompt": "a", '
            await asyncio.sleep(0.05)
            yield b'"max_tokens": 2}'

        headers = {"content-type": "application/json"}
        for path in ("/openai/v1/completions", "/tgi/v1/completions"):
            assert (await runtime.client.post(path, content=body(), headers=headers)).status_code == 200
        text = (await runtime.client.get("/metrics")).text
        found = re.search(r"^tgi_request_validation_duration_sum (\S+)$", text, flags=re.MULTILINE)
        assert found is not None
        assert 0.1 <= float(found[1]) < 50


async def test_the_gauge_of_tokens_is_of_what_is_running(template: ChatTemplate) -> None:
    async with native_server(template) as runtime:
        runtime.engine.free.clear()
        asked = asyncio.create_task(generate(runtime.client, max_new_tokens=7))
        while not runtime.engine.requests:
            await asyncio.sleep(0.005)
        prompt = runtime.engine.requests[0].prompt_tokens
        assert f"tgi_batch_current_max_tokens {prompt + 7}" in (await runtime.client.get("/metrics")).text
        runtime.engine.free.set()
        await asked
        assert "tgi_batch_current_max_tokens 0" in (await runtime.client.get("/metrics")).text


@pytest.mark.parametrize("error", [DragomanError, *all_kinds(DragomanError)], ids=lambda kind: kind.__name__)
def test_every_error_is_counted_under_one_of_the_originals_names(error: type[DragomanError]) -> None:
    known = {"validation", "overloaded", "generation", "incomplete", "template", "dropped"}
    if issubclass(error, Forbidden):  # not known to the original, which asks for no keys
        known = {"forbidden"}
    assert failure_label(error) in known


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (Cancelled, "dropped"),
        (Overloaded, "overloaded"),
        (RateLimited, "overloaded"),
        (ShuttingDown, "overloaded"),
        (EngineUnavailable, "generation"),
        (GenerationFailed, "generation"),
        (ModelNotFound, "generation"),
        (ValueError, "generation"),
        (ContextOverflow, "validation"),
        (BadConstraint, "validation"),
        (FieldError, "validation"),
        (ToolFault, "validation"),
        (TemplateMissing, "template"),
        (TemplateFailed, "template"),
        (MissingVariable, "template"),
        (IncompleteStream, "incomplete"),
    ],
)
def test_failures_have_the_originals_names(error: type[Exception], label: str) -> None:
    assert failure_label(error) == label


def test_buckets() -> None:
    assert len(DURATION_BOUNDS) == 35
    assert DURATION_BOUNDS[:2] == (0.00015, 0.000225)
    assert 145 < DURATION_BOUNDS[-1] < 146
    assert steps_to(1000)[0] == 10
    assert steps_to(1000)[-1] == 1000


async def test_pages_of_other_origins(native: LocalServer, template: ChatTemplate) -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    refused = await native.client.options("/generate", headers=asked)
    assert (refused.status_code, refused.json()["error_type"]) == (403, "forbidden")
    async with native_server(template, cors_allow_origin=("https://a.example",)) as runtime:
        answer = await runtime.client.options("/generate", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert answer.headers["access-control-allow-methods"] == "GET,POST"
        assert answer.headers["access-control-allow-headers"] == "content-type,authorization,idempotency-key"
        allowed = await runtime.client.get("/info", headers={"origin": "https://a.example"})
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        other = await runtime.client.get("/info", headers={"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
        assert other.headers["vary"] == "origin, access-control-request-method, access-control-request-headers"


async def test_the_log_has_times_and_nobodys_text(native: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "dragoman")
    await generate(native.client, "a secret", max_new_tokens=2, do_sample=True, seed=9)
    await ask(native.client, "/generate", {"inputs": "x", "parameters": {"seed": "another secret"}})
    success = next(record for record in caplog.records if record.getMessage().startswith("Success"))
    assert list(success.fields) == [  # type: ignore[attr-defined]
        "total_time",
        "validation_time",
        "queue_time",
        "inference_time",
        "time_per_token",
        "seed",
    ]
    assert success.fields["seed"] == "9"  # type: ignore[attr-defined]
    assert 'parameters.seed: invalid type: string "…", expected u64' in caplog.text
    assert "secret" not in caplog.text


FORGED = "a `b\n2026-11-29 00:00:00,000 INFO dragoman.access: 'secret' \x1b[31m"
BAD_PATTERN = {"grammar": {"type": "regex", "value": f"({FORGED}"}}


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/generate", {"parameters": {"grammar": {"type": FORGED, "value": "a"}}}, "unknown variant `…`, expected"),
        ("/generate", {"parameters": BAD_PATTERN}, "grammar is not valid"),
        ("/generate", {"parameters": {"grammar": {"type": "json", "value": {"$ref": f"#/{FORGED}"}}}}, "grammar"),
        ("/v1/chat/completions", {"logit_bias": {FORGED: 1}}, "logit_bias.…: invalid type: string"),
        ("/v1/chat/completions", {"logit_bias": {"1": FORGED}}, 'logit_bias.1: invalid type: string "…", expected'),
        ("/v1/chat/completions", {"tools": [], "tool_choice": FORGED}, "Tool"),
        ("/v1/chat/completions", {"messages": [FORGED]}, 'messages[0]: invalid type: string "…", expected'),
        ("/vertex", {"instances": [{"inputs": "a", "parameters": BAD_PATTERN}]}, "one of a batch failed"),
    ],
)
async def test_what_a_client_writes_is_in_no_error_of_the_log(
    native: LocalServer, caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any], told: str
) -> None:
    caplog.set_level("DEBUG", "dragoman")
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    whole: dict[str, Any] = {"model": "m", "inputs": "a", "messages": [{"role": "user", "content": "a"}], **body}
    if "tools" in body:
        whole["tools"] = [tool]
    answer = await native.client.post(path, json=whole)
    assert answer.status_code in (422, 500)
    lines = [record.getMessage() for record in caplog.records if record.name == "dragoman.tgi"]
    assert told in lines[0]
    for line in lines:
        assert line.isprintable()
        assert "secret" not in line


@pytest.mark.parametrize(("dialect", "path"), [("openai", "/tgi/generate"), ("tgi", "/openai/v1/completions")])
async def test_the_line_is_for_requests_of_this_dialect_where_it_is_the_operators_choice(
    template: ChatTemplate, caplog: pytest.LogCaptureFixture, dialect: str, path: str
) -> None:
    caplog.set_level("DEBUG", "dragoman")
    body = {"inputs": "a", "prompt": "a", "max_tokens": 2}
    async with local_server(template, msgspec.structs.replace(QUICK, dialect=dialect), STUB) as runtime:
        assert (await runtime.client.post(path, json=body)).status_code == 200
        await runtime.client.post(path, json={"inputs": 5, "prompt": 5})
        assert {record.name for record in caplog.records} == {"dragoman.access"}
        caplog.clear()
        await runtime.client.post("/tgi/generate", json=body)
        await runtime.client.post("/tgi/generate", json={"inputs": 5})
    names = [record.name for record in caplog.records]
    own = ["dragoman.tgi"] if dialect == "tgi" else []
    assert names == [*own, "dragoman.access"] * 2


async def test_applications_of_one_server_write_one_line(
    template: ChatTemplate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dragoman.tgi")
    async with native_server(template) as runtime:
        create_app(runtime.serving, msgspec.structs.replace(QUICK, dialect="tgi"), metrics=runtime.metrics)
        await generate(runtime.client, max_new_tokens=2)
    assert len(caplog.records) == 1


async def test_limits_that_the_model_cannot_hold_are_lowered_aloud(
    template: ChatTemplate, caplog: pytest.LogCaptureFixture
) -> None:
    async with native_server(template, max_input_tokens=500, max_total_tokens=600) as runtime:
        info = (await runtime.client.get("/info")).json()
        assert (info["max_input_tokens"], info["max_total_tokens"]) == (255, 256)
    assert "max_input_tokens is 255, not 500: the model's context is 256" in caplog.text
    assert "max_total_tokens is 256, not 600" in caplog.text
