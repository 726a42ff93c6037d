"""Heads of checkpoints: what they compute, and that no token and no bit of the model changes by them."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from tiny_eagle import LLAMA, QWEN3, make_tiny_pair
from tiny_model import DEEPSEEK_V3, GLM4_MOE, QWEN3_NEXT, QWEN35, make_tiny_head

from dragoman import kernels, models
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.engine.engine import Engine
from dragoman.engine.runner import Runner
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation import cost_table, draft_gain
from dragoman.engine.speculation.draft_head import HeadDrafts
from dragoman.engine.speculation.drafter import DraftSource
from dragoman.models import draft_head
from dragoman.models.batch import Batch, rows_of_slot, tables_of_one
from dragoman.models.model import Model
from dragoman.models.settings import Precision
from simulation import Limited, run, run_alone, through_preemptions_and_deaths

sys.path.append(str(Path(__file__).parent.parent / "models"))
from numpy_decoder import NumpyDecoder

LOADED = [("qwen3.5", False), ("qwen3.5", True), ("deepseek-v3", True), ("eagle qwen3", False), ("eagle llama", True)]
TOKENS = 40
IDS = np.random.default_rng(3).integers(0, 199, TOKENS).astype(np.int32)
CONFIGS = {"qwen3.5": QWEN35, "qwen3-next": QWEN3_NEXT, "deepseek-v3": DEEPSEEK_V3, "glm4-moe": GLM4_MOE}


def load(folder: Path, precision: Precision = "float32", *, head: int | None = None) -> Model:
    settings = models.ModelSettings(precision=precision, max_context=256, max_tokens=64, cache_bytes=0)
    return models.load(folder, settings, head_context=head)


def whole(model: Model, logit_rows: list[int]) -> Batch:
    """The text as one sequence."""
    states = (np.zeros(1, np.int32), rows_of_slot(TOKENS, 0)) if model.num_states else (None, None)
    return Batch(
        IDS,
        np.arange(TOKENS, dtype=np.int32),
        np.array([0, TOKENS], np.int32),
        tables_of_one(model.pools, 2),
        np.array(logit_rows, np.int32),
        state_slots=states[0],
        state_rows=states[1],
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("config", CONFIGS)
def test_hidden_states_of_all_rows_change_no_bit(config: str, precision: Precision, tmp_path: Path) -> None:
    """Logits are those of a program that goes on with the wanted rows alone; hidden states those that are pooled."""
    folder = make_tiny_head(tmp_path, CONFIGS[config])
    plain, kept = load(folder, precision), load(folder, precision, head=64)
    for rows in ([TOKENS - 1], [3, 17, 18, TOKENS - 1], list(range(TOKENS)), []):
        np.testing.assert_array_equal(kept.run(whole(kept, rows)), plain.run(whole(plain, rows)))
        hidden = kept.hidden_rows(TOKENS)
        pooled = plain.pool(whole(plain, list(range(TOKENS))), np.zeros(0, np.int32))
        np.testing.assert_array_equal(hidden, pooled)
    assert kept.card.fingerprint == plain.card.fingerprint


@pytest.mark.parametrize("config", CONFIGS)
def test_it_computes_the_published_formula(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[norm(embedding of the next token), norm(hidden)] · W, one layer, a norm, and the model's output table."""
    monkeypatch.setattr(draft_head, "HEAD_KV_PRECISION", "float32")
    model = load(make_tiny_head(tmp_path, CONFIGS[config]), head=64)
    head = model.head
    assert head is not None
    hidden = np.random.default_rng(4).normal(size=(TOKENS, head.width)).astype(np.float32)
    rows = np.arange(TOKENS, dtype=np.int32)
    batch = Batch(IDS, rows, np.array([0, TOKENS], np.int32), tables_of_one(head.pools, 2), rows, rows, hidden)
    ours = head.run(batch)

    spec = head.spec
    weights = {name: _numbers(value) for name, value in head.weights.items()}
    numpy = NumpyDecoder(spec, weights)
    token = numpy.norm(weights["embedding.weight"][IDS], "token_norm")
    joined = np.concatenate([token, numpy.norm(hidden, "hidden_norm")], axis=1)
    residual = numpy.layer(joined @ weights["hidden_in.weight"].T, 0, {})
    normed = numpy.norm(residual, "final_norm")
    expected = normed @ weights["head.weight"].T
    np.testing.assert_allclose(ours, expected, atol=2e-4 * np.abs(expected).max())
    fed = normed if spec.feeds_normed else residual
    np.testing.assert_allclose(head.hidden(TOKENS), fed, atol=2e-4 * np.abs(fed).max())


def _numbers(value: object) -> np.ndarray:
    return value.dequantize() if isinstance(value, kernels.PackedMatrix) else np.asarray(value)


# In front of the steps of an engine -----------------------------------------------------------------------------------


class Loaded(NamedTuple):
    runner: Model
    is_right: bool


@pytest.fixture(scope="module", params=LOADED, ids=str)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    name, is_right = request.param
    if name.startswith("eagle"):
        config = {"eagle llama": LLAMA, "eagle qwen3": QWEN3}[name]
        model, eagle = make_tiny_pair(tmp_path_factory.mktemp("pair"), config, is_right=is_right)
        settings = models.ModelSettings(precision="float32", max_context=256, max_tokens=64, cache_bytes=0)
        choice = models.EagleChoice(source=str(eagle))
        with pytest.MonkeyPatch.context() as patch:  # rounded, what it sees of the token would differ from the model's
            patch.setattr(draft_head, "HEAD_KV_PRECISION", "float32")
            return Loaded(models.load(model, settings, head_context=128, eagle=choice), is_right)
    folder = make_tiny_head(tmp_path_factory.mktemp("model"), CONFIGS[name], is_right=is_right)
    return Loaded(load(folder, "bfloat16", head=128), is_right)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are made whether they pay or not."""
    monkeypatch.setattr(draft_gain, "best_length", lambda acceptance, most, *costs: (min(5, most), 9.0))
    monkeypatch.setattr(draft_gain.DraftGain, "pays", lambda *asked: True)


def drafting(
    loaded: Loaded, sources: tuple[str, ...] = ("heads",), runner: Runner | None = None, **limits: int
) -> Engine:
    engine = Engine(runner or loaded.runner, SchedulerSettings(draft_sources=sources, **limits))  # type: ignore[arg-type]
    assert loaded.runner.head is not None
    engine.scheduler.drafts.use_head(loaded.runner.head, loaded.runner.hidden_rows)
    return engine


def asking(seed: int, temperature: float, *, tokens: int = 40, **sampling: float) -> EngineRequest:
    rng = random.Random(seed)
    return EngineRequest(
        request_id=f"r{seed}",
        prompt=tuple(rng.randrange(199) for _ in range(rng.randint(20, 70))),
        seeds=(seed, seed + 100),
        max_tokens=tokens,
        sampling=SamplingParams(temperature=temperature, **sampling),  # type: ignore[arg-type]
        logprobs=LogprobParams(top=2),
    )


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_no_token_changes(loaded: Loaded, temperature: float) -> None:
    """Alone and mixed with the other sources; 10 sequences, whose memory is enough for some of them."""
    requests = [asking(seed, temperature, top_k=5, repetition_penalty=1.0 + 0.2 * (seed % 2)) for seed in range(5)]
    alone = {request.request_id: run_alone(loaded.runner, request) for request in requests}
    for sources in (("heads",), tuple(DraftSource)):
        limited = Limited(loaded.runner, num_blocks=14, num_states=60)
        engine = drafting(loaded, sources, limited, max_running=6, speculation=24)
        assert run(engine, requests) == alone
        drafts = engine.scheduler.drafts.model
        assert isinstance(drafts, HeadDrafts)
        assert not drafts.texts.of_sequences
        assert [len(free) for free in drafts.texts.blocks.free] == [pool.blocks for pool in loaded.runner.head.pools]  # type: ignore[union-attr]
        stats = engine.output().stats
        if sources == ("heads",):
            assert stats.drafted["heads"] > 50


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_guessed_rightly_saves_steps(loaded: Loaded, temperature: float) -> None:
    """A head that thinks as the model does is never wrong, at any temperature: it draws with the token's own number."""
    request = msgspec.structs.replace(asking(5, temperature), seeds=(5,))
    engine = drafting(loaded)
    assert run(engine, [request])[request.request_id] == run_alone(loaded.runner, request)
    stats = engine.output().stats
    assert stats.steps == -(-len(request.prompt) // 64) + 40 - 1 - stats.accepted["heads"]
    if loaded.is_right:
        assert stats.accepted == stats.drafted
        assert stats.accepted["heads"] >= 30
    else:
        assert stats.accepted["heads"] < stats.drafted["heads"] / 2


def test_its_steps_are_timed_at_the_start(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidden states that are nobody's, in blocks and slots that are nobody's."""
    monkeypatch.setattr(cost_table, "ROUNDS", 1)
    engine, request = drafting(loaded), asking(7, 0.8)
    engine.scheduler.drafts.plan_costs(loaded.runner)
    costs, before = engine.scheduler.drafts.costs, engine.output().stats
    assert costs is not None
    reading, writing = os.pipe()
    while not costs.is_over:
        costs.measure(reading)
    os.close(reading)
    os.close(writing)
    assert {rows for is_model, rows in costs._seconds if is_model} == set(cost_table.MODEL_ROWS)
    assert {rows for is_model, rows in costs._seconds if not is_model} == set(cost_table.DRAFT_ROWS)
    assert engine.output().stats == before
    assert run(engine, [request])[request.request_id] == run_alone(loaded.runner, request)


@pytest.mark.usefixtures("always")
def test_after_preemptions_and_deaths(loaded: Loaded) -> None:
    """Each process ends after a few steps, and has memory for one long text at most."""
    request = msgspec.structs.replace(asking(3, 0.8, tokens=60), seeds=(3,))
    alone = run_alone(loaded.runner, request)
    told, preemptions = through_preemptions_and_deaths(
        request, lambda: drafting(loaded, runner=Limited(loaded.runner, num_blocks=8))
    )
    assert told == alone
    assert preemptions > 0


@pytest.mark.usefixtures("always")
def test_a_prompt_from_the_prefix_cache_is_read_from_where_it_is_computed(loaded: Loaded) -> None:
    request = msgspec.structs.replace(asking(7, 0.9), seeds=(7,), prompt=(*range(80),))
    alone = run_alone(loaded.runner, request)
    engine = drafting(loaded)
    for name in ("first", "again"):
        again = msgspec.structs.replace(request, request_id=name)
        assert run(engine, [again])[name] == alone
    assert engine.output().stats.cached_tokens > 0
    assert engine.output().stats.accepted["heads"] >= 60 * loaded.is_right


@pytest.mark.usefixtures("always")
def test_a_text_that_is_too_long_goes_on_without_it(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    head, last = loaded.runner.head, list[int]()
    assert head is not None
    inner = head.run
    monkeypatch.setattr(head, "run", lambda batch, *rest: (last.append(max(batch.positions)), inner(batch, *rest))[1])
    request = msgspec.structs.replace(asking(9, 0.0, tokens=120), seeds=(9,), prompt=(*range(60),))
    engine = drafting(loaded)
    assert run(engine, [request])[request.request_id] == run_alone(loaded.runner, request)
    assert 110 < max(last) < 128
    assert engine.scheduler.drafts.model is not None


def test_a_head_that_does_not_pay_is_asked_less_and_less(loaded: Loaded) -> None:
    """Costs are measured: one that takes as long as a thousand steps makes no draft."""
    head = loaded.runner.head
    assert head is not None
    engine = drafting(loaded)
    drafts = engine.scheduler.drafts.model
    assert isinstance(drafts, HeadDrafts)
    for rows in (1, 4, 12):
        drafts.gain.model_costs.note(rows, 1e-3)
        for _ in range(50):
            drafts.gain.draft_costs.note(rows, 1.0)
    request = msgspec.structs.replace(asking(11, 0.5, tokens=60), seeds=(11,))
    assert run(engine, [request])[request.request_id] == run_alone(loaded.runner, request)
    assert not engine.output().stats.drafted.get("heads")
