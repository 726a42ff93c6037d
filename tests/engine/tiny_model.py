"""A real decoder with random weights, small enough that a step takes a fraction of a millisecond."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def make_tiny_llama(folder: Path) -> Path:
    """Write ``config.json`` and ``model.safetensors``. Weights are large enough for peaked, varied logits."""
    rng = np.random.default_rng(7)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(scale=1.5 / np.sqrt(columns), size=(rows, columns)).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": rng.normal(size=(199, 64)).astype(np.float32),
        "model.norm.weight": np.ones(64, np.float32),
        "lm_head.weight": matrix(199, 64),
    }
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", 64, 64),
            ("self_attn.k_proj", 32, 64),
            ("self_attn.v_proj", 32, 64),
            ("self_attn.o_proj", 64, 64),
            ("mlp.gate_proj", 96, 64),
            ("mlp.up_proj", 96, 64),
            ("mlp.down_proj", 64, 96),
        ):
            weights[f"{prefix}{name}.weight"] = matrix(rows, columns)
        weights[f"{prefix}input_layernorm.weight"] = np.ones(64, np.float32)
        weights[f"{prefix}post_attention_layernorm.weight"] = np.ones(64, np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder
