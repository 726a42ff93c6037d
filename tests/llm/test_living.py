"""Who may call an ``LLM`` from where, what ends a generation, and how a model starts."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_processes import ENDLESS, SEEDED, engines, engines_stopped, running, wait_until

import dragoman
from dragoman import LLM, SamplingParams
from dragoman.core.errors import ModelError
from dragoman.llm.in_process import Slots
from dragoman.llm.sampling_params import InvalidParams

# From where ----------------------------------------------------------------------------------------------------------


async def awaited(llm: LLM) -> list[str]:
    outputs = await llm.agenerate("Once upon a time", SEEDED)
    answers = await llm.achat([{"role": "user", "content": "Hi"}], SEEDED)
    deltas = [delta.text async for delta in llm.astream("Once upon a time", SEEDED)]
    (score,) = await llm.ascore("Once upon a time")
    ids = await llm.atokenize("Once upon a time")
    return [outputs[0].text, answers[0].text, "".join(deltas), str(score.logprob), await llm.adetokenize(ids)]


def called(llm: LLM) -> list[str]:
    outputs = llm.generate("Once upon a time", SEEDED)
    answers = llm.chat([{"role": "user", "content": "Hi"}], SEEDED)
    deltas = [delta.text for delta in llm.stream("Once upon a time", SEEDED)]
    (score,) = llm.score("Once upon a time")
    ids = llm.tokenize("Once upon a time")
    return [outputs[0].text, answers[0].text, "".join(deltas), str(score.logprob), llm.detokenize(ids)]


def test_every_method_has_an_async_twin_that_gives_the_same(llm: LLM) -> None:
    assert asyncio.run(awaited(llm)) == called(llm)


def test_methods_that_block_work_inside_of_a_running_loop(llm: LLM) -> None:
    async def call() -> list[str]:
        return called(llm)

    assert asyncio.run(call()) == called(llm)


def test_many_threads_and_tasks_at_once(llm: LLM) -> None:
    expected = called(llm)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: called(llm), range(4))) == [expected] * 4

    async def gathered() -> list[list[str]]:
        return await asyncio.gather(*(awaited(llm) for _ in range(4)))

    assert asyncio.run(gathered()) == [expected] * 4


def test_a_model_is_opened_without_holding_up_the_loop() -> None:
    async def live() -> tuple[int, str]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        counting = asyncio.create_task(count())
        async with await LLM.aopen(max_context=512) as llm:
            turned = turns
            text = (await llm.agenerate("Once upon a time", SEEDED))[0].text
        counting.cancel()
        return turned, text

    turned, text = asyncio.run(live())
    assert turned > 5
    assert text


# Batches -------------------------------------------------------------------------------------------------------------


def test_a_large_batch_is_given_to_the_engine_bit_by_bit(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llm._running.model
    serving, most, now = model._serving, 0, 0

    class Counting:
        card = model.card

        async def generate(self, request: Any) -> Any:
            nonlocal most, now
            now += request.n
            most = max(most, now)
            try:
                return await serving.generate(request)
            finally:
                now -= request.n

    monkeypatch.setattr(model, "_serving", Counting())
    outputs = llm.generate(["Once"] * 300, [SamplingParams(max_tokens=1, n=1 + i % 3, seed=i) for i in range(300)])
    assert [len(output.outputs) for output in outputs] == [1 + i % 3 for i in range(300)]
    assert now == 0
    assert model._slots.total // 2 < most <= model._slots.total == 128


def test_more_sequences_than_there_are_slots_take_all_of_them(llm: LLM) -> None:
    (output,) = llm.generate("Once", SamplingParams(n=200, max_tokens=1, seed=0))
    assert len(output.outputs) == 200


def test_slots_are_given_in_order_and_come_back() -> None:
    async def live() -> list[str]:
        slots, order = Slots(4), list[str]()

        async def hold(name: str, weight: int, gate: asyncio.Event) -> None:
            async with slots.taken(weight):
                order.append(name)
                await gate.wait()

        first, rest = asyncio.Event(), asyncio.Event()
        rest.set()
        begun = asyncio.create_task(hold("three", 3, first))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(hold(name, n, rest)) for name, n in [("nine", 9), ("gone", 1), ("one", 1)]]
        await asyncio.sleep(0)
        assert order == ["three"], "one would fit, but it is not its turn"
        waiting[1].cancel()
        first.set()
        await begun
        await asyncio.gather(*waiting, return_exceptions=True)
        async with slots.taken(4):
            order.append("four")
        return order

    assert asyncio.run(live()) == ["three", "nine", "one", "four"]


def test_slots_of_a_task_that_is_cancelled_with_its_turn_come_back() -> None:
    async def live() -> None:
        slots = Slots(1)

        async def hold() -> None:
            async with slots.taken(1):
                await asyncio.sleep(0)

        for cancel_after in range(4):
            async with slots.taken(1):
                waiting = [asyncio.create_task(hold()) for _ in range(3)]
                await asyncio.sleep(0)
            for _ in range(cancel_after):
                await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(60), slots.taken(1):
            pass

    asyncio.run(live())


# What ends a generation ----------------------------------------------------------------------------------------------


def test_a_stream_that_is_left_ends_its_generation(llm: LLM) -> None:
    for delta in llm.stream("Once", ENDLESS):
        assert delta.text
        break
    wait_until(lambda: not running(llm))
    stream = llm.stream("Once", ENDLESS)
    next(stream)
    stream.close()
    wait_until(lambda: not running(llm))


def test_a_stream_that_is_forgotten_ends_its_generation(llm: LLM) -> None:
    stream = llm.stream("Once", ENDLESS)
    next(stream)
    del stream
    gc.collect()
    wait_until(lambda: not running(llm))


def test_a_task_that_is_cancelled_ends_its_generation(llm: LLM) -> None:
    async def live() -> None:
        with engines_stopped():
            task = asyncio.create_task(llm.agenerate(["Once"] * 3, ENDLESS))
            while not running(llm):
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not running(llm), "the task ends after its generations"
        async with contextlib.aclosing(llm.astream("Once", ENDLESS)) as deltas:
            async for _ in deltas:
                break

    asyncio.run(live())
    wait_until(lambda: not running(llm))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As a program starts in the foreground; the tests themselves may run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_when(is_time: Callable[[], bool]) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_until(is_time)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()


def test_an_interrupt_ends_a_batch_and_the_model_goes_on(llm: LLM, interruptible: None) -> None:
    with engines_stopped():
        interrupt_when(lambda: running(llm) > 0)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["Once"] * 100, ENDLESS)
    assert not running(llm)
    assert llm.generate("Once", SEEDED)[0].text


def test_an_interrupt_ends_a_stream(llm: LLM, interruptible: None) -> None:
    with engines_stopped():
        interrupt_when(lambda: running(llm) > 0)
        with pytest.raises(KeyboardInterrupt):
            for _ in llm.stream("Once", ENDLESS):
                pass
    wait_until(lambda: not running(llm))


def test_what_a_handler_of_the_programs_own_raises_ends_a_batch(llm: LLM) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGINT, stop)
    try:
        with engines_stopped():
            interrupt_when(lambda: running(llm) > 0)
            with pytest.raises(Stop):
                llm.generate("Once", ENDLESS)
        assert not running(llm)
        assert signal.getsignal(signal.SIGINT) is stop
    finally:
        signal.signal(signal.SIGINT, before)


# The start -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"model": "/nonexistent/model"}, ModelError, "nonexistent"),
        ({"precission": "int8"}, TypeError, "no option 'precission'"),
        ({"name": "x"}, TypeError, "no option 'name'"),
        ({"precision": "int3"}, InvalidParams, "'precision' is 'int3': expected 'float32'"),
        ({"cache_bytes": 2**64}, InvalidParams, "'cache_bytes' is 18446744073709551616: expected `int` <= "),
        ({"max_context": 0}, InvalidParams, "'max_context' is 0: expected `int` >= 1."),
        ({"adapters": {"a,b": "folder"}}, InvalidParams, "'adapters' has 'a,b'"),
        ({"adapters": ["a"]}, InvalidParams, "'adapters' is .'a'.: expected a dict"),
        ({"adapters": {"a": 5}}, InvalidParams, "'adapters' is 5: expected a text or a path"),
        ({"model": 5}, InvalidParams, "'model' is 5: expected a text or a path"),
        ({"threads": 0}, InvalidParams, "'threads' is 0: expected a number from 1 to 1024"),
        ({"cpus": 3}, InvalidParams, "'cpus' is 3: expected a text"),
        ({"adapters": {"a": "/nonexistent/adapter"}}, ModelError, "nonexistent"),
        ({"chat_template": "/nonexistent/template"}, ModelError, "nonexistent"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why_and_leaves_nothing(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    before, threads = len(engines()), threading.active_count()
    with pytest.raises(error, match=words):
        LLM(**options)
    wait_until(lambda: len(engines()) <= before)  # one of another test may end meanwhile
    wait_until(lambda: threading.active_count() <= threads + 1)  # one that starts child processes is kept


def test_a_model_goes_to_no_other_process(llm: LLM) -> None:
    """As ``multiprocessing`` would send it."""
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="an LLM cannot be copied, nor sent to another process: open one there"):
            copying(llm)


def test_a_model_starts_in_a_program_without_standard_files(tmp_path: Path) -> None:
    """The sockets to its process would have their descriptors."""
    code = """
        from dragoman import LLM, SamplingParams

        with LLM(max_context=512) as llm:
            text = llm.generate("Once", SamplingParams(max_tokens=4))[0].text
        with open("text", "w") as file:
            file.write(text)
    """
    command = ["bash", "-c", 'exec "$@" >&- 2>&-', "bash", sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 0
    assert (tmp_path / "text").read_text()


def test_names_of_the_package_are_there_for_programs_and_for_type_checkers() -> None:
    stub = (Path(dragoman.__file__).parent / "__init__.pyi").read_text(encoding="utf-8")
    typed = {name: module for module, name in re.findall(r"^from dragoman\.([\w.]+) import (\w+)", stub, re.MULTILINE)}
    assert typed == dragoman._MODULES  # type: ignore[attr-defined]
    assert all(getattr(dragoman, name) is not None for name in typed)
    with pytest.raises(AttributeError, match="LLMs"):
        dragoman.LLMs  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(("name", "heavy"), [("SamplingParams", {"numpy", "asyncio", "uvicorn"}), ("LLM", {"numpy"})])
def test_names_of_the_package_are_imported_when_they_are_asked_for(name: str, heavy: set[str]) -> None:
    code = f"import dragoman, sys\nbefore = set(sys.modules)\ndragoman.{name}\nprint(*before, '|', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = (set(part.split()) for part in done.stdout.split("|"))
    assert "msgspec" not in before
    assert "msgspec" in after
    assert not after & heavy
