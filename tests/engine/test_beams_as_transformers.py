"""Beam search and beam sampling find transformers' hypotheses, with its scores, on small random decoders."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman import models
from dragoman.core.events import FinishReason
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import BeamParams, SamplingParams
from dragoman.engine.beam_search.expand import gumbel_noise
from dragoman.engine.runner import Runner
from simulation import Hypothesis, hypotheses, run_beams

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, PAD = 97, 96
NO_ENDS = {"bos_token_id": None, "eos_token_id": None}
LLAMA = NO_ENDS | {
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**LLAMA),
    "qwen2": lambda: transformers.Qwen2Config(**LLAMA),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=4, **NO_ENDS),
}


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Runner, Any]:
    """One random model here and there. Its logits are peaked and vary, as those of trained models do."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    theirs = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param](), attn_implementation="eager")
    for name, weight in theirs.named_parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.9 / 48**0.5 if "head" in name or "wte" in name else 1.4 / 48**0.5)
    folder: Path = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    ours = models.load(folder, models.ModelSettings(precision="float32", cache_bytes=0, max_tokens=128))
    return ours, theirs.eval()


def random_search(rng: random.Random, kind: str) -> EngineRequest:
    """Every parameter that both sides have."""
    num_beams = rng.randint(2, 8)
    max_tokens = rng.choice([1, 2, *[rng.randint(3, 24)] * 4])
    prompt = tuple(rng.choices(range(VOCAB), k=rng.randint(2, 45)))
    ends = tuple(rng.sample(range(VOCAB - 1), rng.choice([0, 1, 2, 4, 8])))
    # transformers lets a prompt's end begin a phrase, and bans no end of text.
    first, last = rng.sample([token for token in range(VOCAB) if token not in (*ends, prompt[-1])], 2)
    phrases = ((rng.choice([first, last]),), (first, last))
    draws = kind == "sampling"
    sampling = SamplingParams(
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        no_repeat_ngram_size=rng.choice([0, 0, 2, 3]),
        banned_phrases=phrases if rng.random() < 0.3 else (),
        temperature=rng.choice([1.0, 0.6, 1.7]) if draws else 1.0,
        top_k=rng.choice([0, 0, 1, 12]) if draws else 0,
        top_p=rng.choice([1.0, 1.0, 0.8]) if draws else 1.0,
        min_p=rng.choice([0.0, 0.0, 0.05]) if draws else 0.0,
    )
    return EngineRequest(
        request_id="ours",
        prompt=prompt,
        seeds=(rng.getrandbits(64),) * rng.randint(1, num_beams),
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, 0, min(3, max_tokens)]) if ends else 0,
        end_token_ids=ends,
        sampling=sampling,
        beams=BeamParams(
            num_beams=num_beams,
            kind="sampling" if draws else "deterministic",
            length_penalty=rng.choice([1.0, 0.0, 2.0, -1.0, 0.6]),
            early_stopping=rng.choice([False, False, True, "never"]),
            post_normalization=rng.random() < 0.4,
        ),
    )


def generate(model: Any, request: EngineRequest) -> list[Hypothesis]:
    """What transformers makes of the request."""
    sampling, beams = request.sampling, request.beams
    assert beams is not None
    ids = torch.tensor([request.prompt])
    drawing = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    drawing |= {"min_p": sampling.min_p or None, "do_sample": True}
    made = model.generate(
        ids,
        generation_config=transformers.GenerationConfig(
            num_beams=beams.num_beams,
            num_return_sequences=len(request.seeds),
            max_new_tokens=request.max_tokens,
            min_new_tokens=request.min_tokens or None,
            eos_token_id=list(request.end_token_ids) or None,
            pad_token_id=PAD,
            length_penalty=beams.length_penalty,
            early_stopping=beams.early_stopping,
            repetition_penalty=sampling.repetition_penalty,
            no_repeat_ngram_size=sampling.no_repeat_ngram_size or None,
            bad_words_ids=[list(phrase) for phrase in sampling.banned_phrases] or None,
            renormalize_logits=beams.post_normalization,
            return_dict_in_generate=True,
            output_scores=True,
            **(drawing if beams.kind == "sampling" else {"do_sample": False}),
        ),
        attention_mask=torch.ones_like(ids),
    )
    found = []
    for row, score in zip(made.sequences.tolist(), made.sequences_scores.tolist(), strict=True):
        tokens = row[len(request.prompt) :]
        ends = [place for place, token in enumerate(tokens) if token in request.end_token_ids]
        length = ends[0] + 1 if ends else min(len(tokens), request.max_tokens)
        assert set(tokens[length:]) <= {PAD}
        found.append(Hypothesis(tuple(tokens[:length]), FinishReason.EOS if ends else FinishReason.LENGTH, score))
    return found


def assert_same(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    assert [(each.token_ids, each.finish) for each in ours] == [(each.token_ids, each.finish) for each in theirs]
    np.testing.assert_allclose([h.score for h in ours], [h.score for h in theirs], rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("case", range(24))
def test_beam_search(pair: tuple[Runner, Any], case: int) -> None:
    request = random_search(random.Random(case), "deterministic")
    runner, theirs = pair
    assert_same(hypotheses(run_beams(runner, request), request), generate(theirs, request))


@pytest.mark.parametrize("case", range(24))
def test_beam_sampling(pair: tuple[Runner, Any], case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our random numbers in their multinomial: the largest sums of log-probability and Gumbel noise are a draw."""
    request = random_search(random.Random(1000 + case), "sampling")
    runner, theirs = pair
    place = 0

    def multinomial(probabilities: Any, num_samples: int) -> Any:
        nonlocal place
        count = probabilities.shape[1] // VOCAB
        noise = [gumbel_noise(request.seeds[0], place, rank, np.arange(VOCAB)) for rank in range(count)]
        place += 1
        with np.errstate(divide="ignore"):
            keys: NDArray[np.float64] = np.log(probabilities[0].double().numpy()) + np.concatenate(noise)
        return torch.tensor(np.argsort(-keys, kind="stable")[None, :num_samples].copy())

    monkeypatch.setattr(torch, "multinomial", multinomial)
    reference = generate(theirs, request)
    assert place > 0
    assert_same(hypotheses(run_beams(runner, request), request), reference)


def test_the_widest_search(pair: tuple[Runner, Any]) -> None:
    runner, theirs = pair
    request = msgspec.structs.replace(
        random_search(random.Random(7), "deterministic"),
        seeds=(0,) * 31,
        beams=BeamParams(num_beams=31, length_penalty=0.5),
        max_tokens=20,
        end_token_ids=(3, 4, 5),
        min_tokens=0,
    )
    assert_same(hypotheses(run_beams(runner, request), request), generate(theirs, request))
