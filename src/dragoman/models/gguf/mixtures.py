"""Architectures of GGUF files with experts in the terms of newer mixtures: gpt-oss, GLM-4.5, dots.1, ERNIE 4.5 MoE,
Hunyuan MoE, MiniMax-M2, Llama 4, Phi-3.5-MoE, DBRX, K-EXAONE, Trinity, Laguna, MiMo-V2, Ling 2 and Command A+."""

from __future__ import annotations

import numpy as np

from dragoman.models.gguf import names
from dragoman.models.gguf.architecture import (
    LONGROPE,
    SIZES,
    Architecture,
    Config,
    Tensors,
    by_layer,
    head_size,
    heads,
    layer_norm,
    layer_types,
    longrope,
    partly_rotated,
    rms,
    scored_experts,
    share_of_head,
)
from dragoman.models.gguf.metadata import Metadata

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3
"""Values of expert_gating_func."""
_SCORES = "expert_gating_func"

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

_LING_NAMES = names.LLAMA | EXPERTS | {
    "token_embd": "model.word_embeddings",
    "blk.attn_qkv": f"{_LAYER}attention.query_key_value",
    "blk.attn_output": f"{_LAYER}attention.dense",
    "blk.attn_q_norm": f"{_LAYER}attention.query_layernorm",
    "blk.attn_k_norm": f"{_LAYER}attention.key_layernorm",
    "blk.exp_probs_b": f"{_LAYER}mlp.gate.expert_bias",
}  # fmt: skip
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
_LLAMA4_NAMES = names.LLAMA | {
    "blk.ffn_gate": f"{_LAYER}feed_forward.gate_proj",
    "blk.ffn_up": f"{_LAYER}feed_forward.up_proj",
    "blk.ffn_down": f"{_LAYER}feed_forward.down_proj",
    "blk.ffn_gate_inp": f"{_LAYER}feed_forward.router",
    "blk.ffn_gate_exps": f"{_LAYER}feed_forward.experts.{{expert}}.gate_proj",
    "blk.ffn_up_exps": f"{_LAYER}feed_forward.experts.{{expert}}.up_proj",
    "blk.ffn_down_exps": f"{_LAYER}feed_forward.experts.{{expert}}.down_proj",
    "blk.ffn_gate_shexp": f"{_LAYER}feed_forward.shared_expert.gate_proj",
    "blk.ffn_up_shexp": f"{_LAYER}feed_forward.shared_expert.up_proj",
    "blk.ffn_down_shexp": f"{_LAYER}feed_forward.shared_expert.down_proj",
}
_AFMOE_NAMES = names.LLAMA | EXPERTS | _AFTER_ATTENTION | {
    "blk.attn_gate": f"{_LAYER}self_attn.gate_proj",
    "blk.ffn_norm": f"{_LAYER}pre_mlp_layernorm",
    "blk.post_ffw_norm": f"{_LAYER}post_mlp_layernorm",
    "blk.ffn_gate_inp": f"{_LAYER}mlp.router.gate",
    "blk.exp_probs_b": f"{_LAYER}mlp.expert_bias",
}  # fmt: skip
_MIMO_SCALE = 0.707
"""Factor of values in the published model, which files of earlier converters do not say."""
_MIMO_NAMES = (
    names.LLAMA
    | EXPERTS
    | {
        "blk.attn_sinks": f"{_LAYER}self_attn.sinks",
        "blk.attn_qkv": f"{_LAYER}self_attn.qkv_proj",  # MiMo-V2.5
    }
)
_LAGUNA_NAMES = names.LLAMA | EXPERTS | {"blk.attn_gate": f"{_LAYER}self_attn.g_proj"}
_LAGUNA_SIZES = {theirs: ours for theirs, ours in SIZES.items() if theirs != "attention.head_count"}
_LAGUNA_PERIOD = 4
"""Of its layers the first of so many has full attention, where the file does not say it."""

_DBRX_LAYER = "transformer.blocks.{layer}."
_DBRX_NAMES = {
    "token_embd": "transformer.wte",
    "blk.attn_norm": f"{_DBRX_LAYER}norm_attn_norm.norm_1",
    "blk.attn_qkv": f"{_DBRX_LAYER}norm_attn_norm.attn.Wqkv",
    "blk.attn_output": f"{_DBRX_LAYER}norm_attn_norm.attn.out_proj",
    "blk.attn_output_norm": f"{_DBRX_LAYER}norm_attn_norm.norm_2",
    "blk.ffn_gate_inp": f"{_DBRX_LAYER}ffn.router.layer",
    "blk.ffn_gate_exps": f"{_DBRX_LAYER}ffn.experts.mlp.w1",
    "blk.ffn_up_exps": f"{_DBRX_LAYER}ffn.experts.mlp.v1",
    "blk.ffn_down_exps": f"{_DBRX_LAYER}ffn.experts.mlp.w2",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
}
_DBRX_SIZES = {
    "context_length": "max_seq_len",
    "embedding_length": "d_model",
    "block_count": "n_layers",
    "attention.head_count": "n_heads",
}
_DBRX_EPSILON = 1e-5
_LLAMA4_WITHOUT_NORMS = 128
"""How many experts the Llama 4 has whose heads have no norms, which have no tensors."""

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


def _ling(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SIGMOID)
    experts = scored_experts(keys)
    inner, shared = experts["moe_intermediate_size"], experts["n_shared_experts"]
    keys.refuse("expert_shared_feed_forward_length", inner * shared, inner)
    keys.refuse("nextn_predict_layers", 0)
    return rms(keys) | partly_rotated(keys, config) | experts | {
        "head_dim": head_size(keys, config),
        "num_experts": experts["n_routed_experts"],
        "num_shared_experts": shared,
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


def _llama4(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SIGMOID)
    keys.refuse("expert_weights_norm", False)
    keys.refuse("attention.sliding_window", 8192)  # chunks of which no file says the size
    keys.refuse("attention.sliding_window_pattern", 4)
    experts = keys.size("expert_count")
    return heads(keys, config) | rms(keys) | {
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "intermediate_size": keys.size("expert_feed_forward_length"),
        "intermediate_size_mlp": config["intermediate_size"],
        "interleave_moe_layer_step": keys.size("interleave_moe_layer_step"),
        "num_local_experts": experts,
        "num_experts_per_tok": keys.size("expert_used_count"),
        "use_qk_norm": experts != _LLAMA4_WITHOUT_NORMS,
    }  # fmt: skip


def _phi_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SOFTMAX)
    keys.has("expert_feed_forward_length")  # it is feed_forward_length
    slides = keys.is_on("attention.sliding_window")
    original = keys.size("rope.scaling.original_context_length", config["max_position_embeddings"])
    return heads(keys, config) | rms(keys) | longrope(keys, tensors) | {
        "sliding_window": keys.size("attention.sliding_window") if slides else None,
        "original_max_position_embeddings": original,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "lm_head_bias": "output.bias" in tensors,
        "num_local_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
    }  # fmt: skip


def _dbrx(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SOFTMAX)
    if (epsilon := keys.number("attention.layer_norm_epsilon")) != _DBRX_EPSILON:
        raise keys.file.fail("attention.layer_norm_epsilon", f"{epsilon:g} is not supported: it is {_DBRX_EPSILON:g}")
    limit = keys.number("attention.clamp_kqv") if keys.is_on("attention.clamp_kqv") else None
    kv_heads = keys.size("attention.head_count_kv")
    return {
        "attn_config": {"clip_qkv": limit, "kv_n_heads": kv_heads, "rope_theta": config["rope_theta"]},
        "ffn_config": {
            "ffn_hidden_size": keys.size("feed_forward_length"),
            "moe_num_experts": keys.size("expert_count"),
            "moe_top_k": keys.size("expert_used_count"),
        },
    }


def _exaone_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SIGMOID)
    keys.has("expert_shared_feed_forward_length")  # follows from the width of an expert and their count
    layers, experts = config["num_hidden_layers"], scored_experts(keys)
    slides = keys.is_on("attention.sliding_window")
    full = ["full_attention"] * layers
    return heads(keys, config) | rms(keys) | experts | {
        "num_experts": experts["n_routed_experts"],
        "num_shared_experts": experts["n_shared_experts"],
        "first_k_dense_replace": keys.count("leading_dense_block_count"),
        "sliding_window": keys.size("attention.sliding_window") if slides else None,
        "layer_types": layer_types(keys, layers, 4) if slides else full,
    }  # fmt: skip


def _afmoe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SIGMOID, 0)
    experts = scored_experts(keys)
    return heads(keys, config) | rms(keys) | {
        "num_experts": experts["n_routed_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
        "moe_intermediate_size": experts["moe_intermediate_size"],
        "num_shared_experts": experts["n_shared_experts"],
        "num_dense_layers": keys.count("leading_dense_block_count"),
        "route_scale": experts["routed_scaling_factor"],
        "route_norm": experts["norm_topk_prob"],
        "n_group": experts["n_group"],
        "topk_group": experts["topk_group"],
        "sliding_window": keys.size("attention.sliding_window"),
        "layer_types": layer_types(keys, config["num_hidden_layers"], 4),
        "mup_enabled": True,
    }  # fmt: skip


def _mimo_v2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    """Return a config of MiMo-V2-Flash or V2.5. Arrays have numbers of the blocks that predict further tokens, too."""
    keys.refuse(_SCORES, SIGMOID, 0)
    layers, blocks = config["num_hidden_layers"], keys.size("block_count")
    counts = by_layer(keys, "attention.head_count_kv", blocks)[:layers]
    slides = [bool(each) for each in by_layer(keys, "attention.sliding_window_pattern", blocks, least=0)[:layers]]
    full, sliding = ({n for n, s in zip(counts, slides, strict=True) if s is kind} for kind in (False, True))
    if max(len(full), len(sliding)) > 1:
        raise keys.file.fail("attention.head_count_kv", "differs between layers in a way that is not supported")
    head_dim, heads_kv = keys.size("attention.key_length"), min(full or sliding)
    scaled = keys.is_on("expert_weights_scale")
    return rms(keys) | {
        "num_key_value_heads": heads_kv,
        "swa_num_key_value_heads": min(sliding or full),
        "head_dim": head_dim,
        "v_head_dim": keys.size("attention.value_length", head_dim),
        "attention_value_scale": keys.number("attention.value_scale", _MIMO_SCALE),
        "attention_bias": bool({"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & tensors.keys()),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "mlp_layer_types": [
            "sparse" if f"blk.{layer}.ffn_gate_inp.weight" in tensors else "dense" for layer in range(layers)
        ],
        "sliding_window_size": keys.size("attention.sliding_window"),
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": _rope_by_type(keys, "", head_dim, config),
            "sliding_attention": _rope_by_type(keys, "_swa", head_dim, config, "rope.dimension_count"),
        },
        "n_routed_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "norm_topk_prob": keys.flag("expert_weights_norm", True),
        "routed_scaling_factor": keys.number("expert_weights_scale") if scaled else 1.0,
        "n_group": keys.count("expert_group_count") or 1,
        "topk_group": keys.count("expert_group_used_count") or 1,
    }


def _laguna(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse(_SCORES, SIGMOID, 0)
    keys.refuse("expert_weights_norm", True)
    keys.refuse("expert_shared_count", 1)
    layers, counts = config["num_hidden_layers"], by_layer(keys, "attention.head_count", config["num_hidden_layers"])
    head_dim = head_size(keys, config | {"num_attention_heads": counts[0]})
    gate, scaled = tensors.get("blk.0.attn_gate.weight"), keys.is_on("expert_weights_scale")
    dense = keys.count("leading_dense_block_count")
    full, sliding = (_rope_by_type(keys, suffix, head_dim, config) for suffix in ("", "_swa"))
    return rms(keys) | {
        "num_attention_heads": counts[0],
        "num_attention_heads_per_layer": counts,
        "num_key_value_heads": keys.size("attention.head_count_kv"),
        "head_dim": head_dim,
        "gating": "per-head" if gate is not None and gate.shape[:1] == (counts[0],) else "per-element",
        "rope_scaling": None,
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
        "sliding_window": keys.count("attention.sliding_window"),
        "layer_types": _laguna_types(keys, layers),
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in range(layers)],
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.size("expert_shared_feed_forward_length"),
        "moe_routed_scaling_factor": keys.number("expert_weights_scale") if scaled else 1.0,
    }


def _rope_by_type(keys: Metadata, suffix: str, head_dim: int, config: Config, dimensions: str = "") -> Config:
    """Return the rotation of layers with full attention, or, with the suffix ``_swa``, of those with a window, which
    have no scaling. ``dimensions``: the key that says how many are rotated, where it is another."""
    key = dimensions or f"rope.dimension_count{suffix}"
    rotated = keys.size(key, head_dim)
    if rotated > head_dim:
        raise keys.file.fail(key, f"{rotated} is more than the {head_dim} of a head")
    scaling = (not suffix and config["rope_scaling"]) or {"rope_type": "default"}
    theta = keys.number(f"rope.freq_base{suffix}", config["rope_theta"])
    return {**scaling, "rope_theta": theta, "partial_rotary_factor": share_of_head(rotated, head_dim)}


def _laguna_types(keys: Metadata, layers: int) -> list[str]:
    if not keys.is_on("attention.sliding_window"):
        keys.has("attention.sliding_window_pattern")
        return ["full_attention"] * layers
    if isinstance(keys.value("attention.sliding_window_pattern"), np.ndarray):
        return layer_types(keys, layers, _LAGUNA_PERIOD)
    period = keys.size("attention.sliding_window_pattern", _LAGUNA_PERIOD)
    return ["sliding_attention" if layer % period else "full_attention" for layer in range(layers)]


def _cohere2_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    """Return a config of Command A+. The shared expert's result is always averaged with the others'."""
    experts = scored_experts(keys)
    inner, shared, scores = experts["moe_intermediate_size"], experts["n_shared_experts"], keys.count(_SCORES)
    keys.refuse("expert_shared_feed_forward_length", inner * shared, 0)
    keys.refuse("expert_weights_scale", 0.0, 1.0)
    if scores == SOFTMAX and not experts["norm_topk_prob"]:
        keys.refuse(_SCORES)  # shares of all experts' scores
    keys.refuse(_SCORES, 0, SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN)
    is_rms = keys.is_on("attention.layer_norm_rms_epsilon")
    norm = rms(keys) if is_rms else layer_norm(keys, "layer_norm_eps")
    keys.has("attention.layer_norm_epsilon")
    dense = tensors.get("blk.0.ffn_gate.weight")
    return heads(keys, config) | norm | {
        "logit_scale": keys.number("logit_scale"),
        "sliding_window": keys.size("attention.sliding_window"),
        "layer_types": layer_types(keys, config["num_hidden_layers"], 4),
        "num_experts": experts["n_routed_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
        "norm_topk_prob": experts["norm_topk_prob"],
        "expert_selection_fn": "softmax" if scores in (SOFTMAX, SOFTMAX_OF_CHOSEN) else "sigmoid",
        "intermediate_size": inner,
        "prefix_dense_intermediate_size": dense.shape[0] if dense is not None and dense.shape else None,
        "first_k_dense_replace": keys.count("leading_dense_block_count"),
        "num_shared_experts": shared,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
    }  # fmt: skip


MIXTURES: dict[str, Architecture] = {
    "gpt-oss": Architecture(name="GptOssForCausalLM", model_type="gpt_oss", names=_GPT_OSS_NAMES, extra=_gpt_oss),
    "glm4moe": Architecture(
        name="Glm4MoeForCausalLM",
        model_type="glm4_moe",
        names=names.LLAMA | EXPERTS | _AFTER_ATTENTION,
        extra=_glm4_moe,
    ),
    "bailingmoe2": Architecture(
        name="BailingMoeV2ForCausalLM", model_type="bailing_moe", names=_LING_NAMES, extra=_ling
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
    "llama4": Architecture(name="Llama4ForCausalLM", model_type="llama4_text", names=_LLAMA4_NAMES, extra=_llama4),
    "phimoe": Architecture(
        name="PhimoeForCausalLM", model_type="phimoe", names=names.MIXTRAL, extra=_phi_moe, described=LONGROPE
    ),
    "exaone-moe": Architecture(
        name="ExaoneMoeForCausalLM", model_type="exaone_moe", names=names.LLAMA | EXPERTS, extra=_exaone_moe
    ),
    "afmoe": Architecture(name="AfmoeForCausalLM", model_type="afmoe", names=_AFMOE_NAMES, extra=_afmoe),
    "mimo2": Architecture(name="MiMoV2FlashForCausalLM", model_type="mimo_v2_flash", names=_MIMO_NAMES, extra=_mimo_v2),
    "laguna": Architecture(
        name="LagunaForCausalLM", model_type="laguna", names=_LAGUNA_NAMES, extra=_laguna, sizes=_LAGUNA_SIZES
    ),
    "cohere2moe": Architecture(
        name="Cohere2MoeForCausalLM", model_type="cohere2_moe", names=names.COHERE | EXPERTS, extra=_cohere2_moe
    ),
    "dbrx": Architecture(name="DbrxForCausalLM", model_type="dbrx", names=_DBRX_NAMES, extra=_dbrx, sizes=_DBRX_SIZES),
}
