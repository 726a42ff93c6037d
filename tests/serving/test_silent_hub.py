"""A hub that takes a request and never answers holds up nobody but those who asked for it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from stub_runtime import QUICK, STUB, LocalEngine, local_model

from dragoman.core.caller import Caller, current_caller
from dragoman.core.errors import LoadFailed, Overloaded
from dragoman.serving.adapter_registry import AdapterRegistry, AdapterSource
from dragoman.serving.adapters import LoadedAdapters
from dragoman.serving.settings import AdapterSettings, WorkSettings
from dragoman.serving.worker_pool import WorkerPools
from dragoman.text import ChatTemplate
from tests.settling import settle


class SilentHub(AdapterRegistry):
    """Repositories are never delivered, folders at once."""

    def __init__(self) -> None:
        super().__init__(AdapterSettings())
        self.over = threading.Event()

    def find(self, name: str, source: str | None = None) -> AdapterSource:
        return AdapterSource(name, source or name)

    def fetch(self, offer: AdapterSource) -> Path:
        if "/" in offer.source:
            self.over.wait(60)
        return Path(offer.source)


def test_adapters_come_and_go_while_the_hub_is_silent() -> None:
    async def test() -> None:
        pools = WorkerPools(WorkSettings(hub_timeout_s=3.0))
        model = local_model(QUICK, STUB, ChatTemplate({}))
        hub = SilentHub()
        adapters = LoadedAdapters(LocalEngine(), model.card, hub, pools)

        def load(caller: str, name: str, source: str) -> asyncio.Task[Any]:
            async def run() -> Any:
                current_caller.set(Caller(name=caller, tenant=caller))
                return await adapters.load(name, source)

            return asyncio.create_task(run())

        waiting = [load("a", f"a{i}", f"owner/adapter{i}") for i in range(14)]
        await settle()
        refused = [task for task in waiting if task.done()]
        assert refused
        assert all(isinstance(task.exception(), Overloaded) for task in refused)
        started = time.monotonic()
        assert (await load("b", "here", "folder")).loaded
        await adapters.unload("here")
        assert await pools.text.run(lambda: "text") == "text"
        assert time.monotonic() - started < 2.5
        for task in waiting:
            if task not in refused:
                with pytest.raises(LoadFailed, match=r"did not answer within 3 s"):
                    await task
        # Its threads are left to it; nothing waits for them any more.
        assert (pools.hub.queued, pools.hub.running) == (0, 3)
        hub.over.set()
        while pools.hub.running:
            await asyncio.sleep(0.01)
        pools.close()

    asyncio.run(asyncio.wait_for(test(), 60))
