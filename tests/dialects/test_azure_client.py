"""``AzureOpenAI`` of the ``openai`` package as a witness: the paths, the key and the errors of Azure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from batch_world import ANN, batch_server, finished
from stub_runtime import DIALECTS, RunningServer
from witness import LONG, USER, chat, complete, text

from dragoman.cluster.errors import ErrorWriter
from dragoman.cluster.prompt_text import ModelPaths
from dragoman.core.errors import BadRequest, EngineUnavailable

VERSION = "2024-10-21"
CHAT = "/openai/deployments/{}/chat/completions?api-version=" + VERSION


def azure_of(server: RunningServer, **more: Any) -> openai.AzureOpenAI:
    given = {"azure_endpoint": server.url, "api_version": VERSION, "api_key": ANN, "max_retries": 0}
    return openai.AzureOpenAI(**{**given, **more})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One that asks for keys, and keeps files."""
    with batch_server(tmp_path_factory.mktemp("state")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key=ANN, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def azure(server: RunningServer) -> Iterator[openai.AzureOpenAI]:
    with azure_of(server) as client:
        yield client


def post(server: RunningServer, path: str, body: Any, key: str = ANN, **headers: str) -> httpx.Response:
    headers = {"api-key": key} | {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(server.url + path, json=body, headers=headers, timeout=60)


# Answers --------------------------------------------------------------------------------------------------------------


def test_answers_are_openais(azure: openai.AzureOpenAI, client: openai.OpenAI) -> None:
    assert text(chat(azure)) == text(chat(client))
    assert text(complete(azure)) == text(complete(client))
    theirs, ours = (each.embeddings.create(model="stub", input="a cat") for each in (azure, client))
    assert theirs.data[0].embedding == ours.data[0].embedding
    theirs, ours = (
        each.responses.create(model="stub", input="hello", max_output_tokens=16) for each in (azure, client)
    )
    assert (theirs.status, theirs.usage.input_tokens) == (ours.status, ours.usage.input_tokens)
    assert [each.id for each in azure.models.list()] == [each.id for each in client.models.list()]


def test_streams_are_openais(azure: openai.AzureOpenAI, client: openai.OpenAI) -> None:
    chunks = chat(azure, stream=True, stream_options={"include_usage": True})
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == text(chat(client))
    assert "".join(each.choices[0].text for each in complete(azure, stream=True)) == text(complete(client))
    events = azure.responses.create(model="stub", input="hello", max_output_tokens=16, stream=True)
    assert [event.type for event in events][-1] in ("response.completed", "response.incomplete")


def test_the_async_client_gets_the_same(server: RunningServer, client: openai.OpenAI) -> None:
    async def play() -> tuple[str, str]:
        given: Any = {"azure_endpoint": server.url, "api_version": VERSION, "api_key": ANN, "max_retries": 0}
        async with openai.AsyncAzureOpenAI(**given) as other:
            whole = await other.chat.completions.create(model="stub", messages=[USER], **LONG)
            chunks = await other.chat.completions.create(model="stub", messages=[USER], stream=True, **LONG)
            return text(whole), "".join([each.choices[0].delta.content or "" async for each in chunks])

    whole, streamed = asyncio.run(play())
    assert whole == streamed == text(chat(client))


def test_the_deployment_of_the_path_is_the_model_whatever_the_body_says(server: RunningServer) -> None:
    """Azure's clients send any name in the body, or none."""
    with azure_of(server, azure_deployment="org/name") as azure:
        assert azure.chat.completions.create(model="gpt-4o", messages=[USER], **LONG).model == "org/name"
        assert azure.responses.create(model="other", input="hello", max_output_tokens=16).model == "other"
    for body in ({}, {"model": "nobody"}, {"model": 3}, {"model": None}):
        answer = post(server, CHAT.format("other"), {"messages": [USER], "max_tokens": 2, **body})
        assert (answer.status_code, answer.json()["model"]) == (200, "other"), body
    with azure_of(server) as azure:  # its name is percent-encoded
        assert azure.chat.completions.create(model="org/name", messages=[USER], **LONG).model == "org/name"
        assert azure.completions.create(model="org/name", prompt="a", max_tokens=2).model == "org/name"


def test_an_ad_token_is_a_key_and_the_newer_paths_take_the_key_in_its_header(server: RunningServer) -> None:
    with azure_of(server, api_key=None, azure_ad_token=ANN) as azure:
        assert text(chat(azure))
    answer = post(server, "/openai/v1/chat/completions?api-version=preview", {"messages": [USER], "max_tokens": 2})
    assert answer.status_code == 200


@pytest.mark.parametrize("query", ["", "?api-version=", "?api-version=1999-01-01"])
def test_every_version_is_the_same(server: RunningServer, query: str) -> None:
    path = CHAT.format("stub").partition("?")[0] + query
    assert post(server, path, {"messages": [USER], "max_tokens": 2}).status_code == 200


def test_a_file_and_a_batch_with_azures_endpoint(azure: openai.AzureOpenAI) -> None:
    body = {"model": "stub", "messages": [USER], "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/chat/completions", "body": body}
    file = azure.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    endpoint: Any = "/chat/completions"
    made = azure.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    batch = finished(azure, made)
    assert (batch.status, batch.endpoint, batch.request_counts.completed) == ("completed", "/chat/completions", 1)
    (result,) = azure.files.content(batch.output_file_id).text.splitlines()
    assert json.loads(result)["response"]["body"]["object"] == "chat.completion"


# Errors ---------------------------------------------------------------------------------------------------------------


def test_an_unknown_deployment(azure: openai.AzureOpenAI, server: RunningServer) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        azure.chat.completions.create(model="nobody", messages=[USER])
    assert raised.value.code == "DeploymentNotFound"
    assert set(raised.value.body) == {"code", "message"}  # type: ignore[call-overload]
    assert "'nobody'" in str(raised.value)
    with pytest.raises(openai.NotFoundError) as raised:
        azure.responses.create(model="nobody", input="hello")
    assert raised.value.code == "DeploymentNotFound"


def test_a_wrong_key_and_none(server: RunningServer) -> None:
    with azure_of(server, api_key="wrong") as azure, pytest.raises(openai.AuthenticationError) as raised:
        chat(azure)
    assert raised.value.code == "401"
    assert set(raised.value.body) == {"code", "message"}  # type: ignore[call-overload]
    answer = httpx.post(server.url + CHAT.format("stub"), json={"messages": [USER]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "401")


def test_a_bad_value_is_worded_as_openai_does(azure: openai.AzureOpenAI, client: openai.OpenAI) -> None:
    bodies = []
    for each in (azure, client):
        with pytest.raises(openai.BadRequestError) as raised:
            chat(each, temperature=9)
        bodies.append(raised.value.body)
    assert bodies[0] == bodies[1]


def test_unknown_paths_and_methods(server: RunningServer) -> None:
    answer = httpx.get(server.url + CHAT.format("stub"), headers={"api-key": ANN})
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "405")
    answer = post(server, "/openai/deployments/stub/audio/speech", {"input": "a"})
    assert answer.status_code == 404


def test_an_answer_is_kept_under_its_key_for_one_deployment(server: RunningServer) -> None:
    body = {"messages": [USER], "max_tokens": 2}
    first, again = (post(server, CHAT.format("other"), body, idempotency_key="azure-1") for _ in range(2))
    assert again.json() == first.json()
    assert (first.json()["model"], again.headers["idempotent-replayed"]) == ("other", "true")
    assert post(server, CHAT.format("stub"), body, idempotency_key="azure-1").status_code == 422


# What belongs to all operations ---------------------------------------------------------------------------------------


def test_metrics_name_the_path_without_the_deployment(server: RunningServer) -> None:
    post(server, CHAT.format("other"), {"messages": [USER], "max_tokens": 2})
    page = httpx.get(server.url + "/metrics", headers={"api-key": ANN}).text
    assert "deployments/{deployment:path}/chat/completions" in page
    assert "deployments/other" not in page


def test_the_documents_have_the_paths_and_azures_errors(server: RunningServer) -> None:
    document = httpx.get(server.url + "/openapi.json").json()
    described = document["paths"]["/openai/deployments/{deployment}/chat/completions"]["post"]
    assert [each["name"] for each in described["parameters"] if each["in"] == "path"] == ["deployment"]
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/openai.chat_completions"}


def test_a_request_is_explained_with_the_model_of_its_path(server: RunningServer) -> None:
    asked = {"path": CHAT.format("other"), "body": {"messages": [USER]}, "others": False}
    key = {"authorization": f"Bearer {ANN}"}
    found = post(server, "/explain", asked, **key).json()
    assert (found["accepted"], found["requests"][0]["parameters"]["model"]) == (True, "other")
    found = post(server, "/explain", {**asked, "path": CHAT.format("nobody")}, **key).json()
    assert found["error"]["body"]["error"]["code"] == "DeploymentNotFound"


def test_an_ingress_knows_the_model_and_words_its_errors_as_azure_does() -> None:
    paths = ModelPaths(DIALECTS)
    assert paths.model_in("/openai/deployments/org/name/chat/completions") == "org/name"
    assert paths.model_in("/openai/openai/deployments/a/embeddings") == "a"
    assert paths.model_in("/openai/v1/chat/completions") is None
    writer = ErrorWriter(DIALECTS, "openai")
    scope = {"type": "http", "method": "POST", "path": "/openai/deployments/a/chat/completions", "headers": []}
    status, _, body = writer.whole(scope, None, EngineUnavailable("No replica."))
    assert (status, json.loads(body)["error"]) == (503, {"code": "503", "message": "No replica."})
    assert json.loads(writer.whole(scope, None, BadRequest("no"))[2])["error"]["type"] == "invalid_request_error"


def test_a_response_is_its_callers_alone(server: RunningServer) -> None:
    """A response of Ann's is not Bob's."""
    with azure_of(server) as ann, azure_of(server, api_key="key-of-bob-0123456789") as bob:
        made = ann.responses.create(model="stub", input="hello", max_output_tokens=16)
        assert ann.responses.retrieve(made.id).id == made.id
        with pytest.raises(openai.NotFoundError):
            bob.responses.retrieve(made.id)
