"""What SageMaker, Vertex AI and KServe ask of their containers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from chat_runtime import USER, ChatServer, chat_runtime, settled
from stub_runtime import TOKENIZER

from dragoman.core.errors import DragomanError, GenerationFailed
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

KEYS = Keyring([hashed("a-key-that-nobody-guesses", "ann")])
SHAPE = "Failed to deserialize the JSON body into the target type: "
INFER = "/v2/models/any/versions/1/infer"


@pytest.fixture
async def runtime(anyio_backend: str, template: ChatTemplate) -> AsyncIterator[ChatServer]:
    async with chat_runtime(template) as runtime:
        yield runtime


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"inputs": "Hi", "parameters": {"max_new_tokens": 3}}, "/"),
        ({"inputs": "Hi", "stream": True}, "/"),
        ({"messages": [USER]}, "/v1/chat/completions"),
        ({"prompt": "Hi"}, "/v1/completions"),
        ({"inputs": 5, "prompt": "Hi"}, "/v1/completions"),
    ],
    ids=str,
)
async def test_invocations_answer_as_what_can_read_them(runtime: ChatServer, body: Any, path: str) -> None:
    invoked = await runtime.post("/invocations", body, " there")
    assert invoked.status_code == 200
    assert settled(invoked.text) == settled((await runtime.post(path, body, " there")).text)


async def test_what_nobody_can_read_is_a_422(runtime: ChatServer) -> None:
    answer = await runtime.post("/invocations", {"text": "Hi"})
    assert answer.status_code == 422
    said = "data did not match any variant of untagged enum SagemakerRequest at line 1 column 14"
    assert answer.text == SHAPE + said


async def test_vertex_answers_in_order(runtime: ChatServer) -> None:
    instances = [
        {"inputs": "Hi", "parameters": {"max_new_tokens": 1, "seed": 3}},
        {"messages": [USER]},
        {"inputs": "x"},
    ]
    answer = await runtime.post("/vertex", {"instances": instances}, " one two")
    assert answer.text == '{"predictions":[" one"," one two"," one two"]}'
    # Texts are drawn, whatever their parameters say.
    assert runtime.engine.requests[0].sampling.temperature == 1.0
    assert runtime.engine.requests[0].seeds == (3,)


async def test_vertex_faults(runtime: ChatServer) -> None:
    empty = await runtime.post("/vertex", {"instances": []})
    said = {"error": "Input validation error", "error_type": "Input validation error"}
    assert (empty.status_code, empty.json()) == (422, said)
    shapeless = await runtime.post("/vertex", {"instances": [{"inputs": "x"}, {}]})
    assert shapeless.status_code == 422
    assert shapeless.text.startswith(SHAPE + "instances[1]: data did not match any variant of untagged enum Vertex")
    inner = await runtime.post("/vertex", {"instances": [{"inputs": ""}]})
    said = {"error": "Incomplete generation", "error_type": "Incomplete generation"}
    assert (inner.status_code, inner.json()) == (500, said)


async def test_one_failure_ends_the_batch(runtime: ChatServer) -> None:
    def fail(request: object) -> object:
        raise GenerationFailed("gone")

    runtime.engine.submit = fail  # type: ignore[method-assign,assignment]
    answer = await runtime.client.post("/vertex", json={"instances": [{"inputs": "x"}] * 40})
    assert answer.status_code == 500


async def test_vertex_names_its_own_paths(template: ChatTemplate) -> None:
    async with chat_runtime(template, aip_predict_route="/predict/here", aip_health_route="/is/healthy") as runtime:
        assert (await runtime.client.get("/is/healthy")).status_code == 200
        answer = await runtime.post("/predict/here", {"instances": [{"inputs": "Hi"}]}, " there")
        assert answer.json() == {"predictions": [" there"]}
    with pytest.raises(DragomanError, match="a path begins with /"):
        TgiSettings(aip_predict_route="predict").check()


@pytest.mark.parametrize(("insecure", "status"), [(False, 401), (True, 200)])
async def test_vertex_generates_without_a_key_only_where_the_operator_says_so(
    template: ChatTemplate, insecure: bool, status: int
) -> None:
    settings = {"aip_predict_route": "/predict", "insecure_predict": insecure}
    async with chat_runtime(template, keys=KEYS, **settings) as runtime:
        body = {"instances": [{"inputs": "Hi"}]}
        assert (await runtime.client.post("/predict", json=body)).status_code == status
        foreign = await runtime.client.post("/predict", json=body, headers={"origin": "https://evil.example"})
        assert foreign.status_code == (403 if insecure else 401)
        assert (await runtime.client.post("/vertex", json=body)).status_code == 401


async def test_vertex_shares_the_path_of_another_operation(template: ChatTemplate) -> None:
    route = "/v1/chat/completions"
    async with chat_runtime(template, aip_predict_route=route) as runtime:
        answer = await runtime.post(route, {"instances": [{"inputs": "Hi"}]}, " there")
        assert answer.json() == {"predictions": [" there"]}
        chat = await runtime.post(route, {"messages": [USER]}, " there")
        assert chat.json()["choices"][0]["message"]["content"] == " there"


async def test_an_open_path_of_vertex_opens_no_other_operation_there(template: ChatTemplate) -> None:
    settings = {"aip_predict_route": "/generate", "insecure_predict": True}
    async with chat_runtime(template, keys=KEYS, **settings) as runtime:
        batch = await runtime.client.post("/generate", json={"instances": [{"inputs": "Hi"}]})
        assert batch.status_code == 200
        assert (await runtime.client.post("/generate", json={"inputs": "Hi"})).status_code == 401


async def test_a_health_check_does_not_hide_behind_another_operation(template: ChatTemplate) -> None:
    with pytest.raises(DragomanError, match=r"--aip-health-route /info: another .* answers GET /info"):
        async with chat_runtime(template, aip_health_route="/info"):
            pass
    async with chat_runtime(template, aip_health_route="/livez") as runtime:
        assert (await runtime.client.get("/livez")).status_code == 200


async def test_kserve_describes_itself(runtime: ChatServer) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/versions/2/ready"):
        assert (await runtime.client.get(path)).text == '{"live":true}'
    about = (await runtime.client.get("/v2")).json()
    assert (about["name"], about["extensions"]) == ("text-generation-inference", ["health", "models", "metrics"])
    assert (await runtime.client.get("/v2/models/m/versions/2")).text == (
        '{"name":"m","version":"2","extensions":["infer","ready"]}'
    )


def inference(*texts: bytes, outputs: int | None = None, **more: Any) -> dict[str, Any]:
    inputs = [{"name": "in", "shape": [1], "datatype": "BYTES", "data": list(text)} for text in texts]
    names = [{"name": f"out{i}"} for i in range(len(texts) if outputs is None else outputs)]
    return {"id": "7", "inputs": inputs, "outputs": names, **more}


async def test_kserve_infers_bytes_from_bytes(runtime: ChatServer) -> None:
    answer = await runtime.post(INFER, inference("Hé".encode(), b"Hi", parameters={"max_new_tokens": 1}), " there")
    data = list(b" there")
    outputs = [{"name": f"out{i}", "shape": [1, 6], "datatype": "BYTES", "data": data} for i in range(2)]
    assert answer.text == json.dumps({"id": "7", "outputs": outputs}, separators=(",", ":"))
    assert runtime.engine.requests[0].prompt == TOKENIZER.encode("Hé")


async def test_kserve_faults(runtime: ChatServer) -> None:
    fewer = await runtime.post(INFER, inference(b"a", b"b", outputs=1))
    assert (fewer.status_code, fewer.json()["error_type"]) == (422, "length mismatch")
    assert fewer.json()["error"] == "Inputs and outputs length mismatch"
    broken = await runtime.post(INFER, inference(b"\xff"))
    assert (broken.status_code, broken.json()["error_type"]) == (422, "utf8")
    large = inference(b"a")
    large["inputs"][0]["data"] = [256]
    answer = await runtime.post(INFER, large)
    assert "inputs[0].data[0]: invalid value: integer `256`, expected u8" in answer.text
    assert (await runtime.post(INFER, inference(b""))).status_code == 500
