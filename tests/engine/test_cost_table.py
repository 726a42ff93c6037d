"""What steps cost is measured before the first request, and changes nothing but the length of drafts."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from test_draft_model import SIZE, asking, model

from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine import worker as worker_module
from dragoman.engine.engine import Engine
from dragoman.engine.messages import FrameReader, FromEngine, Shutdown, StepOutput, Submit, frame
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation import cost_table as module
from dragoman.engine.speculation.cost_table import DRAFT_ROWS, LONGEST_S, MODEL_ROWS, ROUNDS, CostTable, plausible
from dragoman.engine.stub import StubRunner
from dragoman.engine.worker import Worker
from simulation import run, run_alone, stub


class Clock:
    """Seconds that steps say they take: the machine of a test has other work too."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(module, "time", clock := Clock())
    monkeypatch.setattr(Timed, "clock", clock)
    return clock


class Timed(StubRunner):
    """A step takes some milliseconds, and each of its rows."""

    clock = Clock()
    read_bytes = 0

    def __init__(self, step_ms: float, row_ms: float, **settings: int) -> None:
        super().__init__(stub(vocab_size=SIZE, **settings).settings)
        self.step_ms, self.row_ms = step_ms, row_ms

    def run(self, batch, meanwhile=None, interrupt=None):  # type: ignore[no-untyped-def]
        self.read_bytes += 1000
        self.clock.now += (self.step_ms + self.row_ms * len(batch.token_ids)) / 1000
        return super().run(batch, meanwhile, interrupt)


def slow(step_ms: float = 20.0, **settings: int) -> Timed:
    return Timed(step_ms, 0.5, **settings)


def planned(runner: StubRunner) -> tuple[Engine, CostTable]:
    """An engine with a draft model, and what measures its steps."""
    engine = Engine(runner, SchedulerSettings(draft_sources=("model",)))
    engine.scheduler.drafts.use_model(Timed(1.0, 0.1))
    engine.scheduler.drafts.plan_costs(runner)
    costs = engine.scheduler.drafts.costs
    assert costs is not None
    model(engine).vocabulary = DraftVocabulary(SIZE)
    return engine, costs


@pytest.fixture
def silent() -> Iterator[int]:
    """A file that does not become readable."""
    reading, writing = os.pipe()
    yield reading
    os.close(reading)
    os.close(writing)


def test_the_first_drafts_know_what_steps_cost(silent: int, caplog: pytest.LogCaptureFixture) -> None:
    engine, costs = planned(slow(num_states=40))
    tables, before = engine.scheduler.tables, engine.output().stats
    caplog.set_level(logging.INFO, "dragoman.engine")
    calls = 0
    while not costs.is_over:
        costs.measure(silent)
        calls += 1
    assert calls == 2 + ROUNDS * (len(MODEL_ROWS) + len(DRAFT_ROWS))
    for rows in (1, 5, 12):
        assert math.isclose(model(engine).gain.model_costs.seconds(rows), 0.020 + 0.0005 * rows, rel_tol=0.02)
        assert math.isclose(model(engine).gain.draft_costs.seconds(rows), 0.001 + 0.0001 * rows, rel_tol=0.02)
    assert "milliseconds of steps by their rows: 1: 20.50, 2: 21.00, 4: 22.00, 8: 24.00, 16: 28.00;" in caplog.text
    after = engine.output().stats
    assert after == before, "it is in no count"
    assert after.free_blocks == after.blocks
    for group in tables.groups:
        group.cache.check_integrity([])
    alone = run_alone(stub(vocab_size=SIZE, num_states=40), asking("ours"))
    assert run(engine, [asking("ours")])["ours"] == alone, "what was written nobody reads"


def test_what_another_process_made_longer_does_not_count() -> None:
    assert plausible({1: 0.6, 2: 0.7, 4: 0.5, 8: 90.0, 16: 1.2}) == {1: 0.5, 2: 0.5, 4: 0.5, 8: 1.0, 16: 1.2}
    assert plausible({1: 0.5, 8: 0.6, 16: 90.0}) == {1: 0.5, 8: 0.6, 16: 1.2}
    assert plausible({}) == {}


def test_a_request_ends_it_at_once_and_what_was_found_is_kept(silent: int) -> None:
    engine, costs = planned(slow())
    for _ in range(5):
        costs.measure(silent)
    costs.end()
    assert model(engine).gain.model_costs.is_known
    assert model(engine).gain.draft_costs.is_known
    noted = model(engine).gain.model_costs._weight
    costs.end()
    assert model(engine).gain.model_costs._weight == noted


def test_a_step_that_a_message_interrupts_is_measured_again() -> None:
    runner = slow()
    _, costs = planned(runner)
    reading, writing = os.pipe()
    os.write(writing, b"x")
    costs.measure(reading)  # the draft model's, which is short
    left = len(costs._left)
    costs.measure(reading)
    assert len(costs._left) == left
    os.read(reading, 1)
    costs.measure(reading)
    assert len(costs._left) == left - 1
    os.close(reading)
    os.close(writing)


def test_no_step_begins_after_the_longest_time(silent: int, clock: Clock) -> None:
    """A model whose steps are long gets to few sizes."""
    engine, costs = planned(slow(600.0))
    while not costs.is_over:
        costs.measure(silent)
    assert clock.now < LONGEST_S + 0.7
    assert math.isclose(model(engine).gain.model_costs.seconds(1), 0.6005)
    assert math.isclose(model(engine).gain.draft_costs.seconds(1), 0.0011)


def test_an_error_of_a_step_costs_the_figures_alone(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, costs = planned(slow())
    monkeypatch.setattr(Timed, "run", lambda *args: 1 / 0)
    costs.measure(silent)
    assert costs.is_over
    assert not model(engine).gain.model_costs.is_known


def test_nothing_is_measured_where_nothing_drafts() -> None:
    engine = Engine(stub(), SchedulerSettings(draft_sources=("lookup",)))
    engine.scheduler.drafts.use_model(stub())
    engine.scheduler.drafts.plan_costs(engine.runner)
    assert engine.scheduler.drafts.costs is None


def test_the_process_measures_while_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages keep it from that, and a request ends it: its answer is what it would be without."""
    monkeypatch.setattr(worker_module, "_QUIET_MS", 20)
    monkeypatch.setattr(module, "LONGEST_S", 60.0)
    monkeypatch.setattr(module, "ROUNDS", 10_000)
    engine, costs = planned(slow())
    request = asking("ours", tokens=20)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=Worker(theirs, engine).serve)
        thread.start()
        try:
            deadline = time.monotonic() + 10
            while len(costs._seconds) < 2 and time.monotonic() < deadline:
                time.sleep(0.005)
            assert not costs.is_over
            ours.sendall(frame(Submit(request)))
            frames, decoder, events = FrameReader(), msgspec.msgpack.Decoder(FromEngine), 0
            while events < 20:
                for message in map(decoder.decode, frames.feed(ours.recv(1 << 20))):
                    events += len(message.events) if isinstance(message, StepOutput) else 0
            assert costs.is_over
            assert model(engine).gain.model_costs.is_known
        finally:
            ours.sendall(frame(Shutdown()))
            thread.join()
