"""Configs of Gemma 3n and Gemma 4 from the metadata of GGUF files."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from dragoman.models.gguf.architecture import Config, Tensors, by_layer, head_size, layer_types, rms
from dragoman.models.gguf.metadata import Metadata


def gemma3n(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    """Return the rest of a Gemma 3n's config."""
    layers = config["num_hidden_layers"]
    laurel = tensors.get("blk.0.laurel_l.weight")
    if laurel is None:
        raise keys.file.fail("general.architecture", "is gemma3n, but the file has no tensor blk.0.laurel_l.weight")
    _refuse_part_of_head(keys, "rope.dimension_count", head_size(keys, config))
    return _common(keys, tensors, config, period=5) | {
        "head_dim": head_size(keys, config),
        "num_key_value_heads": keys.size("attention.head_count_kv"),
        "intermediate_size": by_layer(keys, "feed_forward_length", layers),
        "rope_theta": keys.number("rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10_000.0),
        "altup_active_idx": keys.count("altup.active_idx"),
        "altup_num_inputs": keys.size("altup.num_inputs", 4),
        "laurel_rank": laurel.shape[0],
        "activation_sparsity_pattern": _shares(keys, layers),
    }


def gemma4(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    """Return the rest of a Gemma 4's config."""
    layers = config["num_hidden_layers"]
    found = _common(keys, tensors, config, period=6)
    shared, types = found["num_kv_shared_layers"], found["layer_types"]
    full_dim = head_size(keys, config)
    dim = keys.size("attention.key_length_swa", full_dim)
    if keys.size("attention.value_length_swa", dim) != dim:
        raise keys.file.fail("attention.value_length_swa", f"differs from the keys' {dim}")
    _refuse_part_of_head(keys, "rope.dimension_count", full_dim)
    _refuse_part_of_head(keys, "rope.dimension_count_swa", dim)
    kv_heads = by_layer(keys, "attention.head_count_kv", layers)
    full = [layer for layer, kind in enumerate(types) if kind == "full_attention"]
    sliding = [layer for layer in range(layers) if layer not in full]
    widths = by_layer(keys, "feed_forward_length", layers)
    wide = [widths[0]] * (layers - shared) + [2 * widths[0]] * shared
    if widths not in (wide, widths[:1] * layers):
        raise keys.file.fail("feed_forward_length", "differs between layers in a way that is not supported")
    own = [layer for layer in full if layer < layers - shared]
    full_rope = config["rope_scaling"] or {"rope_type": "default"}
    return found | {
        "head_dim": dim,
        "num_key_value_heads": kv_heads[sliding[0]] if sliding else kv_heads[0],
        "per_layer_config": {str(i): {"head_dim": full_dim, "num_key_value_heads": kv_heads[i]} for i in full},
        "intermediate_size": widths[0],
        "use_double_wide_mlp": shared > 0 and widths == wide,
        "attention_k_eq_v": bool(own) and not any(f"blk.{layer}.attn_v.weight" in tensors for layer in own),
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": {**full_rope, "rope_theta": keys.number("rope.freq_base", 1_000_000.0)},
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": keys.number("rope.freq_base_swa", 10_000.0),
            },
        },
        **_experts(keys),
    }


def _common(keys: Metadata, tensors: Tensors, config: Config, period: int) -> Config:
    layers, shared = config["num_hidden_layers"], keys.count("attention.shared_kv_layers")
    if shared >= layers:
        raise keys.file.fail("attention.shared_kv_layers", f"{shared} of {layers} leaves no layer to share with")
    table = tensors.get("per_layer_token_embd.weight")
    capped = keys.is_on("final_logit_softcapping")
    return rms(keys) | {
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": keys.number("final_logit_softcapping") if capped else None,
        "sliding_window": keys.size("attention.sliding_window", 512),
        "layer_types": layer_types(keys, layers, period),
        "num_kv_shared_layers": shared,
        "hidden_size_per_layer_input": keys.count("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": config["vocab_size"] if table is None else table.shape[0],
    }


def _experts(keys: Metadata) -> Config:
    if not keys.count("expert_count"):
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": keys.size("expert_count"),
        "top_k_experts": keys.size("expert_used_count"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
    }


def _shares(keys: Metadata, layers: int) -> list[float] | None:
    """Return the share of gates that are zero in each layer; files have it in standard deviations."""
    value: Any = keys.value("activation_sparsity_scale")
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or len(value) != layers or np.isnan(value).any():
        raise keys.file.fail("activation_sparsity_scale", f"must be an array of {layers} numbers")
    return [0.0 if math.isinf(each) and each < 0 else NormalDist().cdf(float(each)) for each in value]


def _refuse_part_of_head(keys: Metadata, key: str, head_dim: int) -> None:
    if (rotated := keys.size(key, head_dim)) != head_dim:
        raise keys.file.fail(key, f"{rotated} is not supported: heads have {head_dim} dimensions")
