"""Work in threads: bounded, and fair to all callers."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.caller import Caller, current_caller
from dragoman.core.errors import Overloaded
from dragoman.serving.worker_pool import WorkerPool, start_threads
from tests.settling import settle

SOURCE = Path(__file__).parents[2] / "src" / "dragoman"


def small_pool(threads: int = 2, per_caller: int = 8, most: int = 16) -> WorkerPool:
    return WorkerPool("test", threads, max_queued_per_caller=per_caller, max_queued=most)


class Held:
    """Work that lasts until it is let go, and notes in which order it began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.free = threading.Event()

    def work(self, name: str) -> Any:
        def run() -> str:
            self.began.append(name)
            assert self.free.wait(60)
            return name

        return run


def ask(pool: WorkerPool, caller: str, work: Any, **more: Any) -> asyncio.Task[Any]:
    """Run it as this caller."""

    async def run() -> Any:
        current_caller.set(Caller(name=caller, tenant=caller))
        return await pool.run(work, **more)

    return asyncio.create_task(run())


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_results_and_errors_come_back() -> None:
    async def test() -> None:
        pool = small_pool()
        assert await pool.run(lambda: 7) == 7
        with pytest.raises(KeyError):
            await pool.run(lambda: {}["a"])
        assert (pool.running, pool.queued, pool.taken, len(pool._shares)) == (0, 0, 2, 0)
        pool.close()

    run(test())


def test_a_caller_never_has_all_threads() -> None:
    async def test() -> None:
        pool, held = small_pool(threads=3), Held()
        flood = [ask(pool, "a", held.work(f"a{i}")) for i in range(6)]
        await settle()
        assert (pool.running, pool.queued) == (2, 4)
        assert await ask(pool, "b", lambda: "at once") == "at once"
        held.free.set()
        assert await asyncio.gather(*flood) == [f"a{i}" for i in range(6)]
        pool.close()

    run(test())


def test_callers_take_turns() -> None:
    async def test() -> None:
        pool, held = small_pool(threads=1, per_caller=8, most=32), Held()
        tasks = [ask(pool, "a", held.work(f"a{i}")) for i in range(4)]
        await settle()
        tasks += [ask(pool, caller, held.work(f"{caller}{i}")) for caller in "bc" for i in range(2)]
        await asyncio.sleep(0)
        held.free.set()
        await asyncio.gather(*tasks)
        # Whoever has just had a thread goes behind the others.
        assert held.began == ["a0", "a1", "b0", "c0", "a2", "b1", "c1", "a3"]
        pool.close()

    run(test())


def test_cheap_work_of_a_caller_goes_first() -> None:
    async def test() -> None:
        pool, held = small_pool(threads=1), Held()
        tasks = [ask(pool, "a", held.work("first"))]
        await settle()
        tasks += [ask(pool, "a", held.work(f"{cost}"), cost_s=cost) for cost in (30.0, 1.0, 5.0)]
        await asyncio.sleep(0)
        held.free.set()
        await asyncio.gather(*tasks)
        assert held.began == ["first", "1.0", "5.0", "30.0"]
        pool.close()

    run(test())


def test_a_full_share_is_refused_with_a_wait() -> None:
    async def test() -> None:
        pool, held = small_pool(threads=1, per_caller=3), Held()
        tasks = [ask(pool, "a", held.work("a")) for _ in range(4)]
        await settle()
        with pytest.raises(Overloaded) as raised:
            await ask(pool, "a", held.work("too many"))
        assert raised.value.retry_after_s >= 1
        other = ask(pool, "b", lambda: "b")
        held.free.set()
        assert await other == "b"
        await asyncio.gather(*tasks)
        assert pool.refused == 1
        pool.close()

    run(test())


def test_a_full_pool_takes_from_whoever_has_most() -> None:
    async def test() -> None:
        pool, held = small_pool(threads=1, per_caller=4, most=4), Held()
        flood = [ask(pool, "a", held.work(f"a{i}")) for i in range(5)]
        await settle()
        other = ask(pool, "b", lambda: "b")
        with pytest.raises(Overloaded):
            await flood[4]
        held.free.set()
        assert await other == "b"
        assert await asyncio.gather(*flood[:4]) == ["a0", "a1", "a2", "a3"]
        pool.close()

    run(test())


def test_work_whose_caller_left_is_dropped() -> None:
    async def test() -> None:
        pool, held = small_pool(threads=1), Held()
        cancelled: list[str] = []
        running = ask(pool, "a", held.work("a"), cancel=lambda: cancelled.append("a"))
        await settle()
        waiting = ask(pool, "a", held.work("b"), cancel=lambda: cancelled.append("b"))
        await asyncio.sleep(0)
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        assert (pool.queued, pool.running, cancelled) == (0, 1, ["a"])
        held.free.set()
        assert await ask(pool, "c", lambda: "c") == "c"
        assert (held.began, pool.running) == (["a"], 0)
        pool.close()

    run(test())


def test_an_error_frees_what_the_work_held() -> None:
    """Its traceback has the frames of the work: the pool must not refer to it from a frame in it."""

    class Body:
        pass

    async def test() -> None:
        pool = small_pool()
        body = Body()
        freed = asyncio.Event()
        watch = weakref.ref(body, lambda _: freed.set())

        def work(held: Body = body) -> None:
            raise ValueError

        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(ValueError):
                await pool.run(work)
            del body, work
            await asyncio.wait_for(freed.wait(), 2)
        finally:
            gc.enable()
        assert watch() is None
        pool.close()

    run(test())


def test_threads_end_with_the_pool() -> None:
    async def test() -> None:
        pool, forgotten = small_pool(), small_pool()
        threads = await asyncio.gather(pool.run(threading.current_thread), forgotten.run(threading.current_thread))
        assert len({*threads}) == 2
        assert all(thread.is_alive() for thread in threads)
        pool.close()
        del forgotten
        for _ in range(1000):
            if not any(thread.is_alive() for thread in threads):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("a thread is left")

    run(test())


def test_work_for_clients_goes_through_the_pools() -> None:
    """The event loop's own threads are shared by all and bounded by nothing."""
    allowed = {
        "serving/resume_store.py",  # SQLite: one thread of the store's own, and a look at a file when the server starts
        "serving/response_store.py",  # the same
        "serving/resident_models.py",  # looks at the memory of processes, once before a load
        "serving/batch_store.py",  # the same, and two threads for the contents of files
        "server/accounts.py",  # opens and closes the ledger
        "serving/runtime.py",  # makes the loop's own threads
        "engine_client/connection.py",  # waits for the end of the engine's process
        "engine_client/lora_loads.py",  # a folder that is here already
        "cli/explain.py",  # no server: the command reads one file
        "cluster/front.py",  # reads the ingress's certificate again, once in a while
        "cluster/ray_application.py",  # ends a replica's server
        "llm/llm.py",  # no server: a program's own start and end of its model
    }
    unbounded = ("to_thread", "run_in_executor", "set_default_executor")
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in unbounded:
                found.add(str(path.relative_to(SOURCE)))
    assert found <= allowed


def no_more_threads(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_where_the_system_starts_no_more_threads_those_started_end(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited for the others, and the program at its end for them."""
    start = threading.Thread.start
    executor = ThreadPoolExecutor(threads)
    started: list[threading.Thread] = []

    def few(thread: threading.Thread) -> None:
        if len(started) == threads - 1:
            no_more_threads(thread)
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", few)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            start_threads(executor, threads)
    executor.shutdown(wait=False)
    for thread in started:
        thread.join(30)
        assert not thread.is_alive()


def test_started_threads_are_all_that_an_executor_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(3) as executor:
        start_threads(executor, 3)
        monkeypatch.setattr(threading.Thread, "start", no_more_threads)
        everyone = threading.Barrier(3)
        assert sorted(executor.map(lambda _: everyone.wait(30), range(3))) == [0, 1, 2]


def test_a_pool_whose_threads_cannot_all_be_started_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = small_pool()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more_threads)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            pool.start()
    pool.close()
