"""Whatever is sent: a clear error in the dialect's shape, and nothing left behind. Spoken to without a socket."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stub_runtime import QUICK, STUB, LocalServer, local_server

from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

PATHS = ("/v1/completions", "/v1/chat/completions")
HI = [{"role": "user", "content": "hi"}]


async def post(
    runtime: LocalServer, content: bytes | str | dict[str, Any], path: str = "/v1/completions", **headers: str
) -> httpx.Response:
    body = json.dumps(content).encode() if isinstance(content, dict) else content
    sent = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return await runtime.client.post(path, content=body, headers=sent)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error in OpenAI's shape; the response has it, and nothing else."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert isinstance(body["error"]["message"], str)
    assert 0 < len(body["error"]["message"]) < 2000
    error: dict[str, Any] = body["error"]
    return error


def nothing_left(runtime: LocalServer) -> None:
    assert runtime.engine.streams == {}
    assert runtime.engine.free_blocks == STUB.num_blocks
    assert (runtime.serving.admission.waiting, runtime.serving.admission.running) == (0, 0)


# Bodies --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"prompt": "a",}',
        b"{'prompt': 'a'}",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"prompt": "a"} trailing',
        b'{"prompt": "\x00"}',
        b'{"prompt": "\xff\xfe"}',
        b'{"\xff": 1}',
        b'{"prompt": "\\ud800 lonely"}',
        b"[" * 100_000,
        b'{"prompt": ' * 50_000,
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"seed": ' + b"9" * 100_000 + b"}",
        b"\x00\x01\x02",
    ],
    ids=lambda body: repr(body[:24]),
)
async def test_what_is_not_json_is_refused(runtime: LocalServer, path: str, body: bytes) -> None:
    error = error_of(await post(runtime, body, path), 400)
    assert error["type"] == "invalid_request_error"
    nothing_left(runtime)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"null", b"1", b'"text"', b"[]", b'[{"prompt": "a"}]', b"true"])
async def test_a_body_is_an_object(runtime: LocalServer, path: str, body: bytes) -> None:
    assert "expected an object" in error_of(await post(runtime, body, path), 400)["message"]


async def test_of_equal_keys_the_last_counts(runtime: LocalServer) -> None:
    response = await post(runtime, b'{"prompt": "a", "max_tokens": -5, "max_tokens": 2, "ignore_eos": true}')
    assert response.json()["usage"]["completion_tokens"] == 2


async def test_the_content_type_must_be_json_if_it_is_named(runtime: LocalServer) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    for good in ("application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.a+json"):
        assert (await post(runtime, body, content_type=good)).status_code == 200
    unnamed = await runtime.client.post("/v1/completions", content=body)
    assert unnamed.status_code == 200
    for bad in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert "application/json" in error_of(await post(runtime, body, content_type=bad), 400)["message"]


async def test_a_compressed_body_is_refused_by_its_encoding(runtime: LocalServer) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    body = gzip.compress(b'{"prompt": "a", "max_tokens": 1}')
    assert (
        "'gzip'"
        in error_of(await runtime.client.post("/v1/completions", content=body, headers=headers), 400)["message"]
    )


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/api/chat",
        "/tgi/generate",
        "/llamacpp/completion",
        "/locallab/generate",
        "/friendli/v1/completions",
        "/octoai/v1/completions",
        "/alexandria/api/generate-one",
        "/alexandria/api/thrift/generate-one",
        "/v1/messages",
    ],
)
@pytest.mark.parametrize("encodings", [["gzip"], ["identity", "gzip"], ["identity, br"]])
async def test_every_dialect_says_of_a_compressed_body_that_it_is_one(
    runtime: LocalServer, path: str, encodings: list[str]
) -> None:
    headers = [("content-type", "application/json"), *(("content-encoding", each) for each in encodings)]
    answer = await runtime.client.post(path, content=gzip.compress(b'{"prompt": "a"}'), headers=headers)
    assert 400 <= answer.status_code < 500
    assert "must not be compressed" in answer.text


async def test_an_encoding_that_changes_nothing_is_none(runtime: LocalServer) -> None:
    headers = {"content-type": "application/json", "content-encoding": "identity, Identity"}
    answer = await runtime.client.post("/v1/completions", content=b'{"prompt": "a", "max_tokens": 1}', headers=headers)
    assert answer.status_code == 200


async def test_a_body_is_refused_by_its_announced_length(template: ChatTemplate) -> None:
    limits = msgspec.structs.replace(QUICK, max_body_bytes=1000, linger_s=0.02)
    async with local_server(template, limits) as runtime:

        async def stuck() -> Any:
            await asyncio.sleep(60)
            yield b""

        headers = {"content-type": "application/json", "content-length": "100000000"}
        response = await asyncio.wait_for(
            runtime.client.post("/v1/completions", content=stuck(), headers=headers), timeout=30
        )
        assert error_of(response, 413)["code"] == "request_too_large"


async def test_a_body_is_counted_while_it_is_read(template: ChatTemplate) -> None:
    async with local_server(template, msgspec.structs.replace(QUICK, max_body_bytes=1000, linger_s=0.02)) as runtime:
        sent = 0

        async def endless() -> Any:
            nonlocal sent
            while True:
                sent += 100
                yield b" " * 100
                await asyncio.sleep(0.001)

        response = await runtime.client.post("/v1/completions", content=endless())
        error_of(response, 413)
        assert sent <= 10_000
        exactly = json.dumps({"prompt": "a", "max_tokens": 1}).encode().ljust(1000)
        assert (await post(runtime, exactly)).status_code == 200
        error_of(await post(runtime, exactly + b" "), 413)


# Values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 10**400}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "1"}, "seed"),
        ({"top_p": 1.1}, "top_p"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"1": 1000}}, "logit_bias.1"),
        ({"logit_bias": {str(STUB.vocab_size): 1}}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop": ["x" * 4096] * 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"prompt": None, "logprobs": 21}, "logprobs"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [STUB.vocab_size]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "word " * 10**5}, "prompt"),
        ({"prompt": list(range(300))}, "prompt"),
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
    ],
)
async def test_impossible_values_are_named(runtime: LocalServer, fields: dict[str, Any], param: str) -> None:
    error = error_of(await post(runtime, {"prompt": "a", **fields}), 400)
    assert error["param"] == param
    assert error_of(await post(runtime, {"prompt": "a", "stream": True, **fields}), 400)["param"] == param
    nothing_left(runtime)


async def test_missing_messages_are_named(runtime: LocalServer) -> None:
    error = error_of(await post(runtime, {"model": "stub"}, "/v1/chat/completions"), 400)
    assert (error["param"], error["code"]) == ("messages", "missing_required_parameter")
    assert error_of(await post(runtime, {"messages": []}, "/v1/chat/completions"), 400)["code"] == "empty_array"


async def test_an_unknown_model_is_not_found(runtime: LocalServer) -> None:
    for path, fields in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": HI})):
        error = error_of(await post(runtime, {"model": "x" * 400, **fields}, path), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_a_prompt_longer_than_the_context_is_refused(runtime: LocalServer) -> None:
    long = [{"role": "user", "content": "word " * 1000}]
    for path, fields, param in (
        ("/v1/chat/completions", {"messages": long}, "messages"),
        ("/v1/completions", {"prompt": "word " * 10**5}, "prompt"),
        ("/v1/completions", {"prompt": [5] * 257}, "prompt"),
    ):
        error = error_of(await post(runtime, fields, path), 400)
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert "This model's maximum context length is 256 tokens." in error["message"]


async def test_what_a_template_refuses_is_the_clients_error(runtime: LocalServer) -> None:
    body = {"messages": HI, "chat_template_kwargs": {"messages": []}}
    assert error_of(await post(runtime, body, "/v1/chat/completions"), 400)["param"] == "chat_template_kwargs"


async def test_a_full_queue_is_429_with_retry_after(template: ChatTemplate) -> None:
    async with local_server(template, msgspec.structs.replace(QUICK, max_waiting=1)) as runtime:
        with runtime.serving.admission.enter():
            response = await post(runtime, {"prompt": "a"})
            error_of(response, 429)
            assert int(response.headers["retry-after"]) >= 1
        assert (await post(runtime, {"prompt": "a", "max_tokens": 1})).status_code == 200


async def test_a_big_batch_waits_for_its_own_turn(template: ChatTemplate) -> None:
    async with local_server(template, msgspec.structs.replace(QUICK, max_waiting=2)) as runtime:
        for stream in (False, True):
            body = {"prompt": ["a"] * 20, "max_tokens": 1, "ignore_eos": True, "stream": stream}
            response = await post(runtime, body)
            assert response.status_code == 200
            assert response.text.count('"finish_reason":"length"') == 20
        nothing_left(runtime)


async def test_a_closing_server_is_503(runtime: LocalServer) -> None:
    runtime.serving.admission.close("The server is shutting down.")
    assert error_of(await post(runtime, {"prompt": "a"}), 503)["code"] == "service_unavailable"


# Paths ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/audio/speech", "/openai", "/openai/v1/nothing", "/v9/completions", "/v1/completions/"]
)
async def test_unknown_paths_are_404(runtime: LocalServer, path: str) -> None:
    for method in ("GET", "POST"):
        error = error_of(await runtime.client.request(method, path), 404)
        assert error["code"] == "unknown_url"


@pytest.mark.parametrize("path", [*PATHS, "/openai/v1/completions"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_wrong_methods_are_405(runtime: LocalServer, path: str, method: str) -> None:
    if (method, path) == ("GET", "/v1/chat/completions"):  # of stored chats, which there are none of
        assert error_of(await runtime.client.get(path), 404)["code"] == "unknown_url"
        return
    response = await runtime.client.request(method, path)
    assert error_of(response, 405)["code"] == "method_not_supported"
    assert response.headers["allow"] == "POST"


async def test_what_is_put_into_a_path_is_not_executed(runtime: LocalServer) -> None:
    response = await runtime.client.get("/v1/models/" + "%0d%0aset-cookie:%20a=b")
    assert "set-cookie" not in response.headers
    error_of(response, 404)


async def test_reported_names_cannot_inject_headers(runtime: LocalServer) -> None:
    body = {"messages": HI, "max_tokens": 1, "a\r\nx-evil: 1": 1, "store": True}
    response = await post(runtime, body, "/v1/chat/completions")
    assert response.status_code == 200
    assert response.headers["x-dragoman-warnings"] == "unknown: a??x-evil??1; ignored: store"
    assert "x-evil" not in response.headers


# Anything ------------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["prompt", "max_tokens", "temperature", "n", "stop", "logprobs", "stream", "seed", "logit_bias", "best_of", "model"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=4), v, max_size=4))


@given(fields=st.dictionaries(NAMES, VALUES, max_size=5))
@example(fields={"max_tokens": 0, "echo": True})
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_values_are_served_or_refused(runtime: LocalServer, fields: dict[str, Any]) -> None:
    response = await post(runtime, {"max_tokens": 3, **fields})
    if response.status_code != 200:
        error_of(response, response.status_code)
        assert response.status_code in (400, 404)
    nothing_left(runtime)


def is_no_object(body: bytes) -> bool:
    try:
        return not isinstance(json.loads(body), dict)
    except ValueError:
        return True


@given(body=st.binary(max_size=200).filter(is_no_object))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_bytes_are_refused(runtime: LocalServer, body: bytes) -> None:
    response = await post(runtime, body)
    error_of(response, 400)


@given(messages=st.lists(st.dictionaries(st.sampled_from(["role", "content", "name", "x"]), VALUES), max_size=3))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_messages_are_served_or_refused(runtime: LocalServer, messages: list[Any]) -> None:
    response = await post(runtime, {"messages": messages, "max_tokens": 2}, "/v1/chat/completions")
    if response.status_code != 200:
        error_of(response, 400)
    nothing_left(runtime)


# Faults of our own ---------------------------------------------------------------------------------------------------


async def test_an_internal_error_is_500_without_its_details(
    runtime: LocalServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime.serving, "generate", lambda _: 1 / 0)
    error = error_of(await post(runtime, {"prompt": "a"}), 500)
    assert error["type"] == "server_error"
    assert "ZeroDivisionError" not in error["message"]
    assert "ZeroDivisionError" in caplog.text


async def test_a_request_without_memory_is_to_be_sent_again(
    runtime: LocalServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def short(_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(runtime.serving, "generate", short)
        refused = await post(runtime, {"prompt": "a"})
    assert "no memory for this request now" in error_of(refused, 503)["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert "there is no memory for request" in caplog.text
    assert "Traceback" not in caplog.text
    assert (await post(runtime, {"prompt": "a"})).status_code == 200
    nothing_left(runtime)


async def test_a_stream_that_cannot_be_finished_ends_with_an_error(template: ChatTemplate) -> None:
    limits = msgspec.structs.replace(QUICK, generation_timeout_s=0.1)
    async with local_server(template, limits, msgspec.structs.replace(STUB, step_s=0.01)) as runtime:
        for _ in range(100):  # a machine that stood still until the limit has begun no stream
            response = await post(runtime, {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True})
            if response.status_code == 200:
                break
            assert "did not finish" in error_of(response, 500)["message"]
        *events, last = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        assert response.status_code == 200
        assert all("choices" in json.loads(event) for event in events)
        assert "within 0.1 seconds" in json.loads(last)["error"]["message"]
        whole = await post(runtime, {"prompt": "a", "max_tokens": 200, "ignore_eos": True})
        assert "did not finish" in error_of(whole, 500)["message"]
        nothing_left(runtime)


async def test_the_log_has_a_line_without_secrets(runtime: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dragoman.access")
    body = json.dumps({"prompt": "my secret", "max_tokens": 1}).encode()
    headers = {"authorization": "Bearer sk-secret", "x-request-id": "mine", "content-type": "application/json"}
    await runtime.client.post("/v1/completions?key=secret%0a", content=body, headers=headers)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "dragoman.access"]
    assert re.fullmatch(
        r"POST /v1/completions 200 \d\.\d+ s \d+\+1 tokens [\d,.]+ tok/s mine client=127\.0\.0\.1:123", line
    )


# Health and documents ------------------------------------------------------------------------------------------------


async def test_health_and_documents_answer(runtime: LocalServer) -> None:
    for path in ("/livez", "/readyz"):
        assert (await runtime.client.get(path)).json() == {"status": "ok"}
    for path in ("/health", "/healthcheck"):
        assert (await runtime.client.get(path)).json() == {"status": "healthy"}
    whole = (await runtime.client.get("/openapi.json")).json()
    assert "/v1/chat/completions" in whole["paths"]
    prefixed = (await runtime.client.get("/openai/openapi.json")).json()
    assert "/openai/v1/chat/completions" in prefixed["paths"]


async def test_metrics_count_what_happened(runtime: LocalServer) -> None:
    await post(runtime, {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True})
    await post(runtime, {"prompt": 5})
    text = (await runtime.client.get("/metrics")).text
    assert 'dragoman_http_requests_total{dialect="openai",route="/v1/completions",status="200"} 1.0' in text
    assert 'dragoman_http_requests_total{dialect="openai",route="/v1/completions",status="400"} 1.0' in text
    assert "dragoman_generated_tokens_total 5.0" in text
    assert "dragoman_time_to_first_token_seconds_count 1.0" in text
    assert "dragoman_inter_token_seconds_count 4.0" in text
    assert "dragoman_request_seconds_count 1.0" in text
    assert 'dragoman_sequences_finished_total{reason="length"} 1.0' in text
