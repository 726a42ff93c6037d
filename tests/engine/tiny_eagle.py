"""EAGLE-3 heads with random weights, for the tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tiny_model import CONFIG, make_tiny_family

VOCAB, GUESSED = 199, 150
LLAMA = CONFIG | {"num_hidden_layers": 6}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}
EAGLE = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": VOCAB,
    "draft_vocab_size": GUESSED,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def make_tiny_eagle(folder: Path, config: dict[str, object] = EAGLE, *, own_embedding: bool = False) -> Path:
    """Write a head, under the names that most of them have."""
    rng = np.random.default_rng(13)
    width, read = int(str(config["hidden_size"])), int(str(config.get("target_hidden_size", config["hidden_size"])))
    inner, guessed = int(str(config["intermediate_size"])), int(str(config.get("draft_vocab_size", VOCAB)))
    queries = int(str(config["num_attention_heads"])) * 16
    keys = int(str(config["num_key_value_heads"])) * 16
    is_biased = bool(config.get("attention_bias"))

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(scale=1.5 / np.sqrt(columns), size=(rows, columns)).astype(np.float32)

    weights = {"fc.weight": matrix(width, 3 * read), "lm_head.weight": matrix(guessed, width)}
    if config.get("norm_before_fc"):
        weights["input_norm.weight"] = rng.normal(1, 0.2, 3 * read).astype(np.float32)
    if config.get("fc_norm"):
        weights |= {f"model.fc_norm.{each}.weight": rng.normal(1, 0.2, read).astype(np.float32) for each in range(3)}
    for name, rows, columns in (("q", queries, 2 * width), ("k", keys, 2 * width), ("v", keys, 2 * width)):
        weights[f"midlayer.self_attn.{name}_proj.weight"] = matrix(rows, columns)
        if is_biased:
            weights[f"midlayer.self_attn.{name}_proj.bias"] = rng.normal(size=rows).astype(np.float32)
    weights["midlayer.self_attn.o_proj.weight"] = matrix(width, queries)
    if is_biased:
        weights["midlayer.self_attn.o_proj.bias"] = rng.normal(size=width).astype(np.float32)
    for name, rows, columns in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
        weights[f"midlayer.mlp.{name}_proj.weight"] = matrix(rows, columns)
    for name in ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm"):
        weights[f"{name}.weight"] = rng.normal(1, 0.2, width).astype(np.float32)
    if own_embedding:
        weights["embed_tokens.weight"] = rng.normal(size=(VOCAB, width)).astype(np.float32)
    chosen = np.sort(rng.choice(VOCAB, guessed, replace=False))
    maps = {"d2t": chosen - np.arange(guessed), "t2d": np.isin(np.arange(VOCAB), chosen)}
    write_eagle(folder, config, weights | maps)
    return folder


def write_eagle(folder: Path, config: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
    """Write ``config.json`` and ``model.safetensors``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")


def make_tiny_pair(folder: Path, config: dict[str, object], *, is_right: bool = False) -> tuple[Path, Path]:
    """Write a model and its head.

    ``is_right``: no layer of the model adds anything, and the head's attention sees the newest token alone: it says
    what the model is going to say, which are tokens that it knows.
    """
    model = make_tiny_family(folder / "model", config)
    head = make_tiny_eagle(folder / "eagle")
    if not is_right:
        return model, head
    weights, eagle = load_file(model / "model.safetensors"), load_file(head / "model.safetensors")
    known = eagle["d2t"] + np.arange(GUESSED)
    for name, value in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = np.zeros_like(value)
    weights["model.embed_tokens.weight"][:, 0] = 3.0
    unknown = np.setdiff1d(np.arange(VOCAB), known)
    weights["lm_head.weight"][unknown] = 0.0
    weights["lm_head.weight"][unknown, 0] = -30.0
    save_file(weights, model / "model.safetensors")
    # The same large query and key everywhere: rotated, they fit best where they are at the same position.
    config = EAGLE | {"attention_bias": True, "num_key_value_heads": 4, "norm_before_residual": True}
    eagle["midlayer.hidden_norm.weight"] = np.zeros(64, np.float32)
    for name in ("q", "k", "v"):
        eagle[f"midlayer.self_attn.{name}_proj.weight"] = np.zeros((64, 128), np.float32)
        eagle[f"midlayer.self_attn.{name}_proj.bias"] = np.full(64, 0 if name == "v" else 20, np.float32)
    eagle["midlayer.self_attn.v_proj.weight"][:, :64] = np.eye(64)
    eagle["midlayer.self_attn.o_proj.weight"] = np.eye(64, dtype=np.float32)
    eagle["midlayer.self_attn.o_proj.bias"] = np.zeros(64, np.float32)
    eagle["midlayer.mlp.down_proj.weight"] = np.zeros_like(eagle["midlayer.mlp.down_proj.weight"])
    for name in ("midlayer.input_layernorm", "norm"):
        eagle[f"{name}.weight"] = np.ones(64, np.float32)
    eagle["lm_head.weight"] = weights["lm_head.weight"][known]
    write_eagle(head, config, eagle)
    return model, head
