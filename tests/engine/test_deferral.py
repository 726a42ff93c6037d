"""Deferrable requests: computed while nothing else is, with the same tokens whenever that happens."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from test_scheduler import Watched

from dragoman.core.caller import DEFERRABLE_PRIORITY
from dragoman.core.events import FinishEvent, TokenEvent
from dragoman.core.pooling import PoolingParams
from dragoman.core.request import EngineRequest
from dragoman.engine.engine import Engine
from dragoman.engine.integrity import check_integrity
from dragoman.engine.settings import SchedulerSettings
from simulation import run_alone, stub

LATER = {"deferrable": True, "priority": DEFERRABLE_PRIORITY}


@pytest.fixture
def loud() -> Iterator[int]:
    """A file that is readable."""
    read, write = os.pipe()
    os.write(write, b"x")
    yield read
    os.close(read)
    os.close(write)


def test_no_step_has_a_deferrable_row_while_another_request_has_work() -> None:
    engine = Watched(num_blocks=200)
    for index in range(4):
        engine.submit(f"later{index}", 20, 40, **LATER)
    assert engine.steps_until("later0") == 1
    engine.submit("now", 20, 12, tenant="a")
    drawn = [engine.step() for _ in range(12)]
    assert drawn == [["now"]] * 12, "from the next step on the other one is alone"
    assert engine.steps_until("later0") == 1
    engine.finish()


def test_deferrable_requests_take_no_place_of_others() -> None:
    engine = Watched(num_blocks=400, settings=SchedulerSettings(max_running=2, max_waiting=1))
    for index in range(9):
        engine.submit(f"later{index}", 20, 4, **LATER)
        engine.step()
    for index in range(3):
        engine.submit(f"now{index}", 20, 40, tenant="a")
    engine.submit("one too many", 20, 40, tenant="a")
    (refusal,) = [each for each in engine.engine.step().events if each.request_id == "one too many"]
    assert isinstance(refusal, FinishEvent)
    assert refusal.message.startswith("3 sequences are already waiting or running")
    engine.finish()


def test_what_comes_while_others_run_is_begun_when_they_are_over() -> None:
    engine = Watched(num_blocks=200)
    engine.submit("now", 20, 8)
    engine.step()
    engine.submit("later", 20, 4, seeds=(1, 2), **LATER)
    assert engine.steps_until("later") == 8
    engine.submit("again", 20, 4)
    engine.step()
    engine.engine.cancel("later")
    engine.finish()


def test_a_step_of_deferrable_requests_ends_early_and_the_next_one_does_not(loud: int) -> None:
    engine = Watched(num_blocks=200)
    engine.submit("later", 20, 40, **LATER)
    engine.submit("vector", 20, 0, pooling=PoolingParams(kind="last"), **LATER)

    def drawn() -> int:
        events = engine.engine.run(engine.engine.schedule(), interrupt=loud).events
        check_integrity(engine.engine.scheduler)
        return sum(isinstance(event, TokenEvent) for event in events)

    assert [drawn() for _ in range(6)] == [0, 1, 0, 1, 0, 1]
    engine.submit("now", 20, 6, tenant="a")
    assert [drawn() for _ in range(6)] == [1] * 6, "a step with another request is computed whole"
    engine.finish()


@pytest.mark.parametrize("seed", range(4))
def test_holding_and_ending_early_change_no_token(seed: int, loud: int) -> None:
    choose = random.Random(seed)
    requests = [
        EngineRequest(
            request_id=f"{index}",
            prompt=tuple(choose.choices(range(100), k=choose.randint(1, 60))),
            seeds=(index,),
            max_tokens=choose.randint(1, 30),
            **(LATER if choose.random() < 0.6 else {"tenant": "abc"[index % 3]}),  # type: ignore[arg-type]
        )
        for index in range(14)
    ]
    watched, found, left = Watched(num_blocks=24, max_context=128), dict[str, list[int]](), list(requests)
    engine: Engine = watched.engine
    while left or engine.has_work:
        if left and choose.random() < 0.2:
            engine.submit(left.pop())
        interrupt = loud if choose.random() < 0.5 else None
        for event in engine.run(engine.schedule(), interrupt=interrupt).events if engine.has_work else ():
            if isinstance(event, TokenEvent):
                found.setdefault(event.request_id, []).append(event.token_id)
    for request in requests:
        assert found[request.request_id] == run_alone(stub(num_blocks=24, max_context=128), request).ids()
