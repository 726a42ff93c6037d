"""States of recurrent layers: slots of sequences, drafts, forks and snapshots, and what of a prefix is found again.

The stub's tokens depend on a hash in its slots, so a wrong state, or one of another sequence, changes them.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from dragoman.core.events import ProgressEvent, PromptEvent
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import BeamParams, SamplingParams
from dragoman.engine.engine import Engine
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.state_slots import SNAPSHOT_TOKENS
from dragoman.engine.stub import StubRunner
from simulation import random_request, run, run_alone, stub

LIMITS = {"vocab_size": 199, "max_context": 6000, "max_tokens": 512}


def runner(num_states: int = 100, num_blocks: int = 1000, period: int = 19) -> StubRunner:
    return stub(num_states=num_states, num_blocks=num_blocks, period=period, **LIMITS)


def tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(199), k=count))


def asked(name: str, prompt: tuple[int, ...], **fields: object) -> EngineRequest:
    request = EngineRequest(
        request_id=name, prompt=prompt, seeds=(1,), max_tokens=20, sampling=SamplingParams(temperature=1.0)
    )
    return msgspec.structs.replace(request, **fields)


def cached(engine: Engine, request: EngineRequest) -> int:
    """Cached tokens of a request that runs now, which has the tokens that it has alone."""
    before = engine.output().stats.cached_tokens
    assert run(engine, [request])[request.request_id] == run_alone(runner(), request)
    return engine.output().stats.cached_tokens - before


def test_a_long_shared_prefix_is_found_up_to_its_last_snapshot() -> None:
    shared = tokens(4100, 1)
    engine = Engine(runner())
    assert cached(engine, asked("first", shared + tokens(70, 2))) == 0
    assert cached(engine, asked("second", shared + tokens(50, 3))) == 4096
    assert cached(engine, asked("shorter", shared[:3000] + tokens(9, 4))) == 3000 // SNAPSHOT_TOKENS * SNAPSHOT_TOKENS


def test_the_same_prompt_again_computes_less_than_a_block() -> None:
    engine = Engine(runner())
    for length, found in ((30, 0), (33, 32), (100, 96), (256, 224), (257, 256), (700, 672)):
        request = asked("ours", tokens(length, length))
        assert cached(engine, request) == 0
        assert cached(engine, request) == found


def test_a_conversation_continues_from_its_last_prompt_or_snapshot() -> None:
    engine = Engine(runner())
    first = asked("first", tokens(300, 1), max_tokens=400)
    answer = tuple(run(engine, [first])["first"].ids())
    assert len(answer) == 400
    assert cached(engine, asked("next", first.prompt + answer + tokens(10, 2))) == 512


def test_requests_with_one_new_prefix_compute_it_once() -> None:
    shared = tokens(600, 5)
    requests = [asked(f"r{index}", shared + tokens(40, index)) for index in range(6)]
    engine = Engine(runner(), SchedulerSettings(step_tokens=100))
    found = run(engine, requests)
    assert all(found[each.request_id] == run_alone(runner(), each) for each in requests)
    assert engine.output().stats.cached_tokens == 5 * 512


def test_a_snapshot_goes_with_its_block_and_the_least_recently_used_first() -> None:
    engine = Engine(runner(num_blocks=40))
    states = engine.scheduler.tables.states
    assert states is not None
    run(engine, [asked("first", tokens(600, 1))])
    assert len(states._snapshots) == 3
    run(engine, [asked("large", tokens(1200, 2))])  # takes all blocks but one
    assert len(states._snapshots) == 5
    assert cached(engine, asked("first", tokens(600, 1))) == 0

    engine = Engine(runner(num_states=44, num_blocks=1000))  # of which drafts have 11 and the sequence one
    states = engine.scheduler.tables.states
    assert states is not None
    for seed in range(12):
        run(engine, [asked(f"r{seed}", tokens(600, seed))])
    assert len(states._snapshots) == 32
    assert cached(engine, asked("newest", tokens(600, 11))) == 576
    assert cached(engine, asked("oldest", tokens(600, 0))) == 0


@pytest.mark.parametrize("num_states", [1, 2, 5])
@pytest.mark.parametrize("speculation", [0, 12])
def test_few_slots_are_enough_for_anything(num_states: int, speculation: int) -> None:
    """No more sequences run than have a slot; they take those of snapshots, and drafts take what is left."""
    rng = random.Random(num_states)
    small = runner(num_states, num_blocks=64)
    requests = [random_request(rng, f"r{index}", 199) for index in range(10)]
    requests.append(asked("many", tokens(90, 1), seeds=tuple(range(7)), max_tokens=30))
    beams = asked(
        "beams", tokens(90, 1), beams=BeamParams(num_beams=min(4, num_states)), sampling=SamplingParams(temperature=0.0)
    )
    engine = Engine(small, SchedulerSettings(speculation=speculation))
    assert engine.scheduler.capacity == num_states
    found = run(engine, [*requests, beams])
    for request in requests:
        assert found[request.request_id] == run_alone(runner(), request)
    assert found["beams"] == run_alone(runner(), beams)


@pytest.mark.parametrize("kept", [1, 2])
def test_a_sequence_continues_from_a_snapshot_whose_slot_is_needed(kept: int) -> None:
    """All slots have owners when it starts: it takes another snapshot's, or, where there is none, that of its own."""
    engine = Engine(runner(num_states=1 + kept), SchedulerSettings(speculation=0, max_running=2))
    again = asked("again", tokens(40, 1))
    run(engine, [again])
    for seed in range(2, 1 + kept):
        run(engine, [asked(f"r{seed}", tokens(40, seed))])
    states = engine.scheduler.tables.states
    assert states is not None
    assert len(states._snapshots) == kept
    before = engine.output().stats.cached_tokens
    requests = [asked("other", tokens(10, 9)), again]
    found = run(engine, requests)
    assert all(found[each.request_id] == run_alone(runner(), each) for each in requests)
    assert engine.output().stats.cached_tokens - before == 32


def test_drafts_that_fail_roll_back() -> None:
    """Half of the drafts of a text that repeats itself by chance are wrong somewhere; each text is as without."""
    engine = Engine(runner(period=7), SchedulerSettings(speculation=12))
    requests = [asked(f"r{seed}", tokens(40, seed), max_tokens=150, seeds=(seed,)) for seed in range(4)]
    found = run(engine, requests)
    stats = engine.output().stats
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert all(found[each.request_id] == run_alone(runner(period=7), each) for each in requests)


def test_without_the_prefix_cache_there_are_no_snapshots() -> None:
    engine = Engine(runner(), SchedulerSettings(prefix_cache=False))
    request = asked("ours", tokens(600, 1))
    assert cached(engine, request) == cached(engine, request) == 0
    assert engine.scheduler.tables.states is not None
    assert len(engine.scheduler.tables.states._snapshots) == 0


def test_cancelled_in_the_middle_of_a_prompt_leaves_usable_snapshots() -> None:
    engine = Engine(runner(), SchedulerSettings(step_tokens=200))
    request = asked("ours", tokens(900, 1), progress=True)
    engine.submit(request)
    done = 0
    while done < 600:
        events = engine.step().events
        assert not any(isinstance(event, PromptEvent) for event in events)
        done = max([done, *(event.done for event in events if isinstance(event, ProgressEvent))])
    engine.cancel("ours")
    assert cached(engine, msgspec.structs.replace(request, progress=False)) == 512
