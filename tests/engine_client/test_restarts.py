"""The engine is never given up for good: it is started again until it works, or until an operator's time is over."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_clients import POISON, STUB, read, started
from tiny_model import make_tiny_llama

from dragoman import models
from dragoman.core.errors import EngineUnavailable, ModelError
from dragoman.core.events import EngineEvent, FinishEvent, FinishReason
from dragoman.core.request import EngineRequest
from dragoman.engine.__main__ import NICENESS
from dragoman.engine.messages import LoadModel, StubModel, WorkerSettings
from dragoman.engine_client import restarts as restarts_module
from dragoman.engine_client.client import EngineClient
from dragoman.engine_client.connection import Spawner, WorkerProcess
from dragoman.engine_client.health import State
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.engine_client.recovery import CULPRIT_S, MOST_CULPRITS, Culprits
from dragoman.engine_client.watchdog import COMPUTING_FACTOR, Watchdog, cpu_ticks
from simulation import Transcript, run_alone, stub

REQUEST = EngineRequest(request_id="r", prompt=(1, 2, 3), seeds=(7,), max_tokens=150)


class Failing:
    """A ``Spawner`` that fails while ``errors`` last, from the second start on.

    The first process is slow, if its model is the stub: a request that is to be killed has not ended before, even where
    the process of the test stands still for some seconds.
    """

    def __init__(self, *errors: Exception) -> None:
        self.errors = iter(errors)
        self.starts = 0

    async def __call__(self, settings: WorkerSettings, *more: Any) -> WorkerProcess:
        self.starts += 1
        if self.starts > 1:
            for error in self.errors:
                raise error
        elif isinstance(settings.model, StubModel):
            settings = msgspec.structs.replace(settings, model=msgspec.structs.replace(settings.model, step_s=0.05))
        return await Spawner()(settings, *more)


async def killed(client: EngineClient, request: EngineRequest) -> asyncio.Task[Transcript]:
    """A request that goes on while the process that computed it is killed."""
    reading = asyncio.create_task(read(client, request))
    before = client.stats().generated_tokens
    while client.stats().generated_tokens < before + 5:
        await asyncio.sleep(0.001)
    os.kill(client.health().pid or 0, signal.SIGKILL)
    await until(lambda: client.health().state is not State.READY)
    return reading


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


def test_starts_that_fail_again_and_again_are_followed_by_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts_module, "LONGEST_WAIT_S", 0.05)
    short = OSError(errno.EMFILE, "Too many open files")
    reasons = [short] * 6 + [EngineUnavailable("it died")] * 3 + [ModelError("no such folder"), RuntimeError("threads")]

    async def play() -> Transcript:
        spawn = Failing(*reasons)
        async with started(WorkerSettings(model=STUB), spawn) as client:
            reading = await killed(client, REQUEST)
            await until(lambda: "Too many open files" in client.health().message)
            assert client.health().state is State.RESTARTING
            output_processor = await asyncio.wait_for(reading, 60)
            assert client.health() == (State.READY, "", client.health().pid)
            assert spawn.starts == 2 + len(reasons)
            return output_processor

    assert asyncio.run(play()) == run_alone(stub(vocab_size=STUB.vocab_size, max_context=600), REQUEST)


def test_the_wait_between_starts_grows_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep, thread = asyncio.sleep, threading.get_ident()

    async def skip(seconds: float) -> None:
        if threading.get_ident() == thread:  # and not a server of other tests, which looks every 0.1 s
            waits.append(seconds)
            seconds = 0
        await sleep(seconds)

    async def play() -> None:
        async with started(WorkerSettings(model=STUB), Failing(*[OSError("away")] * 20)) as client:
            reading = await killed(client, REQUEST)
            watching = client._tasks.pop()  # the watchdog sleeps too
            watching.cancel()
            await asyncio.wait([watching])
            monkeypatch.setattr(asyncio, "sleep", skip)
            await reading
            monkeypatch.undo()

    asyncio.run(play())
    waits = [wait for wait in waits if wait >= 0.03]
    assert len(waits) >= 15
    assert all(wait < 75.1 for wait in waits)
    assert min(waits[12:18]) >= 45
    assert all(later > 1.1 * earlier for earlier, later in itertools.pairwise(waits[:9]))
    assert len(set(waits[12:18])) > 3, "all servers would come at once"


def test_a_model_folder_that_is_away_for_a_while_is_found_when_it_is_back(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "tiny")
    settings = models.ModelSettings(precision="int8", cache_bytes=0)
    request = msgspec.structs.replace(REQUEST, max_tokens=300)

    async def play() -> Transcript:
        async with started(WorkerSettings(model=LoadModel(source=str(folder), settings=settings))) as client:
            folder.rename(tmp_path / "away")
            reading = await killed(client, request)
            await until(lambda: "tiny" in client.health().message)
            assert client.health().state is State.RESTARTING
            (tmp_path / "away").rename(folder)
            return await asyncio.wait_for(reading, 60)

    assert asyncio.run(play()) == run_alone(models.load(folder, settings), request)


def test_the_next_process_has_the_context_of_the_first(tmp_path: Path) -> None:
    """However much memory is left by then: a longer request was accepted, and positions are scaled by the context."""
    folder = make_tiny_llama(tmp_path / "tiny")
    settings = models.ModelSettings(cache_bytes=0)
    spawned: list[WorkerSettings] = []

    async def spawn(settings: WorkerSettings, *more: Any) -> WorkerProcess:
        spawned.append(settings)
        return await Spawner()(settings, *more)

    async def play() -> int:
        client = EngineClient(WorkerSettings(model=LoadModel(source=str(folder), settings=settings)), spawn=spawn)
        info = await client.start()
        try:
            os.kill(client.health().pid or 0, signal.SIGKILL)
            await until(lambda: len(spawned) > 1 and client.health().state is State.READY)
        finally:
            await client.close()
        return info.max_context

    context = asyncio.run(play())
    first, second = spawned
    assert context == 512
    assert (first.is_restart, first.model) == (False, LoadModel(source=str(folder), settings=settings))
    expected = msgspec.structs.replace(settings, max_context=context)
    assert second.recovery_bytes == first.recovery_bytes
    assert (second.is_restart, second.model) == (True, LoadModel(source=str(folder), settings=expected))


def test_it_is_given_up_only_when_an_operator_says_so() -> None:
    async def play() -> None:
        failures: list[str] = []
        settings = WorkerSettings(model=STUB, give_up_s=0.3)
        async with started(settings, Failing(*[OSError("the disk is away")] * 99)) as client:
            client.on_failed = failures.append
            output_processor = await asyncio.wait_for(await killed(client, REQUEST), 60)
            assert output_processor.finish == {0: FinishReason.ERROR}
            assert client.health().state is State.FAILED
            assert failures == [client.health().message]
            assert "down for 0.3 s" in failures[0]
            assert "the disk is away" in failures[0]
            with pytest.raises(EngineUnavailable, match="the disk is away"):
                client.submit(msgspec.structs.replace(REQUEST, request_id="late"))

    asyncio.run(play())


def test_while_it_is_down_old_requests_wait_and_new_ones_are_told_when_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarts_module, "PATIENCE_S", 60.0)
    monkeypatch.setattr(restarts_module, "LONGEST_WAIT_S", 0.2)

    async def play() -> None:
        async with started(WorkerSettings(model=STUB), Failing(*[OSError("away")] * 5)) as client:
            reading = await killed(client, REQUEST)
            early = asyncio.create_task(read(client, msgspec.structs.replace(REQUEST, request_id="early")))
            await asyncio.sleep(0)  # it is submitted
            await until(lambda: "away" in client.health().message)
            monkeypatch.setattr(restarts_module, "PATIENCE_S", 1e-9)
            with pytest.raises(EngineUnavailable, match="away") as caught:
                client.submit(msgspec.structs.replace(REQUEST, request_id="late"))
            assert caught.value.retry_after_s > 0
            assert {*(await reading).finish.values(), *(await early).finish.values()} == {FinishReason.LENGTH}
            await read(client, msgspec.structs.replace(REQUEST, request_id="late"))

    asyncio.run(play())


def test_it_is_started_again_although_no_file_can_be_opened() -> None:
    """A crowd of connections has all descriptors. The limit is of one process alone: another is tested."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "LENGTH\n"


async def _without_descriptors() -> None:
    async with started(WorkerSettings(model=STUB), Failing()) as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with contextlib.suppress(OSError):
            while True:
                os.open(os.devnull, os.O_RDONLY)
        output_processor = await asyncio.wait_for(await killed(client, REQUEST), 60)
        print(output_processor.finish[0].name)


# What hangs ---------------------------------------------------------------------------------------------------------


def test_a_process_that_neither_speaks_nor_computes_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.engine_client.watchdog.cpu_ticks", lambda pid: 5)
    watchdog = Watchdog(60.0)
    looks = list(itertools.takewhile(lambda _: not watchdog.check(1), range(100)))
    assert len(looks) == 60
    assert "60 s" in watchdog.problem() or "61 s" in watchdog.problem()


def test_the_engine_gives_way_to_the_server_on_the_same_cores() -> None:
    """Whatever it computes, connections are accepted and refusals are written in time."""

    async def play() -> None:
        async with started(WorkerSettings(model=STUB)) as client:
            pid = client.health().pid
            assert pid is not None
            own = os.getpriority(os.PRIO_PROCESS, 0)
            assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, own + NICENESS)

    asyncio.run(play())


def test_a_process_whose_connection_hangs_is_killed_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog has no process to look at yet."""
    monkeypatch.setattr("dragoman.engine_client.connection.CONNECT_S", 0.2)
    workers: list[PrespawnedWorker] = []

    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.sleep(3600)

    async def start() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", hang)
        worker = PrespawnedWorker()
        workers.append(worker)
        client = EngineClient(WorkerSettings(model=STUB), worker)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.start(), 60)

    asyncio.run(start())
    assert workers[0].process.wait(60) == -signal.SIGKILL


def test_a_process_that_hangs_before_it_is_ready_is_killed() -> None:
    """Nobody else would ever end it: a model that takes another's place would be loading for ever."""

    async def stopped(settings: WorkerSettings, *more: Any) -> WorkerProcess:
        process = await Spawner()(settings, *more)
        os.kill(process.pid, signal.SIGSTOP)
        return process

    async def start() -> None:
        client = EngineClient(WorkerSettings(model=STUB, hang_s=0.4), spawn=stopped)
        with pytest.raises(EngineUnavailable, match=r"died while starting \(killed by signal 9, .* memory is short\)"):
            await asyncio.wait_for(client.start(), 60)

    asyncio.run(start())


def test_after_ten_silent_seconds_the_engine_is_not_ready_and_after_a_word_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.engine_client.watchdog.cpu_ticks", lambda pid: 5)
    watchdog = Watchdog(60.0)
    for _ in range(9):
        assert not watchdog.check(1)
    assert not watchdog.problem()
    assert not watchdog.check(1)
    assert "has not computed for 10 s" in watchdog.problem()
    watchdog.on_message()
    assert not watchdog.check(1)
    assert not watchdog.problem()


def test_a_process_that_computes_one_long_step_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a large model, or behind a long context, takes minutes."""
    ticks = itertools.count()
    monkeypatch.setattr("dragoman.engine_client.watchdog.cpu_ticks", lambda pid: next(ticks))
    watchdog = Watchdog(60.0)
    for _ in range(59):
        assert not watchdog.check(1)
    assert not watchdog.problem()
    looks = list(itertools.takewhile(lambda _: not watchdog.check(1), range(10_000)))
    assert 59 + len(looks) == pytest.approx(COMPUTING_FACTOR * 60, abs=2)


def test_without_work_silence_is_no_sign_of_anything() -> None:
    watchdog = Watchdog(0.4)
    assert not any(watchdog.check(None) for _ in range(1000))


@pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")
def test_what_a_process_computes_is_seen_from_outside() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = cpu_ticks(child.pid) or 0
        deadline = itertools.count()
        while (cpu_ticks(child.pid) or 0) <= before + 2:
            assert next(deadline) < 1_000_000
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        stopped = cpu_ticks(child.pid)
        sum(range(3_000_000))
        assert cpu_ticks(child.pid) == stopped
    finally:
        child.kill()
        child.wait()
    assert cpu_ticks(child.pid) is None


# What kills it ------------------------------------------------------------------------------------------------------


def test_a_request_like_one_that_killed_the_process_is_not_run_again() -> None:
    bad = EngineRequest(request_id="bad", prompt=(5, POISON), seeds=(1,), max_tokens=3)

    async def play() -> tuple[list[EngineEvent], int, int]:
        async with started(WorkerSettings(model=msgspec.structs.replace(STUB, crash_token=POISON))) as client:
            assert (await read(client, bad)).finish == {0: FinishReason.ERROR}
            before = client.stats().restarts
            again = msgspec.structs.replace(bad, request_id="again", seeds=(2,), priority=1, tenant="other")
            events = [event async for event in client.submit(again)]
            await read(client, msgspec.structs.replace(bad, request_id="good", prompt=(5, 6)))
            return events, before, client.stats().restarts

    (event,), before, after = asyncio.run(play())
    assert isinstance(event, FinishEvent)
    assert event.finish is FinishReason.ERROR
    assert before == after == 3


def test_culprits_are_remembered_for_minutes_and_not_without_bound() -> None:
    culprits, rng = Culprits(), random.Random(1)

    def request() -> EngineRequest:
        return msgspec.structs.replace(REQUEST, prompt=tuple(rng.choices(range(199), k=20)))

    first = request()
    culprits.add(first, 100.0)
    assert culprits.knows(first, 100.0 + CULPRIT_S - 1)
    assert not culprits.knows(request(), 100.0)
    assert not culprits.knows(msgspec.structs.replace(first, generated=((4,),)), 100.0)
    assert not culprits.knows(first, 100.0 + CULPRIT_S)
    culprits.add(first, 1000.0)
    for _ in range(MOST_CULPRITS):
        culprits.add(request(), 1000.0)
    assert not culprits.knows(first, 1000.0)


def test_a_start_that_takes_long_is_never_said_to_be_over_in_the_past() -> None:
    async def play() -> float:
        client = EngineClient(WorkerSettings(model=STUB))
        await client.start()
        try:
            client._state, now = State.RESTARTING, asyncio.get_running_loop().time()
            client._restarts._died_at, client._restarts._next_start = now - 100, now - 90
            with pytest.raises(EngineUnavailable) as refusal:
                client.submit(REQUEST)
            return refusal.value.retry_after_s
        finally:
            await client.close()

    assert asyncio.run(play()) >= 1


def test_a_culprit_is_known_again_whoever_asks() -> None:
    culprits = Culprits()
    culprits.add(msgspec.structs.replace(REQUEST, tenant="a", cache_salt="a", service=9.0), 100.0)
    theirs = msgspec.structs.replace(REQUEST, request_id="s", tenant="b", cache_salt="b", weight=2.0, progress=True)
    assert culprits.knows(theirs, 100.0)
    assert not culprits.knows(msgspec.structs.replace(theirs, max_tokens=149), 100.0)


def test_a_culprit_that_is_refused_does_not_keep_its_adapter() -> None:
    async def play() -> None:
        client = EngineClient(WorkerSettings(model=STUB))
        await client.start()
        try:
            await client.load_adapter("red", "folder of red")
            request = msgspec.structs.replace(REQUEST, adapter="red")
            client._culprits.add(msgspec.structs.replace(REQUEST, adapter="red#1"), asyncio.get_running_loop().time())
            assert [type(event) async for event in client.submit(request)] == [FinishEvent]
            await client.unload_adapter("red")
            assert client._adapters.to_restore() == []
        finally:
            await client.close()

    asyncio.run(play())


if __name__ == "__main__":
    asyncio.run(_without_descriptors())
