"""The pool of models in memory: which one serves now, and how another replaces it without losing a request.

Where memory holds both, the new model is loaded while the old one serves; the old one then finishes its running
requests, and is closed. Otherwise the old one finishes first, while new requests wait in order. A load that fails
leaves the old model serving, or loads it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Generic

from dragoman.core.catalog import CatalogEntry, FileProgress, ModelDetails, ModelState
from dragoman.core.errors import (
    Conflict,
    DragomanError,
    EngineUnavailable,
    Forbidden,
    LoadFailed,
    ModelNotFound,
    Overloaded,
    ShuttingDown,
)
from dragoman.core.progress import ProgressReport, current_progress
from dragoman.serving.admission import LONGEST_WAIT_S
from dragoman.serving.catalog import find
from dragoman.serving.model_registry import ModelRegistry, ModelSource
from dragoman.serving.pool_loader import ModelT, PoolLoader, Progress

log = logging.getLogger("dragoman.server")

UNKNOWN_LOAD_S = 5.0
"""The wait that is suggested for a load that has not progressed yet."""
MAX_WATCHERS = 256
WATCH_LENGTH = 64
"""The most changes that a watcher may lag; the oldest are dropped then."""


class _Lease(Generic[ModelT]):
    """A loaded model and the count of requests that use it. ``freed``: its engine has ended."""

    def __init__(self, source: ModelSource, loaded: ModelT) -> None:
        self.source = source
        self.loaded = loaded
        self.users = 0
        self.idle, self.freed = asyncio.Event(), asyncio.Event()
        self.idle.set()

    def enter(self) -> None:
        self.users += 1
        self.idle.clear()

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            self.idle.set()


class _RequestLease:
    """A request's lease of the model that it began with. It is released while the request itself asks for another."""

    def __init__(self, lease: _Lease[Any] | None) -> None:
        self.lease = lease


_request_lease: ContextVar[_RequestLease] = ContextVar("request_lease")


class _Load:
    """A load in progress. ``opened_at``: when reading the model began; None before that."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.stage, self.progress = "", 0.0
        self.opened_at: float | None = None
        self.task: asyncio.Task[None]
        self.claims: list[_RequestLease] = []
        """The leases of the requests that wait for the model."""

    @contextlib.contextmanager
    def claimed(self, own: _RequestLease | None) -> Iterator[None]:
        """Lease the model for a request as soon as it is loaded, if that waits until then."""
        if own is None:
            yield
            return
        self.claims.append(own)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                self.claims.remove(own)

    def remaining_s(self) -> float:
        """Return the seconds until the load is done at its rate so far, within bounds."""
        if self.opened_at is None or not self.progress:
            return UNKNOWN_LOAD_S
        elapsed_s = asyncio.get_running_loop().time() - self.opened_at
        return min(max(elapsed_s / self.progress * (1 - self.progress), 1.0), LONGEST_WAIT_S)


class ModelPool(Generic[ModelT]):
    """The catalog of a server that can change its model. All methods must be called on one event loop.

    ``max_waiting``: requests that may wait for a model to become current.
    """

    def __init__(self, registry: ModelRegistry, loader: PoolLoader[ModelT], *, max_waiting: int) -> None:
        self._registry, self._loader = registry, loader
        self._max_waiting = max_waiting
        self._lease: _Lease[ModelT] | None = None
        self._asleep: _Lease[ModelT] | None = None
        """The model that was freed while idle; its engine has ended, its cards and its template remain."""
        self._idle_s: float | None = None
        self._has_own_idle_s = False
        self._nap: asyncio.TimerHandle | None = None
        self._leaving: list[_Lease[ModelT]] = []
        self._load: _Load | None = None
        self._errors: dict[str, str] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._watchers: list[asyncio.Queue[CatalogEntry]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._reports: list[ProgressReport] = []
        """The reports of requests that wait for a model and ask for its progress."""
        self._closed = False

    # Served models ---------------------------------------------------------------------------------------------------

    @property
    def all_loaded(self) -> tuple[ModelT, ...]:
        """Return the current model, then those that still finish their running requests."""
        leases = ([self._lease] if self._lease is not None else []) + self._leaving
        return tuple(lease.loaded for lease in leases)

    @property
    def newest(self) -> ModelT | None:
        """Return the model that new requests get; None while there is none."""
        return None if self._lease is None else self._lease.loaded

    def loaded(self) -> ModelT:
        """Return the model of the running request, or else the current one, which may be asleep. Raises
        EngineUnavailable where there is none."""
        own = _request_lease.get(None)
        lease = (own.lease if own is not None else None) or self._lease or self._asleep
        if lease is None and self._load is not None:
            raise EngineUnavailable("a model is being loaded", retry_after_s=self._load.remaining_s())
        if lease is None:
            raise EngineUnavailable("no model is loaded")
        return lease.loaded

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        """For the duration of a request, hold its model: whatever becomes current, the request keeps the model that it
        began with.

        Waits while there is no current model because another one is being loaded, or because it is asleep: it is
        loaded again. Raises Overloaded when too many wait, LoadFailed.
        """
        await self._wait_for_swap()
        own = _RequestLease(self._lease)
        if own.lease is not None:
            own.lease.enter()
            self._restart_nap()
        token = _request_lease.set(own)
        try:
            yield
        finally:
            _request_lease.reset(token)
            if own.lease is not None:
                own.lease.leave()
                self._restart_nap()

    async def begin(self, source: ModelSource, progress: Progress) -> ModelT:
        """Load the model that the server starts with. Raises ModelError, EngineUnavailable."""
        loaded = await self._loader.open(source, progress)
        self._lease = _Lease(source, loaded)
        return loaded

    async def close(self) -> None:
        """End all models and loads."""
        self._closed = True
        self._end_nap()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._wake()
        leases = ([self._lease] if self._lease is not None else []) + self._leaving
        self._lease, self._leaving = None, []
        await asyncio.gather(*(lease.loaded.close() for lease in leases))

    # The catalog -----------------------------------------------------------------------------------------------------

    def entries(self) -> tuple[CatalogEntry, ...]:
        now = self.current()
        entries = [] if now is None else [now]
        for source in self._registry.sources():
            if now is None or source.name != now.id:
                entries.append(self._entry(source))
        if self._load is not None and self._load.source.name not in {entry.id for entry in entries}:
            entries.append(self._entry(self._load.source))
        return tuple(entries)

    def current(self) -> CatalogEntry | None:
        return None if self._lease is None else self._lease.loaded.entry

    def find(self, name: str) -> CatalogEntry | None:
        if (entry := find(self.entries(), name)) is not None:
            return entry
        try:
            return self._entry(self._registry.find(name))
        except ModelNotFound:
            return None

    @property
    def asleep(self) -> CatalogEntry | None:
        return None if self._asleep is None else self._entry(self._asleep.source)

    @property
    def idle_s(self) -> float | None:
        return self._idle_s

    def keep(self, idle_s: float | None, *, default: bool = False) -> None:
        self._refuse_if_fixed()
        if default and self._has_own_idle_s:
            return
        self._idle_s, self._has_own_idle_s = idle_s, not default
        self._restart_nap()

    async def details(self, name: str) -> ModelDetails:
        return await self._loader.details(self._registry.find(name))

    def download(self, name: str) -> AsyncGenerator[FileProgress, None]:
        return self._loader.download(self._registry.find_on_hub(name), self._registry.look_again)

    async def load(self, name: str, *, wait: bool = False) -> CatalogEntry:
        source = self._registry.find(name)
        own = _request_lease.get(None)
        while True:
            if wait:
                await self._wait_for_others(source)
            under_way = self._begin(source)
            with self._released():
                if under_way is not None:
                    # The load is shared: a caller that stops waiting for it does not end it.
                    with under_way.claimed(own):
                        await asyncio.wait((under_way.task,))
            if under_way is not None:
                if under_way.task.cancelled():
                    raise ShuttingDown
                under_way.task.result()
            lease = self._lease if own is None else own.lease
            if lease is not None and lease.source.name == source.name:
                return lease.loaded.entry
            if not wait:
                raise Conflict("Another model has taken its place meanwhile.")

    def begin_loading(self, name: str) -> CatalogEntry:
        source = self._registry.find(name)
        self._begin(source)
        return self._entry(source)

    async def unload(self) -> CatalogEntry | None:
        self._refuse_if_fixed()
        if self._load is not None:
            raise Conflict("A model is being loaded.")
        lease, self._lease, self._asleep = self._lease, None, None
        if lease is None:
            return None
        log.info("the model %s is unloaded", lease.source.name)
        with self._released():
            await asyncio.shield(self._retiring(lease))
        entry = self._entry(lease.source)
        self._tell(entry)
        return entry

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

    # Swapping models -------------------------------------------------------------------------------------------------

    def _begin(self, source: ModelSource) -> _Load | None:
        """Return the load of this model: the one in progress, or a new one; None where the model is current already."""
        if self._closed:
            raise ShuttingDown
        if self._load is not None:
            if self._load.source.name != source.name:
                raise Conflict("Another model is currently loading")
            return self._load
        if self._lease is not None and self._lease.loaded.entry.id == source.name:
            return None
        self._errors.pop(source.name, None)
        self._load = load = _Load(source)
        load.task = self._started(self._change(load))
        load.task.add_done_callback(_looked_at)
        self._tell(self._entry(source))
        return load

    async def _change(self, load: _Load) -> None:
        log.info("loading the model %s", load.source.name)
        try:
            await self._take_over(load)
        except DragomanError as error:
            log.error("the model %s cannot be loaded: %s", load.source.name, error.message)
            self._errors[load.source.name] = error.message
            raise LoadFailed(error.message) from error
        finally:
            self._load = None
            self._wake()
            self._restart_nap()
            self._tell(self._entry(load.source))
        log.info("the model %s is served now", load.source.name)

    async def _take_over(self, load: _Load) -> None:
        old = self._lease
        if self._asleep is not None:
            await self._asleep.freed.wait()  # its memory is needed
        beside = old is None or await self._loader.fits_beside(load.source, old.loaded)
        if old is None or beside:
            self._install(load, await self._open(load))
            if old is not None:
                self._retiring(old)
            return
        log.info("memory does not hold both models: %s finishes first", old.loaded.entry.id)
        self._lease = None
        await asyncio.shield(self._retiring(old))
        try:
            self._install(load, await self._open(load))
        except BaseException:
            if not self._closed:
                log.info("the model %s comes back", old.source.name)
                self._lease = _Lease(old.source, await self._loader.open(old.source, lambda stage, share: None))
            raise

    def _install(self, load: _Load, loaded: ModelT) -> None:
        """Make a loaded model the current one, leased by the requests that wait for it: another load may follow."""
        self._lease = lease = _Lease(load.source, loaded)
        self._asleep, self._idle_s, self._has_own_idle_s = None, None, False
        for own in load.claims:
            own.lease = lease
            lease.enter()
        load.claims.clear()

    async def _open(self, load: _Load) -> ModelT:
        def progress(stage: str, share: float) -> None:
            if (stage, share // 0.1) != (load.stage, load.progress // 0.1):
                log.info("loading the model %s: %s, %.0f %%", load.source.name, stage, 100 * share)
            load.stage, load.progress = stage, share
            for report in self._reports:
                report.loading(stage, share)
            self._tell(self._entry(load.source))

        load.opened_at = asyncio.get_running_loop().time()
        return await self._loader.open(load.source, progress)

    # Falling asleep --------------------------------------------------------------------------------------------------

    def _restart_nap(self) -> None:
        """Let the current model fall asleep when it has been idle for so long from now on."""
        self._end_nap()
        if self._idle_s is not None and (lease := self._lease) and not lease.users and not self._closed:
            self._nap = asyncio.get_running_loop().call_later(self._idle_s, self._doze, lease)

    def _end_nap(self) -> None:
        if self._nap is not None:
            self._nap.cancel()
            self._nap = None

    def _doze(self, lease: _Lease[ModelT]) -> None:
        self._nap = None
        if self._lease is lease and not lease.users and self._load is None:
            log.info("the model %s falls asleep", lease.source.name)
            self._lease, self._asleep = None, lease
            self._retiring(lease)
            self._tell(self._entry(lease.source))

    def _refuse_if_fixed(self) -> None:
        if self._registry.is_fixed:
            raise Forbidden("This server always serves the model it was started with.")

    async def _wait_for_others(self, source: ModelSource) -> None:
        """Wait while another model than this one is being loaded. Raises Overloaded when too many requests wait."""
        while self._load is not None and self._load.source.name != source.name:
            with self._released():
                await self._wait_turn()

    def _retiring(self, lease: _Lease[ModelT]) -> asyncio.Task[None]:
        """Let a model finish its running requests, and free it."""

        async def retire() -> None:
            await lease.idle.wait()
            try:
                await lease.loaded.close()
                self._leaving.remove(lease)
            finally:
                lease.freed.set()

        self._leaving.append(lease)
        return self._started(retire())

    @contextlib.contextmanager
    def _released(self) -> Iterator[None]:
        """For the duration, release the running request's lease while it waits for a swap; afterwards lease the
        current model."""
        own = _request_lease.get(None)
        if own is None:
            yield
            return
        if own.lease is not None:
            own.lease.leave()
            own.lease = None
        try:
            yield
        finally:
            if own.lease is None and self._lease is not None:
                own.lease = self._lease
                own.lease.enter()

    async def _wait_for_swap(self) -> None:
        while self._lease is None:
            if self._load is None and self._asleep is not None and not self._closed:
                self._begin(self._asleep.source)
            if (load := self._load) is None:
                return
            await self._wait_turn()
            wakes = self._asleep is not None and self._asleep.source.name == load.source.name
            if self._lease is None and wakes and load.task.done() and not load.task.cancelled():
                load.task.result()

    async def _wait_turn(self) -> None:
        """Wait until the load in progress has ended. Raises Overloaded when too many requests wait."""
        load = self._load
        assert load is not None, "a model is being loaded"
        if len(self._waiting) >= self._max_waiting:
            message = f"{len(self._waiting)} requests are waiting for a model already. Try again later."
            raise Overloaded(message, retry_after_s=load.remaining_s())
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        report = current_progress.get()
        if report is not None:
            self._reports.append(report)
            report.loading(load.stage, load.progress)
        try:
            await turn
        finally:
            if report is not None:
                self._reports.remove(report)
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)

    def _wake(self) -> None:
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)

    def _started(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _entry(self, source: ModelSource) -> CatalogEntry:
        if self._lease is not None and self._lease.source.name == source.name:
            return self._lease.loaded.entry
        loading = self._load if self._load is not None and self._load.source.name == source.name else None
        return CatalogEntry(
            id=source.name,
            aliases=source.aliases,
            title=source.name,
            state=ModelState.AVAILABLE if loading is None else ModelState.LOADING,
            progress=0.0 if loading is None else loading.progress,
            error=self._errors.get(source.name, ""),
            architecture=source.architecture,
            size_bytes=source.size_bytes,
            modified=source.modified,
        )

    def _tell(self, entry: CatalogEntry) -> None:
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(entry)


def _looked_at(task: asyncio.Task[None]) -> None:
    """Mark the task's error as handled, for no task may ever await it: the error is in the log and in the entry."""
    if not task.cancelled():
        task.exception()
