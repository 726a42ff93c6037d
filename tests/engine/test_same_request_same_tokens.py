"""Promise 1: given model, seed and parameters, tokens and log-probabilities are the same however a request is run.

Equality here is of bits: ids, log-probabilities, alternatives, and the reasons for the end. The reference is a request
run alone, without drafts; all is shown with speculation and without.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from tiny_model import make_tiny_adapter

from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.engine import block_tables
from dragoman.engine.engine import Engine
from dragoman.engine.runner import Runner
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation.drafter import DraftSource
from dragoman.engine.stub import StubRunner
from dragoman.engine_client.recovery import InFlightRequest
from dragoman.models.settings import Precision
from simulation import Limited, Transcript, random_request, run, run_alone, settle, step

VARIANTS = ("int8 kv", "int8 mixture", "window", "gemma 3", "gemma 4", "int4 phi", "lfm2", "qwen 3.5", "granite 4")
VARIANTS += ("falcon h1", "mamba", "latent", "int4 kv")
FURTHER = ("recurrent gemma", "kimi linear", "zamba 2")
THOROUGH = bool(os.environ.get("DRAGOMAN_THOROUGH"))
_TURNS = itertools.count()
REAL = (*get_args(Precision), *VARIANTS, *(FURTHER if THOROUGH else ()))


def on_models(stub: int, real: int, further: bool = False) -> pytest.MarkDecorator:
    """So many random cases on the stub models, and so many on a small decoder in each precision and on a mixture.

    ``further``: on the models that join what others have, too, which else are only run when tests are thorough.
    The first of four cases also without speculation: of real models one half with it and one half without, the other
    halves in the next test, unless tests are thorough. The stub that repeats is the one whose drafts come true.
    """
    turn = next(_TURNS)
    counts = {"stub": stub // 2, "repeating stub": stub, "stub with a window": stub // 4, "stub with states": stub // 4}
    counts |= {"stub with groups": stub // 4, "stub with own blocks": stub // 4}
    variants = VARIANTS + (FURTHER if further or THOROUGH else ())
    counts |= dict.fromkeys(get_args(Precision), real) | dict.fromkeys(variants, max(1, real // 2))
    cases = [
        (model, case, rows)
        for model in counts
        for case in range(0, counts[model], 1 if THOROUGH else 4 if model in (*REAL, *FURTHER) else 2)
        for rows in _draft_rows(case)
        if THOROUGH or model not in (*REAL, *FURTHER) or bool(rows) == bool((turn + [*counts].index(model)) % 2)
    ]
    return pytest.mark.parametrize(("runner", "case", "speculation"), cases, indirect=["runner"])


def _draft_rows(case: int) -> tuple[int, ...]:
    return (0, 12) if case % 4 == 0 else (7,) if case % 4 == 1 else (64,)


def request_with_everything(rng: random.Random, runner: Runner) -> EngineRequest:
    """A request whose every number is looked at."""
    request = random_request(rng, "ours", runner.vocab_size, hidden_size=runner.hidden_size)
    return msgspec.structs.replace(
        request,
        max_tokens=rng.randint(8, 40),
        logprobs=LogprobParams(top=rng.randint(0, 4), prompt=rng.random() < 0.5, mode=rng.choice(["raw", "processed"])),
        priority=0,
    )


def others(rng: random.Random, runner: Runner, count: int) -> list[EngineRequest]:
    width = runner.hidden_size
    return [random_request(rng, f"other {index}", runner.vocab_size, hidden_size=width) for index in range(count)]


def predicted(rng: random.Random, request: EngineRequest, alone: Transcript) -> EngineRequest:
    """The request with a prediction of its first output, right but for some tokens."""
    output = alone.ids()
    for _ in range(rng.randrange(4)):
        output[(place := rng.randrange(len(output) + 1)) : place + rng.randrange(3)] = [rng.randrange(100)]
    return msgspec.structs.replace(request, prediction=tuple(output))


@on_models(stub=16, real=4, further=True)
def test_in_any_company(runner: Runner, case: int, speculation: int) -> None:
    rng = random.Random(case)
    request = request_with_everything(rng, runner)
    alone = run_alone(runner, request)
    request = predicted(rng, request, alone)
    for count in (1, 3, 7, 31):
        crowd = [request, *others(rng, runner, count)]
        rng.shuffle(crowd)
        assert run(Engine(runner, SchedulerSettings(speculation=speculation)), crowd)["ours"] == alone


@on_models(stub=8, real=4)
def test_beside_adapters_and_with_one(runner: Runner, case: int, speculation: int, tmp_path: Path) -> None:
    """Three adapters and the model as it is in one batch: each gets what it gets alone, in whatever slot."""
    rng = random.Random(case)
    of = runner.card.architecture  # type: ignore[attr-defined]
    folders = {name: make_tiny_adapter(tmp_path / name, seed, architecture=of) for seed, name in enumerate("abc")}
    crowd = []
    for index in range(8):
        asked = random_request(rng, f"r{index}", runner.vocab_size, hidden_size=runner.hidden_size)
        asked = msgspec.structs.replace(asked, logprobs=LogprobParams(top=2), adapter=rng.choice([None, "a", "b", "c"]))
        crowd.append(msgspec.structs.replace(asked, max_tokens=max(4, asked.max_tokens)))
    together = Engine(runner, SchedulerSettings(speculation=speculation))
    for name in rng.sample(list(folders), 3):
        together.load_adapter(name, str(folders[name]))
    found = run(together, crowd)
    for asked in crowd:
        engine = Engine(runner, SchedulerSettings(prefix_cache=False, speculation=0))
        engine.load_adapter("filler", str(folders[rng.choice("abc")]))
        if asked.adapter is not None:
            engine.load_adapter(asked.adapter, str(folders[asked.adapter]))
        alone = run(engine, [asked])[asked.request_id]
        assert found[asked.request_id] == alone, asked.adapter
        if asked.adapter is not None and asked.prompt and alone.tokens:
            plain = run_alone(runner, msgspec.structs.replace(asked, adapter=None))
            assert [token[1] for token in plain.of(0)[0]] != [token[1] for token in alone.of(0)[0]], (
                "it changes nothing"
            )


@on_models(stub=16, real=4)
def test_company_that_comes_and_goes(runner: Runner, case: int, speculation: int) -> None:
    rng = random.Random(case)
    request = request_with_everything(rng, runner)
    alone = run_alone(runner, request)
    engine, output_processors = Engine(runner, SchedulerSettings(speculation=speculation)), {"ours": Transcript()}
    for other in others(rng, runner, 8):
        output_processors[other.request_id] = Transcript()
    pending = [*others(random.Random(case), runner, 8), request]
    rng.shuffle(pending)
    while pending or engine.has_work:
        if pending and rng.random() < 0.4:
            engine.submit(pending.pop())
        if rng.random() < 0.1:
            engine.cancel(f"other {rng.randrange(8)}")
        if engine.has_work:
            step(engine, output_processors)
    assert output_processors["ours"] == alone


@on_models(stub=4, real=1)
def test_chunked_at_every_size(runner: Runner, case: int, speculation: int) -> None:
    rng = random.Random(case)
    request = request_with_everything(rng, runner)
    alone = run_alone(runner, request)
    every = THOROUGH or isinstance(runner, StubRunner)
    for size in range(1, len(request.prompt) + 1) if every else (1, 2, 3, 5, 8, 13, 21, 31, 32, 33, 64, 65):
        settings = SchedulerSettings(speculation=speculation, step_tokens=size, prefix_cache=False)
        assert run(Engine(runner, settings), [request])["ours"] == alone, f"in chunks of {size}"


@on_models(stub=16, real=4)
def test_chunked_beside_others(runner: Runner, case: int, speculation: int) -> None:
    rng = random.Random(case)
    request = request_with_everything(rng, runner)
    alone = run_alone(runner, request)
    crowd = others(rng, runner, 6)
    for mixed in (1, 7, 33):
        settings = SchedulerSettings(
            speculation=speculation, mixed_prefill_tokens=mixed, step_tokens=rng.randint(10, 64)
        )
        assert run(Engine(runner, settings), [*crowd, request])["ours"] == alone


@on_models(stub=16, real=4, further=True)
def test_with_any_part_of_the_prompt_cached(runner: Runner, case: int, speculation: int) -> None:
    rng = random.Random(case)
    request = request_with_everything(rng, runner)
    request = msgspec.structs.replace(
        request, prompt=request.prompt * 2, logprobs=LogprobParams(top=2), embeddings=None
    )
    alone = run_alone(runner, request)
    engine = Engine(runner, SchedulerSettings(speculation=speculation))
    hits = 0
    for length in [rng.randint(1, len(request.prompt)) for _ in range(4)] + [len(request.prompt)]:
        prefix = msgspec.structs.replace(request, request_id="prefix", prompt=request.prompt[:length])
        run(engine, [prefix])
        before = engine.output().stats.cached_tokens
        assert run(engine, [request])["ours"] == alone
        hits += engine.output().stats.cached_tokens - before
    assert hits > 0 or len(request.prompt) <= 32


@on_models(stub=16, real=4)
def test_after_preemption(runner: Runner, case: int, speculation: int) -> None:
    rng = random.Random(case)
    request = request_with_everything(rng, runner)
    request = msgspec.structs.replace(request, max_tokens=80, end_token_ids=(), stop_token_ids=(), priority=-5)
    alone = run_alone(runner, request)
    engine = Engine(Limited(runner, num_blocks=8), SchedulerSettings(speculation=speculation))
    # Each of these needs all of the memory, at a moment when ours has begun.
    intruders = [
        msgspec.structs.replace(each, prompt=(1,) * 230, max_tokens=5, priority=index, embeddings=None)
        for index, each in enumerate(others(rng, runner, 3))
    ]
    output_processors = {each.request_id: Transcript() for each in [request, *intruders]}
    engine.submit(request)
    while engine.has_work:
        if intruders and output_processors["ours"].tokens and rng.random() < 0.2:
            engine.submit(intruders.pop())
        step(engine, output_processors)
    assert output_processors["ours"] == alone
    assert engine.scheduler.preemptions > 0


@on_models(stub=16, real=4)
def test_a_sequence_of_many_equals_the_one_of_its_seed(runner: Runner, case: int, speculation: int) -> None:
    rng = random.Random(case)
    request = request_with_everything(rng, runner)
    first = rng.getrandbits(64)
    seeds = tuple((first + index) % 2**64 for index in range(rng.choice([2, 5, 40])))
    engine = Engine(Limited(runner, max_sequences=16), SchedulerSettings(speculation=speculation))
    forked = run(engine, [msgspec.structs.replace(request, seeds=seeds), *others(rng, runner, 3)])["ours"]
    for index in {0, 1, len(seeds) - 1}:
        single = run_alone(runner, msgspec.structs.replace(request, seeds=(seeds[index],)))
        assert forked.of(index) == single.of(0)


@on_models(stub=16, real=4)
def test_after_a_replay_from_any_point(runner: Runner, case: int, speculation: int) -> None:
    rng = random.Random(case)
    request = request_with_everything(rng, runner)
    request = msgspec.structs.replace(request, seeds=(*request.seeds, 7))
    alone = run_alone(runner, request)
    told, unfinished = Transcript(), InFlightRequest(request)
    while not unfinished.is_over:
        # Each life of the engine ends after a few steps, with company that differs each time.
        engine = Engine(runner, SchedulerSettings(speculation=speculation, step_tokens=rng.randint(20, 100)))
        for each in [unfinished.as_replay(), *others(rng, runner, 3)]:
            engine.submit(each)
        for _ in range(rng.randint(4, 30)):
            for event in engine.step().events:
                if event.request_id == "ours" and unfinished.accept(event):
                    told.add(event)
    assert told == alone


@pytest.mark.parametrize(
    ("runner", "temperature"),
    [
        (model, temperature)
        for place, model in enumerate(("repeating stub", "stub with states", "stub with groups", *REAL))
        for temperature in (0.0, 1.0)
        if THOROUGH
        or model not in VARIANTS
        or place % 2 == temperature  # of variants each second one at each of the two
    ],
    indirect=["runner"],
)
def test_drafts_that_come_true(runner: Runner, temperature: float) -> None:
    """Text that repeats itself takes fewer steps, and is the same."""
    # Few tokens to choose from: they come again in the same order now and then, in any model.
    sampling = SamplingParams(temperature=temperature, logit_bias=dict.fromkeys((3, 50, 51, 120), 40.0))
    prompt = tuple(random.Random(3).choices((3, 50, 51, 120), k=50))
    request = EngineRequest(
        request_id="ours", prompt=prompt, seeds=(5,), max_tokens=200, sampling=sampling, logprobs=LogprobParams(top=2)
    )
    alone = run_alone(runner, request)
    for rows in (2, 5, 12, 64) if THOROUGH else (2, 12):
        engine = Engine(runner, SchedulerSettings(speculation=rows))
        assert run(engine, [request])["ours"] == alone
        stats = engine.output().stats
        assert 0 < stats.accepted_tokens <= stats.drafted_tokens
        assert stats.steps == 200 - stats.accepted_tokens
        company = [msgspec.structs.replace(request, request_id=f"other {seed}", seeds=(seed,)) for seed in range(3)]
        assert run(engine, [*company, request])["ours"] == alone


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("runner", ["stub", "stub with states", "float32", "int4"], indirect=True)
def test_predictions_that_come_true(runner: Runner, temperature: float) -> None:
    """Every source alone, and all together: the same tokens, in fewer steps where the client is right."""
    request = EngineRequest(
        request_id="ours",
        prompt=tuple(range(9, 20)),
        seeds=(5,),
        max_tokens=100,
        sampling=SamplingParams(temperature=temperature),
        logprobs=LogprobParams(top=2),
    )
    alone = run_alone(runner, request)
    request = predicted(random.Random(1), request, alone)
    for sources in (("prediction",), ("lookup",), ("recent",), tuple(DraftSource)):
        engine = Engine(runner, SchedulerSettings(draft_sources=sources))
        for again in range(2):
            before = engine.output().stats
            assert run(engine, [request])["ours"] == alone
            stats = engine.output().stats
            is_right = "prediction" in sources or ("recent" in sources and again)
            assert not is_right or stats.steps - before.steps < 50
            assert set(stats.drafted) <= set(sources)


SAMPLERS = {
    "typical-p": SamplingParams(typical_p=0.5),
    "xtc": SamplingParams(xtc_probability=0.5, xtc_threshold=0.05),
    "mirostat 1": SamplingParams(mirostat_mode=1, mirostat_tau=3.0, mirostat_eta=0.3),
    "mirostat 2": SamplingParams(mirostat_mode=2, mirostat_tau=3.0, mirostat_eta=0.3),
    "banned phrases": SamplingParams(top_k=3, banned_phrases=((5,), (1, 2), *((0, 7, token) for token in range(40)))),
    "no-repeat n-gram": SamplingParams(temperature=0.3, no_repeat_ngram_size=1),
    "dry": SamplingParams(dry_multiplier=3.0, dry_allowed_length=1, dry_breaker_ids=(3,), dry_penalty_last_n=60),
    "watermark": SamplingParams(watermark=True, watermark_gamma=0.25, watermark_delta=4.0),
    "forced tokens": SamplingParams(forced_tokens=tuple(range(150, 182))),
}


@pytest.mark.parametrize("runner", ["stub", "float32"], indirect=True)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler(runner: Runner, sampler: str) -> None:
    """In company, in small chunks, as one of many, after preemptions and deaths; and the sampler does something."""
    rng = random.Random(sampler)
    request = msgspec.structs.replace(
        request_with_everything(rng, runner),
        prompt=tuple(rng.choices(range(40), k=70)),
        seeds=(3, 4),
        max_tokens=32,
        end_token_ids=(),
        stop_token_ids=(),
        min_tokens=0,
        sampling=SAMPLERS[sampler],
        embeddings=None,
    )
    alone = run_alone(runner, request)
    plain = run_alone(runner, msgspec.structs.replace(request, sampling=SamplingParams()))
    assert alone.ids() != plain.ids(), "a sampler without effect shows nothing here"
    settings = SchedulerSettings(step_tokens=17, mixed_prefill_tokens=5)
    engine = Engine(Limited(runner, num_blocks=12), settings)
    crowd = [msgspec.structs.replace(each, priority=2) for each in others(rng, runner, 5)]
    assert run(engine, [request, *crowd])["ours"] == alone
    single = run_alone(runner, msgspec.structs.replace(request, seeds=(4,)))
    assert alone.of(1)[:2] == single.of(0)[:2]
    told, unfinished = Transcript(), InFlightRequest(request)
    while not unfinished.is_over:
        engine = Engine(runner)
        engine.submit(unfinished.as_replay())
        for event in [event for _ in range(3) for event in engine.step().events]:
            if unfinished.accept(event):
                told.add(event)
    assert told == alone


@on_models(stub=4, real=1)
def test_from_disk(
    runner: Runner, case: int, speculation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks, windows and states that another process wrote are as good as computed ones, also with an adapter, and so
    is the block in which a prompt ends."""
    monkeypatch.setattr(block_tables, "LEAST_TAIL_BLOCKS", 2)
    rng = random.Random(case)
    folder = make_tiny_adapter(tmp_path / "a", 1, architecture=runner.card.architecture)  # type: ignore[attr-defined]
    prompt = tuple(rng.randrange(runner.vocab_size) for _ in range(rng.randint(98, 130)))
    plain = EngineRequest(
        request_id="plain",
        prompt=prompt,
        seeds=(rng.getrandbits(32),),
        max_tokens=6,
        sampling=SamplingParams(temperature=0.9),
        logprobs=LogprobParams(top=2),
    )
    requests = [plain, msgspec.structs.replace(plain, request_id="adapted", adapter="a")]
    found = []
    for life in range(3):
        engine = Engine(runner, SchedulerSettings(speculation=speculation))
        if life:
            engine.open_disk(tmp_path / "cache", 1 << 26, "model", compares=False)
            settle(engine)
        engine.load_adapter("a", str(folder))
        found.append([run(engine, [request])[request.request_id] for request in requests])
        settle(engine)
        engine.close()
        stats = engine.output().stats
        tables = engine.scheduler.tables
        of_prompt = len(prompt) - 1 if tables.disk is not None and tables.disk.keeps_tails else 96
        engine.unload_adapter("a")
        assert stats.cached_tokens == (2 * of_prompt if life == 2 else 0), "of both prompts"
    assert found[0] == found[1] == found[2]
    assert found[0][0] != found[0][1], "the adapter changes nothing"
