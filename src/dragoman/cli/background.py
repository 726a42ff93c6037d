"""An event loop in a thread of its own, so that the main thread can read lines and be interrupted."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines for the main thread, which waits for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Ctrl-C cancels it; KeyboardInterrupt is raised here once it has ended.

        The signal's handler only cancels: an exception out of nowhere, between any two steps of this thread, could
        leave the work running unheeded.
        """
        running = _Running(self._loop, work)
        interrupted = threading.Event()

        def interrupt(*_: object) -> None:
            interrupted.set()
            running.cancel()

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            running.start()
            return running.result()
        finally:
            signal.signal(signal.SIGINT, before)
            if interrupted.is_set():
                raise KeyboardInterrupt

    @contextlib.contextmanager
    def hold(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """The same context for this thread. One task enters and leaves it, as cancel scopes inside it demand."""
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
        running.start()
        try:
            yield entered.result()
        except BaseException:
            if not entered.done():
                running.cancel()
            raise
        finally:
            self._loop.call_soon_threadsafe(leave.set)
            running.result()


class _Running(Generic[T]):
    """A task of the loop, seen from another thread. Its future ends when the task does: asyncio's own
    (``run_coroutine_threadsafe``) ends as soon as somebody wishes to cancel it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._ended: concurrent.futures.Future[T] = concurrent.futures.Future()

    def start(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        """After ``start``."""
        self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())

    def result(self) -> T:
        """Waits for the end. Raises what the work raised."""
        return self._ended.result()

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._ended.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(task.result())


@contextlib.contextmanager
def background() -> Iterator[Background]:
    """A running loop, stopped and closed at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="event-loop", daemon=True)
    thread.start()
    try:
        yield Background(loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
