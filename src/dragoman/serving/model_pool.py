"""The pool of models in memory: which ones are there, and how others get there without losing a request.

All share one budget of memory. A request for a model that is not in memory waits while it is loaded; the least recently
used of the others that are idle make room, and where all are busy one takes no more requests and leaves when those that
run are over. Requests that name no model get the current one: that of the start, or the one that was loaded last by an
operator's call. A load that fails leaves the current model serving, or loads it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Generic, Literal

from dragoman.core.catalog import CatalogEntry, FileProgress, ModelDetails, ModelResidence
from dragoman.core.errors import (
    Conflict,
    EngineUnavailable,
    Forbidden,
    ModelNotFound,
)
from dragoman.serving.catalog import find
from dragoman.serving.memory_budget import MemoryBudget
from dragoman.serving.model_registry import ModelRegistry, ModelSource
from dragoman.serving.pool_loader import ModelT, PoolLoader, Progress
from dragoman.serving.residency import RequestLease, Resident
from dragoman.serving.resident_models import ResidentModels

log = logging.getLogger("dragoman.server")

_request_lease: ContextVar[RequestLease] = ContextVar("request_lease")


class ModelPool(Generic[ModelT]):
    """The catalog of a server that can have several models. All methods must be called on one event loop.

    ``max_waiting``: requests that may wait for a model. ``budget``: the memory of all models. ``idle_s``: after so long
    without a request a model is unloaded, where no request says otherwise; None: never. ``pins``: names of models that
    stay in memory. ``threads``: computing threads of this machine, which models with work share.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        loader: PoolLoader[ModelT],
        *,
        max_waiting: int,
        budget: MemoryBudget | None = None,
        idle_s: float | None = None,
        pins: tuple[str, ...] = (),
        threads: int | None = None,
    ) -> None:
        self._registry, self._loader = registry, loader
        self._budget = budget or MemoryBudget()
        self._models: ResidentModels[ModelT] = ResidentModels(
            loader,
            self._budget,
            max_waiting=max_waiting,
            pins={registry.find(name).name for name in pins},
            idle_limit_s=idle_s,
            threads=threads,
        )

    # Served models ---------------------------------------------------------------------------------------------------

    @property
    def all_loaded(self) -> tuple[ModelT, ...]:
        """Return the current model, then the others, then those that still finish their running requests."""
        return tuple(each.loaded for each in (*self._models.in_order(), *self._models.leaving))

    @property
    def newest(self) -> ModelT | None:
        """Return the current model; None while it is not in memory."""
        current = self._models.current
        return current.loaded if current is not None and self._models.is_in_memory(current) else None

    def loaded(self) -> ModelT:
        """Return the model of the running request, or else the current one, which may be asleep. Raises
        EngineUnavailable where there is none."""
        own = _request_lease.get(None)
        resident = (own.resident if own is not None else None) or self._models.current
        if resident is not None:
            return resident.loaded
        if (load := self._models.queue.first) is not None:
            raise EngineUnavailable("a model is being loaded", retry_after_s=load.remaining_s())
        raise EngineUnavailable("no model is loaded")

    @property
    def is_leased(self) -> bool:
        """Return whether the running request holds a model."""
        own = _request_lease.get(None)
        return own is not None and own.resident is not None

    @asynccontextmanager
    async def lease(self, name: str | None = None, *, wake: bool = True) -> AsyncIterator[None]:
        """For the duration of a request, hold its model, by id or else the current one: whatever becomes current, the
        request keeps the model that it began with.

        Waits while the model is being loaded, and has it loaded where it is not in memory; not the current one without
        ``wake``, where the request is to ask for a model later. Raises Overloaded when too many wait, LoadFailed.
        """
        own = RequestLease()
        try:
            if name is not None:
                await self._models.obtain(self._source_of(name), own)
            elif wake:
                await self._models.obtain_current(own)
            elif (current := self._models.current) is not None and self._models.is_in_memory(current):
                own.take(current)
            token = _request_lease.set(own)
            try:
                yield
            finally:
                _request_lease.reset(token)
        finally:
            own.release()

    async def use(self, name: str | None) -> None:
        with self._own_lease() as own, own.released():
            if name is None:
                await self._models.obtain_current(own)
            else:
                await self._models.obtain(self._source_of(name), own)

    async def begin(self, source: ModelSource, progress: Progress) -> ModelT:
        """Load the model that the server starts with. Raises ModelError, EngineUnavailable."""
        started = asyncio.get_running_loop().time()
        loaded = await self._loader.open(source, progress)
        self._models.current = await self._models.added(source, loaded, asyncio.get_running_loop().time() - started)
        self._models.restart_nap(self._models.current)
        return loaded

    # The catalog -----------------------------------------------------------------------------------------------------

    def entries(self) -> tuple[CatalogEntry, ...]:
        now = self.current()
        entries = [] if now is None else [now]
        listed = [*self._registry.sources(), *(each.source for each in self._models.residents.values())]
        for source in (*listed, *(load.source for load in self._models.queue.loads)):
            if source.name not in {entry.id for entry in entries}:
                entries.append(self._models.entry(source))
        return tuple(entries)

    def current(self) -> CatalogEntry | None:
        newest = self.newest
        return None if newest is None else newest.entry

    def find(self, name: str) -> CatalogEntry | None:
        if (entry := find(self.entries(), name)) is not None:
            return entry
        try:
            return self._models.entry(self._registry.find(name))
        except ModelNotFound:
            return None

    def named(self, name: str) -> str | None:
        for each in self._known():
            if each.loaded.serves(name):
                return each.source.name
        source = self._registry.find_exact(name)
        return None if source is None else source.name

    def is_resident(self, id: str) -> bool:
        return id in self._models.residents

    async def fits_in(self, id: str, unused_s: float) -> bool:
        return await self._models.fits_in(self._source_of(id), unused_s)

    def residences(self) -> tuple[ModelResidence, ...]:
        now_s = asyncio.get_running_loop().time()
        found = [
            ModelResidence(
                id=each.source.name,
                is_default=each is self._models.current,
                state="loaded" if self._models.is_in_memory(each) else "leaving",
                running=each.users,
                idle_s=None if each.users else round(now_s - each.used_s, 3),
                is_pinned=each.is_pinned,
                idle_limit_s=each.idle_s,
                planned_bytes=each.memory.serving_bytes,
                pid=each.loaded.pid,
            )
            for each in (*self._models.in_order(), *self._models.leaving)
        ]
        for number, load in enumerate(self._models.queue.loads):
            state = "queued" if number else "loading"
            found.append(
                ModelResidence(
                    id=load.source.name,
                    is_default=False,
                    state=state,
                    progress=load.progress,
                    waiting=load.waiting,
                    is_pinned=load.source.name in self._models.pins,
                )
            )
        return tuple(found)

    @property
    def loads(self) -> int:
        """Return how many models were loaded after the first."""
        return self._models.loads

    @property
    def evictions(self) -> int:
        """Return how many models made room for another."""
        return self._models.evictions

    @property
    def request_loads(self) -> Literal["admin", "any", "never"]:
        return self._registry.request_loads

    @property
    def memory_bytes(self) -> int | None:
        return None if self._registry.is_fixed else self._budget.total_bytes

    @property
    def asleep(self) -> CatalogEntry | None:
        current = self._models.current
        return None if current is None or self._models.is_in_memory(current) else self._models.entry(current.source)

    @property
    def idle_s(self) -> float | None:
        resident = self._own()
        return None if resident is None else resident.idle_s

    def keep(self, idle_s: float | None, *, default: bool = False) -> None:
        self._refuse_if_fixed()
        resident = self._own()
        if resident is None or (default and resident.has_own_idle_s):
            return
        resident.idle_s = self._models.idle_limit_s if default and idle_s is None else idle_s
        resident.has_own_idle_s = not default
        self._models.restart_nap(resident)

    def pin(self, name: str, *, is_pinned: bool) -> CatalogEntry:
        self._refuse_if_fixed()
        source = self._source_of(name)
        (self._models.pins.add if is_pinned else self._models.pins.discard)(source.name)
        if (resident := self._models.residents.get(source.name)) is not None:
            resident.is_pinned = is_pinned
            self._models.restart_nap(resident)
            self._models.changed.set()
        return self._models.entry(source)

    async def details(self, name: str) -> ModelDetails:
        return await self._loader.details(self._registry.find(name))

    def download(self, name: str) -> AsyncGenerator[FileProgress, None]:
        return self._loader.download(self._registry.find_on_hub(name), self._registry.look_again)

    async def load(self, name: str, *, wait: bool = False) -> CatalogEntry:
        source = self._source_of(name)
        if not wait:
            self._refuse_another(source)
        with self._own_lease() as own:
            with own.released():
                await self._models.obtain(source, own, is_asked=True, is_bounded=wait)
            resident = own.resident
            assert resident is not None, "the load has ended well"
            self._models.make_current(resident)
            entry: CatalogEntry = resident.loaded.entry
        return entry

    def begin_loading(self, name: str) -> CatalogEntry:
        source = self._source_of(name)
        self._refuse_another(source)
        if (resident := self._models.residents.get(source.name)) is not None:
            self._models.make_current(resident)
        else:
            self._models.want(source, is_asked=True)
        return self._models.entry(source)

    async def unload(self, name: str | None = None) -> CatalogEntry | None:
        self._refuse_if_fixed()
        current = self._models.current
        if name is None:
            if (asked := self._models.queue.asked) is not None:
                raise Conflict(f"The model {asked.source.name} is being loaded.")
            resident = self._models.residents.get(current.source.name) if current is not None else None
        else:
            resident = self._models.residents.get(self._source_of(name).name)
        if name is None or (current is not None and resident is current):
            self._models.current = None
        if not resident:
            return None
        log.info("the model %s is unloaded", resident.source.name)
        source, retiring = resident.source, self._models.retire(resident)
        own = _request_lease.get(None)
        if own is not None and own.resident is resident:
            own.release()
        await asyncio.shield(retiring)
        return self._models.entry(source)

    async def close(self) -> None:
        """End all models and loads."""
        await self._models.close()

    def watch(self) -> AsyncGenerator[CatalogEntry, None]:
        return self._models.watch()

    @contextmanager
    def _own_lease(self) -> Iterator[RequestLease]:
        """Yield the running request's lease; outside of requests, one that holds a model for this call alone."""
        if (own := _request_lease.get(None)) is not None:
            yield own
            return
        own = RequestLease()
        try:
            yield own
        finally:
            own.release()

    def _own(self) -> Resident[ModelT] | None:
        """Return what the running request holds, or else the current model, where that is in memory."""
        own = _request_lease.get(None)
        resident = (own.resident if own is not None else None) or self._models.current
        return resident if resident is not None and self._models.is_in_memory(resident) else None

    def _known(self) -> list[Resident[ModelT]]:
        """Return the current model, which may be asleep, and then the others in memory."""
        current = self._models.current
        return [*([] if current is None else [current]), *self._models.residents.values()]

    def _source_of(self, name: str) -> ModelSource:
        """Return the model of this name. Raises ModelNotFound."""
        for each in self._known():
            if each.source.name == name:
                return each.source
        return self._registry.find(name)

    def _refuse_if_fixed(self) -> None:
        if self._registry.is_fixed:
            raise Forbidden("This server always serves the model it was started with.")

    def _refuse_another(self, source: ModelSource) -> None:
        """Raise Conflict while an operator's call has another model loaded."""
        asked = self._models.queue.asked
        if asked is not None and asked.source.name != source.name:
            raise Conflict("Another model is currently loading")
