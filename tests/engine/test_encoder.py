"""Encoder-decoder models in the engine: every promise of the decoder alone, and what is new about encoder inputs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain
from typing import cast, get_args

import msgspec
import numpy as np
import pytest
from tiny_model import make_tiny_t5

from dragoman import models
from dragoman.core.events import PromptEvent
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.engine.engine import Engine
from dragoman.engine.integrity import check_integrity
from dragoman.engine.runner import Runner
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.stub import StubRunner
from dragoman.engine_client.recovery import InFlightRequest
from dragoman.models.batch import Batch
from dragoman.models.settings import Precision
from simulation import (
    Limited,
    Transcript,
    finish_event,
    random_request,
    run,
    run_alone,
    run_beams,
    step,
    stub,
    with_beams,
)

VOCAB = 199
LIMITS = {"num_blocks": 256, "max_tokens": 256, "max_sequences": 64, "max_logit_rows": 64, "encoder_context": 300}


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """By name: the stub with an encoder, or a small T5 in that precision, or with keys and values in int4."""
    if "stub" in request.param:
        return stub(vocab_size=VOCAB, period=19 if request.param == "repeating stub" else 0, **LIMITS)
    folder = make_tiny_t5(tmp_path_factory.mktemp("t5"))
    is_kept = request.param == "int4 kv"
    settings = models.ModelSettings(
        precision="bfloat16" if is_kept else cast(Precision, request.param),
        kv_precision="int4" if is_kept else "auto",
        max_tokens=256,
        max_context=300,
        kv_tokens=256 * 32,
        cache_bytes=0,
    )
    return models.load(folder, settings)


def on_models(stubs: int, real: int) -> pytest.MarkDecorator:
    """So many random cases on the stubs, and so many on a small T5 in each precision, and with int4 keys and values."""
    counts = {"stub": stubs, "repeating stub": stubs, **dict.fromkeys((*get_args(Precision), "int4 kv"), real)}
    cases = [(model, case) for model, count in counts.items() for case in range(count)]
    return pytest.mark.parametrize(("runner", "case"), cases, indirect=["runner"])


def a_request(rng: random.Random, runner: Runner, name: str = "ours") -> EngineRequest:
    width = runner.hidden_size
    return random_request(rng, name, runner.vocab_size, prompt=120, output=60, hidden_size=width, encoder=True)


def asking(name: str, *encoder_input: int, count: int = 1, **fields: object) -> EngineRequest:
    fields = {"max_tokens": 8, "sampling": SamplingParams(temperature=0), **fields}
    return EngineRequest(request_id=name, prompt=(0,), encoder_input=encoder_input, seeds=tuple(range(count)), **fields)


class Watched:
    """A stub that counts what is encoded."""

    def __init__(self, **settings: int) -> None:
        self.encoded: list[list[list[int]]] = []
        self.runner: StubRunner = stub(vocab_size=VOCAB, **LIMITS | settings)
        encode = self.runner.encode

        def watching(batch: Batch) -> None:
            self.encoded.append([part.tolist() for part in np.split(batch.token_ids, batch.row_starts[1:-1])])
            encode(batch)

        self.runner.encode = watching  # type: ignore[method-assign]


@on_models(6, 2)
def test_in_any_company(runner: Runner, case: int) -> None:
    rng = random.Random(case)
    request = a_request(rng, runner)
    alone = run_alone(runner, request)
    for count in (1, 6, 25):
        crowd = [request, *(a_request(rng, runner, f"other {index}") for index in range(count))]
        rng.shuffle(crowd)
        for speculation in (0, 12):
            assert run(Engine(runner, SchedulerSettings(speculation=speculation)), crowd)["ours"] == alone


@on_models(6, 1)
def test_under_any_budget_and_with_hardly_any_memory(runner: Runner, case: int) -> None:
    rng = random.Random(case)
    requests = [a_request(rng, runner, f"r{index}") for index in range(8)]
    alone = {request.request_id: run_alone(runner, request) for request in requests}
    for blocks, rows, cache in ((14, 1, True), (14, 30, False), (20, 256, True)):
        engine = Engine(
            Limited(runner, num_blocks=blocks), SchedulerSettings(step_tokens=max(rows, 4), prefix_cache=cache)
        )
        assert run(engine, requests) == alone
        assert engine.scheduler.cache.available == blocks


def test_a_preempted_sequence_is_encoded_again_where_its_blocks_went() -> None:
    watched = Watched()
    requests = [asking(f"r{index}", *([index] * 60), max_tokens=90) for index in range(1, 5)]
    alone = {request.request_id: run_alone(watched.runner, request) for request in requests}
    watched.encoded.clear()
    engine = Engine(Limited(watched.runner, num_blocks=11))
    assert run(engine, requests) == alone
    assert engine.scheduler.preemptions > 0
    assert sum(map(len, watched.encoded)) > len(requests)


def test_equal_inputs_are_encoded_once() -> None:
    watched = Watched()
    engine = Engine(watched.runner)
    requests = [asking(f"r{index}", *range(50), count=2, max_tokens=4 + index) for index in range(3)]
    run(engine, requests)
    run(engine, [asking("later", *range(50))])
    run(engine, [asking("another", *range(49))])
    assert watched.encoded == [[list(range(50))], [list(range(49))]]


def test_a_cached_input_counts_as_cached_tokens() -> None:
    engine = Engine(Watched().runner)
    first, again, other = (list(_prompt_events(engine, asking(name, 5, 6, *tail))) for name, tail in
                           (("a", (7,)), ("b", (7,)), ("c", (8,))))  # fmt: skip
    assert [event.cached_tokens for event in (*first, *again, *other)] == [0, 3, 0]


def _prompt_events(engine: Engine, request: EngineRequest) -> Iterator[PromptEvent]:
    engine.submit(request)
    while engine.has_work:
        yield from (event for event in engine.step().events if isinstance(event, PromptEvent))


def test_without_the_cache_nothing_is_shared_but_by_the_sequences_of_a_request() -> None:
    watched = Watched()
    engine = Engine(watched.runner, SchedulerSettings(prefix_cache=False))
    run(engine, [asking("a", *range(50), count=3), asking("b", *range(50))])
    assert list(chain(*watched.encoded)) == [list(range(50))] * 2


def test_a_step_encodes_no_more_than_its_budget_or_one_input_alone() -> None:
    watched = Watched()
    engine = Engine(watched.runner, SchedulerSettings(step_tokens=64, mixed_prefill_tokens=64))
    run(engine, [asking(f"r{index}", *([index] * (20 + 40 * index)), max_tokens=30) for index in range(1, 6)])
    assert sorted(len(each) for each in list(chain(*watched.encoded))) == [60, 100, 140, 180, 220]
    assert all(len(step) == 1 or sum(map(len, step)) <= 64 for step in watched.encoded)


@on_models(5, 2)
def test_replayed_from_any_token(runner: Runner, case: int) -> None:
    """What a crash leaves of a request goes on as if nothing had happened."""
    rng = random.Random(case)
    request = msgspec.structs.replace(a_request(rng, runner), max_tokens=rng.randint(5, 30))
    alone = run_alone(runner, request)
    unfinished, engine = InFlightRequest(request), Engine(runner)
    engine.submit(request)
    for _ in range(rng.randint(1, 12)):
        if engine.has_work:
            for event in engine.step().events:
                unfinished.accept(event)
    if unfinished.is_over:
        return
    engine = Engine(runner)
    engine.submit(unfinished.as_replay())
    while engine.has_work:
        for event in engine.step().events:
            unfinished.accept(event)
        check_integrity(engine.scheduler)
    assert unfinished.generated == [alone.ids(index) for index in range(len(request.seeds))]


@on_models(6, 1)
def test_beams_share_the_input(runner: Runner, case: int) -> None:
    """The same hypotheses alone, in company, and with hardly any memory."""
    rng = random.Random(case)
    request = with_beams(rng, a_request(rng, runner))
    alone = run_alone(runner, request)
    others = [a_request(rng, runner, f"other {index}") for index in range(6)]
    assert run(Engine(runner), [*others, request])["ours"] == alone
    assert run(Engine(Limited(runner, num_blocks=26)), [*others, request])["ours"] == alone
    assert run_beams(runner, request)


def test_first_and_last_token_of_the_model() -> None:
    runner = Watched().runner
    request = asking("r", 1, 2, 3, first_token_id=150, last_token_id=151, max_tokens=6)
    ids = run(Engine(runner), [request])["r"].ids()
    assert (ids[0], ids[-1], len(ids)) == (150, 151, 6)
    assert not {150, 151} & set(ids[1:-1])
    banned = SamplingParams(temperature=0, logit_bias={150: -100.0}, banned_phrases=((151,),))
    ids = run(Engine(runner), [msgspec.structs.replace(request, sampling=banned)])["r"].ids()
    assert (ids[0], ids[-1]) == (150, 151)


def test_drafts_may_be_copied_from_the_input() -> None:
    """The stub says what it said 19 tokens ago; its output of 19 tokens repeats nothing, but the input does."""
    runner = stub(vocab_size=VOCAB, period=19, **LIMITS)
    plain = run(Engine(runner, SchedulerSettings(speculation=0)), [asking("r", 1, 2, max_tokens=60)])["r"]
    copied = asking("r", *plain.ids(), max_tokens=60)
    alone = run_alone(runner, copied)
    engine = Engine(runner)
    assert run(engine, [copied])["r"] == alone
    assert engine.scheduler.drafts.accepted.total() > 0


def test_what_cannot_be_run_is_refused() -> None:
    def refusal(engine: Engine, request: EngineRequest) -> str:
        engine.submit(request)
        return finish_event(engine.step().events).message

    with_encoder, without = Engine(Watched().runner), Engine(stub(vocab_size=VOCAB))
    assert "encoder's input" in refusal(with_encoder, asking("r"))
    assert "encoder's input" in refusal(without, asking("r", 1))
    assert "300" in refusal(with_encoder, asking("r", *([1] * 301)))
    assert "token ids" in refusal(with_encoder, asking("r", VOCAB))
    assert "token ids" in refusal(with_encoder, asking("r", 1, first_token_id=VOCAB))
    small = Engine(Limited(Watched().runner, num_blocks=9))
    assert "cache" in refusal(small, asking("r", *([1] * 290)))


def test_a_transcript_of_every_step_balances() -> None:
    """Arrivals, cancels and forks at random, the books checked after each step."""
    rng = random.Random(5)
    runner = stub(vocab_size=61, **LIMITS)
    engine, output_processors = Engine(Limited(runner, num_blocks=30)), dict[str, Transcript]()
    for _ in range(300):
        if rng.random() < 0.2:
            name = f"r{len(output_processors)}"
            request = random_request(rng, name, 61, prompt=rng.choice([5, 40, 200]), output=30, encoder=True)
            if rng.random() < 0.3:
                request = with_beams(rng, request)
            output_processors[name] = Transcript()
            engine.submit(request)
        if output_processors and rng.random() < 0.05:
            engine.cancel(rng.choice(list(output_processors)))
        if engine.has_work:
            step(engine, output_processors)
    while engine.has_work:
        step(engine, output_processors)
    assert engine.scheduler.cache.available == 30
