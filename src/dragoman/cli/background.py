"""An event loop in a thread of its own, so that the main thread can read lines and be interrupted."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines for a thread that blocks. A KeyboardInterrupt here cancels what runs there, and nothing else."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. When interrupted, it is cancelled and has ended before the interrupt goes on."""
        result, cancel = self._start(work)
        try:
            return result.result()
        except KeyboardInterrupt:
            cancel()
            concurrent.futures.wait([result])
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items as they come; the generator is closed in every case."""
        end = object()
        try:
            while (item := self.run(_next(items, end))) is not end:
                yield item  # type: ignore[misc]
        finally:
            self.run(items.aclose())

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

        left, cancel = self._start(live())
        try:
            yield entered.result()
        except BaseException:
            if not entered.done():
                cancel()
            raise
        finally:
            self._loop.call_soon_threadsafe(leave.set)
            left.result()

    def _start(self, work: Coroutine[Any, Any, T]) -> tuple[concurrent.futures.Future[T], Any]:
        """A future of the work's end (not, as asyncio's own, of the wish to cancel it), and how to cancel it."""
        result: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[T]] = []

        def finish(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                result.set_exception(asyncio.CancelledError())
            elif (error := task.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(task.result())

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(finish)

        self._loop.call_soon_threadsafe(begin)
        return result, lambda: self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())


async def _next(items: AsyncGenerator[T, None], end: object) -> T | object:
    return await anext(items, end)


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
