"""Draft models with weights, in front of models with weights: the same tokens and log-probabilities, bit for bit.

At every temperature, beside the other sources of drafts, in company, after preemptions and after deaths of the process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tiny_model import make_tiny_gemma3, make_tiny_llama, make_tiny_qwen35, make_tiny_youtu

from dragoman import models
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine.engine import Engine
from dragoman.engine.runner import Runner
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation import draft_gain
from dragoman.engine.speculation.drafter import DraftSource
from dragoman.models.settings import Precision
from dragoman.text.tokenizer import Tokenizer
from simulation import Limited, run, run_alone, through_preemptions_and_deaths

Maker = Callable[[Path], Path]


class Pair(NamedTuple):
    """A model and its precision, and its draft model's. Where both are of one folder they think nearly alike."""

    model: Maker
    precision: Precision
    draft: Maker
    draft_precision: Precision

    @property
    def is_alike(self) -> bool:
        return self.model is self.draft


PAIRS = {
    "itself at int8": Pair(make_tiny_llama, "float32", make_tiny_llama, "int8"),
    "windows": Pair(make_tiny_gemma3, "bfloat16", make_tiny_gemma3, "int8"),
    "latent attention": Pair(make_tiny_youtu, "int8", make_tiny_youtu, "int8"),
    "in front of states": Pair(make_tiny_qwen35, "bfloat16", make_tiny_llama, "int8"),
}


class Loaded(NamedTuple):
    runner: Runner
    draft: Runner
    is_alike: bool


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    chosen = PAIRS[request.param]
    folder = chosen.model(tmp_path_factory.mktemp("model"))
    settings = models.ModelSettings(precision=chosen.precision, max_context=512, max_tokens=256, cache_bytes=0)
    other = folder if chosen.is_alike else chosen.draft(tmp_path_factory.mktemp("draft"))
    planned = models.plan_draft(str(other), settings, chosen.draft_precision, 256)[1]
    return Loaded(models.load(folder, settings), models.load(other, planned), chosen.is_alike)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are made whether they pay or not."""
    monkeypatch.setattr(draft_gain, "best_length", lambda acceptance, most, *costs: (min(5, most), 9.0))
    monkeypatch.setattr(draft_gain.DraftGain, "pays", lambda *asked: True)


def drafting(runner: Runner, loaded: Loaded, sources: tuple[str, ...] = ("model",), **limits: int) -> Engine:
    engine = Engine(runner, SchedulerSettings(draft_sources=sources, **limits))  # type: ignore[arg-type]
    engine.scheduler.drafts.use_model(loaded.draft)
    found = engine.scheduler.drafts.model
    assert found is not None
    found.vocabulary = DraftVocabulary(min(runner.vocab_size, loaded.draft.vocab_size))
    return engine


def asking(runner: Runner, seed: int, temperature: float) -> EngineRequest:
    rng = random.Random(seed)
    return EngineRequest(
        request_id=f"r{seed}",
        prompt=tuple(rng.randrange(runner.vocab_size) for _ in range(rng.randint(20, 90))),
        seeds=(seed, seed + 100),
        max_tokens=40,
        sampling=SamplingParams(temperature=temperature, top_k=5, repetition_penalty=rng.choice([1.0, 1.2])),
        logprobs=LogprobParams(top=2),
    )


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_no_token_changes(pair: Loaded, temperature: float) -> None:
    """Alone and mixed with the other sources; 16 sequences, whose memory is enough for some of them.

    Penalties of the text so far are not applied to guesses, so not all of them are right.
    """
    requests = [asking(pair.runner, seed, temperature) for seed in range(8)]
    alone = {request.request_id: run_alone(pair.runner, request) for request in requests}
    for sources in (("model",), tuple(DraftSource)):
        limited = Limited(pair.runner, num_blocks=14, num_states=60)
        engine = drafting(limited, pair, sources, max_running=6, speculation=24)
        assert run(engine, requests) == alone
        stats = engine.output().stats
        if sources == ("model",):
            assert stats.drafted["model"] > 50
            assert not pair.is_alike or stats.accepted["model"] > stats.drafted["model"] / 3


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
def test_after_preemptions_and_deaths(pair: Loaded) -> None:
    """Each process ends after a few steps, and has memory for one long text at most."""
    request = msgspec.structs.replace(asking(pair.runner, 3, 0.8), seeds=(3,), max_tokens=60)
    alone = run_alone(pair.runner, request)
    told, preemptions = through_preemptions_and_deaths(
        request, lambda: drafting(Limited(pair.runner, num_blocks=8), pair)
    )
    assert told == alone
    assert preemptions > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_trained_draft_model_guesses_what_the_embedded_model_says(temperature: float) -> None:
    folder = Path(__file__).resolve().parents[2] / "builtin-draft"
    settings = models.ModelSettings(max_context=512, max_tokens=256)
    runner = models.load(None, settings)
    draft = models.load(folder, models.plan_draft(str(folder), settings, "int8", 256)[1])
    tokenizer = Tokenizer.load(folder)
    questions = ("Who are you?", "Count from 1 to 20.", "Tell me a story about a fox called Pip.", "What is 47 + 38?")
    requests = [
        EngineRequest(
            request_id=question,
            prompt=tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"),
            seeds=(7,),
            max_tokens=80,
            end_token_ids=runner.card.eos_token_ids,
            sampling=SamplingParams(temperature=temperature),
        )
        for question in questions
    ]
    alone = {request.request_id: run_alone(runner, request) for request in requests}
    engine = drafting(runner, Loaded(runner, draft, is_alike=False))
    assert run(engine, requests) == alone
    stats = engine.output().stats
    assert stats.drafted["model"] > 100
    assert stats.accepted["model"] > 0.6 * stats.drafted["model"]
