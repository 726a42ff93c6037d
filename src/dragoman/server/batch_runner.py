"""The runner of batches: reads their input, has every line answered once, and writes the result files.

A line is a request like any other (``batch_lines``), of the caller who made the batch, at the lowest priority. Its
result is committed before it counts, and a line without a result is run again after a restart: with the same seed and
ids, since these follow from the batch and the line. So a result file has every line once, whatever died meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.types import ASGIApp

from dragoman.core.batches import (
    BatchFault,
    BatchFormat,
    BatchLine,
    BatchStatus,
    LineRequest,
    LineResult,
    StorageFull,
    StoredBatch,
    UnknownBatch,
    UnknownFile,
)
from dragoman.core.catalog import may_have_loaded
from dragoman.core.errors import DragomanError, LoadFailed, ModelError, ModelNotFound
from dragoman.core.serving import Serving
from dragoman.dialects.api import Dialect
from dragoman.server.batch_input import is_as_checked, read_input, read_line
from dragoman.server.batch_lines import LineExchange, line_request_id
from dragoman.serving.batch_store import SqliteBatchStore
from dragoman.serving.runtime import ActiveModel

log = logging.getLogger("dragoman.server")

LOOK_S = 5.0
"""Seconds between two looks for what another server has changed, or has left."""
LONGEST_LOOK_S = 60.0
"""The same while the store cannot be used."""
SWEEP_S = 600.0
"""Seconds between two sweeps of what has expired."""
RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
CUT_S = 600.0
"""Seconds that the running lines of a cancelled batch have left."""
MOST_RUNS = 3
"""How often a line is run whose generation fails."""
LINES_AT_ONCE = 256
UNUSED_S = 300.0
"""A batch has its model loaded in place of others that nobody has used for so long, and of no others."""

WAITS = frozenset({429, 499, 503})
"""Statuses after which a line is run again, however often: the request was not run."""


class BatchRunner:
    """Runs the batches of a server through its application."""

    def __init__(
        self,
        app: ASGIApp,
        serving: ActiveModel,
        dialects: Sequence[Dialect],
        *,
        max_line_bytes: int,
    ) -> None:
        self._app, self._serving, self._store = app, serving, serving.batches
        self._formats = {each.name: each.batches for each in dialects if each.batches is not None}
        self._max_line_bytes = max_line_bytes
        self._places = asyncio.Semaphore(self._store.settings.batch_parallel)
        self._running: dict[str, _RunningBatch] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        """Begin to run batches, where the server keeps any."""
        if self._store.is_on:
            self._task = asyncio.create_task(self._run())

    async def __aexit__(self, *error: object) -> None:
        """Cut what runs: it goes on at the next start."""
        tasks = [each.task for each in self._running.values()]
        tasks += [] if self._task is None else [self._task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        swept, wait_s = float("-inf"), LOOK_S
        while True:
            self._store.changed.clear()
            try:
                if await self._store.own():
                    if loop.time() - swept > SWEEP_S:
                        swept = loop.time()
                        await self._store.expire()
                    self._take_up(await self._store.unfinished())
                wait_s = LOOK_S
            except DragomanError:
                wait_s = min(2 * wait_s, LONGEST_LOOK_S)
                log.warning("batches cannot be run now; trying again in %g s", wait_s)
            except Exception:
                wait_s = min(2 * wait_s, LONGEST_LOOK_S)
                log.exception("batches cannot be run now; trying again in %g s", wait_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._store.changed.wait()

    def _take_up(self, batches: Sequence[StoredBatch]) -> None:
        """Run each of the batches, and tell those that run already how they are."""
        self._running = {id: each for id, each in self._running.items() if not each.task.done()}
        for batch in batches:
            running = self._running.get(batch.id)
            if running is not None:
                running.tell(batch)
            elif (form := self._formats.get(batch.dialect)) is not None:
                running = _RunningBatch(batch, form, self._app, self._store, self._serving, self._places)
                running.task = asyncio.create_task(running.run(self._max_line_bytes))
                self._running[batch.id] = running


class _RunningBatch:
    """One batch that is not over."""

    task: asyncio.Task[None]

    def __init__(
        self,
        batch: StoredBatch,
        form: BatchFormat,
        app: ASGIApp,
        store: SqliteBatchStore,
        serving: Serving,
        places: asyncio.Semaphore,
    ) -> None:
        self._batch, self._form = batch, form
        self._app, self._store, self._serving, self._places = app, store, serving, places
        self._ends_with: BatchStatus | None = None
        """Why no more lines are begun; None: they are."""
        self._ended = asyncio.Event()
        self._fault: BatchFault | None = None
        """Why it fails, where it does."""
        self._loading = asyncio.Lock()
        self._lines: set[asyncio.Task[None]] = set()
        self._placed: set[asyncio.Task[Any]] = set()
        """Those of the lines that have a place."""

    def tell(self, batch: StoredBatch) -> None:
        """Take note of the batch as it is stored now."""
        if batch.status is BatchStatus.CANCELLING:
            self._end(BatchStatus.CANCELLED)

    async def run(self, max_line_bytes: int) -> None:
        """Run the batch to its end, however often the store fails meanwhile."""
        self.tell(self._batch)
        wait_s = RETRY_S
        while True:
            try:
                await self._run(max_line_bytes)
                return
            except (UnknownBatch, UnknownFile) as error:
                log.error("batch %s cannot go on: %s", self._batch.id, error)
                return
            except DragomanError:
                log.warning("batch %s waits for the store", self._batch.id)
            except Exception:
                log.exception("batch %s is begun again", self._batch.id)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_RETRY_S)

    async def _run(self, max_line_bytes: int) -> None:
        if self._batch.in_progress_s is None and self._batch.status is not BatchStatus.FINALIZING:
            self._batch = await self._validated(max_line_bytes)  # also one that is cancelled: each line has a result
        if self._store.now >= self._batch.expires_s:
            self._end(BatchStatus.EXPIRED)
        if self._batch.status.is_over:
            return
        if self._batch.status is not BatchStatus.FINALIZING:
            while True:
                await self._run_lines()
                if self._ends_with is not None or not await self._store.waiting_lines(self._batch, -1, 1):
                    break
                await asyncio.sleep(RETRY_S)  # lines that failed are run again
            self._batch = await self._store.change(self._batch, self._finalizing)
        is_failed = self._batch.outcome is BatchStatus.FAILED
        code = self._batch.faults[-1].code if is_failed else f"batch_{self._batch.outcome}"
        self._batch = await self._store.finish(self._batch, lambda line: self._form.unanswered(self._batch, line, code))
        log.info("batch %s is %s: %d lines", self._batch.id, self._batch.status, self._batch.total)

    def _end(self, outcome: BatchStatus) -> None:
        """Begin no more lines."""
        self._ends_with = self._ends_with or outcome
        self._ended.set()

    def _fail(self, code: str, message: str) -> None:
        """Begin no more lines, as none can have a result."""
        self._fault = self._fault or BatchFault(code=code, message=message)
        self._end(BatchStatus.FAILED)

    def _finalizing(self, batch: StoredBatch) -> StoredBatch:
        outcome, faults = self._ends_with or BatchStatus.COMPLETED, batch.faults
        is_done = batch.total > 0 and batch.completed + batch.failed == batch.total
        if is_done and outcome is not BatchStatus.CANCELLED:
            outcome = BatchStatus.COMPLETED
        elif outcome is BatchStatus.FAILED and self._fault is not None:
            faults = (self._fault,)
        return msgspec.structs.replace(
            batch, status=BatchStatus.FINALIZING, outcome=outcome, faults=faults, finalizing_s=self._store.now
        )

    # The input --------------------------------------------------------------------------------------------------------

    async def _validated(self, max_line_bytes: int) -> StoredBatch:
        """Read the input, and return the batch in progress, or failed."""
        read = partial(read_input, form=self._form, endpoint=self._batch.endpoint, max_line_bytes=max_line_bytes)
        try:
            lines, model, faults = await self._store.read(read, self._batch.input_file)
        except UnknownFile as error:
            lines, model, faults = [], "", [BatchFault(code="file_not_found", message=error.message)]
        if not faults and not model:
            model = self._serving.model(None).name
        elif not faults and not self._is_known(model):
            words = f"The model '{model[:256]}' does not exist."
            faults = [BatchFault(code="model_not_found", message=words, param="body.model", line=1)]

        def begun(batch: StoredBatch) -> StoredBatch:
            if faults:
                failed = msgspec.structs.replace(batch, status=BatchStatus.FAILED, faults=tuple(faults))
                return msgspec.structs.replace(failed, failed_s=self._store.now)
            status = BatchStatus.IN_PROGRESS if batch.status is BatchStatus.VALIDATING else batch.status
            return msgspec.structs.replace(
                batch, status=status, model=model, total=len(lines), in_progress_s=self._store.now
            )

        return await self._store.begin(self._batch, lines, begun)

    def _is_known(self, model: str) -> bool:
        return self._is_served(model) or self._serving.catalog.named(model) is not None

    def _is_served(self, model: str) -> bool:
        try:
            self._serving.model(model or None)
        except ModelNotFound:
            return False
        except DragomanError:  # no model is loaded now
            return False
        return True

    # The lines --------------------------------------------------------------------------------------------------------

    async def _run_lines(self) -> None:
        """Return when every line has its result, or no more are begun and those that run are over."""
        loop = asyncio.get_running_loop()
        late = loop.call_later(max(0.0, self._batch.expires_s - self._store.now), self._end, BatchStatus.EXPIRED)
        feeding = asyncio.create_task(self._feed())
        ending = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait((feeding, ending), return_when=asyncio.FIRST_COMPLETED)
            if self._ended.is_set():
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
                await self._wind_up()
            else:
                await feeding
                while self._lines and not self._ended.is_set():
                    await asyncio.wait((*self._lines, ending), return_when=asyncio.FIRST_COMPLETED)
                await self._wind_up()
        finally:
            late.cancel()
            for task in (feeding, ending, *self._lines):
                task.cancel()
            await asyncio.gather(feeding, ending, *self._lines, return_exceptions=True)

    async def _feed(self) -> None:
        """Begin the lines that have no result, as there are places."""
        position = -1
        while lines := await self._store.waiting_lines(self._batch, position, LINES_AT_ONCE):
            for line in lines:
                if await self._await_model():
                    return
                await self._places.acquire()
                task = asyncio.create_task(self._run_line(line))
                self._lines.add(task)
                self._placed.add(task)
                task.add_done_callback(self._line_over)
            position = lines[-1].position

    def _line_over(self, task: asyncio.Task[None]) -> None:
        self._lines.discard(task)
        self._give_place_back(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a line of batch %s failed", self._batch.id, exc_info=task.exception())

    def _give_place_back(self, line: asyncio.Task[Any]) -> None:
        if line in self._placed:
            self._placed.discard(line)
            self._places.release()

    async def _wind_up(self) -> None:
        """Let the lines that run finish, for as long as they may."""
        if self._lines and self._ends_with is BatchStatus.CANCELLED:
            await asyncio.wait(self._lines, timeout=CUT_S)
        for task in self._lines:
            task.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _run_line(self, line: BatchLine) -> None:
        """Run a line and save its result; it stays without one where no more lines are begun meanwhile."""
        try:
            raw = await self._store.read(partial(read_line, line=line), self._batch.input_file)
        except UnknownFile as error:
            self._fail("file_not_found", error.message)
            return
        if not is_as_checked(raw, form=self._form, endpoint=self._batch.endpoint, line=line):
            log.error("the input %s of batch %s has changed on the disk", self._batch.input_file, self._batch.id)
            words = f"The contents of the file {self._batch.input_file} have changed since they were checked."
            self._fail("file_damaged", words)
            return
        request = self._form.request(raw, self._batch, line)
        result: LineResult | None
        if request.answer is not None:
            status, body = request.answer
            result = self._form.answered(self._batch, line, status, line_request_id(self._batch, line), body)
        else:
            result = await self._answer(line, request)
        while result is not None:
            try:
                await self._store.save_result(self._batch, line, result)
                return
            except StorageFull:
                self._fail("storage_full", "There is no room for more results.")
                return
            except UnknownBatch:  # the run of the batch finds that too, and ends
                return
            except DragomanError:
                await asyncio.sleep(RETRY_S)

    async def _answer(self, line: BatchLine, request: LineRequest) -> LineResult | None:
        """Return the result of a line that is run, again where it was not the request's fault. None: no more lines are
        begun, and this one has none."""
        runs, wait_s = 0, RETRY_S
        line_task = asyncio.current_task()
        assert line_task is not None
        while True:
            if not self._has_model():  # it has made room for another: this line takes no other batch's place meanwhile
                self._give_place_back(line_task)
                if await self._await_model():
                    return None
                await self._places.acquire()
                self._placed.add(line_task)
            exchange = LineExchange(self._batch, line, request.path, request.body)
            asking = asyncio.create_task(exchange.run(self._app))
            try:
                await asyncio.shield(asking)
            except asyncio.CancelledError:
                exchange.cut()
                await asyncio.gather(asking, return_exceptions=True)
                raise
            except Exception:
                log.exception("a line of batch %s fails", self._batch.id)
            status = exchange.status or 500  # it ended without an answer
            if status not in WAITS:
                runs += status >= 500
                if status < 500 or runs >= MOST_RUNS:
                    body = bytes(exchange.body)
                    return self._form.answered(self._batch, line, status, line_request_id(self._batch, line), body)
            if await self._has_ended(max(wait_s, min(exchange.retry_after_s, LONGEST_RETRY_S))):
                return None
            wait_s = min(2 * wait_s, LONGEST_RETRY_S)

    # The model --------------------------------------------------------------------------------------------------------

    def _has_model(self) -> bool:
        """Return whether the model is in memory, and takes requests."""
        id = self._serving.catalog.named(self._batch.model)
        return self._is_served(self._batch.model) if id is None else self._serving.catalog.is_resident(id)

    async def _await_model(self) -> bool:
        """Wait until the model is in memory, and return whether no more lines are begun meanwhile.

        It is loaded where the sender may have that done, and only models leave that nobody has used for a while. Where
        that fails, the batch fails, after some attempts.
        """
        failures, wait_s = 0, RETRY_S
        async with self._loading:
            while not self._has_model() and not self._ended.is_set():
                try:
                    await self._load()
                except (LoadFailed, ModelError, ModelNotFound) as error:
                    failures += 1
                    if failures >= MOST_RUNS:
                        self._fail("model_not_loaded", error.message)
                except DragomanError as error:
                    log.info("batch %s waits for the model %s: %s", self._batch.id, self._batch.model, error.message)
                if not self._has_model() and await self._has_ended(wait_s):
                    break
                wait_s = min(2 * wait_s, LOOK_S)
        return self._ended.is_set()

    async def _load(self) -> None:
        """Have the model loaded where it may be now. Raises DragomanError."""
        catalog = self._serving.catalog
        id, current = catalog.named(self._batch.model), catalog.asleep
        is_allowed = may_have_loaded(catalog, self._batch.caller.scopes) or (current is not None and current.id == id)
        if id is None or not is_allowed or not await catalog.fits_in(id, UNUSED_S):
            return
        loading, ending = asyncio.create_task(self._hold(id)), asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait((loading, ending), return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
        finally:
            loading.cancel()
            ending.cancel()
            await asyncio.gather(loading, ending, return_exceptions=True)

    async def _hold(self, id: str) -> None:
        """Hold the model for a moment: its lines come at once."""
        async with self._serving.lease(id):
            pass

    async def _has_ended(self, wait_s: float) -> bool:
        """Wait for so long, and return whether no more lines are begun meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ended.wait()
        return self._ended.is_set()
