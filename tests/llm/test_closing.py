"""What ends an ``LLM``, and what is left then."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from engine_processes import ENDLESS, engines, running, wait_until

from dragoman import LLM, SamplingParams
from dragoman.core.errors import EngineUnavailable


@pytest.fixture
def own() -> Iterator[LLM]:
    """A model for one test, which may close it."""
    with LLM(max_context=512) as llm:
        yield llm


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
            with pytest.raises(EngineUnavailable, match=r"The model (was|is) closed"):
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


def test_a_model_whose_opening_is_cancelled_is_closed_without_a_warning() -> None:
    before = {each.pid for each in engines()}

    async def give_up() -> None:
        opening = asyncio.create_task(LLM.aopen(max_context=512))
        while not any(each.pid not in before for each in engines()):
            await asyncio.sleep(0.01)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await opening

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(give_up())  # ends with the thread that loads
        gc.collect()
    assert not [each for each in caught if "LLM" in str(each.message)]
    wait_until(lambda: all(each.pid in before for each in engines()))


def test_a_model_that_opens_while_its_opening_is_cancelled_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {each.pid for each in engines()}
    opened, start = threading.Event(), LLM.__init__

    def start_and_say(self: LLM, *arguments: Any, **options: Any) -> None:
        start(self, *arguments, **options)
        opened.set()

    monkeypatch.setattr(LLM, "__init__", start_and_say)

    async def give_up() -> None:
        opening = asyncio.create_task(LLM.aopen(max_context=512))
        await asyncio.sleep(0)
        assert opened.wait(60)
        time.sleep(0.2)  # the thread has its result, which the loop has not seen
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(give_up())
        wait_until(lambda: all(each.pid in before for each in engines()))
        gc.collect()
    assert not [each for each in caught if "LLM" in str(each.message)]


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
        child = os.fork()
        if not child:
            sys.exit()  # as a program ends that does not know what it was forked from
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


def test_development_mode_has_nothing_to_warn_of() -> None:
    """Neither in the program nor in its engine's process."""
    code = "from dragoman import LLM\nwith LLM(max_context=512) as llm: print(len(llm.generate('Once')))"
    environment = {**os.environ, "PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


AT_THE_END = """
    import threading
    from concurrent.futures import ThreadPoolExecutor
    from dragoman import LLM, SamplingParams
    from dragoman.core.errors import EngineUnavailable

    llm = LLM(max_context=512)

    def work(name):
        for _ in range(3):
            try:
                llm.generate("Once", SamplingParams(max_tokens=40, ignore_eos=True))
                llm.chat([{"role": "user", "content": "Once"}], SamplingParams(max_tokens=4))
            except EngineUnavailable as error:
                return print(name, error, flush=True)
        print(name, "has all", flush=True)

    def clean():
        threading.main_thread().join()
        print("main has ended", flush=True)

    threading.Thread(target=clean).start()
    {work}
"""


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ('threading.Thread(target=work, args=["thread"]).start()', "thread has all\n"),
        ('pool = ThreadPoolExecutor(1); pool.submit(work, "pool")', "pool The model "),
    ],
)
def test_a_program_ends_after_its_threads(work: str, said: str) -> None:
    code = textwrap.dedent(AT_THE_END).replace("{work}", work)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    assert "main has ended\n" in done.stdout
