"""Models that clients have brought from the hub: progress of each file, an end in the middle, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.catalog import FileProgress
from dragoman.core.errors import ModelError, ModelNotFound
from dragoman.models.hub import DownloadWatcher
from dragoman.serving import downloads
from dragoman.serving.model_registry import ModelRegistry, ModelSource
from dragoman.serving.settings import CatalogSettings
from dragoman.serving.worker_pool import WorkerPool

SOURCE = ModelSource(name="owner/model", source="owner/model")


class ScriptedHub:
    """In place of the hub: a file comes in a few steps, or in very many, or not whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_long = False
        self.error: ModelError | None = None
        self.received = 0
        monkeypatch.setattr(downloads, "BETWEEN_S", 0.0)
        monkeypatch.setattr(downloads, "find_source", lambda name, **_: name)
        monkeypatch.setattr(downloads, "find_weights", self.fetch)

    def fetch(self, name: str, *, token: str | None, watcher: DownloadWatcher) -> None:
        for self.received in range(1, 1_000_000):
            watcher.received("model.safetensors", self.received, 1_000_000)
            if self.received == 3 and self.error is not None:
                raise self.error
            if self.received == 10 and not self.is_long:
                break
        watcher.finished("model.safetensors", 1_000_000)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> ScriptedHub:
    return ScriptedHub(monkeypatch)


async def read(source: ModelSource, ended: list[Any]) -> list[FileProgress]:
    pool = WorkerPool("downloads", 1, max_queued_per_caller=1, max_queued=1)
    try:
        return [each async for each in downloads.download(source, None, pool, lambda: ended.append(None))]
    finally:
        pool.close()


def test_the_last_step_of_a_file_is_the_whole_file(hub: ScriptedHub) -> None:
    ended: list[Any] = []
    *_, last = asyncio.run(read(SOURCE, ended))
    assert last == FileProgress("model.safetensors", 1_000_000, 1_000_000)
    assert ended == [None]


def test_an_error_of_the_hub_is_raised(hub: ScriptedHub) -> None:
    ended: list[Any] = []
    hub.error = ModelError("owner/model: came damaged")
    with pytest.raises(ModelError, match="came damaged"):
        asyncio.run(read(SOURCE, ended))
    assert ended == [None]


def test_a_model_that_is_here_is_not_downloaded(hub: ScriptedHub, tmp_path: Path) -> None:
    for source in (None, str(tmp_path)):
        assert asyncio.run(read(ModelSource(name="here", source=source), [])) == []
    assert hub.received == 0


def test_a_download_that_nobody_reads_ends(hub: ScriptedHub) -> None:
    hub.is_long = True

    async def begin() -> None:
        pool = WorkerPool("downloads", 1, max_queued_per_caller=1, max_queued=1)
        steps: AsyncGenerator[FileProgress, None] = downloads.download(SOURCE, None, pool, lambda: None)
        await anext(steps)
        await steps.aclose()
        while pool.running:
            await asyncio.sleep(0.001)
        pool.close()

    asyncio.run(asyncio.wait_for(begin(), 60))
    assert hub.received < 999_999


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("owner/model", "owner/model"),
        ("owner/model:Q4_K_M", "owner/model:Q4_K_M"),
        ("owner/model:latest", "owner/model"),
    ],
)
def test_a_name_of_the_hub_is_looked_for_there(name: str, source: str) -> None:
    registry = ModelRegistry(CatalogSettings(offer_downloads=True, offer_cached=False), SOURCE_OF_START)
    assert registry.find_on_hub(name).source == source
    assert registry.find_on_hub("first").source == "owner/first"


@pytest.mark.parametrize("name", ["owner/model", "nobody", "../owner/model", "owner/model:a/b", "a/b/c"])
def test_no_other_name_is(name: str) -> None:
    # Without leave to download no name is looked for; with it only those that the hub may have.
    settings = CatalogSettings(offer_downloads=name != "owner/model", offer_cached=False)
    registry = ModelRegistry(settings, SOURCE_OF_START)
    with pytest.raises(ModelNotFound):
        registry.find_on_hub(name)


SOURCE_OF_START = ModelSource(name="first", source="owner/first")
