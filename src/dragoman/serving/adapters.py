"""The adapters of one model in memory: those loaded, those that may be loaded, and their model cards."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from dragoman.core.adapters import AdapterEntry
from dragoman.core.errors import AdapterNotFound, Conflict, LoadFailed, ModelError
from dragoman.core.message_paths import without_paths
from dragoman.core.serving import ModelCard
from dragoman.models import AdapterInfo
from dragoman.serving.adapter_registry import AdapterRegistry, AdapterSource
from dragoman.serving.settings import AdapterSettings
from dragoman.serving.worker_pool import WorkerPools

log = logging.getLogger("dragoman.server")

NO_ADAPTERS = AdapterRegistry(AdapterSettings())


class AdapterEngine(Protocol):
    """The part of the engine's client that is needed here. It keeps its adapters when its process restarts."""

    @property
    def adapters(self) -> Mapping[str, AdapterInfo]: ...

    async def load_adapter(self, name: str, source: str, *, replace: bool = False) -> AdapterInfo:
        """Load the adapter in a folder; with ``replace`` in the place of a loaded one. Raises ModelError for one that
        cannot be read or is another model's, Conflict, BadRequest."""

    async def unload_adapter(self, name: str) -> None: ...


class LoadedAdapters:
    """``core.adapters.Adapters`` over an engine. All methods must be called on one event loop."""

    def __init__(
        self,
        engine: AdapterEngine,
        base: ModelCard,
        registry: AdapterRegistry,
        pools: WorkerPools,
    ) -> None:
        """``pools``: the threads that wait for disk and hub."""
        self._engine, self._base, self._registry, self._pools = engine, base, registry, pools
        self._cards: dict[str, ModelCard] = {}
        self._sources: dict[str, AdapterSource] = {}
        self._changing = asyncio.Lock()

    @property
    def cards(self) -> Mapping[str, ModelCard]:
        """Return the cards of the loaded adapters, by name. The engine may have lost one: see ``EngineClient``."""
        known = self._engine.adapters
        return {name: card for name, card in self._cards.items() if name in known}

    def find(self, name: str) -> ModelCard | None:
        """Return the card of a loaded adapter; None where it is not loaded."""
        return self._cards.get(name) if name in self._engine.adapters else None

    def card(self, name: str) -> ModelCard:
        """Return the card of a loaded adapter. Raises AdapterNotFound."""
        card = self.find(name)
        if card is None:
            raise AdapterNotFound(f"The adapter '{name[:256]}' does not exist.", param="model")
        return card

    def entries(self) -> tuple[AdapterEntry, ...]:
        loaded = [_entry(name, self._engine.adapters[name]) for name in self.cards]
        unloaded = [adapter.name for adapter in self._registry.sources() if adapter.name not in self.cards]
        return (*loaded, *(AdapterEntry(name=name, loaded=False) for name in unloaded))

    async def load(self, name: str, source: str | None = None, *, replace: bool = False) -> AdapterEntry:
        self._registry.check_name(name)
        adapter = await self._pools.disk.run(lambda: self._registry.find(name, source))
        try:
            return await self._load_or_keep(adapter, replace=replace, is_named=source is not None)
        except ModelError as error:
            log.error("the adapter %s cannot be loaded: %s", name, error.message)
            shown = without_paths(error.message, adapter.source)
            raise LoadFailed(f"The adapter '{name}' cannot be loaded: {shown}") from error

    async def _load_or_keep(self, adapter: AdapterSource, *, replace: bool, is_named: bool) -> AdapterEntry:
        """Load an adapter, unless it is there already. ``is_named``: the caller has named its source. Raises
        ModelError, Conflict."""
        name = adapter.name
        # The hub may take long: other adapters are loaded and unloaded meanwhile.
        folder = await self._fetched(adapter) if replace or name not in self.cards else None
        async with self._changing:
            if replace or name not in self.cards:
                return await self._load(adapter, folder or await self._fetched(adapter), replace=replace)
            if is_named and self._sources[name].source != adapter.source:
                raise Conflict(f"Another adapter '{name}' is loaded: unload it first.", param="name")
            return _entry(name, self._engine.adapters[name])

    async def load_first(self) -> None:
        """Load the adapters of the start. Raises ModelError."""
        for adapter in self._registry.first:
            try:
                await self._load(adapter, await self._fetched(adapter))
            except ModelError as error:
                raise ModelError(f"The adapter '{adapter.name}' cannot be loaded: {error.message}") from error

    async def unload(self, name: str) -> AdapterEntry:
        async with self._changing:
            if self.find(name) is None:
                raise AdapterNotFound(f"The adapter '{name[:256]}' is not loaded.", param="name")
            del self._cards[name], self._sources[name]
            await self._engine.unload_adapter(name)
            return AdapterEntry(name=name, loaded=False)

    async def _fetched(self, adapter: AdapterSource) -> Path:
        """Return the folder with the adapter's files. Raises ModelError."""
        return await self._pools.ask_hub(lambda: self._registry.fetch(adapter))

    async def _load(self, adapter: AdapterSource, folder: Path, *, replace: bool = False) -> AdapterEntry:
        info = await self._engine.load_adapter(adapter.name, str(folder), replace=replace)
        self._sources[adapter.name] = adapter
        self._cards[adapter.name] = msgspec.structs.replace(
            self._base, name=adapter.name, created=int(time.time()), fingerprint=info.fingerprint, base=self._base.name
        )
        return _entry(adapter.name, info)


def _entry(name: str, info: AdapterInfo) -> AdapterEntry:
    return AdapterEntry(name=name, loaded=True, rank=info.rank, size_bytes=info.nbytes)
