"""Adapters in PEFT's files compute what ``peft`` computes with them merged into the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_adapters import make_adapter, peft_logits
from small_models import VARIANTS, make_folder, prompt, run_rows
from transformers_reference import assert_close

from dragoman import models

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
    "GPT-2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "r": 4, "fan_in_fan_out": True}),
    "GPT-2 by default": ("gpt2", {}),
    "GPT-2 with DoRA": ("gpt2", {"target_modules": ["c_attn", "c_fc"], "use_dora": True, "fan_in_fan_out": True}),
}


@pytest.mark.parametrize(("variant", "options"), OPTIONS.values(), ids=OPTIONS)
def test_logits_equal_those_of_peft(variant: str, options: dict[str, Any], tmp_path: Path) -> None:
    config = VARIANTS[variant]
    base = make_folder(tmp_path, config)
    folder = make_adapter(base, tmp_path / "adapter", **options)
    model = models.load(base, SETTINGS)
    ids = prompt(config["vocab_size"])
    plain = run_rows(model, ids)
    info = model.load_adapter(2, "some", str(folder))
    # Merged into tied tables it would change the embedding too.
    expected = peft_logits(base, folder, ids, merged=not config.get("tie_word_embeddings"))
    assert np.abs(expected - plain).max() > 0.01 * np.abs(plain).max(), "the adapter changes something"
    assert_close(run_rows(model, ids, adapter=2), expected, 1e-4)
    assert (run_rows(model, ids) == plain).all()
    assert info.nbytes > 0
