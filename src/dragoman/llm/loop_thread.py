"""An event loop in a separate thread, in which other threads and other event loops run coroutines and wait for them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from dragoman.core.errors import EngineUnavailable

T = TypeVar("T")

CLOSED = "The model is closed."

SIGNAL_CHECK_S = 0.2
"""How long a thread waits before Python may run signal handlers. Python runs them in the main thread, and a wait ends
for a signal only when it arrives in that thread and during the wait: one that arrives a moment before, or in another
thread, would be seen when the wait ends."""


class LoopThread:
    """A running event loop. Any thread may call the methods; only ``start`` and ``close`` may be called in the loop's.

    ``run``, ``wait_for`` and ``hold`` raise EngineUnavailable after ``close``, and in a fork of the process, which has
    no such thread.
    """

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self._pid = os.getpid()
        # Reentrant: the garbage collector may close a stream, which calls ``start``, at any moment.
        self._lock = threading.RLock()
        self._is_closed = False
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dragoman-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result. Ctrl-C cancels the coroutine; KeyboardInterrupt is raised once it has ended.

        In the main thread, Python's own handler of the signal is replaced by one that only cancels: an exception
        between any two steps of this thread could leave the coroutine running. A handler of the program's own stays;
        an exception of it cancels the coroutine too.
        """
        running = _Running(self._loop, work)
        with _interrupts_call(running.cancel):
            self._schedule(running)
            try:
                return running.result()
            except BaseException:
                running.cancel_and_wait()
                raise

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result to another event loop. Cancelling the awaiting task cancels the coroutine; the
        task ends after it."""
        running = _Running(self._loop, work)
        self._schedule(running)
        ended = asyncio.wrap_future(running.ended)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not ended.done():
                running.cancel()
                await asyncio.wait([ended])
            if not ended.cancelled():
                ended.exception()  # retrieved: asyncio reports exceptions that are not
            raise

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Start the coroutine and do not wait. After ``close`` it is not run."""
        with contextlib.suppress(EngineUnavailable):
            self._schedule(_Running(self._loop, work))

    @contextlib.contextmanager
    def hold(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter the context on entry and leave it on exit, both in one task of the loop, as cancel scopes in it
        require."""
        entered: concurrent.futures.Future[T] = concurrent.futures.Future()
        leave = asyncio.Event()

        async def live() -> None:
            try:
                async with context as value:
                    entered.set_result(value)
                    await leave.wait()
            except BaseException as error:
                if entered.done():
                    raise
                entered.set_exception(error)

        running = _Running(self._loop, live())
        self._schedule(running)
        try:
            _wait(entered)
            yield entered.result()
        except BaseException:
            if not entered.done():
                running.cancel()
            raise
        finally:
            # In a fork of the process, which drops this generator at its end, no loop would end the wait.
            if os.getpid() == self._pid:
                self._loop.call_soon_threadsafe(leave.set)
                running.result()

    def close(self) -> None:
        """Cancel what runs, wait for its end, stop the loop and end the thread. Closing again does nothing."""
        with self._lock:
            if self._is_closed or os.getpid() != self._pid:
                return
            last = _Running(self._loop, _end_tasks())
            self._schedule(last)
            self._is_closed = True
        last.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _schedule(self, running: _Running[Any]) -> None:
        """Schedule the coroutine. Raises EngineUnavailable after ``close`` and in a fork of the process."""
        with self._lock:
            if os.getpid() != self._pid:
                running.drop()
                raise EngineUnavailable("The model belongs to the process that loaded it, and this is a fork of that.")
            if self._is_closed:
                running.drop()
                raise EngineUnavailable(CLOSED)
            self._loop.call_soon_threadsafe(running.begin)


class _Running(Generic[T]):
    """A task of the loop, seen from another thread.

    Its future ends when the task does: asyncio's own (``run_coroutine_threadsafe``) ends as soon as it is cancelled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        self.ended: concurrent.futures.Future[T] = concurrent.futures.Future()

    def begin(self) -> None:
        """Start the task. Called in the loop's thread."""
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._end)
        if self._is_cancelled:
            self._task.cancel()

    def cancel(self) -> None:
        """Cancel the coroutine. Before ``begin``, it never runs."""
        self._is_cancelled = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())

    def cancel_and_wait(self) -> None:
        if not self.ended.done():
            self.cancel()
            _wait(self.ended)

    def drop(self) -> None:
        """Close the coroutine without running it, in place of ``begin``."""
        self._work.close()

    def result(self) -> T:
        """Wait for the end and return the result. Raises the exception of the coroutine."""
        _wait(self.ended)
        return self.ended.result()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.ended.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(task.result())


def _wait(future: concurrent.futures.Future[Any]) -> None:
    """Wait until the future has ended. Signals are handled meanwhile."""
    while not future.done():
        concurrent.futures.wait([future], timeout=SIGNAL_CHECK_S)


async def _end_tasks() -> None:
    """Cancel all other tasks of the loop and wait until they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


@contextlib.contextmanager
def _interrupts_call(cancel: Callable[[], None]) -> Iterator[None]:
    """Make Ctrl-C call ``cancel`` and raise KeyboardInterrupt at the end, in the main thread only. Signal handlers that
    the program has set are kept."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        cancel()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted.is_set():
            raise KeyboardInterrupt


@contextlib.contextmanager
def loop_thread() -> Iterator[LoopThread]:
    """Yield a loop that is closed at the end."""
    thread = LoopThread()
    try:
        yield thread
    finally:
        thread.close()
