#!/usr/bin/env python3
"""What a draft model saves: tokens per second of an engine with and without one, in turns.

    python benchmarks/drafts.py MODEL_FOLDER DRAFT_FOLDER --precision int4 --acceptance 0.5 0.7 0.8
    python benchmarks/drafts.py MODEL_FOLDER --shrink 12
    python benchmarks/drafts.py MODEL_FOLDER --head

Models with random weights agree about nothing, so the text is given token by token, and each guess is made right with
the given probability; what both models compute, and what drafts cost, stays the same. ``--shrink N`` makes a draft
model of the same vocabulary with about one N-th of the parameters, where no folder is named. ``--head``: the model's
own head drafts; a folder that does not exist becomes Qwen 3.5 in the sizes of the one with 0.8 billion parameters.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from dragoman import models
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine.engine import Engine
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation.draft_head import HeadDrafts
from dragoman.engine.speculation.draft_model import DraftModel, _Ask
from dragoman.models.families import find_family, read_spec
from dragoman.models.head_spec import head_spec
from dragoman.models.parameters import parameters
from dragoman.models.spec import DecoderSpec
from make_models import make_model


class GuessingModel(DraftModel):
    """A draft model whose guesses are right as often as is asked for. What it draws is computed and left out."""

    acceptance = 0.0

    def _draw(self, logits, asks: list[_Ask], place: int) -> list[int]:  # type: ignore[no-untyped-def]
        DraftModel._draw(self, logits, asks, place)
        drawn = []
        for ask in asks:
            sequence, at = ask.sequence, ask.sequence.num_generated + place
            text = sequence.sampling.forced_tokens
            is_right = at < len(text) and random.Random(f"{sequence.seed} {at}").random() < self.acceptance
            drawn.append(text[at] if is_right else 0)
        return drawn


class GuessingHead(HeadDrafts):
    """The same of a head."""

    acceptance = 0.0
    _draw = GuessingModel._draw


def speed(
    runner: models.Model,
    draft: models.Model | None,
    acceptance: float,
    streams: int,
    tokens: int,
    *,
    head: bool = False,
) -> float:
    """Tokens per second of so many streams, without the prompts' time. ``head``: with the model's own one."""
    engine = Engine(runner, SchedulerSettings(draft_sources=("model", "heads"), prefix_cache=False))
    drafts = engine.scheduler.drafts
    if draft is not None:
        drafts.model = model = GuessingModel(draft)
        model.vocabulary, model.acceptance = DraftVocabulary(runner.vocab_size), acceptance
    if head and runner.head is not None:
        drafts.use_head(runner.head, runner.hidden_rows)
        drafts.model = guessing = GuessingHead(runner.head)
        guessing.acceptance = acceptance
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


def make_with_head(folder: Path) -> None:
    """Make a model with a head, in the sizes of Qwen3.5-0.8B."""
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "vocab_size": 248_320,
        "max_position_embeddings": 262_144,
        "tie_word_embeddings": True,
    }
    spec, family = read_spec(config), find_family(config)
    head = head_spec(spec, feeds_normed=True)
    layer = {f"mtp.{name.removeprefix('model.')}": shape for name, shape in stored_shapes(head, family.names).items()}
    mtp = {"mtp.fc.weight": (1024, 2048)} | {
        f"mtp.pre_fc_norm_{each}.weight": (1024,) for each in ("hidden", "embedding")
    }
    make_model(folder, config, shapes=stored_shapes(spec, family.names) | layer | mtp)


def stored_shapes(spec: DecoderSpec, names: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a decoder's tensors, of the modules that have a name in its family."""
    found = {}
    for parameter in parameters(spec):
        stored = names.get(parameter.module, ())
        parts = parameter.sizes(len(stored)) if stored else ()
        for name, size in zip(stored, parts, strict=True):
            full = name.format(layer=parameter.layer)
            whole = full if full.endswith(("A_log", "dt_bias")) else f"{full}.{parameter.kind}"
            found[whole] = parameter.stored or (size, *parameter.shape[1:])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("draft", type=Path, nargs="?")
    parser.add_argument("--head", action="store_true", help="the model's own head drafts")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--draft-precision", default="int8")
    parser.add_argument("--shrink", type=float, default=12)
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.5, 0.7, 0.8])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if asked.head and not asked.model.exists():
        make_with_head(asked.model)
    draft = None
    settings = models.ModelSettings(precision=asked.precision, max_context=1024, kv_tokens=16384)
    runner = models.load(str(asked.model), settings, head_context=1024 if asked.head else None)
    print(f"{runner.card.name}: {runner.card.weight_bytes / 1e9:.2f} GB of weights at {asked.precision}")
    if not asked.head:
        with tempfile.TemporaryDirectory() as folder:
            draft_folder = asked.draft or shrunk(asked.model, asked.shrink, Path(folder, "draft"))
            described, chosen, planned = models.plan_draft(
                str(draft_folder), models.ModelSettings(), asked.draft_precision, 1024
            )
            draft = models.load(str(draft_folder), chosen)
        size = f"{draft.card.weight_bytes / 1e9:.3f} GB at {planned.precision}"
        print(f"draft model: {size}, {described.spec.layers} layers")
    print("streams  right   without    with   times (each round)")
    for streams in asked.streams:
        for acceptance in asked.acceptance:
            pairs = []
            for _ in range(asked.rounds):
                without = speed(runner, None, 0.0, streams, asked.tokens)
                after = speed(runner, draft, acceptance, streams, asked.tokens, head=asked.head)
                pairs.append((without, after))
            ratios = [after / before for before, after in pairs]
            before, after = (statistics.median(each) for each in zip(*pairs, strict=True))
            times = f"{statistics.median(ratios):.2f} ({', '.join(f'{each:.2f}' for each in ratios)})"
            print(f"{streams:7}  {acceptance:5.2f}  {before:8.1f}  {after:6.1f}   {times}", flush=True)


if __name__ == "__main__":
    main()
