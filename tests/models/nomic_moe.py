"""A small Nomic Embed v2 as it is published, and its mathematics in NumPy: transformers has no class for it.

Formulas: Nussbaum and Duderstadt 2025, https://arxiv.org/abs/2502.07972; every second layer has experts, whose weights
are their scores over all, and one bias for all of them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Rows = NDArray[np.float64]
CONFIG: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "activation_function": "gelu",
    "causal": False,
    "expert_choice_router": False,
    "ffn_div": 1,
    "layer_norm_epsilon": 1e-05,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "moe_every_n_layers": 2,
    "moe_normalize_expert_weights": False,
    "moe_top_k": 2,
    "n_embd": 48,
    "n_head": 4,
    "n_inner": 64,
    "n_layer": 4,
    "n_positions": 300,
    "num_experts": 5,
    "num_shared_experts": 0,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": True,
    "rotary_emb_base": 10000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
    "scale_attn_weights": True,
    "type_vocab_size": 1,
    "use_rms_norm": None,
    "vocab_size": 97,
}
HEADS, EXPERTS, ACTIVE, INNER = (CONFIG[key] for key in ("n_head", "num_experts", "moe_top_k", "n_inner"))
_erf = np.vectorize(math.erf)


def make(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Write it, with random weights. Returns these."""
    random, width = np.random.default_rng(5), CONFIG["n_embd"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (CONFIG["vocab_size"], width),
        "embeddings.token_type_embeddings.weight": (1, width),
    }
    norms = ["emb_ln"]
    for layer in range(CONFIG["n_layer"]):
        at = f"encoder.layers.{layer}."
        norms += [f"{at}norm1", f"{at}norm2"]
        shapes |= {f"{at}attn.Wqkv.weight": (3 * width, width), f"{at}attn.Wqkv.bias": (3 * width,)}
        shapes |= {f"{at}attn.out_proj.weight": (width, width), f"{at}attn.out_proj.bias": (width,)}
        if layer % 2:
            shapes |= {f"{at}mlp.router.layer.weight": (EXPERTS, width), f"{at}mlp.experts.bias": (width,)}
            shapes |= {f"{at}mlp.experts.mlp.{name}": (EXPERTS * INNER, width) for name in ("w1", "w2")}
        else:
            shapes |= {f"{at}mlp.fc1.weight": (INNER, width), f"{at}mlp.fc1.bias": (INNER,)}
            shapes |= {f"{at}mlp.fc2.weight": (width, INNER), f"{at}mlp.fc2.bias": (width,)}
    for norm in norms:
        shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    weights = {name: (0.3 * random.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    for norm in norms:
        weights[f"{norm}.weight"] += 1
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return weights


def hidden_states(weights: dict[str, NDArray[np.float32]], ids: list[int], *, bias: bool = True) -> Rows:
    """The rows after the last layer. ``bias``: that of the experts is added."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def linear(x: Rows, name: str) -> Rows:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Rows, name: str) -> Rows:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + CONFIG["layer_norm_epsilon"])
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def experts(x: Rows, at: str) -> Rows:
        scores = _softmax(x @ w[f"{at}router.layer.weight"].T)
        first, second = (w[f"{at}experts.mlp.{name}"].reshape(EXPERTS, INNER, -1) for name in ("w1", "w2"))
        out = np.zeros_like(x)
        for row, of_row in enumerate(scores):
            for expert in np.argsort(-of_row)[:ACTIVE]:
                out[row] += of_row[expert] * (_gelu(first[expert] @ x[row]) @ second[expert])
        return out + w[f"{at}experts.bias"] if bias else out

    x = norm(w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"], "emb_ln")
    for layer in range(CONFIG["n_layer"]):
        at = f"encoder.layers.{layer}."
        parts = linear(x, f"{at}attn.Wqkv").reshape(len(ids), 3, HEADS, -1).transpose(1, 2, 0, 3)
        queries, keys = (_rotated(part) for part in parts[:2])
        shares = _softmax(queries @ keys.transpose(0, 2, 1) / math.sqrt(queries.shape[-1]))
        mixed = (shares @ parts[2]).transpose(1, 0, 2).reshape(len(ids), -1)
        x = norm(x + linear(mixed, f"{at}attn.out_proj"), f"{at}norm1")
        inner = experts(x, f"{at}mlp.") if layer % 2 else linear(_gelu(linear(x, f"{at}mlp.fc1")), f"{at}mlp.fc2")
        x = norm(x + inner, f"{at}norm2")
    return x


def _rotated(x: Rows) -> Rows:
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * CONFIG["rotary_emb_base"] ** (-np.arange(half) / half)
    low, high, cos, sin = x[..., :half], x[..., half:], np.cos(angles), np.sin(angles)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def _gelu(x: Rows) -> Rows:
    return x / 2 * (1 + _erf(x / math.sqrt(2)))


def _softmax(x: Rows) -> Rows:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
