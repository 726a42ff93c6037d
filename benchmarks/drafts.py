#!/usr/bin/env python3
"""What a draft model saves: tokens per second of an engine with and without one, in turns.

    python benchmarks/drafts.py MODEL_FOLDER DRAFT_FOLDER --precision int4 --acceptance 0.5 0.7 0.8
    python benchmarks/drafts.py models/llama-3.1-8b models/llama-0.6b --precision int4 --streams 1
    python benchmarks/drafts.py MODEL_FOLDER --shrink 12
    python benchmarks/drafts.py MODEL_FOLDER --head
    python benchmarks/drafts.py MODEL_FOLDER --eagle 32000

Models with random weights agree about nothing, so the text is given token by token, and each guess is made right with
the given probability: so many places of the text are right, others in each round. What both models compute, and what
drafts cost, stays the same. ``--shrink N`` makes a draft model of the same vocabulary with about one N-th of the
parameters, where no folder is named. Folders named llama-3.1-8b (16 GB) and llama-0.6b (1 GB, a draft model for it in
the sizes of Qwen3-0.6B) are made where they do not exist. ``--head``: the model's own head drafts; a folder that does
not exist becomes Qwen 3.5 in the sizes of the one with 0.8 billion parameters. ``--eagle N``: an EAGLE-3 head drafts,
of the model's sizes, that guesses among N tokens; it is made beside the model. Of a head it is also shown what one
guess takes, and one step of the model, in turns; what it is compared with is the model loaded without it, so that what
it costs where it is not asked counts too.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dragoman import models
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine.engine import Engine
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation.draft_head import HeadDrafts
from dragoman.engine.speculation.draft_model import DraftModel
from dragoman.engine.speculation.draft_texts import Ask
from dragoman.models.batch import Batch, tables_of_one
from dragoman.models.families import find_family, read_spec
from dragoman.models.head_spec import HeadSpec, head_spec
from dragoman.models.parameters import parameters
from dragoman.models.spec import DecoderSpec
from make_models import SHAPES, make_model, tensor_shapes

_LLAMA = SHAPES["llama-3.2-1b"]
PAIR = {
    "llama-3.1-8b": _LLAMA
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "intermediate_size": 14336,
        "rope_scaling": _LLAMA["rope_scaling"] | {"factor": 8.0},
        "tie_word_embeddings": False,
    },
    "llama-0.6b": _LLAMA
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "head_dim": 128,
        "intermediate_size": 3072,
    },
}
"""Shapes that are made where a folder of that name does not exist. They have one vocabulary."""
SHARD_BYTES = 4 << 30


@functools.lru_cache(maxsize=64)
def right_places(seed: int, tokens: int, acceptance: float) -> frozenset[int]:
    """Return where in a text of so many tokens guesses are right."""
    return frozenset(random.Random(seed).sample(range(tokens), round(acceptance * tokens)))


class GuessingModel(DraftModel):
    """A draft model whose guesses are right as often as is asked for. What it draws is computed and left out."""

    acceptance = 0.0

    def _draw(self, logits, asks: list[Ask], place: int) -> list[int]:  # type: ignore[no-untyped-def]
        DraftModel._draw(self, logits, asks, place)
        drawn = []
        for ask in asks:
            sequence, at = ask.sequence, ask.sequence.num_generated + place
            text = sequence.sampling.forced_tokens
            drawn.append(text[at] if at in right_places(sequence.seed, len(text), self.acceptance) else 0)
        return drawn


class GuessingHead(HeadDrafts):
    """The same of a head."""

    acceptance = 0.0
    _draw = GuessingModel._draw


def time_steps(engine: Engine, runner: models.Model) -> None:
    """Measure what steps cost, as servers do at their start."""
    drafts = engine.scheduler.drafts
    drafts.plan_costs(runner)
    reading, writing = os.pipe()
    while drafts.costs is not None and not drafts.costs.is_over:
        drafts.costs.measure(reading)
    os.close(reading)
    os.close(writing)


def speed(
    runner: models.Model,
    draft: models.Model | None,
    acceptance: float,
    streams: int,
    tokens: int,
    prompt: int,
    turn: int,
    *,
    head: bool = False,
) -> float:
    """Tokens per second of so many streams, without the prompts' time. ``turn``: each has other texts. ``head``: with
    the model's own one.

    What steps cost is timed before, as servers do at their start.
    """
    engine = Engine(runner, SchedulerSettings(draft_sources=("model", "heads"), prefix_cache=False))
    drafts = engine.scheduler.drafts
    if draft is not None:
        drafts.model = model = GuessingModel(draft)
        model.vocabulary, model.acceptance = DraftVocabulary(runner.vocab_size), acceptance
    if head and runner.head is not None:
        drafts.use_head(runner.head, runner.hidden_rows)
        drafts.model = guessing = GuessingHead(runner.head)
        guessing.acceptance = acceptance
    time_steps(engine, runner)
    for index in range(turn * streams, (turn + 1) * streams):
        rng = random.Random(index)
        text = tuple(rng.randrange(1, runner.vocab_size) for _ in range(prompt + tokens))
        sampling = SamplingParams(temperature=0.0, forced_tokens=text[prompt:])
        engine.submit(
            EngineRequest(
                request_id=str(index), prompt=text[:prompt], seeds=(index,), max_tokens=tokens, sampling=sampling
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


def make_eagle(model: Path, guessed: int, folder: Path) -> None:
    """Make an EAGLE-3 head for a model, which guesses among the first ``guessed`` tokens."""
    config = json.loads((model / "config.json").read_text("utf-8"))
    width = config["hidden_size"]
    kept = ("bos_token_id", "eos_token_id", "rope_theta", "rope_scaling", "rms_norm_eps", "max_position_embeddings")
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    config = {key: config[key] for key in (*kept, *sizes) if key in config} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": guessed,
    }
    shapes = {}
    for name, shape in tensor_shapes(config).items():
        if ".layers.0." in name:
            is_wide = name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
            shapes[name.removeprefix("model.")] = (shape[0], 2 * width) if is_wide else shape
    shapes |= {"fc.weight": (width, 3 * width), "layers.0.hidden_norm.weight": (width,), "norm.weight": (width,)}
    make_model(folder, config, shapes=shapes | {"lm_head.weight": (guessed, width), "d2t": (guessed,)})


def show_costs(runner: models.Model, turns: int = 60) -> None:
    """Print the bytes of a head, and the medians of what one guess takes, and one step of the model of one row."""
    head = runner.head
    assert head is not None
    shared = {"embedding.weight"} | ({"head.weight"} if isinstance(head.spec, HeadSpec) else set())
    own = sum(value.nbytes for name, value in head.weights.items() if name not in shared)
    one, start = np.zeros(1, np.int32), np.array([0, 1], np.int32)
    hidden = np.random.default_rng(1).normal(size=(1, head.width)).astype(np.float32)
    plain = Batch(one, one, start, tables_of_one(runner.pools, 1), one)
    guess = Batch(one, one, start, tables_of_one(head.pools, 1), one, one, hidden)
    if runner.num_states:
        plain = plain._replace(state_slots=one, state_rows=one)
    times: dict[str, list[float]] = {"guess": [], "step": []}
    for _ in range(turns):
        for name, run in (("guess", lambda: head.run(guess)), ("step", lambda: runner.run(plain))):
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    guess_s, step_s = (statistics.median(times[name]) for name in ("guess", "step"))
    ratio = statistics.median(a / b for a, b in zip(times["guess"], times["step"], strict=True))
    cost = f"a guess {guess_s * 1e3:.2f} ms, a step {step_s * 1e3:.2f} ms ({ratio:.3f})"
    print(f"head: {own / 1e9:.3f} GB of its own; {cost}")


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
    parser.add_argument("--eagle", type=int, metavar="N", help="an EAGLE-3 head drafts, which guesses among N tokens")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--draft-precision", default="int8")
    parser.add_argument("--shrink", type=float, default=12)
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.5, 0.7, 0.8])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=128, help="tokens before those that are timed")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    for folder in (asked.model, asked.draft):
        if folder is not None and folder.name in PAIR and not folder.exists():
            make_model(folder, PAIR[folder.name], shard_bytes=SHARD_BYTES)
    if asked.head and not asked.model.exists():
        make_with_head(asked.model)
    draft = None
    settings = models.ModelSettings(precision=asked.precision, max_context=1024, kv_tokens=16384)
    has_head = asked.head or asked.eagle is not None
    eagle = None
    if asked.eagle is not None:
        folder = asked.model.with_name(f"{asked.model.name}-eagle-{asked.eagle}")
        if not folder.exists():
            make_eagle(asked.model, asked.eagle, folder)
        eagle = models.EagleChoice(source=str(folder))
    runner = models.load(str(asked.model), settings, head_context=1024 if has_head else None, eagle=eagle)
    print(f"{runner.card.name}: {runner.card.weight_bytes / 1e9:.2f} GB of weights at {asked.precision}")
    plain = models.load(str(asked.model), settings) if has_head else runner
    if has_head:
        show_costs(runner)
    else:
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
            for turn in range(asked.rounds):
                sizes = streams, asked.tokens, asked.prompt, turn
                without = speed(plain, None, 0.0, *sizes)
                after = speed(runner, draft, acceptance, *sizes, head=has_head)
                pairs.append((without, after))
            ratios = [after / before for before, after in pairs]
            before, after = (statistics.median(each) for each in zip(*pairs, strict=True))
            times = f"{statistics.median(ratios):.2f} ({', '.join(f'{each:.2f}' for each in ratios)})"
            print(f"{streams:7}  {acceptance:5.2f}  {before:8.1f}  {after:6.1f}   {times}", flush=True)


if __name__ == "__main__":
    main()
