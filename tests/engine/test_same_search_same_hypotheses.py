"""Promise 1 for beam searches: the same hypotheses, scores and log-probabilities, bit for bit, however they are run."""

from __future__ import annotations

import random

import msgspec
import pytest
from test_grammar_mask import CONSTRAINTS, END, SIZE, VOCABULARY

from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams
from dragoman.engine.engine import Engine
from dragoman.engine.integrity import check_integrity
from dragoman.engine.runner import Runner
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine_client.recovery import InFlightRequest
from dragoman.grammar.lark import grammar_of
from simulation import Limited, Transcript, random_request, run, run_alone, step, stub, with_beams

CASES = [("stub", case) for case in range(8)] + [(model, case) for model in ("float32", "int8") for case in range(2)]
CASES += [("stub with states", case) for case in range(4)] + [("lfm2", 1), ("int4 kv", 0), ("int4 kv", 1)]
on_models = pytest.mark.parametrize(("runner", "case"), CASES, indirect=["runner"])


def search(rng: random.Random, vocab_size: int) -> EngineRequest:
    """Every number of it is looked at."""
    request = with_beams(rng, random_request(rng, "ours", vocab_size))
    return msgspec.structs.replace(
        request,
        max_tokens=rng.randint(8, 40),
        logprobs=LogprobParams(top=rng.randint(0, 3), prompt=rng.random() < 0.5, mode=rng.choice(["raw", "processed"])),
        priority=0,
    )


def others(rng: random.Random, vocab_size: int, count: int) -> list[EngineRequest]:
    """Half of them are searches too."""
    requests = [random_request(rng, f"other {index}", vocab_size) for index in range(count)]
    return [with_beams(rng, request) if index % 2 else request for index, request in enumerate(requests)]


@on_models
def test_in_any_company(runner: Runner, case: int) -> None:
    rng = random.Random(case)
    request = search(rng, runner.vocab_size)
    alone = run_alone(runner, request)
    assert alone.scores
    for count in (1, 5):
        crowd = [request, *others(rng, runner.vocab_size, count)]
        rng.shuffle(crowd)
        assert run(Engine(runner, SchedulerSettings(step_tokens=rng.randint(20, 100))), crowd)["ours"] == alone


@on_models
def test_beside_a_search_plain_requests_are_the_same(runner: Runner, case: int) -> None:
    rng = random.Random(case)
    request = msgspec.structs.replace(random_request(rng, "ours", runner.vocab_size), max_tokens=30)
    crowd = [with_beams(rng, other) for other in others(rng, runner.vocab_size, 4)]
    assert run(Engine(runner), [request, *crowd])["ours"] == run_alone(runner, request)


@on_models
def test_chunked_and_with_part_of_the_prompt_cached(runner: Runner, case: int) -> None:
    rng = random.Random(case)
    request = search(rng, runner.vocab_size)
    alone = run_alone(runner, request)
    engine = Engine(runner, SchedulerSettings(step_tokens=rng.randint(8, 40)))
    for _ in range(2):
        assert run(engine, [request])["ours"] == alone


@on_models
def test_without_room_for_all_of_its_texts(runner: Runner, case: int) -> None:
    """Then they are computed one after the other, again for every token."""
    rng = random.Random(case)
    request = search(rng, runner.vocab_size)
    alone = run_alone(runner, request)
    for limits in ({"num_blocks": 5}, {"max_sequences": 2}):
        engine = Engine(Limited(runner, **limits), SchedulerSettings(prefix_cache=rng.random() < 0.5))
        assert run(engine, [request])["ours"] == alone
        assert engine.scheduler.cache.available == engine.scheduler.cache.num_blocks


@on_models
def test_after_preemption(runner: Runner, case: int) -> None:
    rng = random.Random(case)
    request = msgspec.structs.replace(search(rng, runner.vocab_size), max_tokens=40, end_token_ids=(), priority=-5)
    alone = run_alone(runner, request)
    engine = Engine(Limited(runner, num_blocks=8))
    intruders = [
        msgspec.structs.replace(each, prompt=(1,) * 200, max_tokens=5, priority=1)
        for each in others(rng, runner.vocab_size, 3)
    ]
    output_processors = {each.request_id: Transcript() for each in [request, *intruders]}
    engine.submit(request)
    steps = 0
    while engine.has_work:
        steps += 1
        if intruders and steps % 7 == 0:
            engine.submit(intruders.pop())
        step(engine, output_processors)
    assert output_processors["ours"] == alone
    assert engine.scheduler.preemptions > 0


@on_models
def test_after_a_replay_from_any_point(runner: Runner, case: int) -> None:
    """Each life of the engine ends after a few steps, and the search goes on where it was."""
    rng = random.Random(case)
    request = search(rng, runner.vocab_size)
    told, unfinished, known, lives = Transcript(), InFlightRequest(request), 0, 0
    while not unfinished.is_over:
        engine = Engine(runner, SchedulerSettings(step_tokens=rng.randint(40, 100)))
        for each in [unfinished.as_replay(), *others(rng, runner.vocab_size, 2)]:
            engine.submit(each)
        for _ in range(rng.randint(4, 12)):
            output = engine.step()
            for beam_step in output.beams:
                if beam_step.request_id == "ours":
                    unfinished.record_beam_step(beam_step)
            for event in output.events:
                if event.request_id == "ours" and unfinished.accept(event):
                    told.add(event)
        lives += 1
        assert unfinished.is_over or len(unfinished.beam_steps) >= known
        known = len(unfinished.beam_steps)
    assert told == run_alone(runner, request)
    assert lives > 1


@on_models
def test_one_hypothesis_or_many_are_the_same_ones(runner: Runner, case: int) -> None:
    rng = random.Random(case)
    request = search(rng, runner.vocab_size)
    request = msgspec.structs.replace(request, seeds=request.seeds[:1] * request.num_sequences)
    many = run_alone(runner, request)
    one = run_alone(runner, msgspec.structs.replace(request, seeds=request.seeds[:1]))
    assert one.of(0) == many.of(0)
    assert one.scores[0] == many.scores[0]
    others_of_it = [many.ids(index) for index in range(1, len(many.scores))]
    assert many.ids(0) not in others_of_it


@pytest.mark.parametrize("case", range(6))
def test_under_a_grammar(case: int) -> None:
    """In company, without room, and after deaths: each text has a matcher of its own, made from its tokens."""
    rng = random.Random(case)
    model = stub(vocab_size=SIZE, num_blocks=64)
    request = msgspec.structs.replace(
        search(rng, SIZE), grammar=grammar_of(CONSTRAINTS[case % len(CONSTRAINTS)]), end_token_ids=(END,), min_tokens=0
    )
    alone = run(grammatical(model), [request])["ours"]
    assert run(grammatical(Limited(model, num_blocks=6)), [request])["ours"] == alone
    assert run(grammatical(model), [request, *others(rng, SIZE, 4)])["ours"] == alone
    told, unfinished = Transcript(), InFlightRequest(request)
    while not unfinished.is_over:
        engine = grammatical(model)
        engine.submit(unfinished.as_replay())
        for output in [engine.step() for _ in range(rng.randint(3, 8))]:
            for beam_step in output.beams:
                unfinished.record_beam_step(beam_step)
            for event in output.events:
                if unfinished.accept(event):
                    told.add(event)
    assert told == alone


def grammatical(runner: Runner) -> Engine:
    engine = Engine(runner)
    engine.set_vocabulary(VOCABULARY)
    return engine


def test_what_is_cancelled_is_not_told_and_the_rest_is_the_same() -> None:
    rng = random.Random(3)
    runner = stub(vocab_size=199)
    request = search(rng, 199)
    request = msgspec.structs.replace(request, seeds=request.seeds[:1] * 3, end_token_ids=(), max_tokens=20)
    request = msgspec.structs.replace(request, beams=msgspec.structs.replace(request.beams, num_beams=4))
    alone = run_alone(runner, request)
    engine, output_processors = Engine(runner), {"ours": Transcript()}
    engine.submit(request)
    for _ in range(5):
        step(engine, output_processors)
    engine.cancel("ours", 1)
    while engine.has_work:
        step(engine, output_processors)
    told = output_processors["ours"]
    assert set(told.finish) == {0, 2}
    assert (told.of(0), told.of(2)) == (alone.of(0), alone.of(2))
    engine.submit(request)
    for _ in range(5):
        engine.step()
    for index in range(3):
        engine.cancel("ours", index)
    assert not engine.has_work
    assert engine.scheduler.cache.available == engine.scheduler.cache.num_blocks
    check_integrity(engine.scheduler)
