"""What web pages may ask of the Ollama dialect, by their origin: of this machine, of an app, of elsewhere, of none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from stub_runtime import QUICK, LocalServer

from dragoman.dialects.ollama.dialect import OllamaSettings, make
from dragoman.server.app import create_app
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.server.settings import BrowserSettings

pytestmark = pytest.mark.anyio

KEY = "a-key-that-nobody-guesses"
RING = Keyring([hashed(KEY, "ann")])
LOCAL = (
    "http://localhost",
    "http://localhost:3000",
    "https://localhost:8443",
    "http://127.0.0.1:5173",
    "https://127.0.0.1",
    "http://0.0.0.0:8080",
)
APPS = (
    "app://obsidian.md",
    "app://-",
    "file://",
    "tauri://localhost",
    "vscode-webview://0f1e2d",
    "vscode-file://vscode-app",
)
FOREIGN = (
    "https://evil.example",
    "http://localhost.evil.example:3000",
    "http://evil.example/localhost",
    "chrome-extension://abcdefgh",
    "ftp://localhost",
    "app:evil",
    "null",
    "",
)
CHAT = {
    "model": "stub",
    "stream": False,
    "messages": [{"role": "user", "content": "Hi."}],
    "options": {"num_predict": 2},
}
# What needs the scope admin: what changes models.
CHANGES = (
    ("POST", "/api/pull", {"model": "stub", "stream": False}, 200),
    ("POST", "/api/create", {"model": "mine", "from": "stub", "system": "Be brief.", "stream": False}, 200),
    ("POST", "/api/copy", {"source": "stub", "destination": "other-name"}, 200),
    ("DELETE", "/api/delete", {"model": "mine"}, 200),
)


@asynccontextmanager
async def asked(
    runtime: LocalServer, folder: Path, *, keys: Keyring | None = None, origins: tuple[str, ...] = (), **browsers: Any
) -> AsyncIterator[httpx.AsyncClient]:
    dialect = make(OllamaSettings(derived_models=str(folder / "derived.json"), ollama_origins=origins))
    settings = msgspec.structs.replace(QUICK, dialect="auto", linger_s=0.02)
    app = create_app(
        runtime.serving, settings, dialects=(dialect,), keys=keys or Keyring(), browsers=BrowserSettings(**browsers)
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:11434") as client:
        yield client


def of_page(answer: httpx.Response) -> str | None:
    return answer.headers.get("access-control-allow-origin")


async def check_changes(client: httpx.AsyncClient, status: int | None, **headers: str) -> None:
    """Send all that changes models; ``status``: of each answer, or None where they are served."""
    for method, path, body, served in CHANGES:
        answer = await client.request(method, path, json=body, headers=headers)
        assert answer.status_code == (status or served), (path, headers, answer.text)


@pytest.mark.parametrize("origin", [*LOCAL, *APPS])
async def test_pages_of_this_machine_and_of_apps_may_do_all(runtime: LocalServer, tmp_path: Path, origin: str) -> None:
    async with asked(runtime, tmp_path) as client:
        asking = {"origin": origin, "access-control-request-method": "POST"}
        assert of_page(await client.options("/api/pull", headers=asking)) == origin
        answer = await client.post("/api/chat", json=CHAT, headers={"origin": origin, "sec-fetch-site": "cross-site"})
        assert (answer.status_code, of_page(answer)) == (200, origin)
        await check_changes(client, None, origin=origin)


async def test_who_sends_no_origin_is_no_page(runtime: LocalServer, tmp_path: Path) -> None:
    async with asked(runtime, tmp_path) as client:
        answer = await client.post("/api/chat", json=CHAT)
        assert (answer.status_code, of_page(answer)) == (200, None)
        await check_changes(client, None)


@pytest.mark.parametrize("origin", FOREIGN)
async def test_other_pages_read_nothing_and_change_nothing(runtime: LocalServer, tmp_path: Path, origin: str) -> None:
    """A browser sends such requests unasked, so they are refused: no answer could tell the page less."""
    async with asked(runtime, tmp_path) as client:
        for path in ("/api/tags", "/api/version", "/api/ps"):
            answer = await client.get(path, headers={"origin": origin})
            assert (answer.status_code, of_page(answer)) == (200, None), path
        for path, body in (("/api/chat", CHAT), ("/api/generate", {"model": "stub", "keep_alive": 0})):
            answer = await client.post(path, json=body, headers={"origin": origin})
            assert (answer.status_code, of_page(answer)) == (403, None), path
            assert "--cors-origin" in answer.json()["error"]
        await check_changes(client, 403, origin=origin)
    assert runtime.engine.requests == []


async def test_with_a_key_other_pages_are_served_without_a_cors_header(runtime: LocalServer, tmp_path: Path) -> None:
    evil, key = {"origin": "https://evil.example"}, {"authorization": f"Bearer {KEY}"}
    async with asked(runtime, tmp_path, keys=RING) as client:
        answer = await client.post("/api/chat", json=CHAT, headers=evil | key)
        assert (answer.status_code, of_page(answer)) == (200, None)
        assert (await client.post("/api/chat", json=CHAT, headers=evil)).status_code == 401
        await check_changes(client, 403, **evil, **key)
        await check_changes(client, None, **key)


@pytest.mark.parametrize("option", ["origins", "cors_origin"])
async def test_either_option_opens_it(runtime: LocalServer, tmp_path: Path, option: str) -> None:
    page = "https://chat.example.org"
    named: dict[str, Any] = {option: ("https://*.example.org", "chrome-extension://*")}
    async with asked(runtime, tmp_path, **named) as client:
        for origin in (page, "chrome-extension://abcdefgh"):
            answer = await client.post("/api/chat", json=CHAT, headers={"origin": origin})
            assert (answer.status_code, of_page(answer)) == (200, origin)
            await check_changes(client, None, origin=origin)
        await check_changes(client, 403, origin="https://evil.example")
    every: dict[str, Any] = {option: ("*",)}
    async with asked(runtime, tmp_path, **every) as client:
        answer = await client.post("/api/chat", json=CHAT, headers={"origin": page})
        assert (answer.status_code, of_page(answer)) == (200, "*")
        await check_changes(client, 403, origin=page)
