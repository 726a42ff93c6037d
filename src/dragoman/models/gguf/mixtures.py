"""Architectures of GGUF files with experts in the terms of newer mixtures: gpt-oss, GLM-4.5, dots.1, ERNIE 4.5 MoE,
Hunyuan MoE and MiniMax-M2."""

from __future__ import annotations

from dragoman.models.gguf import names
from dragoman.models.gguf.architecture import (
    Architecture,
    Config,
    Tensors,
    head_size,
    heads,
    partly_rotated,
    rms,
    scored_experts,
)
from dragoman.models.gguf.metadata import Metadata

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3
"""Values of expert_gating_func."""

_LAYER = "model.layers.{layer}."
_AFTER_ATTENTION = {"blk.post_attention_norm": f"{_LAYER}post_attention_layernorm"}
EXPERTS = {
    "blk.ffn_gate_inp": f"{_LAYER}mlp.gate",
    "blk.exp_probs_b": f"{_LAYER}mlp.gate.e_score_correction_bias",
    "blk.ffn_gate_exps": f"{_LAYER}mlp.experts.{{expert}}.gate_proj",
    "blk.ffn_up_exps": f"{_LAYER}mlp.experts.{{expert}}.up_proj",
    "blk.ffn_gate_up_exps": f"{_LAYER}mlp.experts.gate_up_proj",
    "blk.ffn_down_exps": f"{_LAYER}mlp.experts.{{expert}}.down_proj",
    "blk.ffn_gate_shexp": f"{_LAYER}mlp.shared_experts.gate_proj",
    "blk.ffn_up_shexp": f"{_LAYER}mlp.shared_experts.up_proj",
    "blk.ffn_down_shexp": f"{_LAYER}mlp.shared_experts.down_proj",
}
"""The names of DeepSeek's checkpoints, which many share."""

_GPT_OSS_NAMES = names.LLAMA | EXPERTS | _AFTER_ATTENTION | {
    "blk.attn_sinks": f"{_LAYER}self_attn.sinks",
    "blk.ffn_gate_inp": f"{_LAYER}mlp.router",
}  # fmt: skip
_ERNIE_NAMES = names.LLAMA | EXPERTS | {"blk.exp_probs_b": f"{_LAYER}mlp.moe_statics.e_score_correction_bias"}
_HUNYUAN_NAMES = names.HUNYUAN | EXPERTS | {
    "blk.ffn_gate_inp": f"{_LAYER}mlp.gate.wg",
    "blk.ffn_gate_shexp": f"{_LAYER}mlp.shared_mlp.gate_proj",
    "blk.ffn_up_shexp": f"{_LAYER}mlp.shared_mlp.up_proj",
    "blk.ffn_down_shexp": f"{_LAYER}mlp.shared_mlp.down_proj",
}  # fmt: skip
_MINIMAX_NAMES = names.MIXTRAL | {"blk.exp_probs_b": f"{_LAYER}block_sparse_moe.e_score_correction_bias"}


def _gpt_oss(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SOFTMAX_OF_CHOSEN)
    rope = config["rope_scaling"] or {"rope_type": "default"}
    if rope["rope_type"] == "yarn":
        rope = rope | {"truncate": False}  # there is no key for it
    return heads(keys, config) | rms(keys) | {
        "rope_scaling": rope,
        "num_local_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "intermediate_size": keys.size("expert_feed_forward_length", config["intermediate_size"]),
        "sliding_window": keys.size("attention.sliding_window"),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
    }  # fmt: skip


def _glm4_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.has("rope.dimension_sections")  # divides a head between positions in images; in texts all are equal
    keys.refuse("expert_gating_func", SIGMOID, 0)
    return rms(keys) | partly_rotated(keys, config) | scored_experts(keys) | {
        "head_dim": head_size(keys, config),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors,
        "first_k_dense_replace": keys.count("leading_dense_block_count"),
    }  # fmt: skip


def _dots(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SIGMOID)
    keys.has("expert_shared_feed_forward_length")  # follows from the width of an expert and their count
    return heads(keys, config) | rms(keys) | scored_experts(keys) | {
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "first_k_dense_replace": keys.count("leading_dense_block_count"),
        "sliding_window": None,
    }  # fmt: skip


def _ernie_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SOFTMAX)
    keys.has("expert_shared_feed_forward_length")  # converters write another number; the tensors' shapes say it
    return heads(keys, config) | rms(keys) | {
        "moe_num_experts": keys.size("expert_count"),
        "moe_k": keys.size("expert_used_count"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "moe_num_shared_experts": keys.count("expert_shared_count"),
        "moe_layer_start_index": keys.count("leading_dense_block_count"),
        "moe_layer_interval": keys.size("interleave_moe_layer_step", 1),
    }  # fmt: skip


def _hunyuan_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.has("rope.scaling.original_context_length")  # written without a scaling: the base has it
    keys.refuse("expert_gating_func", SOFTMAX)
    keys.refuse("expert_shared_count", 1)
    inner = keys.size("expert_feed_forward_length", config["intermediate_size"])
    keys.refuse("expert_shared_feed_forward_length", inner)
    return heads(keys, config) | rms(keys) | {
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "intermediate_size": inner,
        "num_experts": keys.size("expert_count"),
        "moe_topk": keys.size("expert_used_count"),
    }  # fmt: skip


def _minimax_m2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SIGMOID, 0)
    head_dim = head_size(keys, config)
    rotated = keys.size("rope.dimension_count", head_dim)
    if rotated > head_dim:
        raise keys.file.fail("rope.dimension_count", f"{rotated} is more than the {head_dim} dimensions of a head")
    return rms(keys) | {
        "num_key_value_heads": keys.size("attention.head_count_kv", config["num_attention_heads"]),
        "head_dim": head_dim,
        "rotary_dim": rotated,
        "intermediate_size": keys.size("expert_feed_forward_length", config["intermediate_size"]),
        "num_local_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
    }


MIXTURES: dict[str, Architecture] = {
    "gpt-oss": Architecture(name="GptOssForCausalLM", model_type="gpt_oss", names=_GPT_OSS_NAMES, extra=_gpt_oss),
    "glm4moe": Architecture(
        name="Glm4MoeForCausalLM",
        model_type="glm4_moe",
        names=names.LLAMA | EXPERTS | _AFTER_ATTENTION,
        extra=_glm4_moe,
    ),
    "dots1": Architecture(name="Dots1ForCausalLM", model_type="dots1", names=names.LLAMA | EXPERTS, extra=_dots),
    "ernie4_5-moe": Architecture(
        name="Ernie4_5_MoeForCausalLM", model_type="ernie4_5_moe", names=_ERNIE_NAMES, extra=_ernie_moe
    ),
    "hunyuan-moe": Architecture(
        name="HunYuanMoEV1ForCausalLM", model_type="hunyuan_v1_moe", names=_HUNYUAN_NAMES, extra=_hunyuan_moe
    ),
    "minimax-m2": Architecture(
        name="MiniMaxM2ForCausalLM", model_type="minimax_m2", names=_MINIMAX_NAMES, extra=_minimax_m2
    ),
}
