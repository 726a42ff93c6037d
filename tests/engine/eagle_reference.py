"""Llama and Qwen3 and an EAGLE-3 head once more, from the formulas: plain PyTorch on whole texts, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

Weights = Mapping[str, torch.Tensor]


def read(folder: Path) -> Weights:
    """The tensors of a folder; floating-point numbers as float64."""
    found = {name: torch.from_numpy(value) for name, value in load_file(folder / "model.safetensors").items()}
    return {name: value.double() if value.is_floating_point() else value for name, value in found.items()}


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotate(x: torch.Tensor, theta: float = 10_000.0) -> torch.Tensor:
    """``[tokens, heads, dim]``, as complex numbers of one half each."""
    tokens, _, dim = x.shape
    angles = torch.arange(tokens).double()[:, None] * theta ** -(torch.arange(0, dim, 2).double() / dim)
    turned = (
        torch.complex(x[..., : dim // 2], x[..., dim // 2 :]) * torch.polar(torch.ones(()).double(), angles)[:, None]
    )
    return torch.cat([turned.real, turned.imag], -1)


def attention(x: torch.Tensor, w: Weights, at: str, heads: int, kv_heads: int) -> torch.Tensor:
    tokens = len(x)

    def project(name: str, count: int) -> torch.Tensor:
        out = x @ w[f"{at}{name}_proj.weight"].T + w.get(f"{at}{name}_proj.bias", 0)
        out = out.view(tokens, count, -1)
        return norm(out, w[f"{at}{name}_norm.weight"]) if f"{at}{name}_norm.weight" in w else out

    query, key = rotate(project("q", heads)), rotate(project("k", kv_heads))
    key, value = (each.repeat_interleave(heads // kv_heads, 1) for each in (key, project("v", kv_heads)))
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(tokens, -1)
    return mixed @ w[f"{at}o_proj.weight"].T + w.get(f"{at}o_proj.bias", 0)


def network(x: torch.Tensor, w: Weights, at: str) -> torch.Tensor:
    gate = torch.nn.functional.silu(x @ w[f"{at}gate_proj.weight"].T)
    return (gate * (x @ w[f"{at}up_proj.weight"].T)) @ w[f"{at}down_proj.weight"].T


def streams(config: Mapping[str, Any], w: Weights, ids: np.ndarray) -> list[torch.Tensor]:
    """The residual stream before the first layer and after each one."""
    found = [w["model.embed_tokens.weight"][torch.from_numpy(ids).long()]]
    for layer in range(config["num_hidden_layers"]):
        at, x = f"model.layers.{layer}.", found[-1]
        normed = norm(x, w[f"{at}input_layernorm.weight"])
        heads = (config["num_attention_heads"], config["num_key_value_heads"])
        x = x + attention(normed, w, f"{at}self_attn.", *heads)
        found.append(x + network(norm(x, w[f"{at}post_attention_layernorm.weight"]), w, f"{at}mlp."))
    return found


def fused(config: Mapping[str, Any], w: Weights, states: list[torch.Tensor]) -> torch.Tensor:
    """What a head makes of three states."""
    if config.get("fc_norm"):
        states = [norm(state, w[f"model.fc_norm.{place}.weight"]) for place, state in enumerate(states)]
    joined = torch.cat(states, -1)
    if config.get("norm_before_fc"):
        joined = norm(joined, w["input_norm.weight"])
    return joined @ w["fc.weight"].T


def guess(
    config: Mapping[str, Any], w: Weights, embedding: torch.Tensor, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the head's own vocabulary, and what its own next guess reads, of a text of next tokens and hidden
    states."""
    normed = norm(hidden, w["midlayer.hidden_norm.weight"])
    x = torch.cat([norm(embedding, w["midlayer.input_layernorm.weight"]), normed], -1)
    residual = normed if config.get("norm_before_residual") else hidden
    heads = (config["num_attention_heads"], config["num_key_value_heads"])
    residual = residual + attention(x, w, "midlayer.self_attn.", *heads)
    residual = residual + network(norm(residual, w["midlayer.post_attention_layernorm.weight"]), w, "midlayer.mlp.")
    last = norm(residual, w["norm.weight"])
    return last @ w["lm_head.weight"].T, last if config.get("norm_output") else residual
