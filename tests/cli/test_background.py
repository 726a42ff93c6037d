"""An interrupt of the main thread cancels the work it waits for, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from dragoman.cli.background import background


def interrupt_soon() -> None:
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()


def test_results_and_errors_come_back() -> None:
    async def divide(a: int, b: int) -> float:
        await asyncio.sleep(0)
        return a / b

    with background() as loop:
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

    with background() as loop:
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            loop.run(work())
        assert ended == ["cleaned up"]
        assert loop.run(asyncio.sleep(0, "still alive")) == "still alive"


def test_interrupted_iteration_closes_its_generator_and_the_next_one_works() -> None:
    closed: list[str] = []

    async def count(name: str, pause_s: float) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                yield number
                await asyncio.sleep(pause_s)
        finally:
            closed.append(name)

    with background() as loop:
        interrupt_soon()
        seen = []
        with pytest.raises(KeyboardInterrupt), contextlib.closing(loop.iterate(count("slow", 60))) as numbers:
            seen.extend(numbers)
        assert closed == ["slow"]
        assert list(loop.iterate(count("fast", 0))) == [0, 1, 2]
        with contextlib.closing(loop.iterate(count("left", 0))) as numbers:
            assert next(numbers) == 0
        assert closed == ["slow", "fast", "left"]


def test_held_context_is_entered_and_left_by_one_task() -> None:
    tasks: list[object] = []

    @contextlib.asynccontextmanager
    async def resource() -> AsyncIterator[str]:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(60):
            yield "held"
        tasks.append(asyncio.current_task())

    with background() as loop, loop.hold(resource()) as value:
        assert value == "held"
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


def test_context_that_cannot_be_entered() -> None:
    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise ValueError("no")
        yield

    with background() as loop, pytest.raises(ValueError, match="no"), loop.hold(broken()):
        pass
