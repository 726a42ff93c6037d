"""An interrupt of the main thread cancels the work it waits for, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.llm.loop_thread import LoopThread, loop_thread
from dragoman.llm.running import RunningModel, close_forgotten


def interrupt_soon() -> None:
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()


def test_results_and_errors_come_back() -> None:
    async def divide(a: int, b: int) -> float:
        await asyncio.sleep(0)
        return a / b

    with loop_thread() as loop:
        assert loop.run(divide(6, 3)) == 2
        with pytest.raises(ZeroDivisionError):
            loop.run(divide(1, 0))


def test_interrupt_cancels_the_work_and_waits_for_its_end() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.append("cleaned up")

    with loop_thread() as loop:
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            loop.run(work())
        assert ended == ["cleaned up"]
        assert loop.run(asyncio.sleep(0, "still alive")) == "still alive"


def test_interrupt_that_another_thread_receives_ends_the_wait() -> None:
    def interrupt_here() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    async def work() -> None:
        try:
            await asyncio.sleep(20)
            ended.append("waited")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    ended: list[str] = []
    with loop_thread() as loop:
        threading.Timer(0.05, interrupt_here).start()
        with pytest.raises(KeyboardInterrupt):
            loop.run(work())
    assert ended == ["cancelled"]


@pytest.mark.parametrize("pause_s", [0.0, 0.0001, 0.001, 0.003, 0.01])
def test_interrupt_at_any_moment_closes_what_runs(pause_s: float) -> None:
    closed: list[int] = []

    async def count() -> AsyncGenerator[int, None]:
        number = 0
        try:
            while True:
                number += 1
                yield number
                await asyncio.sleep(0)
        finally:
            closed.append(number)

    async def consume() -> None:
        async with contextlib.aclosing(count()) as numbers:
            async for _ in numbers:
                pass

    with loop_thread() as loop:
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                interrupt_after(pause_s, loop, consume)
        assert len(closed) == 20


def interrupt_after(pause_s: float, loop: LoopThread, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Interrupt the main thread ``pause_s`` seconds after the work has begun."""
    main = threading.main_thread().ident
    assert main is not None

    async def begin() -> None:
        threading.Timer(pause_s, signal.pthread_kill, (main, signal.SIGINT)).start()
        await work()

    loop.run(begin())


def test_held_context_is_entered_and_left_by_one_task() -> None:
    tasks: list[object] = []

    @contextlib.asynccontextmanager
    async def resource() -> AsyncIterator[str]:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(60):
            yield "held"
        tasks.append(asyncio.current_task())

    with loop_thread() as loop, loop.hold(resource()) as value:
        assert value == "held"
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


def test_context_that_cannot_be_entered() -> None:
    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise ValueError("no")
        yield

    with loop_thread() as loop, pytest.raises(ValueError, match="no"), loop.hold(broken()):
        pass


def test_a_model_that_is_forgotten_is_closed_where_warnings_are_errors() -> None:
    closed, owned = threading.Event(), SimpleNamespace(is_open=True, is_own=True)
    owned.close = closed.set
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ResourceWarning, match="an LLM was not closed"):
            close_forgotten(cast(RunningModel, owned))
        close_forgotten(cast(RunningModel, SimpleNamespace(is_open=True, is_own=False)))  # of a fork: nothing is said
    assert closed.wait(60)
