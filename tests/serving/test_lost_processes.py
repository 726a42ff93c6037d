"""A process of templates or grammars that is killed or stopped is nobody's fault: it costs time, never a refusal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from stub_runtime import QUICK, STUB, local_model

from dragoman.core.caller import Caller, current_caller
from dragoman.core.constraint import JsonSchema, Lark, Regex
from dragoman.core.errors import BadRequest, EngineUnavailable, UnsupportedConstraint, UnsupportedFeature
from dragoman.core.request import ChatPrompt
from dragoman.core.vocabulary import Vocabulary
from dragoman.grammar.process import GrammarProcess
from dragoman.serving import constraints
from dragoman.serving.constraints import ConstraintReader
from dragoman.serving.settings import WorkSettings
from dragoman.serving.worker_pool import WorkerPool, WorkerPools
from dragoman.text import ChatTemplate
from dragoman.text.chat_template import TemplateLimits
from dragoman.text.sandbox import ProcessFailure, SandboxedProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at through /proc")

VOCABULARY = Vocabulary(tokens=(*(bytes([byte]) for byte in range(256)), b""), special_ids=(256,), end_ids=(256,))
PROMPT = ChatPrompt(messages=({"role": "user", "content": "hello"},))
SECONDS = 4.0


def helpers(name: str) -> list[psutil.Process]:
    """The processes of one kind that run now, and those that they have started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(name in word for word in process.cmdline()):
                found.append(process)
    return found


@contextlib.contextmanager
def misfortune(name: str, pause_s: float) -> Iterator[Counter[str]]:
    """Meanwhile, such a process is killed or stopped now and then."""
    over = threading.Event()
    done: Counter[str] = Counter()

    def strike() -> None:
        rng = random.Random(7)
        while not over.wait(rng.uniform(0.2, 1.8) * pause_s):
            for process in rng.sample(found := helpers(name), min(1, len(found))):
                how = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, how)
                    done[how.name] += 1

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def outcomes(work: Callable[[int], object], threads: int = 3) -> Counter[str]:
    """How valid requests of several threads end."""
    seen: Counter[str] = Counter()
    end = time.monotonic() + SECONDS

    def ask(number: int) -> None:
        while time.monotonic() < end:
            number += 100
            try:
                work(number)
                seen["answered"] += 1
            except EngineUnavailable:
                seen["unavailable"] += 1
            except BadRequest as error:
                seen[f"refused: {error.message}"] += 1

    crowd = [threading.Thread(target=ask, args=(number,)) for number in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return seen


def test_no_valid_chat_is_refused_while_processes_are_killed_and_stopped() -> None:
    template = ChatTemplate({"default": "hello {{ messages[0].content }}"}, processes=2)
    with misfortune("template_worker", 0.5) as done:
        seen = outcomes(lambda number: template.render(PROMPT))
    assert done
    assert seen.keys() <= {"answered", "unavailable"}
    assert seen["answered"]
    assert template.render(PROMPT) == "hello hello"
    template.close()


def test_no_valid_grammar_is_refused_while_processes_are_killed_and_stopped() -> None:
    process = GrammarProcess(VOCABULARY, count=2)
    with misfortune("grammar/worker", 1.2) as done:
        seen = outcomes(lambda number: process.check(Regex(f"[a-c]{{1,{number}}}")))
    assert done
    assert seen.keys() <= {"answered", "unavailable"}
    assert seen["answered"]
    assert process.check(Regex("[a-c]"))
    process.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_request_is_asked_again_in_a_new_process(how: signal.Signals) -> None:
    source = "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}done"
    template = ChatTemplate({"default": source}, limits=TemplateLimits(time_s=60))
    template.render(PROMPT)
    texts: list[str] = []
    rendering = threading.Thread(target=lambda: texts.append(template.render(PROMPT)))
    rendering.start()
    time.sleep(0.005)
    for process in helpers("template_worker"):
        process.send_signal(how)
    rendering.join()
    assert texts == ["done"]
    template.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_who_loses_two_processes_may_try_again(how: signal.Signals) -> None:
    source = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}"
    template = ChatTemplate({"default": source}, limits=TemplateLimits(time_s=60))
    over = threading.Event()

    def strike() -> None:
        while not over.wait(0.02):
            for process in helpers("template_worker"):
                with contextlib.suppress(psutil.Error):
                    process.send_signal(how)

    striking = threading.Thread(target=strike)
    striking.start()
    with pytest.raises(EngineUnavailable, match="Try again"):
        template.render(PROMPT)
    over.set()
    striking.join()
    template.close()


CRASHING = """
from dragoman.text.sandbox_child import greet, receive, send
import os
connection = greet()
receive(connection)
send(connection, {})
while True:
    how = receive(connection)["how"]
    if how != "exit" and not os.path.exists(how):
        open(how, "w").close()
        os.abort()
    if how == "exit":
        os._exit(3)
    send(connection, {"text": "well"})
"""


def test_a_crash_that_happens_twice_is_the_requests_own(tmp_path: Path) -> None:
    program = tmp_path / "crashing.py"
    program.write_text(CRASHING)
    process = SandboxedProcess(program, dict, time_s=5, answer_bytes=100)
    assert process.ask({"how": str(tmp_path / "once")}) == {"text": "well"}
    with pytest.raises(ProcessFailure) as raised:
        process.ask({"how": "exit"})
    assert raised.value.kind == "memory"
    process.close()


def test_closing_does_not_wait_for_what_is_rendered() -> None:
    source = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}"
    template = ChatTemplate({"default": source}, limits=TemplateLimits(time_s=60))
    failed: list[Exception] = []

    def render() -> None:
        try:
            template.render(PROMPT)
        except Exception as error:
            failed.append(error)

    rendering = threading.Thread(target=render)
    rendering.start()
    time.sleep(0.3)
    started = time.monotonic()
    template.close()
    assert time.monotonic() - started < 30
    rendering.join(60)
    assert isinstance(failed[0], EngineUnavailable)
    assert not helpers("template_worker")


# Through the server's own way to grammars -----------------------------------------------------------------------------

SLOW = JsonSchema(
    '{"allOf": [' + ", ".join(f'{{"type": "integer", "multipleOf": {9000 + i}}}' for i in range(300)) + "]}"
)


def reader_of(template: ChatTemplate) -> tuple[ConstraintReader, WorkerPools]:
    pools = WorkerPools(WorkSettings(max_queued_grammars=4))
    return ConstraintReader(local_model(QUICK, STUB, template), pools), pools


def as_caller(name: str, reader: ConstraintReader, constraint: JsonSchema | Regex) -> asyncio.Task[str | None]:
    async def read() -> str | None:
        current_caller.set(Caller(name=name, tenant=name))
        return await reader.read(constraint, "grammar")

    return asyncio.create_task(read())


def test_only_what_a_grammar_has_earned_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Exception] = [EngineUnavailable("lost"), EngineUnavailable("lost"), UnsupportedFeature("too complex")]
    tried: list[object] = []

    def check(self: GrammarProcess, constraint: object, cancelled: object = None) -> str:
        tried.append(constraint)
        raise ends[len(tried) - 1]

    monkeypatch.setattr(GrammarProcess, "check", check)

    async def test() -> None:
        reader, pools = reader_of(ChatTemplate({}))
        for error in (EngineUnavailable, EngineUnavailable, UnsupportedConstraint, UnsupportedConstraint):
            with pytest.raises(error):
                await reader.read(Regex("a"), "grammar")
        assert len(tried) == 3
        reader.close()
        pools.close()

    asyncio.run(test())


def test_constraints_that_are_remembered_take_no_more_than_so_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the answers to them are."""
    tried: list[object] = []

    def check(self: GrammarProcess, constraint: object, cancelled: object = None) -> str:
        tried.append(constraint)
        raise UnsupportedFeature("too complex")

    monkeypatch.setattr(GrammarProcess, "check", check)
    monkeypatch.setattr(constraints, "CACHED_CHARS", 10_000)

    async def test() -> None:
        reader, pools = reader_of(ChatTemplate({}))
        long = [Lark("start: A", parts=(("tools[0]", "x" * 3000 + str(i)),)) for i in range(4)]
        for each in (*long, long[3], long[2], long[0]):
            with pytest.raises(UnsupportedConstraint):
                await reader.read(each, "grammar")
        assert tried == [*long, long[0]]
        reader.close()
        pools.close()

    asyncio.run(test())


def test_a_schema_that_an_error_may_name_makes_no_grammar_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the grammar already."""
    costs: list[float] = []
    run = WorkerPool.run

    async def note(self: WorkerPool, work: Callable[[], Any], *, cost_s: float, **options: Any) -> Any:
        costs.append(cost_s)
        return await run(self, work, cost_s=cost_s, **options)

    monkeypatch.setattr(WorkerPool, "run", note)
    monkeypatch.setattr(GrammarProcess, "check", lambda *_: "a grammar")

    async def test() -> None:
        reader, pools = reader_of(ChatTemplate({}))
        await reader.read(Lark("start: A"), "tools")
        await reader.read(Lark("start: A", parts=(("tools[0]", "x" * 3000),)), "tools")
        reader.close()
        pools.close()

    asyncio.run(test())
    assert costs[1] == pytest.approx(costs[0], abs=0.05)


def test_a_trial_that_begins_while_another_is_given_up_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, tried = threading.Event(), 0

    def check(self: GrammarProcess, constraint: object, cancelled: object = None) -> str:
        nonlocal tried
        tried += 1
        go_on.wait(60)
        return "a grammar"

    monkeypatch.setattr(GrammarProcess, "check", check)

    async def test() -> None:
        reader, pools = reader_of(ChatTemplate({}))
        left = as_caller("a", reader, Regex("a"))
        while not tried:
            await asyncio.sleep(0.01)
        left.cancel()
        second = as_caller("a", reader, Regex("a"))
        for _ in range(5):
            await asyncio.sleep(0)
        third = as_caller("a", reader, Regex("a"))
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(second, third) == ["a grammar"] * 2
        assert tried == 2
        reader.close()
        pools.close()

    asyncio.run(test())


def test_slow_grammars_of_one_caller_do_not_delay_anothers() -> None:
    async def test() -> None:
        reader, pools = reader_of(ChatTemplate({}))
        await as_caller("b", reader, Regex("first"))  # the processes need a moment to be there
        slow = [JsonSchema(SLOW.schema.replace("9000", str(8000 + i))) for i in range(5)]
        flood = [as_caller("a", reader, each) for each in slow]
        await asyncio.sleep(0.1)
        assert pools.grammars.running == 1
        started = time.monotonic()
        await as_caller("b", reader, Regex("second"))
        assert not any(task.done() for task in flood) or time.monotonic() - started < 5
        for task in flood:
            task.cancel()
        started = time.monotonic()
        await asyncio.gather(*flood, return_exceptions=True)
        # What runs is ended, for nobody waits for it: the process is free again at once.
        while pools.grammars.running:
            await asyncio.sleep(0.01)
        assert not pools.grammars.queued
        assert await as_caller("a", reader, Regex("third"))
        reader.close()
        pools.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_prompts_of_a_request_share_a_trial() -> None:
    async def test() -> None:
        reader, pools = reader_of(ChatTemplate({}))
        both = [as_caller("a", reader, Regex("(ab)*")) for _ in range(8)]
        left = as_caller("a", reader, Regex("(ab)*"))
        await asyncio.sleep(0)
        left.cancel()
        assert len(set(await asyncio.gather(*both))) == 1
        assert pools.grammars.taken == 1
        reader.close()
        pools.close()

    asyncio.run(asyncio.wait_for(test(), 60))
