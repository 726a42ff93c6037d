"""``Idempotency-Key``: a request that is sent again gets the answer of the first one, in every dialect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from idempotent_requests import (
    GENERATING,
    IDS,
    ORIGINAL,
    PROMPT,
    REPLAYED,
    SURFACES,
    Asked,
    bearer,
    kept_answers,
    ring,
    server,
    soon,
)
from stub_runtime import DIALECTS, LocalServer

from dragoman.dialects.alexandria import thrift_structs as thrift
from dragoman.dialects.api import REUSED_KEY, keeps_answers
from dragoman.server.accounts import Accounts
from dragoman.server.idempotency import HEADER, KeptAnswers
from dragoman.server.settings import BrowserSettings
from dragoman.serving.recorder import Recorder
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio


@pytest.fixture
def kept() -> KeptAnswers:
    return kept_answers()


@pytest.fixture
async def runtime(anyio_backend: str, template: ChatTemplate, kept: KeptAnswers) -> AsyncIterator[LocalServer]:
    async with server(template, kept) as runtime:
        yield runtime
    kept.close()


# In every dialect -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), GENERATING, ids=IDS)
async def test_a_request_sent_again_gets_the_same_bytes(
    runtime: LocalServer, kept: KeptAnswers, path: str, body: dict[str, Any]
) -> None:
    """While it runs, and when it has ended."""
    runtime.engine.free.clear()
    first = Asked(runtime, path, body)
    await soon(lambda: runtime.engine.requests)
    second = Asked(runtime, path, body)
    await soon(lambda: kept.counts["attached"])
    runtime.engine.free.set()
    assert await first.whole() == await second.whole()
    third = Asked(runtime, path, body)
    assert await third.whole() == first.body != b""
    assert first.status == second.status == third.status in (200, 206), first.body
    assert len(runtime.engine.requests) == (2 if path.endswith("/generate/batch") else 1)
    assert REPLAYED not in first.headers
    own = {REPLAYED, ORIGINAL, "x-request-id"}
    for again in (second, third):
        assert again.headers[REPLAYED] == "true"
        assert again.headers[ORIGINAL] == first.headers["x-request-id"]
        assert {n: v for n, v in again.headers.items() if n not in own} == {
            n: v for n, v in first.headers.items() if n not in own
        }
    assert kept.counts == {"begun": 1, "attached": 1, "replayed": 1, "refused": 0}


@pytest.mark.parametrize(("path", "body"), GENERATING, ids=IDS)
async def test_a_key_with_another_body_is_422(runtime: LocalServer, path: str, body: dict[str, Any]) -> None:
    await Asked(runtime, path, body).whole()
    other = Asked(runtime, path, msgspec.json.encode(body) + b" ")
    await other.whole()
    (dialect,) = [each for each in DIALECTS if path.startswith((f"/{each.name}/", f"/{SURFACES.get(each.name)}/"))]
    worded = dialect.render_error(REUSED_KEY)
    assert other.status == 422
    told = {**worded.body, worded.id_member: other.headers["x-request-id"]} if worded.id_member else worded.body
    assert other.body == (told if isinstance(told, bytes) else msgspec.json.encode(told))
    assert len(runtime.engine.requests) == (2 if path.endswith("/generate/batch") else 1)


@pytest.mark.parametrize("key", ["", " ", "a b", "\u00e9", '"', '""', '"a"b"', "x" * 256, '"' + "x" * 256 + '"'])
async def test_a_malformed_key_is_400(runtime: LocalServer, key: str) -> None:
    for path, body in GENERATING[::3]:
        asked = Asked(runtime, path, body, key)
        await asked.whole()
        assert asked.status == 400, path
        assert b"Idempotency-Key" in asked.body


def other_forms() -> list[tuple[str, bytes]]:
    """Operations whose bodies are no plain JSON: Thrift's, and KServe's of bytes as numbers."""
    config = thrift.GenerationConfig(max_new_tokens=12)
    row = thrift.SinglePrompt(request_id="u", prompt="Once")
    one = thrift.ApiSinglePromptRequest(request_id="t", prompt="Once", generation_config=config)
    many = thrift.ApiBatchPromptRequest(prompts=[row], only_new_tokens=False, generation_config=config)
    given = {"name": "a", "shape": [1], "datatype": "BYTES", "data": list(b"Once")}
    shape = {"name": "out"}
    infer = {"id": "1", "inputs": [given], "parameters": {"max_new_tokens": 12}, "outputs": [shape]}
    return [
        ("/alexandria/api/thrift/generate-one", thrift.encoded(one)),
        ("/alexandria/api/thrift/generate-batch", thrift.encoded(many)),
        ("/tgi/v2/models/any/versions/1/infer", msgspec.json.encode(infer)),
    ]


async def test_bodies_of_other_forms_are_the_same_too(runtime: LocalServer) -> None:
    for number, (path, body) in enumerate(other_forms(), 1):
        asked = [Asked(runtime, path, body, f"form-{number}") for _ in range(2)]
        assert await asked[0].whole() == await asked[1].whole() != b""
        assert {each.status for each in asked} <= {200, 206}, asked[0].body
        assert asked[1].headers[REPLAYED] == "true"
        assert len(runtime.engine.requests) == number


def test_all_operations_that_generate_are_tried() -> None:
    """But for those that an operator may add, and surfaces that share their handlers with one that is tried."""
    paths = {f"/{each.name}{op.path}" for each in DIALECTS for op in each.operations if keeps_answers(op)}
    paths = {path.replace("{model:path}", "stub") for path in paths}
    generate_nothing = (
        "tokenize",
        "_tokens",
        "countTokens",
        "embedContent",
        "batchEmbedContents",
        "render",
        "embedding",
        "/embed",
        "rank",
        "/score",
        "template",
        "/show",
        "/cancel",
        "/batches",
        "/conversations",
    )
    elsewhere = ("/infer", "thrift", "/predict", "/dedicated", "/serverless/v1/chat", "/openai/openai/", "/gemini/v1/")
    tried = {path.replace("/serverless/", "/friendli/serverless/") for path, _ in GENERATING}
    assert not {path for path in paths - tried if not any(word in path for word in generate_nothing + elsewhere)}


# Whose it is, and what is counted -------------------------------------------------------------------------------------


async def test_another_caller_has_keys_of_its_own(template: ChatTemplate, kept: KeptAnswers) -> None:
    async with server(template, kept, keys=ring()) as runtime:
        ann = Asked(runtime, "/v1/completions", PROMPT, **bearer("ann"))
        bob = Asked(runtime, "/v1/completions", PROMPT | {"max_tokens": 3}, **bearer("bob"))
        await asyncio.gather(ann.whole(), bob.whole())
        assert ann.status == bob.status == 200
        assert kept.counts["begun"] == 2
        nobody = Asked(runtime, "/v1/completions", PROMPT, authorization="Bearer wrong")
        await nobody.whole()
        assert nobody.status == 401


async def test_tokens_are_counted_once_and_requests_each_time(template: ChatTemplate, kept: KeptAnswers) -> None:
    accounts = Accounts()
    await accounts.open()
    keys = ring(ann={"requests_per_minute": 3, "tokens_per_minute": 1000})
    async with server(template, kept, keys=keys, accounts=accounts) as runtime:
        requests = runtime.metrics.measurements.requests()
        asked = [Asked(runtime, "/v1/completions", PROMPT, **bearer("ann")) for _ in range(3)]
        await asyncio.gather(*(each.whole() for each in asked))
        used = msgspec.json.decode(asked[0].body)["usage"]["total_tokens"]
        assert [each.headers["x-ratelimit-remaining-requests"] for each in asked] == ["0", "0", "0"]
        last = Asked(runtime, "/v1/completions", PROMPT, **bearer("ann"))
        await last.whole()
        assert last.status == 429
        assert last.headers["x-ratelimit-remaining-tokens"] == str(1000 - used)
        totals = accounts._totals["ann"]
        assert (totals.requests, totals.prompt_tokens + totals.generated_tokens, totals.refused) == (1, used, 1)
        assert requests.generating.total() == 1
        assert requests.arrivals.total() == 4
        page = runtime.metrics.render().decode()
        assert 'dragoman_idempotency_requests_total{result="attached"} 2.0' in page
        assert "dragoman_idempotency_answers 1.0" in page
        assert 'dragoman_http_requests_total{dialect="openai",route="/v1/completions",status="200"} 3.0' in page
    await accounts.close()


async def test_one_capsule_is_recorded_and_named_in_all_answers(runtime: LocalServer) -> None:
    recorded: list[str] = []

    class Kept:
        def put(self, name: str, make: object) -> None:
            recorded.append(name)

    runtime.serving._recorder = Recorder(Kept())
    for path, body in GENERATING[:4]:
        asked = [Asked(runtime, path, body, path + str(len(body))) for _ in range(2)]
        await asyncio.gather(*(each.whole() for each in asked))
        asked.append(Asked(runtime, path, body, path + str(len(body))))
        await asked[-1].whole()
        assert {each.headers["x-dragoman-record"] for each in asked} == {recorded[-1]}
    assert len(recorded) == 4


async def test_the_path_and_the_headers_that_shape_the_answer_belong_to_the_request(runtime: LocalServer) -> None:
    await Asked(runtime, "/v1/completions", PROMPT).whole()
    for path, more in (
        ("/openai/v1/completions", {}),
        ("/tgi/v1/completions", {}),
        ("/v1/completions", {"accept": "text/event-stream"}),
        ("/v1/completions", {"x-request-continue": "story"}),
    ):
        other = Asked(runtime, path, PROMPT, **more)
        await other.whole()
        assert other.status == 422, path
    same = Asked(runtime, "/v1/completions", PROMPT, '"k"', **{"x-stainless-retry-count": "1", "traceparent": "other"})
    await same.whole()
    assert same.headers[REPLAYED] == "true"


async def test_operations_that_generate_nothing_report_the_header(runtime: LocalServer) -> None:
    for method, path in (("GET", "/v1/models"), ("GET", "/health"), ("POST", "/locallab/models/unload")):
        answer = await runtime.client.request(method, path, headers={HEADER: "k"})
        assert answer.headers["x-dragoman-warnings"] == "ignored: Idempotency-Key", path
    table = {"model_id": "stub", "wanted": 1}
    answer = await runtime.client.post("/locallab/models/load", json=table, headers={HEADER: "k"})
    assert "Idempotency-Key" in answer.headers["x-dragoman-warnings"]
    assert "wanted" in answer.headers["x-dragoman-warnings"]


async def test_pages_may_send_it_and_see_that_an_answer_is_replayed(template: ChatTemplate, kept: KeptAnswers) -> None:
    browsers = BrowserSettings(cors_origin=("https://page.example",))
    page = {"origin": "https://page.example"}
    asks = page | {"access-control-request-method": "POST", "access-control-request-headers": HEADER}
    async with server(template, kept, browsers=browsers) as runtime:
        for number, (path, body) in enumerate(GENERATING):
            allowed = await runtime.client.options(path, headers=asks)
            assert HEADER in allowed.headers["access-control-allow-headers"], path
            for _ in range(2):
                answer = await runtime.client.post(path, json=body, headers=page | {HEADER: f"key-{number}"})
            shown = answer.headers["access-control-expose-headers"]
            assert REPLAYED in shown, path
            assert answer.headers["access-control-allow-origin"] == "https://page.example"
        other = await runtime.client.post("/v1/completions", json=PROMPT, headers={HEADER: "elsewhere"})
        again = await runtime.client.post("/v1/completions", json=PROMPT, headers=page | {HEADER: "elsewhere"})
        assert "access-control-allow-origin" not in other.headers
        assert again.headers["access-control-allow-origin"] == "https://page.example"


async def test_the_documents_have_it(runtime: LocalServer) -> None:
    document = (await runtime.client.get("/openapi.json")).json()
    honoured = {
        each.path for dialect in DIALECTS for each in dialect.operations if keeps_answers(each) and "{" not in each.path
    }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            names = [each["name"] for each in operation.get("parameters", ())]
            if method == "post" and path in honoured:
                assert "Idempotency-Key" in names, path
                assert {"400", "409", "422"} <= operation["responses"].keys()
            elif "{" not in path and path != "/explain":
                assert "Idempotency-Key" not in names, path
