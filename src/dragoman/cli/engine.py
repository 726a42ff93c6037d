"""A session on the command's own engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

from dragoman.cli.download_bar import DownloadBar
from dragoman.cli.loading_bar import LoadingBar
from dragoman.cli.settings import MachineSettings
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.worker_settings import worker_settings
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.models import ModelSettings
from dragoman.serving.settings import AdapterSettings, ServingSettings

if TYPE_CHECKING:
    from dragoman.cli.session import LocalSession
    from dragoman.serving.recorder import Recorder
    from dragoman.serving.runtime import Runtime

BAR_AFTER_S = 0.7
"""The time after which a bar appears: a shorter start needs none, nor the time to import it."""


@asynccontextmanager
async def own_engine(
    model: str | None, settings: ModelSettings, scheduling: SchedulerSettings, machine: MachineSettings
) -> AsyncIterator[LocalSession]:
    """Start an engine for this command alone: see ``own_runtime``."""
    async with own_runtime(model, settings, scheduling, machine) as runtime:
        from dragoman.cli.session import LocalSession

        yield LocalSession(runtime.serving)


@asynccontextmanager
async def own_runtime(
    model: str | None,
    settings: ModelSettings,
    scheduling: SchedulerSettings,
    machine: MachineSettings,
    *,
    recorder: Recorder | None = None,
    adapters: AdapterSettings | None = None,
) -> AsyncIterator[Runtime]:
    """Start an engine for this command alone, with the server's serving layer. A bar shows the progress of a load
    that takes long. ``recorder``: records its generations. ``adapters``: to load. Raises ModelError."""
    with closing(PrespawnedWorker()) as prespawned, closing(LoadingBar(after_s=BAR_AFTER_S)) as bar:
        with DownloadBar() as download:
            worker, described = worker_settings(model, settings, scheduling, machine.placement(), watcher=download)
        prespawned.send_settings(worker)
        # Imported only now, while the process imports its half, and loads.
        from dragoman.serving.runtime import start_runtime

        async with start_runtime(
            ServingSettings(),
            worker,
            described.tokenizer_folder,
            progress=bar,
            prespawned=prespawned,
            recorder=recorder,
            adapters=adapters or AdapterSettings(),
        ) as runtime:
            bar.close()
            yield runtime
