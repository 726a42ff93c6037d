"""Models in memory, and how others get there: the least recently used idle ones make room for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Generic

from dragoman.core.catalog import CatalogEntry, ModelState
from dragoman.core.errors import DragomanError, LoadFailed, Overloaded, ShuttingDown
from dragoman.core.message_paths import without_paths
from dragoman.serving.load_queue import Load, LoadQueue
from dragoman.serving.memory_budget import MemoryBudget
from dragoman.serving.model_registry import ModelSource
from dragoman.serving.pool_loader import ModelT, PoolLoader
from dragoman.serving.residency import RequestLease, Resident, choose_leaving
from dragoman.serving.thread_shares import ThreadShares

log = logging.getLogger("dragoman.server")

MAX_WATCHERS = 256
WATCH_LENGTH = 64
"""The most changes that a watcher may lag; the oldest are dropped then."""


class ResidentModels(Generic[ModelT]):
    """Holds the models in memory, within their budget, and loads others.

    Attributes:
        residents: by name, those that take requests. leaving: those that finish their running requests.
        current: serves requests that name no model. Where it is not among the residents, it is asleep: its engine has
            ended, its cards and its template remain.
        queue: the loads that are wanted. pins: names of models that stay. idle_limit_s: after so long without a request
            a model is unloaded, where no request says otherwise; None: never.
        changed: set when a model becomes idle, is freed, or may leave.
        loads, evictions: models that were loaded after the first, and those that made room for one.
    """

    def __init__(
        self,
        loader: PoolLoader[ModelT],
        budget: MemoryBudget,
        *,
        max_waiting: int,
        pins: set[str],
        idle_limit_s: float | None,
        threads: int | None,
    ) -> None:
        self._loader, self._budget = loader, budget
        self.pins, self.idle_limit_s = pins, idle_limit_s
        self.residents: dict[str, Resident[ModelT]] = {}
        self.leaving: list[Resident[ModelT]] = []
        self.current: Resident[ModelT] | None = None
        self.queue = LoadQueue(max_waiting, self._on_wanted)
        self.changed = asyncio.Event()
        self.loads = self.evictions = 0
        self.closed = False
        self._worker: asyncio.Task[None] | None = None
        self._errors: dict[str, str] = {}
        self._watchers: list[asyncio.Queue[CatalogEntry]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._shares: ThreadShares[ModelT] = ThreadShares(threads)

    async def close(self) -> None:
        """End all models and loads."""
        self.closed = True
        self._shares.close()
        for each in self.residents.values():
            each.end_nap()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for load in self.queue.loads:
            self.queue.remove(load)
            load.end(None, ShuttingDown())
        found = [*self.residents.values(), *self.leaving]
        self.residents, self.leaving, self.current = {}, [], None
        await asyncio.gather(*(each.loaded.close() for each in found))

    async def watch(self) -> AsyncGenerator[CatalogEntry, None]:
        if len(self._watchers) >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS} clients watch the models already.")
        queue: asyncio.Queue[CatalogEntry] = asyncio.Queue(WATCH_LENGTH)
        self._watchers.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.remove(queue)

    # Waiting for a model ---------------------------------------------------------------------------------------------

    async def obtain(
        self, source: ModelSource, own: RequestLease, *, is_asked: bool = False, is_bounded: bool = True
    ) -> None:
        """Have the request hold a model, which is loaded where it is not in memory."""
        if self.closed:
            raise ShuttingDown
        if (resident := self.residents.get(source.name)) is not None:
            own.take(resident)
            return
        if is_bounded:
            self.queue.require_room()
        await self.want(source, is_asked=is_asked).wait(own)

    async def obtain_current(self, own: RequestLease) -> None:
        """Have the request hold the current model, or the one that is to become it; nothing where there is none."""
        while True:
            current, asked = self.current, self.queue.asked
            if current is not None and self.is_in_memory(current):
                own.take(current)
                return
            if asked is not None:
                self.queue.require_room()
                try:
                    await asked.wait(own)
                    return
                except LoadFailed:
                    continue  # those who asked for it hear why
            if current is not None and not self.closed:
                await self.obtain(current.source, own)
            return

    def want(self, source: ModelSource, *, is_asked: bool = False) -> Load:
        if self.closed:
            raise ShuttingDown
        self._errors.pop(source.name, None)
        return self.queue.want(source, is_asked=is_asked)

    def _on_wanted(self, load: Load) -> None:
        if self._worker is None or self._worker.done():
            self._worker = self._started(self._load_wanted())
        self.tell(self.entry(load.source))

    # Loading ---------------------------------------------------------------------------------------------------------

    async def _load_wanted(self) -> None:
        """Load what is wanted, one model after the other, until nothing is."""
        while (load := self.queue.first) is not None:
            await asyncio.sleep(0)  # a request that begins the load waits for it from now on
            await self._end_load(load)

    async def _end_load(self, load: Load) -> None:
        """Load a model, and wake those who wait for it."""
        name, previous = load.source.name, self.current
        resident: Resident[ModelT] | None = None
        error: DragomanError | None = ShuttingDown()
        log.info("loading the model %s", name)
        try:
            resident = await self._load(load)
            error = None
            if resident is not None:
                self.loads += 1
                log.info("the model %s is served now", name)
        except DragomanError as reason:
            log.error("the model %s cannot be loaded: %s", name, reason.message)
            shown = self._errors[name] = without_paths(reason.message, load.source.source)
            error = LoadFailed(shown)
            await self._bring_back(previous)
        except Exception:
            log.exception("the model %s cannot be loaded", name)
            self._errors[name] = "the server had an internal error"
            error = LoadFailed(f"The model {name} cannot be loaded. The server's log has more.")
            await self._bring_back(previous)
        finally:
            self.queue.remove(load)
            load.end(resident, error)
            for each in self.residents.values():
                self.restart_nap(each)
            self.tell(self.entry(load.source))

    async def _load(self, load: Load) -> Resident[ModelT] | None:
        """Return the model in memory; None where nobody wants it any more. Raises ModelError, EngineUnavailable."""
        if not await self._make_room(load):
            return None
        name, shown = load.source.name, -1

        def progress(stage: str, share: float) -> None:
            nonlocal shown
            if stage != load.stage or int(share * 10) != shown:
                shown = int(share * 10)
                log.info("loading the model %s: %s, %.0f %%", name, stage, 100 * share)
            load.report(stage, share)
            self.tell(self.entry(load.source))

        started = load.opened_at = asyncio.get_running_loop().time()
        loaded = await self._loader.open(load.source, progress)
        resident = await self.added(load.source, loaded, asyncio.get_running_loop().time() - started)
        current = self.current
        if load.is_asked or current is None or current.source.name == name:
            self.current = resident
        return resident

    async def added(self, source: ModelSource, loaded: ModelT, load_s: float) -> Resident[ModelT]:
        memory = await self._loader.memory_of(source)
        resident = Resident(
            source,
            loaded,
            memory,
            self._on_use,
            load_s=load_s,
            idle_s=self.idle_limit_s,
            is_pinned=source.name in self.pins,
        )
        self.residents[source.name] = resident
        return resident

    async def _make_room(self, load: Load) -> bool:
        """Have models leave until there is memory for this one, and return whether somebody still wants it.

        Raises ModelError where it cannot fit.
        """
        wanted, loop = await self._loader.memory_of(load.source), asyncio.get_running_loop()
        await self._measure()
        while load.is_asked or load.waiting:
            self.changed.clear()
            staying = tuple(self.residents.values())
            pinned = [each.memory for each in staying if each.is_pinned]
            self._budget.require_possible(load.source.name, wanted, pinned)
            short = self._budget.short_bytes(wanted, [each.memory for each in (*staying, *self.leaving)])
            is_leaving = any(each.source.name == load.source.name for each in self.leaving)
            if not short and not is_leaving:
                return True
            until_s = loop.time() + 1.0  # the machine may have memory again, and clients leave
            going = sum(each.memory.serving_bytes for each in self.leaving)
            if going < short:
                choice = choose_leaving(staying, short - going, loop.time(), is_urgent=load.is_asked)
                if choice is None and not self.leaving:
                    return True  # memory that others have taken: the engine finds out whether there is enough
                if choice is not None and choice.leave:
                    for each in choice.leave:
                        self._make_leave(each, load)
                    continue
                if choice is not None and choice.wait_until_s is not None:
                    until_s = min(until_s, choice.wait_until_s)
            try:
                await asyncio.wait_for(self.changed.wait(), max(0.001, until_s - loop.time()))
            except TimeoutError:
                continue
        return False

    def _make_leave(self, resident: Resident[ModelT], load: Load) -> None:
        state = f"finishes its {resident.users} requests and " if resident.users else ""
        log.info("the model %s %smakes room for %s", resident.source.name, state, load.source.name)
        self.evictions += 1
        if load.is_asked and resident is self.current:
            self.current = None  # requests that name no model wait for the new one
        self.retire(resident)

    async def _bring_back(self, previous: Resident[ModelT] | None) -> None:
        """Load the current model again, where it made room for one that could not be loaded."""
        if previous is None or self.current is previous or self.is_in_memory(previous) or self.closed:
            return
        log.info("the model %s comes back", previous.source.name)
        self.current = previous
        try:
            await previous.freed.wait()
            loaded = await self._loader.open(previous.source, lambda stage, share: None)
            self.current = await self.added(previous.source, loaded, previous.load_s)
        except DragomanError as error:
            log.error("the model %s cannot be loaded again: %s", previous.source.name, error.message)

    async def fits_in(self, source: ModelSource, unused_s: float) -> bool:
        """Return whether a model is in memory, or would fit in while none is unloaded that was used within the last
        ``unused_s`` seconds, and no other is being loaded. Raises ModelError where it can never fit."""
        if source.name in self.residents:
            return True
        wanted = await self._loader.memory_of(source)
        await self._measure()
        if len(self.queue):
            return False
        staying, before_s = tuple(self.residents.values()), asyncio.get_running_loop().time() - unused_s
        self._budget.require_possible(source.name, wanted, [each.memory for each in staying if each.is_pinned])
        short = self._budget.short_bytes(wanted, [each.memory for each in (*staying, *self.leaving)])
        unused = [each for each in staying if not each.users and not each.is_pinned and each.used_s <= before_s]
        return short <= sum(each.memory.serving_bytes for each in unused)

    async def _measure(self) -> None:
        engines = [pid for each in (*self.residents.values(), *self.leaving) if (pid := each.loaded.pid) is not None]
        await self._loader.measure(lambda: self._budget.measure_server(engines))

    def retire(self, resident: Resident[ModelT]) -> asyncio.Task[None]:
        """Let a model finish its running requests, and free it."""

        async def retire() -> None:
            await resident.wait_idle()
            resident.is_closing = True
            try:
                await resident.loaded.close()
                self.leaving.remove(resident)
            finally:
                resident.freed.set()
                self.changed.set()

        resident.end_nap()
        del self.residents[resident.source.name]
        self.leaving.append(resident)
        self.tell(self.entry(resident.source))
        return self._started(retire())

    # Uses ------------------------------------------------------------------------------------------------------------

    def _on_use(self, resident: Resident[ModelT]) -> None:
        if not resident.users:
            self.changed.set()
        self.restart_nap(resident)
        self._shares.share([each for each in (*self.residents.values(), *self.leaving) if each.users])

    def restart_nap(self, resident: Resident[ModelT]) -> None:
        resident.end_nap()
        if self.is_in_memory(resident) and not self.closed:
            resident.restart_nap(self._doze)

    def _doze(self, resident: Resident[ModelT]) -> None:
        # While another model may take its place it stays: the end of the load starts the time again.
        if self.is_in_memory(resident) and not resident.users and not len(self.queue):
            log.info("the model %s has been idle for %g s, and is unloaded", resident.source.name, resident.idle_s)
            self.retire(resident)

    def is_in_memory(self, resident: Resident[ModelT]) -> bool:
        return self.residents.get(resident.source.name) is resident

    def in_order(self) -> list[Resident[ModelT]]:
        return sorted(self.residents.values(), key=lambda each: each is not self.current)

    def make_current(self, resident: Resident[Any]) -> None:
        if self.current is not resident:
            self.current = resident
            self.tell(self.entry(resident.source))

    def _started(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def entry(self, source: ModelSource) -> CatalogEntry:
        if (resident := self.residents.get(source.name)) is not None:
            return resident.loaded.entry
        load = self.queue.get(source.name)
        return CatalogEntry(
            id=source.name,
            aliases=source.aliases,
            title=source.name,
            state=ModelState.AVAILABLE if load is None else ModelState.LOADING,
            progress=0.0 if load is None else load.progress,
            error=self._errors.get(source.name, ""),
            architecture=source.architecture,
            size_bytes=source.size_bytes,
            modified=source.modified,
        )

    def tell(self, entry: CatalogEntry) -> None:
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(entry)
