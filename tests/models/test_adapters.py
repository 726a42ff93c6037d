"""Adapters in PEFT's files compute what ``peft`` computes with them merged into the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoder_decoders
import numpy as np
import pytest
from numpy.typing import NDArray
from small_adapters import make_adapter, peft_logits, write_adapter
from small_models import VARIANTS, make_folder, prompt, run_rows
from transformers_reference import assert_close, load_reference, reference_logits

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.batch import Batch
from dragoman.models.settings import Precision

SETTINGS = models.ModelSettings(precision="float32", max_tokens=256, max_logit_rows=256, max_sequences=8)

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "peft's defaults": ("llama", {}),
    "all linear modules": ("llama", {"target_modules": "all-linear", "r": 4, "lora_alpha": 12}),
    "keys only": ("llama", {"target_modules": ["k_proj"], "r": 3}),
    "one half of a fused projection": ("llama-biases", {"target_modules": ["up_proj", "o_proj"], "r": 5}),
    "rank stabilized": ("llama", {"target_modules": ["q_proj", "down_proj"], "r": 16, "use_rslora": True}),
    "a pattern": ("llama", {"target_modules": r".*\.(q|v|gate)_proj"}),
    "names in full": ("llama", {"target_modules": ["model.layers.1.self_attn.q_proj"]}),
    "some layers": ("llama", {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [0, 2]}),
    "one layer, named": (
        "llama",
        {"target_modules": ["q_proj"], "layers_to_transform": 1, "layers_pattern": "layers"},
    ),
    "exclusions": ("llama", {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["layers.1.self_attn.q_proj"]}),
    "exclusion by pattern": ("llama", {"target_modules": ["q_proj", "v_proj"], "exclude_modules": r".*\.2\..*"}),
    "ranks and alphas by pattern": (
        "llama",
        {
            "target_modules": ["q_proj", "v_proj", "down_proj"],
            "rank_pattern": {"q_proj": 2, "layers.1.self_attn.v_proj": 9, r"layers\.[02]\.mlp\.down_proj": 17},
            "alpha_pattern": {"v_proj": 1, ".*down_proj": 30.0},
        },
    ),
    "the output": ("llama", {"target_modules": ["lm_head", "q_proj"], "r": 6}),
    "the output of tied tables": ("llama-tied", {"target_modules": ["lm_head", "v_proj"], "r": 6}),
    "DoRA": ("llama", {"target_modules": "all-linear", "r": 4, "use_dora": True}),
    "DoRA beside biases": ("llama-biases", {"target_modules": ["q_proj", "o_proj", "up_proj"], "use_dora": True}),
    "Mistral": ("mistral", {"target_modules": "all-linear", "r": 4}),
    "Qwen 2": ("qwen2", {"target_modules": "all-linear", "r": 4}),
    "Qwen 3": ("qwen3", {"target_modules": "all-linear", "r": 4}),
    "one projection for all heads": ("phi3", {"target_modules": ["qkv_proj", "gate_up_proj"], "r": 4}),
    "heads by turns": ("gpt-neox", {"target_modules": "all-linear", "r": 4}),
    "heads by turns, with DoRA": ("gpt-neox", {"target_modules": ["query_key_value"], "r": 4, "use_dora": True}),
    "parallel branches": ("falcon", {"target_modules": "all-linear", "r": 4}),
    "norms around": ("gemma2", {"target_modules": "all-linear", "r": 4}),
    "the text of a model with eyes": ("gemma3-images", {"target_modules": "all-linear", "r": 4}),
    "attention beside experts": ("qwen3-moe", {"target_modules": ["q_proj", "v_proj", "o_proj"], "r": 4}),
    "Mamba's projections": ("zamba2", {"target_modules": ["in_proj", "out_proj", "linear"], "r": 4}),
    "GPT-2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "r": 4, "fan_in_fan_out": True}),
    "GPT-2 by default": ("gpt2", {}),
    "projections stored by turns": ("gpt-neox", {"target_modules": ["query_key_value", "dense_h_to_4h"], "r": 4}),
    "grouped projections": ("falcon-40b", {"target_modules": ["query_key_value", "dense"], "r": 4}),
    "the attention of a mixture": ("mixtral", {"target_modules": ["q_proj", "v_proj", "o_proj"], "r": 4}),
    "GPT-2 with DoRA": ("gpt2", {"target_modules": ["c_attn", "c_fc"], "use_dora": True, "fan_in_fan_out": True}),
}


@pytest.mark.parametrize(("variant", "options"), OPTIONS.values(), ids=OPTIONS)
def test_logits_equal_those_of_peft(variant: str, options: dict[str, Any], tmp_path: Path) -> None:
    config = VARIANTS[variant]
    base = make_folder(tmp_path, config)
    folder = make_adapter(base, tmp_path / "adapter", **options)
    model = models.load(base, SETTINGS)
    ids = prompt(config.get("text_config", config)["vocab_size"])
    plain = run_rows(model, ids)
    info = model.load_adapter(2, "some", str(folder))
    # Merged into tied tables it would change the embedding too.
    expected = peft_logits(base, folder, ids, merged=not config.get("tie_word_embeddings"))
    assert np.abs(expected - plain).max() > 0.01 * np.abs(plain).max(), "the adapter changes something"
    assert_close(run_rows(model, ids, adapter=2), expected, 1e-4)
    assert (run_rows(model, ids) == plain).all()
    assert info.nbytes > 0


def test_an_adapter_of_the_model_without_its_head(tmp_path: Path) -> None:
    """Its names lack the first part that those of the whole model have."""
    base = make_folder(tmp_path, VARIANTS["llama"])
    folder = make_adapter(base, tmp_path / "adapter", base=True, target_modules=["q_proj", "down_proj"])
    model, ids = models.load(base, SETTINGS), prompt(131)
    model.load_adapter(0, "some", str(folder))
    assert_close(run_rows(model, ids, adapter=0), peft_logits(base, folder, ids, base=True), 1e-4)


def test_adapters_of_shared_blocks_are_refused(tmp_path: Path) -> None:
    """A file does not say which of the layers that share a matrix a change is for."""
    base = make_folder(tmp_path, VARIANTS["zamba2"])
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=r".*layers\.1\..*(q|in)_proj")
    with pytest.raises(ModelError, match=r"adapters cannot change model\.layers\.1\.shared_transformer.*\.q_proj of"):
        models.load(base, SETTINGS).load_adapter(0, "some", str(adapter))


def test_adapters_that_count_layers_otherwise_are_refused(tmp_path: Path) -> None:
    """Files of Llama 3.2 Vision count the layers that look at images among the others."""
    base = make_folder(tmp_path, VARIANTS["mllama"])
    folder = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    with pytest.raises(ModelError, match="MllamaForConditionalGeneration are not supported"):
        models.load(base, SETTINGS).load_adapter(0, "some", str(folder))


@pytest.mark.parametrize("use_dora", [False, True])
@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_rounded_models_err_no_more_than_without_an_adapter(
    precision: Precision, use_dora: bool, tmp_path: Path
) -> None:
    """But for half as much again: root mean squares of what the logits are wrong by, as parts of the logits."""
    base = make_folder(tmp_path, VARIANTS["llama"])
    folder = make_adapter(base, tmp_path / "adapter", target_modules="all-linear", r=4, use_dora=use_dora)
    model = models.load(base, models.ModelSettings(precision=precision, max_tokens=64, max_logit_rows=64))
    ids = prompt(131)
    without = error(run_rows(model, ids), reference_logits(load_reference(base), ids))
    model.load_adapter(0, "some", str(folder))
    assert error(run_rows(model, ids, adapter=0), peft_logits(base, folder, ids)) <= 1.5 * without


def error(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(ours - theirs).mean() / np.square(theirs).mean()))


def test_three_adapters_and_none_in_one_batch_give_each_row_its_own_bits(tmp_path: Path) -> None:
    """Whatever the order of sequences: of two rows each here, prompts and wanted rows of any length in the engine."""
    base = make_folder(tmp_path, VARIANTS["llama"])
    model = models.load(base, SETTINGS)
    for slot, options in enumerate(({"r": 3}, {"target_modules": "all-linear"}, {"use_dora": True})):
        folder = make_adapter(
            base, tmp_path / str(slot), seed=slot, **{"target_modules": ["q_proj", "o_proj"], **options}
        )
        model.load_adapter(slot, str(slot), str(folder))
    alone = [run_rows(model, prompt(131, 12, seed=n), adapter=n % 4 - 1, blocks=np.array([n])) for n in range(8)]
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(8)
        batch = Batch(
            token_ids=np.concatenate([prompt(131, 12, seed=n) for n in order]),
            positions=np.tile(np.arange(12, dtype=np.int32), 8),
            row_starts=np.arange(9, dtype=np.int32) * 12,
            block_tables=np.arange(8, dtype=np.int32)[:, None],
            logit_rows=np.arange(96, dtype=np.int32),
            adapters=(order % 4 - 1).astype(np.int32),
        )
        found = np.array(model.run(batch)).reshape(8, 12, -1)
        for place, n in enumerate(order):
            assert (found[place] == alone[n]).all()
        some = np.arange(0, 96, 5)  # of some sequences several rows, of others none
        sparse = np.array(model.run(batch._replace(logit_rows=some.astype(np.int32))))
        assert (sparse == found.reshape(96, -1)[some]).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("t5", {"target_modules": ["q", "v"], "r": 4}),
        ("t5-gated", {"target_modules": "all-linear", "r": 4, "use_dora": True}),
        ("bart", {"target_modules": "all-linear", "r": 4}),
    ],
)
def test_encoder_decoders_run_both_halves_with_the_adapter(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    base = encoder_decoders.make_folder(tmp_path, name)
    folder = write_adapter(encoder_decoders.load_reference(base), tmp_path / "a", task="SEQ_2_SEQ_LM", **options)
    model = models.load(base, models.ModelSettings(precision="float32", max_tokens=64, max_logit_rows=64))
    inputs, outputs = prompt(131, 33), prompt(131, 20, seed=7)
    plain = encoder_decoders.Driven(model, inputs).rows(outputs)
    model.load_adapter(1, "some", str(folder))
    import peft

    theirs = peft.PeftModel.from_pretrained(encoder_decoders.load_reference(base), folder).merge_and_unload()
    expected = encoder_decoders.reference_logits(theirs, inputs, outputs)
    assert np.abs(expected - plain).max() > 0.01 * np.abs(plain).max()
    assert_close(encoder_decoders.Driven(model, inputs, adapter=1).rows(outputs), expected, 1e-4)
    assert (encoder_decoders.Driven(model, inputs).rows(outputs) == plain).all()
