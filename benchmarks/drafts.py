#!/usr/bin/env python3
"""What a draft model saves: tokens per second of an engine with and without one, in turns.

    python benchmarks/drafts.py MODEL_FOLDER DRAFT_FOLDER --precision int4 --acceptance 0.5 0.7 0.8
    python benchmarks/drafts.py MODEL_FOLDER --shrink 12

Models with random weights agree about nothing, so the text is given token by token, and each guess is made right with
the given probability; what both models compute, and what drafts cost, stays the same. ``--shrink N`` makes a draft
model of the same vocabulary with about one N-th of the parameters, where no folder is named.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from dragoman import models
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine.engine import Engine
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation.draft_model import DraftModel, _Ask
from make_models import make_model


class GuessingModel(DraftModel):
    """A draft model whose guesses are right as often as is asked for. What it draws is computed and left out."""

    acceptance = 0.0

    def _draw(self, logits, asks: list[_Ask], place: int) -> list[int]:  # type: ignore[no-untyped-def]
        super()._draw(logits, asks, place)
        drawn = []
        for ask in asks:
            sequence, at = ask.sequence, ask.sequence.num_generated + place
            text = sequence.sampling.forced_tokens
            is_right = at < len(text) and random.Random(f"{sequence.seed} {at}").random() < self.acceptance
            drawn.append(text[at] if is_right else 0)
        return drawn


def speed(runner: models.Model, draft: models.Model | None, acceptance: float, streams: int, tokens: int) -> float:
    """Tokens per second of so many streams, without the prompts' time."""
    engine = Engine(runner, SchedulerSettings(draft_sources=("model",), prefix_cache=False))
    if draft is not None:
        engine.scheduler.drafts.model = model = GuessingModel(draft)
        model.vocabulary, model.acceptance = DraftVocabulary(runner.vocab_size), acceptance
    for index in range(streams):
        rng = random.Random(index)
        text = tuple(rng.randrange(1, runner.vocab_size) for _ in range(128 + tokens))
        sampling = SamplingParams(temperature=0.0, forced_tokens=text[128:])
        engine.submit(
            EngineRequest(
                request_id=str(index), prompt=text[:128], seeds=(index,), max_tokens=tokens, sampling=sampling
            )
        )
    generated, started = 0, 0.0
    while engine.has_work:
        events = engine.step().events
        if started:
            generated += sum(hasattr(event, "token_id") for event in events)
        elif len(engine.scheduler.running) == streams and all(s.remaining == 1 for s in engine.scheduler.running):
            started = time.perf_counter()
    return generated / (time.perf_counter() - started)


def shrunk(folder: Path, times: float, target: Path) -> Path:
    """Make a draft model for the one in ``folder``: narrower and with fewer layers."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    side = times**0.5
    heads = max(1, round(config["num_attention_heads"] / side))
    kv_heads = next(each for each in range(min(heads, config["num_key_value_heads"]), 0, -1) if heads % each == 0)
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    config |= {
        "hidden_size": 64 * max(1, round(config["hidden_size"] / times / 64 * (side / 2))),
        "intermediate_size": 64 * max(1, round(config["intermediate_size"] / side / 64)),
        "num_hidden_layers": max(1, round(config["num_hidden_layers"] / 2)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "tie_word_embeddings": True,
    }
    make_model(target, config)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("draft", type=Path, nargs="?")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--draft-precision", default="int8")
    parser.add_argument("--shrink", type=float, default=12)
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.5, 0.7, 0.8])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draft_folder = asked.draft or shrunk(asked.model, asked.shrink, Path(folder, "draft"))
        described, settings, planned = models.plan_draft(
            str(draft_folder), models.ModelSettings(), asked.draft_precision, 1024
        )
        draft = models.load(str(draft_folder), settings)
        runner = models.load(
            str(asked.model), models.ModelSettings(precision=asked.precision, max_context=1024, kv_tokens=16384)
        )
    print(f"{runner.card.name}: {runner.card.weight_bytes / 1e9:.2f} GB of weights at {asked.precision}")
    print(f"draft model: {draft.card.weight_bytes / 1e9:.3f} GB at {planned.precision}, {described.spec.layers} layers")
    print("streams  right   without    with   times (each round)")
    for streams in asked.streams:
        for acceptance in asked.acceptance:
            pairs = []
            for _ in range(asked.rounds):
                without = speed(runner, None, 0.0, streams, asked.tokens)
                pairs.append((without, speed(runner, draft, acceptance, streams, asked.tokens)))
            ratios = [after / before for before, after in pairs]
            before, after = (statistics.median(each) for each in zip(*pairs, strict=True))
            times = f"{statistics.median(ratios):.2f} ({', '.join(f'{each:.2f}' for each in ratios)})"
            print(f"{streams:7}  {acceptance:5.2f}  {before:8.1f}  {after:6.1f}   {times}", flush=True)


if __name__ == "__main__":
    main()
