"""Who may call an ``LLM`` from where, what ends it, and what is left then."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import dragoman
from dragoman import LLM, SamplingParams
from dragoman.core.errors import Cancelled, EngineUnavailable, ModelError, ShuttingDown
from dragoman.llm.in_process import Slots
from dragoman.llm.sampling_params import InvalidParams

SEEDED = SamplingParams(max_tokens=12, seed=7)
ENDLESS = SamplingParams(max_tokens=2000, clamp_to_context=True, seed=1, ignore_eos=True)


def running(llm: LLM) -> int:
    """Requests that serving has."""
    admission: Any = llm._running.model._serving.admission  # type: ignore[attr-defined]
    return int(admission.waiting + admission.running)


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.005)


def engines() -> list[psutil.Process]:
    """The processes of engines that this process has started."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "dragoman.engine" in child.cmdline():
                found.append(child)
    return found


@contextlib.contextmanager
def engines_stopped() -> Iterator[None]:
    """Meanwhile no generation ends by itself, however long this process stands still."""
    stopped = engines()
    for each in stopped:
        each.suspend()
    try:
        yield
    finally:
        for each in stopped:
            each.resume()


@pytest.fixture
def own() -> Iterator[LLM]:
    """A model for one test, which may close it."""
    with LLM(max_context=512) as llm:
        yield llm


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


# The end -------------------------------------------------------------------------------------------------------------


def test_closing_twice_is_closing_once_and_later_calls_are_refused() -> None:
    before = {each.pid for each in engines()}
    interval_s = sys.getswitchinterval()
    with LLM(max_context=512) as llm:
        (process,) = [each for each in engines() if each.pid not in before]
        assert sys.getswitchinterval() == interval_s
        stream = llm.stream("Once", ENDLESS)
        next(stream)
        llm.close()
        assert repr(llm) == "<LLM embedded, closed>"
    llm.close()
    asyncio.run(llm.aclose())
    assert not process.is_running()
    calls: list[Callable[[], object]] = [
        lambda: llm.generate("Once"),
        lambda: llm.chat([{"role": "user", "content": "Hi"}]),
        lambda: llm.score("Once"),
        lambda: next(llm.stream("Once")),
        lambda: llm.tokenize("Once"),
        lambda: asyncio.run(llm.agenerate("Once")),
        lambda: next(stream),
    ]
    for call in calls:
        with pytest.raises(EngineUnavailable, match="The model is closed"):
            call()


def test_closing_ends_what_other_threads_wait_for(own: LLM) -> None:
    with ThreadPoolExecutor(2) as threads:
        batch = threads.submit(own.generate, ["Once"] * 100, SamplingParams(max_tokens=400, ignore_eos=True))
        stream = threads.submit(list, own.stream("Once", SamplingParams(max_tokens=400, ignore_eos=True)))
        wait_until(lambda: running(own) > 1)
        own.close()
        for waiting in (batch, stream):
            with pytest.raises((ShuttingDown, EngineUnavailable, asyncio.CancelledError, Cancelled)):
                waiting.result(60)


def test_a_crash_of_the_engine_changes_no_token(llm: LLM) -> None:
    params = SamplingParams(max_tokens=300, seed=3, ignore_eos=True)
    expected = llm.generate("Once upon a time", params)[0].text
    before = {each.pid for each in engines()}
    with LLM(max_context=512) as own:
        (process,) = [each for each in engines() if each.pid not in before]
        deltas = own.stream("Once upon a time", params)
        begun = next(deltas).text
        process.kill()
        assert begun + "".join(delta.text for delta in deltas) == expected


def test_a_draft_model_changes_no_token_whatever_happens_to_the_engine(llm: LLM) -> None:
    """The model's own copy with 4 bits, asked for what it says next; its process is killed on the way."""
    params = SamplingParams(max_tokens=300, seed=3, ignore_eos=True)
    expected = llm.generate("Once upon a time", params)[0].text
    before = {each.pid for each in engines()}
    drafts = {"draft_model": "embedded", "draft_precision": "int4", "draft_sources": ("model",)}
    with LLM(max_context=512, **drafts) as own:
        assert own.generate("Once upon a time", params)[0].text == expected
        (process,) = [each for each in engines() if each.pid not in before]
        deltas = own.stream("Once upon a time", params)
        begun = next(deltas).text
        process.kill()
        assert begun + "".join(delta.text for delta in deltas) == expected


def test_a_model_that_is_forgotten_is_closed() -> None:
    before = {each.pid for each in engines()}
    llm: LLM | None = LLM(max_context=512)
    assert llm is not None
    (process,) = [each for each in engines() if each.pid not in before]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        llm = None
        gc.collect()
    assert [each for each in caught if issubclass(each.category, ResourceWarning) and "LLM" in str(each.message)]
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_a_program_that_ends_without_closing_leaves_nothing_and_says_nothing() -> None:
    code = """
        import os, sys, threading
        from dragoman import LLM, SamplingParams

        first = LLM(max_context=512)
        stream = first.stream("Once", SamplingParams(max_tokens=400, ignore_eos=True))
        next(stream)

        made = []
        thread = threading.Thread(target=lambda: made.append(LLM(max_context=512)))
        thread.start()
        thread.join()
        print(len(made[0].generate(["Once"] * 3, SamplingParams(max_tokens=4))))

        child = os.fork()
        if not child:
            try:
                first.generate("Once")
            except Exception as error:
                print(error)
            first.close()
            first = stream = None  # forgotten in the fork, where there is nothing to close
            os._exit(0)
        os.waitpid(child, 0)
        print(first.generate("Once", SamplingParams(max_tokens=4))[0].usage.completion_tokens)
    """
    mark = f"DRAGOMAN_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")
    done = subprocess.run(
        [sys.executable, "-u", "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    fork = "The model belongs to the process that loaded it, and this is a fork of that."
    assert done.stdout.splitlines() == ["3", fork, "4"]

    def marked() -> list[int]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(name) == value:
                    found.append(process.pid)
        return found

    wait_until(lambda: not marked())


# The start -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"model": "/nonexistent/model"}, ModelError, "nonexistent"),
        ({"precission": "int8"}, TypeError, "no option 'precission'"),
        ({"name": "x"}, TypeError, "no option 'name'"),
        ({"precision": "int3"}, InvalidParams, "'precision' is 'int3': expected 'float32'"),
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
