"""Mixtures whose layers have different heads, as llama.cpp's converter writes them: MiMo-V2-Flash and Laguna."""

from __future__ import annotations

import re
from typing import Any

import gguf
import numpy as np
from gguf_cases import describe_yarn, rename_choice
from gguf_files import Weights
from small_models import VARIANTS

_SIGMOID = gguf.ExpertGatingFuncType.SIGMOID

LAGUNA_XS = VARIANTS["laguna-ropes"] | {
    "num_hidden_layers": 5,
    "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
    "num_attention_heads_per_layer": [6, 4, 4, 4, 6],
    "moe_routed_scaling_factor": 2.5,
}
LAGUNA_M1 = VARIANTS["laguna-by-element"] | {
    "sliding_window": 0,
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 3000.0, "partial_rotary_factor": 1.0}},
}


def describe_mimo(writer: gguf.GGUFWriter, config: Any) -> None:
    """As the converter writes it, with a block that predicts a further token."""
    slides = [kind == "sliding_attention" for kind in config.layer_types] + [True]
    writer.add_block_count(len(slides))
    writer.add_nextn_predict_layers(1)
    writer.add_head_count_kv([config.num_key_value_heads * (1 + each) for each in slides])
    writer.add_sliding_window(config.sliding_window - 1)
    writer.add_sliding_window_pattern(slides)
    writer.add_value_length(config.v_head_dim)
    writer.add_float32("mimo2.attention.value_scale", config.attention_value_scale)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_rope_dimension_count(
        int(config.head_dim * config.rope_parameters["full_attention"]["partial_rotary_factor"])
    )
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])


def name_sinks(weights: Weights) -> Weights:
    """Sinks, whose names have an ending in files, and a tensor of the block after the last layer."""
    found = {f"{name}.weight" if name.endswith(".sinks") else name: v for name, v in rename_choice(weights).items()}
    return found | {"blk.3.attn_norm.weight": np.ones(64, np.float32)}


def fuse_projections(weights: Weights) -> Weights:
    """As ``name_sinks``, with the one matrix for queries, keys and values that MiMo-V2.5 has."""
    found = name_sinks(weights)
    for query in [name for name in found if ".q_proj." in name]:
        parts = [found.pop(query.replace(".q_proj.", f".{each}_proj.")) for each in "qkv"]
        found[f"blk.{query.split('.')[2]}.attn_qkv.weight"] = np.concatenate(parts)
    return found


def describe_laguna(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_head_count(config.num_attention_heads_per_layer)
    if config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config.moe_routed_scaling_factor)
    writer.add_expert_gating_func(_SIGMOID)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    full, sliding = (config.rope_parameters.get(f"{kind}_attention") for kind in ("full", "sliding"))
    if full["rope_type"] == "yarn":
        describe_yarn(writer, full)
    writer.add_rope_dimension_count(int(config.head_dim * full["partial_rotary_factor"]))
    if sliding is not None:
        writer.add_rope_freq_base_swa(sliding["rope_theta"])
        writer.add_rope_dimension_count_swa(int(config.head_dim * sliding.get("partial_rotary_factor", 1.0)))


def name_gates(weights: Weights) -> Weights:
    """The gates of a Laguna's attention, which the map of other architectures does not know."""
    return {
        re.sub(r"model\.layers\.(\d+)\.self_attn\.g_proj\.", r"blk.\1.attn_gate.", name): value
        for name, value in rename_choice(
            {n.replace("experts.e_score", "gate.e_score"): v for n, v in weights.items()}
        ).items()
    }
