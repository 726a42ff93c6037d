"""Keys, clients that leave, streams that fail, and what belongs to all operations: of the Gemini dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from batch_world import ANN, BOB
from failing import WHY, failing_server
from sockets import Left, request_of, serves, until
from stub_runtime import DIALECTS, QUICK, STUB, TOKENIZER, RunningServer, running_server

from dragoman.cluster.errors import ErrorWriter
from dragoman.cluster.prompt_text import ModelPaths
from dragoman.core.errors import BadRequest, EngineUnavailable
from dragoman.dialects import made_dialects
from dragoman.dialects.gemini.settings import GeminiSettings
from dragoman.engine.messages import StubModel
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.text import ChatTemplate

GENERATE, STREAM = "/v1beta/models/stub:generateContent", "/v1beta/models/stub:streamGenerateContent"
BODY: dict[str, Any] = {"contents": [{"parts": [{"text": "Hi."}]}], "generationConfig": {"maxOutputTokens": 4}}
LONG: dict[str, Any] = {"contents": BODY["contents"], "generationConfig": {"maxOutputTokens": 900}}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One that asks for keys."""
    with running_server(QUICK, STUB, keys=Keyring([hashed(ANN, "ann"), hashed(BOB, "bob")])) as server:
        yield server


@pytest.fixture(scope="module")
def slow() -> Iterator[RunningServer]:
    """One whose answers are long enough to be left."""
    stub = StubModel(vocab_size=TOKENIZER.vocab_size, max_context=2048, num_blocks=192, step_s=0.01)
    with running_server(QUICK, stub=stub) as server:
        yield server


@pytest.fixture(scope="module")
def failing(template: ChatTemplate) -> Iterator[str]:
    with failing_server(template) as url:
        yield url


def post(server: RunningServer, path: str, body: Any = BODY, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(server.url + path, json=body, headers=named, timeout=60)


# Keys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [GENERATE, STREAM, f"/gemini{GENERATE}", "/v1/models/stub:generateContent"])
def test_a_key_is_in_a_header_or_in_the_query(server: RunningServer, path: str) -> None:
    for query, headers, status in (
        ("", {"x_goog_api_key": ANN}, 200),
        ("", {"authorization": f"Bearer {ANN}"}, 200),
        (f"?key={ANN}", {}, 200),
        (f"?key={BOB}&alt=json", {}, 200),
        ("", {}, 401),
        ("?key=", {}, 401),
        ("?key=wrong", {}, 401),
        ("", {"x_goog_api_key": "wrong"}, 401),
        (f"?key={ANN}", {"x_goog_api_key": "wrong"}, 401),
    ):
        answer = post(server, path + query, **headers)
        assert answer.status_code == status, (query, headers, answer.text)


def test_a_wrong_key_is_told_in_googles_words(server: RunningServer) -> None:
    for headers, words in (({"x_goog_api_key": "wrong"}, "API key not valid"), ({}, "API key is missing")):
        error = post(server, GENERATE, **headers).json()["error"]
        assert (error["code"], error["status"]) == (401, "UNAUTHENTICATED")
        assert error["message"].startswith(words)
        assert error["details"][0]["reason"] == "API_KEY_INVALID"


def test_a_key_in_the_query_is_of_this_dialect_alone(server: RunningServer) -> None:
    body = {"prompt": "Once", "max_tokens": 2}
    assert post(server, f"/v1/completions?key={ANN}", body).status_code == 401
    for path in ("/v1beta/models", "/v1beta/models/stub"):
        assert httpx.get(f"{server.url}{path}?key={ANN}").status_code == 200
        assert httpx.get(server.url + path).status_code == 401


def test_a_shared_path_takes_a_key_in_its_header(server: RunningServer) -> None:
    answer = httpx.get(f"{server.url}/v1/models", headers={"x-goog-api-key": ANN})
    assert answer.json()["models"][0]["name"] == "models/stub"
    answer = httpx.get(f"{server.url}/v1/models", headers={"x-goog-api-key": "wrong"})
    assert (answer.status_code, answer.json()["error"]["status"]) == (401, "UNAUTHENTICATED")


def test_callers_have_prefixes_of_their_own(server: RunningServer) -> None:
    """As with keys in other places: Bob is not told what Ann has asked."""
    body = {"contents": [{"parts": [{"text": "a long story " * 40}]}], "generationConfig": {"maxOutputTokens": 1}}
    counts = []
    for key in (ANN, ANN, BOB):
        usage = post(server, f"{GENERATE}?key={key}", body).json()["usageMetadata"]
        counts.append(usage.get("cachedContentTokenCount", 0))
    assert counts[0] == counts[2] == 0
    assert counts[1] > 0


# Clients that leave, and streams that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", [GENERATE, STREAM, f"{STREAM}?alt=sse"])
def test_who_leaves_is_not_generated_for(slow: RunningServer, path: str) -> None:
    with Left(slow, serves):
        with slow.connect() as connection:
            connection.sendall(request_of(LONG, path))
            until(lambda: slow.runtime.engine.stats().running > 0)
            if path != GENERATE:
                assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        until(lambda: slow.runtime.engine.stats().running == 0)


def test_a_stream_that_fails_says_so(failing: str) -> None:
    error = {"code": 500, "message": WHY, "status": "INTERNAL"}
    events = httpx.post(f"{failing}{STREAM}?alt=sse", json=LONG, timeout=20)
    assert events.status_code == 200
    *_, last = events.text.strip().split("\n\n")
    assert json.loads(last.removeprefix("data: ")) == {"error": error}
    array = httpx.post(failing + STREAM, json=LONG, timeout=20)
    *chunks, last = array.json()
    assert (array.status_code, last) == (200, {"error": error})
    assert all(chunk["candidates"] for chunk in chunks)
    assert len(chunks) > 1
    whole = httpx.post(failing + GENERATE, json=LONG, timeout=20)
    assert (whole.status_code, whole.json()) == (500, {"error": error})


def test_a_clients_timeout_is_the_servers(slow: RunningServer) -> None:
    given = {"x_server_timeout": "1"}
    answer = post(slow, GENERATE, LONG, **given)
    assert (answer.status_code, answer.json()["error"]["status"]) == (504, "DEADLINE_EXCEEDED")
    stream = post(slow, STREAM, LONG, **given)
    *chunks, last = stream.json()
    assert (stream.status_code, last["error"]["status"], bool(chunks)) == (200, "DEADLINE_EXCEEDED", True)
    assert post(slow, GENERATE, BODY, x_server_timeout="60").status_code == 200
    for wrong in ("0", "-1", "soon", "1.5"):
        answer = post(slow, GENERATE, BODY, x_server_timeout=wrong)
        assert (answer.status_code, "X-Server-Timeout" in answer.text) == (400, True), wrong


def test_a_mask_is_refused_by_name(slow: RunningServer) -> None:
    answer = post(slow, GENERATE, BODY, x_goog_fieldmask="candidates")
    assert (answer.status_code, "x-goog-fieldmask" in answer.text) == (400, True)


def test_limits_say_when_to_come_back() -> None:
    stub = StubModel(vocab_size=TOKENIZER.vocab_size, max_context=2048, num_blocks=192, step_s=0.01)
    with running_server(msgspec.structs.replace(QUICK, max_waiting=0), stub=stub) as server:
        answer = post(server, GENERATE)
    assert answer.status_code == 429
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (429, "RESOURCE_EXHAUSTED")
    seconds = answer.headers["retry-after"]
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{seconds}s"}
    assert error["details"] == [retry]


# What belongs to all operations --------------------------------------------------------------------------------------


def test_an_answer_is_kept_under_its_key_for_one_model(server: RunningServer) -> None:
    given = {"x_goog_api_key": ANN, "idempotency_key": "gemini-1"}
    first, again = (post(server, GENERATE, **given) for _ in range(2))
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert post(server, GENERATE.replace("stub", "other"), **given).status_code == 422


def test_metrics_name_the_path_without_the_model(server: RunningServer) -> None:
    post(server, "/v1beta/models/gemini-2.5-flash:generateContent", x_goog_api_key=ANN)
    page = httpx.get(server.url + "/metrics", headers={"authorization": f"Bearer {ANN}"}).text
    assert "/v1beta/models/{model:path}:generateContent" in page
    assert "gemini-2.5-flash" not in page


def test_the_documents_have_the_paths(server: RunningServer) -> None:
    document = httpx.get(server.url + "/openapi.json").json()
    described = document["paths"]["/v1beta/models/{model}:streamGenerateContent"]["post"]
    assert [each["name"] for each in described["parameters"] if each["in"] == "path"] == ["model"]
    assert set(described["responses"]["200"]["content"]) == {"text/event-stream", "application/json"}
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/gemini.generateContent"}


def test_a_request_is_explained_with_the_model_of_its_path(server: RunningServer) -> None:
    key = {"authorization": f"Bearer {ANN}"}
    snake = {"contents": BODY["contents"], "generation_config": {"max_output_tokens": 4, "temperature": 0.5}}
    asked = {"path": f"{STREAM}?alt=sse", "body": snake}
    found = post(server, "/explain", asked, **key).json()
    assert found["accepted"], found
    assert found["requests"][0]["parameters"]["sampling.temperature"] == 0.5
    others = {each["dialect"]: each for each in found["others"]}
    assert others["openai"]["body"]["temperature"] == 0.5
    assert not [each for each in others["openai"]["lost"] if each["parameter"] == "prompt"]
    back = {"path": others["openai"]["path"], "body": others["openai"]["body"]}
    gemini = {each["dialect"]: each for each in post(server, "/explain", back, **key).json()["others"]}["gemini"]
    assert gemini["path"] == "/gemini/v1beta/models/stub:generateContent"
    assert gemini["body"]["generationConfig"]["temperature"] == 0.5
    assert not gemini["error"]
    assert post(server, gemini["path"], gemini["body"], **key).status_code == 200
    unknown = post(server, "/explain", {"path": GENERATE.replace("stub", "nobody"), "body": BODY}, **key).json()
    assert unknown["error"]["body"]["error"]["status"] == "NOT_FOUND"


def test_an_ingress_knows_the_model_and_words_its_errors_as_google_does() -> None:
    paths = ModelPaths(DIALECTS)
    assert paths.model_in("/v1beta/models/org/name:streamGenerateContent") == "org/name"
    assert paths.model_in("/gemini/v1/models/a:latest:countTokens") == "a:latest"
    assert paths.model_in("/v1beta/models/a") is None
    writer = ErrorWriter(DIALECTS, "openai")
    scope = {"type": "http", "method": "POST", "path": GENERATE, "headers": []}
    status, _, body = writer.whole(scope, None, EngineUnavailable("No replica."))
    error = json.loads(body)["error"]
    assert (status, error["status"], error["message"]) == (503, "UNAVAILABLE", "No replica.")
    assert json.loads(writer.whole(scope, None, BadRequest("no"))[2])["error"]["status"] == "INVALID_ARGUMENT"
    event = writer.event(scope, None, EngineUnavailable("No replica."))
    assert event is not None
    assert event.startswith(b'data: {"error":')


def test_names_of_googles_may_be_errors() -> None:
    dialects = made_dialects({"gemini": GeminiSettings(gemini_model="none")})
    with running_server(QUICK, STUB, dialects=dialects) as server:
        answer = post(server, GENERATE.replace("stub", "gemini-2.5-flash"))
        assert (answer.status_code, answer.json()["error"]["status"]) == (404, "NOT_FOUND")
        assert post(server, GENERATE).status_code == 200
