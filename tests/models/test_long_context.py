"""Contexts of many spans: what transformers computes, thousands of tokens in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import VARIANTS, make_folder, prompt, run_rows
from transformers_reference import assert_close, torch, transformers

from dragoman import models
from dragoman.models.settings import KVPrecision

LENGTH = 4500
STEP = 500
_LONG = VARIANTS["llama"] | {"max_position_embeddings": 131072, "num_hidden_layers": 2}
_LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama3": _LONG | {"rope_scaling": _LLAMA3 | {"original_max_position_embeddings": 1024}},
    "yarn": _LONG | {"rope_scaling": {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 2048}},
    "window": _LONG | _MISTRAL | {"sliding_window": 1111},
}


# In int8: the largest of 590,000 errors; their root mean square is 1 %, twice that of bfloat16.
@pytest.mark.parametrize(("kv_precision", "tolerance"), [("float32", 1e-4), ("int8", 8e-2)])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_thousands_of_tokens_in(
    config: dict[str, Any], kv_precision: KVPrecision, tolerance: float, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path, config)
    ids = prompt(config["vocab_size"], length=LENGTH)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    with torch.no_grad():
        expected = np.asarray(theirs(torch.tensor(ids[None], dtype=torch.long)).logits[0])
    settings = models.ModelSettings(
        precision="float32",
        kv_precision=kv_precision,
        kv_tokens=LENGTH,
        max_tokens=STEP,
        max_logit_rows=STEP,
        max_sequences=1,
    )
    ours = models.load(folder, settings)
    parts = [run_rows(ours, ids[start : start + STEP], start) for start in range(0, LENGTH, STEP)]
    assert_close(np.concatenate(parts), expected, tolerance)
