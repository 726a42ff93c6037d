"""``POST /api/pull``: its lines, its errors, and that a download ends with its client."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest
from scripted import ScriptedServer, scripted_server

from dragoman.core.catalog import FileProgress
from dragoman.core.errors import ModelError, ModelNotFound
from dragoman.serving.catalog import FixedCatalog
from dragoman.text import ChatTemplate

DIGEST = hashlib.sha256(b"a.gguf").hexdigest()
PATIENCE_S = 60.0


class Hub:
    """What a catalog downloads: ``steps``, then an error if there is one, or more steps without end."""

    def __init__(self) -> None:
        self.steps = [FileProgress("a.gguf", 9, 4), FileProgress("a.gguf", 9, 9)]
        self.error: ModelError | None = None
        self.goes_on = False
        self.names: list[str] = []
        self.closed = threading.Event()

    def download(self, _: Any, name: str) -> AsyncGenerator[FileProgress, None]:
        self.names.append(name)
        if name != "owner/model":
            raise ModelNotFound(name)
        return self._download()

    async def _download(self) -> AsyncGenerator[FileProgress, None]:
        try:
            for step in self.steps:
                yield step
            while self.goes_on:
                await asyncio.sleep(0.001)
                yield self.steps[0]
            if self.error is not None:
                raise self.error
        finally:
            self.closed.set()


@pytest.fixture(scope="module")
def server(template: ChatTemplate) -> Iterator[ScriptedServer]:
    with scripted_server(template) as running:
        yield running


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr(FixedCatalog, "download", lambda catalog, name: hub.download(catalog, name))
    return hub


def pull(server: ScriptedServer, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/api/pull", json=body, timeout=PATIENCE_S)


@pytest.mark.parametrize("name", ["owner/model", "hf.co/owner/model", "huggingface.co/owner/model:latest"])
def test_the_lines_of_a_download(server: ScriptedServer, hub: Hub, name: str) -> None:
    answer = pull(server, model=name)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    pulling = {"status": f"pulling {DIGEST[:12]}", "digest": f"sha256:{DIGEST}", "total": 9}
    assert [json.loads(line) for line in answer.text.splitlines()] == [
        {"status": "pulling manifest"},
        pulling | {"completed": 4},
        pulling | {"completed": 9},
        {"status": "verifying sha256 digest"},
        {"status": "writing manifest"},
        {"status": "success"},
    ]
    assert pull(server, name=name, stream=False).json() == {"status": "success"}


@pytest.mark.parametrize("streams", [True, False])
def test_a_served_model_and_one_that_is_here_miss_nothing(server: ScriptedServer, hub: Hub, streams: bool) -> None:
    hub.steps = []
    for name in ("stub", "owner/model"):
        lines = pull(server, model=name, stream=streams).text.splitlines()
        assert [json.loads(line)["status"] for line in lines] == ["pulling manifest", "success"][-1 - streams :]


def test_an_error_is_an_answer_at_first_and_then_the_last_line(server: ScriptedServer, hub: Hub) -> None:
    hub.error = ModelError("owner/model: the hub cannot be reached")
    error = {"error": "pull model manifest: owner/model: the hub cannot be reached"}
    *before, last = [json.loads(line) for line in pull(server, model="owner/model").text.splitlines()]
    assert len(before) == 3
    assert last == error
    hub.steps = []
    for streams in (True, False):
        answer = pull(server, model="owner/model", stream=streams)
        assert (answer.status_code, answer.json()) == (500, error)
    answer = pull(server, model="nobody")
    assert (answer.status_code, "offers only the models" in answer.json()["error"]) == (403, True)
    assert "library/model" not in hub.names


def test_a_download_ends_with_its_client(server: ScriptedServer, hub: Hub) -> None:
    hub.goes_on = True
    with httpx.stream("POST", f"{server.url}/api/pull", json={"model": "owner/model"}, timeout=PATIENCE_S) as answer:
        assert json.loads(next(answer.iter_lines())) == {"status": "pulling manifest"}
    assert hub.closed.wait(PATIENCE_S)
