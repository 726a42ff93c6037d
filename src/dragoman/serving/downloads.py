"""Models that are brought to this machine without being loaded, with the progress of each file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from dragoman.core.catalog import FileProgress
from dragoman.core.errors import ModelError
from dragoman.core.message_paths import without_paths
from dragoman.models.hub import DownloadWatcher
from dragoman.models.source import find_source, find_weights
from dragoman.serving.model_registry import ModelSource
from dragoman.serving.worker_pool import WorkerPool

log = logging.getLogger("dragoman.server")

BETWEEN_S = 0.06
"""The least time between two reports of one file, but for the last."""


class _Reports(DownloadWatcher):
    """The newest progress of each file, from the thread that downloads to the event loop that created it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._newest: dict[str, FileProgress] = {}
        self._last_s: dict[str, float] = {}
        self._given_up = threading.Event()
        self.changed = asyncio.Event()

    def take(self) -> list[FileProgress]:
        """Return what is new since the last call."""
        self.changed.clear()
        newest, self._newest = self._newest, {}
        return list(newest.values())

    def give_up(self) -> None:
        """End the download at its next byte."""
        self._given_up.set()

    def received(self, name: str, done: int, total: int) -> None:
        if self._given_up.is_set():
            raise ModelError("nobody waits for the download any more")
        now = time.monotonic()
        if now - self._last_s.get(name, 0.0) >= BETWEEN_S:
            self._last_s[name] = now
            self._report(FileProgress(name, total, done))

    def finished(self, name: str, nbytes: int) -> None:
        self._report(FileProgress(name, nbytes, nbytes))

    def _report(self, progress: FileProgress) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._take_note, progress)

    def _take_note(self, progress: FileProgress) -> None:
        self._newest[progress.name] = progress
        self.changed.set()


async def download(
    source: ModelSource, token: str | None, pool: WorkerPool, ended: Callable[[], None]
) -> AsyncGenerator[FileProgress, None]:
    """Download what is missing of a model of the hub; yield how far each file is. Other models are here already.

    ``ended`` is called when there may be more files than before. Closing it ends the download; what has come stays.
    Raises ModelError, Overloaded; the log has the whole reason.
    """
    name = source.source
    if name is None or Path(name).exists():
        return
    reports = _Reports()

    def work() -> None:
        find_weights(find_source(name, token=token, watcher=reports), token=token, watcher=reports)

    running = asyncio.create_task(pool.run(work, cancel=reports.give_up))
    try:
        while not running.done():
            changed = asyncio.create_task(reports.changed.wait())
            await asyncio.wait((running, changed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            for each in reports.take():
                yield each
        try:
            await running
        except ModelError as error:
            log.error("the model %s cannot be downloaded: %s", source.name, error.message)
            raise ModelError(without_paths(error.message)) from None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        ended()
