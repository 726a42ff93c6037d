"""Models whose keys and values are kept in int4 compute the same mathematics with the same rounded keys and values.

The witness rounds them as ``kernels.reference`` does, which the kernels' own tests compare bit by bit, and leaves all
else in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import encoder_decoders
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from numpy_decoder import NumpyDecoder, round_to_bfloat16
from safetensors.torch import load_file, save_file
from small_adapters import make_adapter
from small_models import VARIANTS, make_folder, prompt, run_rows
from transformers_reference import load_reference, torch

from dragoman import kernels, models
from dragoman.core.events import PromptEvent
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.engine.engine import Engine
from dragoman.engine.settings import SchedulerSettings
from dragoman.kernels.reference.attention import int4_keys, int4_values

Floats = NDArray[Any]

LIMITS: dict[str, int] = {"max_tokens": 64, "max_logit_rows": 64, "max_sequences": 4, "cache_bytes": 0}
INT4 = models.ModelSettings(precision="float32", kv_precision="int4", **LIMITS)
FLOAT32 = models.ModelSettings(precision="float32", **LIMITS)

DECODERS = ("llama", "qwen2", "gemma2", "gpt2", "falcon-40b")


def judge(model: models.Model) -> NumpyDecoder:
    weights = {
        name: value.dequantize() if isinstance(value, kernels.PackedMatrix) else np.asarray(value)
        for name, value in model.weights.items()
    }
    # Of bfloat16, AVX-512 multiplies queries and weights in bfloat16 too.
    round_query = round_to_bfloat16 if kernels.instruction_set() in ("amx", "avx512") else np.asarray
    return NumpyDecoder(
        model.config,
        weights,
        round_kv=int4_values,
        round_query=round_query,
        round_key=int4_keys,
        round_own=round_to_bfloat16,
    )


def off(ours: Floats, theirs: Floats) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def assert_rounded_alike(ours: list[Floats], witness: list[Floats], exact: list[Floats]) -> None:
    """Ours differ from the witness's by little of what rounding does at all.

    Sums in another order move a number across the middle between two levels now and then, and from there on the two go
    different ways, by the effect of one step of some thousand. A wrong scale, origin or rotation moves all of them.
    """
    differences = [off(*both) for both in zip(ours, witness, strict=True)]
    effects = [off(*both) for both in zip(ours, exact, strict=True)]
    assert np.median(effects) > 0.02, "nothing is rounded"
    assert np.median(differences) <= 0.15 * np.median(effects)
    assert max(differences) <= 0.6 * np.median(effects)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_equal_numpy(name: str, tmp_path: Path) -> None:
    """Two blocks of tokens: grouped heads, biases of keys, windows and soft caps, heads of 10 to 32 numbers."""
    folder = make_folder(tmp_path, VARIANTS[name])
    model, exact = models.load(folder, INT4), models.load(folder, FLOAT32)
    inputs = [prompt(VARIANTS[name]["vocab_size"], 60, seed=seed) for seed in range(16)]
    ours = [run_rows(model, ids) for ids in inputs]
    assert_rounded_alike(ours, [judge(model).logits(ids) for ids in inputs], [run_rows(exact, ids) for ids in inputs])


def test_prompts_are_scored_by_the_same_logits(tmp_path: Path) -> None:
    """Log-probabilities of prompt tokens, in chunks of any size; each chunk reads what the ones before it wrote."""
    model = models.load(make_folder(tmp_path, VARIANTS["llama"]), INT4)
    witness = judge(model)
    errors = []
    for seed in range(8):
        ids = prompt(131, 50, seed=seed)
        logits = witness.logits(ids)[:-1].astype(np.float64)
        expected = logits[np.arange(49), ids[1:]] - np.log(np.exp(logits).sum(1))
        request = EngineRequest(
            request_id="scored",
            prompt=tuple(ids.tolist()),
            max_tokens=1,
            seeds=(1,),
            sampling=SamplingParams(temperature=0),
            logprobs=LogprobParams(prompt=True),
        )
        scores = set()
        for chunk in (64, 17, 5):
            engine, events = Engine(model, SchedulerSettings(step_tokens=chunk)), []
            engine.submit(request)
            while engine.has_work:
                events += engine.step().events
            (scored,) = (event for event in events if isinstance(event, PromptEvent))
            scores.add(scored.logprobs)
        (found,) = scores
        assert found[0] is None
        errors.append(np.abs(np.array(found[1:], np.float64) - expected).max())
    assert np.median(errors) <= 0.05
    assert max(errors) <= 0.3


@pytest.mark.parametrize(
    "options", [{}, {"target_modules": "all-linear", "use_dora": True}], ids=["queries and values", "all, with DoRA"]
)
def test_an_adapter_is_the_model_with_merged_weights(options: dict[str, Any], tmp_path: Path) -> None:
    """Keys and values that an adapter changes are rounded after the change."""
    base = make_folder(tmp_path, VARIANTS["llama"])
    adapter = make_adapter(base, tmp_path / "adapter", **options)
    merged = tmp_path / "merged"
    peft = pytest.importorskip("peft")
    peft.PeftModel.from_pretrained(load_reference(base), adapter).merge_and_unload().save_pretrained(merged)
    model, exact = models.load(base, INT4), models.load(base, FLOAT32)
    witness = judge(models.load(merged, FLOAT32))
    for each in (model, exact):
        each.load_adapter(1, "some", str(adapter))
    inputs = [prompt(131, 60, seed=seed) for seed in range(16)]
    ours = [run_rows(model, ids, adapter=1) for ids in inputs]
    assert_rounded_alike(
        ours, [witness.logits(ids) for ids in inputs], [run_rows(exact, ids, adapter=1) for ids in inputs]
    )


@pytest.mark.parametrize("name", ["t5-gated", "bart"])
def test_encoder_decoders_equal_transformers_with_rounded_keys(name: str, tmp_path: Path) -> None:
    """Keys and values of the input for itself and for the output, and of the output.

    T5's queries are made smaller: its scores have no scale, and roundings of these would decide what it sees.
    """
    folder = encoder_decoders.make_folder(tmp_path, name)
    weights = load_file(folder / "model.safetensors")
    smaller = {where: each * (0.1 if where.endswith(".q.weight") else 1.0) for where, each in weights.items()}
    save_file(smaller, folder / "model.safetensors", {"format": "pt"})
    sizes = {"max_tokens": 64, "max_logit_rows": 64, "max_sequences": 2, "max_context": 192, "cache_bytes": 0}
    settings = models.ModelSettings(precision="float32", **sizes)
    model = models.load(folder, msgspec.structs.replace(settings, kv_precision="int4"))
    exact = models.load(folder, settings)
    reference = encoder_decoders.load_reference(folder)
    head_dim = 10
    for where, module in reference.named_modules():
        kept = {"k_proj": int4_keys, "k": int4_keys, "v_proj": int4_values, "v": int4_values}.get(where.split(".")[-1])
        if kept is not None:
            module.register_forward_hook(partial(rounded, kept, head_dim))
    ours, theirs, unrounded = [], [], []
    for seed in range(16):
        inputs, outputs = prompt(131, 70, seed=seed), prompt(131, 45, seed=100 + seed)
        ours.append(encoder_decoders.Driven(model, inputs).rows(outputs))
        unrounded.append(encoder_decoders.Driven(exact, inputs).rows(outputs))
        theirs.append(encoder_decoders.reference_logits(reference, inputs, outputs))
    assert_rounded_alike(ours, theirs, unrounded)


def rounded(kept: Callable[[Floats], Floats], head_dim: int, _module: Any, _given: Any, made: Any) -> Any:
    """What a projection ``[1, tokens, heads * head_dim]`` made, as int4 keeps it."""
    return torch.from_numpy(kept(made[0].numpy().reshape(made.shape[1], -1, head_dim))).reshape(made.shape)
