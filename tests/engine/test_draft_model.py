"""A draft model guesses what comes next: it saves steps, and changes no token."""

from __future__ import annotations

import math
import random
import time

import msgspec
import pytest

from dragoman.core.request import EngineRequest, PromptEmbeddings
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.core.vocabulary import DraftVocabulary, Vocabulary, correspondence
from dragoman.engine.engine import Engine
from dragoman.engine.runner import Runner
from dragoman.engine.sequence import SequenceGroup
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation import draft_gain
from dragoman.engine.speculation.draft_gain import DraftGain
from dragoman.engine.speculation.draft_model import DraftModel
from dragoman.engine.speculation.draft_texts import common_length
from dragoman.engine.speculation.step_costs import StepCosts, best_length, expected_tokens
from simulation import Limited, Transcript, random_request, run, run_alone, step, stub

SIZE = 199


def drafting(runner: Runner, draft: Runner, vocabulary: DraftVocabulary | None = None, **settings: object) -> Engine:
    """An engine whose only drafts are those of a model."""
    engine = Engine(runner, SchedulerSettings(draft_sources=("model",), **settings))  # type: ignore[arg-type]
    engine.scheduler.drafts.use_model(draft)
    model(engine).vocabulary = vocabulary or DraftVocabulary(SIZE)
    return engine


def model(engine: Engine) -> DraftModel:
    found = engine.scheduler.drafts.model
    assert found is not None
    return found


def same_stub(**limits: int) -> Runner:
    """A draft model that is never wrong while what it has read is right: its logits depend on all of that."""
    return stub(vocab_size=SIZE, **limits)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are made whether they pay or not."""
    monkeypatch.setattr(draft_gain, "best_length", lambda acceptance, most, *costs: (min(5, most), 9.0))
    monkeypatch.setattr(DraftGain, "pays", lambda *asked: True)


def asking(
    request_id: str, seed: int = 1, *, temperature: float = 1.0, tokens: int = 100, prompt: int = 70
) -> EngineRequest:
    rng = random.Random(request_id)
    return EngineRequest(
        request_id=request_id,
        prompt=tuple(rng.randrange(SIZE) for _ in range(prompt)),
        seeds=(seed,),
        max_tokens=tokens,
        sampling=SamplingParams(temperature=temperature),
        logprobs=LogprobParams(top=2),
    )


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_a_model_that_thinks_alike_draws_alike(temperature: float) -> None:
    """Every guess is right, at any temperature: it draws with the random number of the token."""
    runner, request = stub(vocab_size=SIZE), asking("ours", temperature=temperature)
    alone = run_alone(runner, request)
    engine = drafting(runner, same_stub())
    assert run(engine, [request])["ours"] == alone
    stats = engine.output().stats
    assert stats.drafted == stats.accepted
    assert stats.steps == 1 + 100 - 1 - stats.accepted["model"]
    assert stats.steps < 35


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("case", range(12))
def test_in_company_with_little_memory(case: int) -> None:
    """Any requests, preempted and cancelled, beside other sources of drafts; the draft model has little memory too."""
    rng = random.Random(case)
    runner = stub(vocab_size=SIZE, num_blocks=24, period=rng.choice([0, 19]), num_states=rng.choice([0, 40]))
    requests = [random_request(rng, f"r{index}", SIZE, output=60) for index in range(6)]
    alone = {
        each.request_id: run_alone(
            stub(vocab_size=SIZE, period=runner.settings.period, num_states=runner.num_states), each
        )
        for each in requests
    }
    sources = rng.choice([("model",), ("lookup", "model"), ("grammar", "recent", "lookup", "model")])
    engine = Engine(
        runner, SchedulerSettings(draft_sources=sources, max_running=4, speculation=rng.choice([9, 12, 24]))
    )
    draft = same_stub(
        num_blocks=rng.choice([4, 8, 40]), period=rng.choice([0, 19]), window=rng.choice([0, 40]), max_tokens=64
    )
    engine.scheduler.drafts.use_model(draft)
    model(engine).vocabulary = DraftVocabulary(SIZE)
    assert run(engine, requests) == alone
    free = [len(each) for each in model(engine).texts.blocks.free]
    held = [sum(map(len, owned)) for owned in zip(*(text.owned for text in model(engine).texts.ended), strict=True)]
    assert [a + b for a, b in zip(free, held or [0] * len(free), strict=True)] == [pool.blocks for pool in draft.pools]
    assert not model(engine).texts.of_sequences


@pytest.mark.usefixtures("always")
def test_layers_with_windows_keep_rings_of_blocks() -> None:
    runner, request = stub(vocab_size=SIZE, window=40), asking("ours", tokens=600)
    draft = stub(vocab_size=SIZE, window=40, num_blocks=8, max_tokens=64)
    alone = run_alone(runner, request)
    engine = drafting(runner, draft)
    assert run(engine, [request])["ours"] == alone
    stats = engine.output().stats
    assert stats.drafted == stats.accepted
    assert stats.accepted["model"] > 400


@pytest.mark.usefixtures("always")
def test_after_a_crash_it_reads_what_there_is() -> None:
    runner, request = stub(vocab_size=SIZE), asking("ours")
    alone = run_alone(runner, request)
    replayed = msgspec.structs.replace(request, generated=(tuple(alone.ids()[:40]),))
    engine = drafting(runner, same_stub())
    engine.submit(replayed)
    tokens = []
    while engine.has_work:
        tokens += [event.token_id for event in engine.step().events if hasattr(event, "token_id")]
    assert tokens == alone.ids()[40:]
    assert engine.output().stats.accepted["model"] > 40


@pytest.mark.usefixtures("always")
def test_a_conversation_that_goes_on_is_not_read_again() -> None:
    """The second prompt begins with the first one and its answer: only what follows is read. Not of another caller."""
    rows: list[int] = []
    runner, draft = stub(vocab_size=SIZE), same_stub()
    inner = draft.run
    draft.run = lambda batch, *rest: (rows.append(len(batch.token_ids)), inner(batch, *rest))[1]  # type: ignore[method-assign]
    engine = drafting(runner, draft)
    first = asking("first", prompt=300)
    alone = run(engine, [first])["first"].ids()
    for salt, most in (("", 60), ("another", 500)):
        rows.clear()
        prompt = (*first.prompt, *alone, *range(40))
        run(engine, [msgspec.structs.replace(first, request_id=f"next{salt}", prompt=prompt, cache_salt=salt)])
        assert max(rows) <= most
        assert (max(rows) > 60) == bool(salt)


@pytest.mark.usefixtures("always")
def test_other_tokens_are_translated_by_their_bytes() -> None:
    """The draft model's ids are all others, and it has not all tokens: right guesses come through."""
    tokens = tuple(bytes([index]) for index in range(SIZE))
    order = list(range(SIZE))
    random.Random(1).shuffle(order)
    target = Vocabulary(tokens=tokens, special_ids=(), end_ids=(0,))
    shuffled = Vocabulary(tokens=tuple(tokens[each] for each in order), special_ids=(), end_ids=(0,))
    vocabulary = correspondence(target, shuffled)
    assert vocabulary.to_target == tuple(order)
    assert vocabulary.to_draft is not None
    assert all(order[draft] == index for index, (draft,) in enumerate(vocabulary.to_draft))
    runner, request = stub(vocab_size=SIZE), asking("ours", temperature=0.0)
    alone = run_alone(runner, request)
    engine = drafting(runner, same_stub(), vocabulary)
    assert run(engine, [request])["ours"] == alone
    assert engine.output().stats.drafted["model"] > 100


def test_vocabularies_correspond_by_id_or_by_bytes() -> None:
    one = Vocabulary(tokens=(b"a", b"b", b"ab", b"", b""), special_ids=(3,), end_ids=(3,))
    assert correspondence(one, msgspec.structs.replace(one, tokens=one.tokens[:4])) == DraftVocabulary(4)
    other = Vocabulary(tokens=(b"", b"b", b"a"), special_ids=(0,), end_ids=(0,))
    assert correspondence(one, other) == DraftVocabulary(3, ((2,), (1,), (2, 1), (), ()), (-1, 1, 0))
    poor = Vocabulary(tokens=(b"b",), special_ids=(), end_ids=(0,))
    assert correspondence(one, poor).to_draft == ((), (0,), (0,), (), ())


def test_what_is_not_text_alone_has_no_drafts() -> None:
    values = PromptEmbeddings(token_indices=(0,), values=bytes(4 * 8))
    engine = drafting(stub(vocab_size=SIZE), same_stub())
    run(engine, [msgspec.structs.replace(asking("ours"), embeddings=values)])
    assert "model" not in engine.output().stats.drafted


def test_without_its_vocabulary_or_its_source_it_is_not_asked() -> None:
    engine = Engine(stub(vocab_size=SIZE), SchedulerSettings(draft_sources=("lookup",)))
    engine.scheduler.drafts.use_model(same_stub())
    assert engine.scheduler.drafts.model is None
    engine = drafting(stub(vocab_size=SIZE), same_stub())
    model(engine).vocabulary = None
    run(engine, [asking("ours")])
    assert "model" not in engine.output().stats.drafted


def test_longer_sequences_than_its_context_go_without(always: None) -> None:
    runner, request = stub(vocab_size=SIZE), asking("ours", tokens=200)
    engine = drafting(runner, Limited(same_stub(), max_context=128))
    assert run(engine, [request])["ours"] == run_alone(runner, request)
    assert 20 < engine.output().stats.accepted["model"] < 60


def test_a_model_that_is_mostly_wrong_is_seldom_asked() -> None:
    """It is as slow as the model itself, and thinks otherwise."""
    runner = stub(vocab_size=SIZE, step_s=0.001)
    engine = drafting(runner, stub(vocab_size=SIZE, period=3, step_s=0.001))
    request = asking("ours", temperature=0.0, tokens=400)
    assert run(engine, [request])["ours"] == run_alone(runner, request)
    assert engine.output().stats.drafted["model"] < 60


def test_a_fast_model_that_is_right_is_asked_for_long_drafts() -> None:
    runner = stub(vocab_size=SIZE, step_s=0.004)
    engine = drafting(runner, same_stub())
    run(engine, [asking("ours", tokens=300)])
    assert engine.output().stats.steps < 60


def test_costs_are_a_line_through_what_was_seen() -> None:
    costs = StepCosts()
    for _ in range(100):
        for rows in (1, 4, 8):
            costs.note(rows, 0.02 + 0.001 * rows)
    assert math.isclose(costs.seconds(12), 0.032, rel_tol=0.02)
    few = StepCosts()
    few.note(1, 0.013)
    assert math.isclose(few.seconds(8), 0.013 * 20 / 13, rel_tol=0.05), (
        "until then twelve rows cost as much as one more step"
    )


@pytest.mark.parametrize(
    ("acceptance", "draft_s", "running", "length"),
    [(0.7, 0.1, 1, 3), (0.7, 0.9, 1, 0), (0.05, 0.1, 1, 0), (0.95, 0.02, 1, 11)],
)
def test_the_best_length_gives_most_tokens_in_a_second(
    acceptance: float, draft_s: float, running: int, length: int
) -> None:
    costs = StepCosts()
    for rows in (1, 12) * 100:
        costs.note(rows, 0.9 + 0.08 * rows)
    best, gain = best_length(acceptance, 11, running, running, costs, draft_s)
    speeds = [expected_tokens(acceptance, each) / (costs.seconds(1 + each) + each * draft_s) for each in range(12)]
    assert best == max(range(12), key=speeds.__getitem__) == length
    assert math.isclose(gain, speeds[best] / speeds[0])


def test_a_gain_that_is_smaller_than_what_measuring_varies_by_does_not_pay() -> None:
    costs = StepCosts()
    for rows in (1, 12) * 100:
        costs.note(rows, 0.9 + 0.08 * rows)
    assert expected_tokens(0.5, 1) / (costs.seconds(2) + 0.4) * costs.seconds(1) > 1.0
    assert best_length(0.5, 11, 1, 1, costs, 0.4) == (0, 1.0)
    assert best_length(0.5, 11, 1, 1, costs, 0.2)[0] > 0


def test_what_drawing_costs_is_counted(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the draft model's steps and of the model's, whose rows are drawn too."""
    draw = DraftModel._draw
    monkeypatch.setattr(DraftModel, "_draw", lambda *args: (time.sleep(0.004), draw(*args))[1])
    engine = drafting(stub(vocab_size=SIZE), same_stub())
    process = engine.postprocessor.process
    monkeypatch.setattr(engine.postprocessor, "process", lambda *args: (time.sleep(0.008), process(*args))[1])
    run(engine, [asking("ours", tokens=30)])
    assert model(engine).gain.draft_costs.seconds(1) > 0.004
    assert model(engine).gain.model_costs.seconds(1) > 0.006


def test_a_text_is_read_if_its_own_part_of_what_is_saved_is_more() -> None:
    """200 tokens to read, a second; 40 to come, of 0.1 seconds each, with drafts twice as fast: 2 seconds for all."""
    drafts = DraftModel(same_stub())
    drafts.vocabulary = DraftVocabulary(SIZE)
    for rows in (1, 200) * 100:
        drafts.gain.draft_costs.note(rows, rows / 200)
        drafts.gain.model_costs.note(1, 0.1)
    group = SequenceGroup(asking("ours", prompt=200, tokens=40), 1, tuple)
    (ask,) = drafts.texts.follow([(group.sequences[0], 4)], drafts.vocabulary)
    assert drafts._pays(ask, 2.0, 1, 1)
    assert not drafts._pays(ask, 2.0, 1, 4)


def test_expected_tokens_are_the_sum_of_powers() -> None:
    assert math.isclose(expected_tokens(0.7, 4), sum(0.7**power for power in range(5)))
    assert expected_tokens(1.0, 4) == 5


def test_common_length() -> None:
    for _ in range(50):
        rng = random.Random(_)
        one = [rng.randrange(3) for _ in range(rng.randrange(20))]
        other = one[: rng.randrange(20)] + [rng.randrange(3) for _ in range(rng.randrange(5))]
        expected = next(
            (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
        )
        assert common_length(one, other) == expected


def test_cancelled_sequences_give_back_their_blocks(always: None) -> None:
    runner = stub(vocab_size=SIZE)
    engine = drafting(runner, same_stub(num_blocks=16))
    found = {"ours": Transcript()}
    engine.submit(asking("ours"))
    for _ in range(5):
        step(engine, found)
    engine.cancel("ours")
    assert not model(engine).texts.of_sequences
    model(engine).texts.release(model(engine).texts.ended.pop())
    assert len(model(engine).texts.blocks.free[0]) == 16
