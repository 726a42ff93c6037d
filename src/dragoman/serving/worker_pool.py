"""Threads for work that would block the event loop: one bounded pool for each kind of it, fair to all callers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from dragoman.core.caller import current_caller
from dragoman.core.errors import ModelError, Overloaded
from dragoman.serving.settings import WorkSettings

Result = TypeVar("Result")

JOIN_S = 2.0
"""Seconds to wait at the end for busy threads, which are daemons."""
MAX_RETRY_AFTER_S = 60.0
SWITCH_S = 0.0005
"""The interpreter's switch interval. The loop releases the interpreter's lock at each system call, and waits as long
to have it again: with Python's own 0.005 s, chats during long conversations took two to three times as long to their
first token (p99 641 and 1031 ms; so 183 and 404)."""


class _Job:
    """One job. ``rank`` orders the jobs of one caller."""

    __slots__ = ("answer", "arrived", "cancel", "context", "loop", "rank", "share_key", "work")

    def __init__(
        self, work: Callable[[], Any], share_key: str, cost_s: float, cancel: Callable[[], None] | None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.work, self.share_key, self.cancel = work, share_key, cancel
        self.context = contextvars.copy_context()
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        self.arrived = self.loop.time()
        # An expensive job lets those go first that arrive within that time, and no others: no job waits forever.
        self.rank = self.arrived + cost_s

    def __lt__(self, other: _Job) -> bool:
        return self.rank < other.rank


class _Share:
    """The queue and the running jobs of one caller."""

    __slots__ = ("queue", "running")

    def __init__(self) -> None:
        self.queue: list[_Job] = []
        self.running = 0


class WorkerPool:
    """Runs blocking functions in ``threads`` threads, for one caller after the other.

    A caller never has all threads where there is more than one. Beyond ``max_queued_per_caller`` a caller's work is
    refused; beyond ``max_queued`` that of the caller with the most in the queue. Threads start when they are first
    needed. All methods must be called on event loops of one thread.
    """

    def __init__(self, name: str, threads: int, *, max_queued_per_caller: int, max_queued: int) -> None:
        self.name = name
        self.threads = threads
        self._threads_per_caller = max(1, threads - 1)
        self._max_queued_per_caller, self._max_queued = max_queued_per_caller, max_queued
        self._shares: OrderedDict[str, _Share] = OrderedDict()
        self._work: SimpleQueue[tuple[_Job, Callable[[_Job, Any, BaseException | None], None]] | None] = SimpleQueue()
        self._started: list[threading.Thread] = []
        self.running = 0
        self.queued = 0
        self.refused = 0
        self.taken = 0
        self.waited_s = 0.0
        """The sum over all started jobs (``taken``), from arrival to start."""
        self._mean_s = 0.0
        # A pool that was not closed ends with its last reference.
        self._finalizer = weakref.finalize(self, _end_threads, self._work, self._started)

    async def run(
        self, work: Callable[[], Result], *, cost_s: float = 0.0, cancel: Callable[[], None] | None = None
    ) -> Result:
        """Return what ``work`` returns in a thread, or raise what it raises.

        When the awaiting task is cancelled, waiting work is dropped; for running work ``cancel`` is called, if it is
        given, and the result is dropped. ``cost_s``: an estimate of how long it takes; of one caller's work the cheap
        goes first. Raises Overloaded.
        """
        job = _Job(work, current_caller.get().share_key, cost_s, cancel)
        share = self._shares.get(job.share_key)
        if share is None:
            share = self._shares[job.share_key] = _Share()
        if self.running < self.threads and share.running < self._threads_per_caller:
            self._start(job, share)
        else:
            self._queue(job, share)
        try:
            return cast(Result, await job.answer)
        except asyncio.CancelledError:
            self._drop(job)
            raise
        finally:
            del job  # it refers to the error, and the error's traceback to this frame

    def start(self) -> None:
        """Start all threads now rather than when they are needed."""
        while len(self._started) < self.threads:
            self._add_thread()

    def close(self) -> None:
        """End the threads, waiting a moment for running work. Waiting work never gets an answer."""
        self._finalizer.detach()
        _end_threads(self._work, self._started, JOIN_S)

    def _start(self, job: _Job, share: _Share) -> None:
        share.running += 1
        self.running += 1
        self.taken += 1
        self._shares.move_to_end(job.share_key)
        started = job.loop.time()
        self.waited_s += started - job.arrived
        job.arrived = started
        if len(self._started) < min(self.running, self.threads):
            self._add_thread()
        self._work.put((job, self._finished))

    def _add_thread(self) -> None:
        name = f"dragoman-{self.name}-{len(self._started)}"
        thread = threading.Thread(target=_serve, args=(self._work,), name=name, daemon=True)
        thread.start()
        self._started.append(thread)

    def _finished(self, job: _Job, result: Any, error: BaseException | None) -> None:
        share = self._shares[job.share_key]
        share.running -= 1
        self.running -= 1
        self._mean_s += 0.1 * (job.loop.time() - job.arrived - self._mean_s)
        self._forget(job.share_key, share)
        self._start_next()
        if job.answer.done():  # no task waits for it any more
            return
        if error is None:
            job.answer.set_result(result)
        else:
            job.answer.set_exception(error)

    def _start_next(self) -> None:
        for share in self._shares.values() if self.queued and self.running < self.threads else ():
            if share.queue and share.running < self._threads_per_caller:
                self.queued -= 1
                self._start(heapq.heappop(share.queue), share)
                return

    def _queue(self, job: _Job, share: _Share) -> None:
        """Queue the job. Raises Overloaded."""
        if len(share.queue) >= self._max_queued_per_caller:
            raise self._overloaded(len(share.queue))
        if self.queued >= self._max_queued:
            longest = max(self._shares.values(), key=lambda each: len(each.queue))
            if len(longest.queue) <= len(share.queue) + 1:
                self._forget(job.share_key, share)
                raise self._overloaded(self.queued)
            newest = max(longest.queue, key=lambda each: each.arrived)
            self._remove(newest, longest)
            newest.answer.set_exception(self._overloaded(len(longest.queue)))
        heapq.heappush(share.queue, job)
        self.queued += 1

    def _drop(self, job: _Job) -> None:
        share = self._shares.get(job.share_key)
        if share is not None and job in share.queue:
            self._remove(job, share)
            self._forget(job.share_key, share)
        elif job.cancel is not None:
            job.cancel()

    def _remove(self, job: _Job, share: _Share) -> None:
        share.queue.remove(job)
        heapq.heapify(share.queue)
        self.queued -= 1

    def _forget(self, share_key: str, share: _Share) -> None:
        if not share.queue and not share.running:
            self._shares.pop(share_key, None)

    def _overloaded(self, before: int) -> Overloaded:
        self.refused += 1
        wait_s = min(MAX_RETRY_AFTER_S, max(1.0, self._mean_s * before / self._threads_per_caller))
        return Overloaded(f"{before} pieces of work wait before this one. Try again later.", retry_after_s=wait_s)


def _serve(work: SimpleQueue[tuple[_Job, Callable[[_Job, Any, BaseException | None], None]] | None]) -> None:
    """Run jobs in a thread until the pool ends. The thread holds no reference to the pool."""
    while (item := work.get()) is not None:
        job, finished = item
        result, error = None, None
        try:
            result = job.context.run(job.work)
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task is left to get the result
            job.loop.call_soon_threadsafe(finished, job, result, error)
        del item, job, finished, result, error


def _end_threads(work: SimpleQueue[Any], started: list[threading.Thread], join_s: float = 0.0) -> None:
    for _ in started:
        work.put(None)
    for thread in started if join_s else ():
        thread.join(join_s)
    started.clear()


def start_threads(executor: ThreadPoolExecutor, threads: int) -> None:
    """Start all threads of a new executor, which would start each when it is first needed: the system may start no more
    by then. Raises RuntimeError where it starts no more now."""
    everyone = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            executor.submit(everyone.wait)
    except BaseException:
        everyone.abort()  # those that were started would wait for the others for ever, and the program for them
        raise
    everyone.wait()


class WorkerPools:
    """The thread pools of one server.

    Attributes:
        text: decoding and checking large bodies, tokenizing, encoding large answers.
        templates: rendering chats, each in a separate process that this waits for.
        grammars: trying out grammars, likewise.
        images: decoding images, likewise.
        lookups: asking for the addresses of hosts that images are fetched from.
        disk: small local files.
        models: planning and loading models, and reading their tokenizers.
        hub: asking the Hugging Face hub and downloading from it.
        downloads: bringing models that clients ask for from the hub, for as long as that takes.
    """

    def __init__(self, settings: WorkSettings) -> None:
        most = settings.max_queued_work
        self.text = WorkerPool("text", settings.text_threads, max_queued_per_caller=most, max_queued=4 * most)
        self.templates = WorkerPool(
            "templates", settings.template_workers, max_queued_per_caller=most, max_queued=4 * most
        )
        trials = settings.max_queued_grammars
        self.grammars = WorkerPool(
            "grammars", settings.grammar_workers, max_queued_per_caller=trials, max_queued=4 * trials
        )
        self.images = WorkerPool("images", settings.image_workers, max_queued_per_caller=most, max_queued=4 * most)
        self.lookups = WorkerPool("lookups", 2, max_queued_per_caller=most, max_queued=4 * most)
        self.disk = WorkerPool("disk", 2, max_queued_per_caller=most, max_queued=4 * most)
        # One model is loaded at a time. The hub may hold up a thread for longer than its load waits.
        self.models = WorkerPool("models", 4, max_queued_per_caller=most, max_queued=4 * most)
        self.hub = WorkerPool("hub", settings.hub_threads, max_queued_per_caller=8, max_queued=32)
        self.downloads = WorkerPool("downloads", 2, max_queued_per_caller=4, max_queued=16)
        self._hub_timeout_s = settings.hub_timeout_s

    @property
    def all(self) -> tuple[WorkerPool, ...]:
        first = self.text, self.templates, self.grammars, self.images, self.lookups
        return *first, self.disk, self.models, self.hub, self.downloads

    async def ask_hub(self, work: Callable[[], Result], *, loads: bool = False) -> Result:
        """Run work that may ask the Hugging Face hub; ``loads``: for the load of a model, which does not wait for what
        clients ask. Raises ModelError when that takes too long, and Overloaded.

        A thread that waits for the hub is not interrupted; it ends when the hub's library gives up.
        """
        try:
            async with asyncio.timeout(self._hub_timeout_s):
                return await (self.models if loads else self.hub).run(work)
        except TimeoutError:
            message = f"the hub did not answer within {self._hub_timeout_s:g} s (--hub-timeout-s sets another limit)"
            raise ModelError(message) from None

    def start(self) -> None:
        """Start all threads, and have each that computes give way to the event loop soon."""
        sys.setswitchinterval(SWITCH_S)
        for pool in self.all:
            pool.start()

    def close(self) -> None:
        """End all threads."""
        for pool in self.all:
            pool.close()
