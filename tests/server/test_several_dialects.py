"""Several dialects on one server: which answers, and what each keeps of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from stub_runtime import DIALECTS, QUICK, LocalServer
from toy_dialect import toy

from dragoman.core.errors import DragomanError
from dragoman.dialects import made_dialects
from dragoman.dialects.api import Dialect, RequestContext
from dragoman.server.app import create_app

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def asked(
    runtime: LocalServer, *dialects: Dialect, chosen: str = "auto", **more: Any
) -> AsyncIterator[httpx.AsyncClient]:
    settings = msgspec.structs.replace(QUICK, dialect=chosen, linger_s=0.02, **more)
    app = create_app(runtime.serving, settings, dialects=dialects)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


# Which answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "answered_by"),
    [
        ({"text": 1}, "north"),
        ({"words": 1}, "south"),
        ({"text": 1, "words": 2}, "north"),
        ({"text": None, "words": None}, "north"),
        ({}, "north"),
        ([], "north"),
        ("text", "north"),
        (7, "north"),
    ],
)
async def test_a_shared_path_goes_to_whom_the_body_belongs(runtime: LocalServer, body: Any, answered_by: str) -> None:
    async with asked(runtime, toy("north"), toy("south", "words")) as client:
        answer = await client.post("/echo", json=body)
        assert list(answer.json()) == [answered_by]
        for name in ("north", "south"):
            assert list((await client.post(f"/{name}/echo", json=body)).json()) == [name]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"words": 1} x'])
async def test_what_is_no_json_goes_to_the_first(runtime: LocalServer, body: bytes) -> None:
    async with asked(runtime, toy("north"), toy("south", "words")) as client:
        answer = await client.post("/echo", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()) == (400, {"north": "NotJson"})


async def test_a_body_is_read_as_far_as_any_of_them_takes_and_then_by_the_limit_of_one(runtime: LocalServer) -> None:
    small, large = toy("north", max_body_bytes=100), toy("south", "words", max_body_bytes=1000)
    async with asked(runtime, small, large, max_body_bytes=10**6) as client:
        for size, field, status, name in (
            (100, "text", 200, "north"),
            (101, "text", 413, "north"),
            (1000, "words", 200, "south"),
            (1001, "words", 413, "north"),
            (1001, "text", 413, "north"),
        ):
            body = json.dumps({field: 1}).encode().ljust(size)
            answer = await client.post("/echo", content=body, headers={"content-type": "application/json"})
            assert (answer.status_code, list(answer.json())) == (status, [name]), (size, field)
            own = await client.post(f"/{name}/echo", content=body, headers={"content-type": "application/json"})
            assert own.status_code == status


async def test_the_operators_choice_comes_first_and_then_the_servers_own(runtime: LocalServer) -> None:
    everyone = made_dialects()
    bodies = {}
    for chosen in ("openai", "tgi", "locallab", "auto"):
        async with asked(runtime, *everyone, chosen=chosen) as client:
            bodies[chosen] = (await client.get("/health")).content
    assert bodies["openai"] == bodies["auto"] == b'{"status":"healthy"}'
    assert bodies["tgi"] == b""
    assert json.loads(bodies["locallab"])["status"] == "healthy"


async def test_the_root_is_a_page_for_browsers_and_says_what_runs_to_others(runtime: LocalServer) -> None:
    for chosen, plain in (("openai", "Dragoman"), ("auto", "Dragoman"), ("locallab", "LocalLab"), ("tgi", "")):
        async with asked(runtime, *made_dialects(), chosen=chosen) as client:
            assert plain in (await client.get("/")).text
            assert bool((await client.get("/")).content) == bool(plain)
            page = await client.get("/", headers={"accept": "text/html,*/*"}, follow_redirects=True)
            assert page.headers["content-type"].startswith("text/html")


# TGI answers unknown paths without a body, under its prefix too.
V1_BASES = ("openai", "octoai", "friendli", "serverless", "dedicated", "friendli/serverless", "friendli/dedicated")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/completions", "/v1/completions"),
        ("/v1/nothing", ""),
        ("/nothing", ""),
        *((f"/{base}/chat/completions", f"/{base}/v1/chat/completions") for base in V1_BASES),
        *((f"/{base}/v1/v1/completions", f"/{base}/v1/completions") for base in V1_BASES),
        ("/openai/nothing", ""),
        ("/openai/v1/nothing", ""),
        ("/chat//completions/", "/v1/chat/completions"),
        ("/nobody/chat/completions", ""),
    ],
)
async def test_an_address_without_v1_is_answered_with_the_one_that_has_it(
    runtime: LocalServer, path: str, meant: str
) -> None:
    async with asked(runtime, *made_dialects(), chosen="openai") as client:
        answer = await client.post(path, json={})
        said = answer.json().get("error", answer.json())
        message = said if isinstance(said, str) else said["message"]
    assert answer.status_code == 404
    base = meant.partition("/v1")[0] + "/v1"
    hint = f". {meant} is meant: the base address of OpenAI's clients ends in {base}, once" if meant else ""
    assert message == f"Unknown URL: POST {path}{hint}"


@pytest.mark.parametrize(
    ("path", "meant", "why"),
    [
        ("//v1/chat/completions", "/v1/chat/completions", "there is a slash too many"),
        ("/v1/completions/", "/v1/completions", "there is a slash too many"),
        ("/v1/v1/messages", "/v1/messages", "Anthropic's clients add /v1 themselves, to a base address without a path"),
        (
            "/messages",
            "/v1/messages",
            "the base address of a client that does not add /v1 by itself ends in /v1",
        ),
        (
            "/anthropic/messages",
            "/anthropic/v1/messages",
            "the base address of a client that does not add /v1 by itself ends in /anthropic/v1",
        ),
        (
            "/ollama/chat",
            "/ollama/api/chat",
            "the base address of a client that does not add /api by itself ends in /ollama/api",
        ),
        (
            "/anthropic/v1/v1/messages",
            "/anthropic/v1/messages",
            "Anthropic's clients add /v1 themselves, to a base address that ends in /anthropic",
        ),
        ("/v1/api/chat", "/api/chat", "Ollama's clients add /api themselves, to a base address without a path"),
        ("/ollama/v1/chat/completions", "/v1/chat/completions", "under /ollama are only the paths of Ollama itself"),
        ("/octoai/v1/embeddings", "/v1/embeddings", "under /octoai are only the paths of OctoAI itself"),
        ("/api//api/chat", "/api/chat", "Ollama's clients add /api themselves, to a base address without a path"),
    ],
)
async def test_a_mistaken_address_is_answered_with_how_it_has_to_be(
    runtime: LocalServer, path: str, meant: str, why: str
) -> None:
    async with asked(runtime, *made_dialects(), chosen="openai") as client:
        answer = await client.post(f"http://127.0.0.1{path}", json={})
    assert answer.status_code == 404
    said = answer.json()["error"]
    message = said if isinstance(said, str) else said["message"]
    assert message == f"Unknown URL: POST {path}. {meant} is meant: {why}"


async def test_an_unknown_model_is_answered_with_those_that_are_served(runtime: LocalServer) -> None:
    hello = {"messages": [{"role": "user", "content": "hi"}], "model": "gpt-4", "max_tokens": 1}
    async with asked(runtime, *made_dialects(), chosen="openai") as client:
        answer = await client.post("/v1/chat/completions", json=hello)
        loading = await client.post("/locallab/models/load", json={"model_id": "gpt-4"})
    told = answer.json()["error"]["message"]
    assert told == "The model 'gpt-4' does not exist. This server has: stub, other, org/name."
    assert loading.json()["detail"] == "model not found: gpt-4; there are: stub"


async def test_a_choice_that_is_not_there_is_an_error(runtime: LocalServer) -> None:
    with pytest.raises(DragomanError, match="there is only north"):
        create_app(runtime.serving, QUICK, dialects=[toy("north")])


HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def shape(body: Any) -> str:
    """Whose answer it is, by what only that one has."""
    match body:
        case {"generated_text": _}:
            return "tgi"
        case {"response": _, "text": _}:
            return "locallab"
        case {"choices": [{"seed": _, "tokens": _}]}:
            return "friendli"
        case {"object": "text_completion", "choices": [_], "system_fingerprint": str(mark)}:
            return "tgi" if mark.endswith("-native") else "octoai" if mark.startswith("fp_") else "openai"
        case {"error": str(), "error_type": _}:
            return "tgi"
        case {"detail": str()}:
            return "locallab"
    return "openai"


@pytest.mark.parametrize(
    ("chosen", "path", "body", "headers", "answered_by"),
    [
        ("openai", "/generate", {"inputs": "a"}, {}, "tgi"),
        ("openai", "/generate", {"prompt": "a", "max_tokens": 2}, {}, "locallab"),
        ("openai", "/generate", {"inputs": "a", "prompt": "a"}, {}, "tgi"),
        ("locallab", "/generate", {"inputs": "a"}, {}, "tgi"),
        ("locallab", "/generate", {"neither": 1}, {}, "locallab"),
        ("openai", "/v1/completions", {"prompt": "a", "tokens": [5]}, {}, "openai"),
        ("auto", "/v1/completions", {"tokens": [5, 6], "max_tokens": 2}, {}, "friendli"),
        ("auto", "/v1/completions", {"prompt": "a", "max_tokens": 2}, {}, "openai"),
        ("friendli", "/v1/completions", {"prompt": "a", "max_tokens": 2}, {}, "friendli"),
        ("tgi", "/v1/completions", {"prompt": "a", "max_tokens": 2}, {}, "tgi"),
        ("openai", "/tgi/generate", {"inputs": "a"}, {}, "tgi"),
        ("openai", "/locallab/generate", {"prompt": "a", "max_tokens": 2}, {}, "locallab"),
    ],
)
async def test_calls_on_the_real_shared_paths(
    runtime: LocalServer, chosen: str, path: str, body: dict[str, Any], headers: dict[str, str], answered_by: str
) -> None:
    async with asked(runtime, *made_dialects(), chosen=chosen) as client:
        answer = await client.post(path, json=body, headers=headers)
        assert shape(answer.json()) == answered_by, answer.text


@pytest.mark.parametrize(
    "headers", [{"x-fern-sdk-name": "octoai"}, {"user-agent": "octoai-0.10.1"}, {"user-agent": "python-httpx"}]
)
@pytest.mark.parametrize("chosen", ["auto", "openai"])
async def test_marks_of_an_sdk_count_only_when_the_choice_is_auto(
    runtime: LocalServer, headers: dict[str, str], chosen: str
) -> None:
    # Without a field that is required, the error says whose words it is in.
    async with asked(runtime, *made_dialects(), chosen=chosen) as client:
        answer = await client.post("/v1/chat/completions", json={}, headers=headers)
    marked = chosen == "auto" and "httpx" not in headers.get("user-agent", "")
    assert answer.status_code == (422 if marked else 400)
    assert ("detail" in answer.json()) is marked


# What each keeps of its own ------------------------------------------------------------------------------------------


async def test_every_answer_has_the_dialects_headers(runtime: LocalServer) -> None:
    seen = []

    def headers(exchange: RequestContext) -> dict[str, str]:
        seen.append(exchange.path)
        return {"x-count": str(len(seen)), "x-time": f"{exchange.elapsed_s:.4f}", "content-type": "never/wins"}

    async with asked(runtime, toy("north", headers=headers), toy("south", "words")) as client:
        paths = [("GET", "/north/who"), ("GET", "/north/nothing"), ("PUT", "/north/who"), ("POST", "/north/echo")]
        for count, (method, path) in enumerate(paths, 1):
            answer = await client.request(method, path)
            assert answer.headers["x-count"] == str(count)
            assert 0 <= float(answer.headers["x-time"]) < 10
            assert answer.headers["content-type"] == "application/json"
        assert "x-count" not in (await client.get("/south/who")).headers
        assert "x-count" not in (await client.get("/livez")).headers


async def test_head_is_answered_where_get_is(runtime: LocalServer) -> None:
    async with asked(runtime, toy("north")) as client:
        assert (await client.head("/who")).status_code == 200
        refused = await client.head("/echo")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        both = await client.put("/who")
        assert (both.status_code, both.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_prefix_has_figures_and_documents(runtime: LocalServer, dialect: Dialect) -> None:
    async with asked(runtime, *DIALECTS) as client:
        assert "dragoman_" in (await client.get(f"/{dialect.name}/metrics")).text
        document = (await client.get(f"/{dialect.name}/openapi.json")).json()
        assert {path.split("/")[1] for path in document["paths"]} == {dialect.name}
        for path in dialect.document_paths:
            assert (await client.get(f"/{dialect.name}{path}")).json() == document
            assert (await client.get(path)).json()["info"] == document["info"]
        page = await client.get(f"/{dialect.name}/docs", follow_redirects=True)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "openapi.json" in page.text


async def test_the_document_has_the_status_of_who_answers(runtime: LocalServer) -> None:
    async with asked(runtime, *made_dialects()) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        for path in ("/", "/docs", "/docs/", "/openapi.json", "/tgi/docs"):
            if path.startswith("/tgi"):
                documented = (await client.get("/tgi/openapi.json")).json()["paths"][path]
            else:
                documented = paths[path]
            status = str((await client.get(path)).status_code)
            assert [each for each in documented["get"]["responses"] if each < "4"] == [status], path
