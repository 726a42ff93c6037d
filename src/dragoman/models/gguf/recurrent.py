"""Architectures of GGUF files with states: LFM2, dense and with experts, Mamba, Falcon Mamba and Mamba-2."""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec.structs import replace

from dragoman.models.gguf.architecture import SIZES, Architecture, Config, Tensors, rms
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.tensors import GgufTensor

_SIGMOID = 2  # of expert_gating_func
_LAYER = "model.layers.{layer}."
_LFM2_NAMES = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output_norm": "model.embedding_norm",
    "output": "lm_head",
    "blk.attn_norm": f"{_LAYER}operator_norm",
    "blk.attn_q": f"{_LAYER}self_attn.q_proj",
    "blk.attn_k": f"{_LAYER}self_attn.k_proj",
    "blk.attn_v": f"{_LAYER}self_attn.v_proj",
    "blk.attn_q_norm": f"{_LAYER}self_attn.q_layernorm",
    "blk.attn_k_norm": f"{_LAYER}self_attn.k_layernorm",
    "blk.attn_output": f"{_LAYER}self_attn.out_proj",
    "blk.shortconv.in_proj": f"{_LAYER}conv.in_proj",
    "blk.shortconv.conv": f"{_LAYER}conv.conv",
    "blk.shortconv.out_proj": f"{_LAYER}conv.out_proj",
    "blk.ffn_norm": f"{_LAYER}ffn_norm",
    "blk.ffn_gate": f"{_LAYER}feed_forward.w1",
    "blk.ffn_up": f"{_LAYER}feed_forward.w3",
    "blk.ffn_down": f"{_LAYER}feed_forward.w2",
}
_LFM2_MOE_NAMES = _LFM2_NAMES | {
    "blk.ffn_gate_inp": f"{_LAYER}feed_forward.gate",
    "blk.exp_probs_b.bias": f"{_LAYER}feed_forward.expert_bias",
    "blk.ffn_gate_exps": f"{_LAYER}feed_forward.experts.{{expert}}.w1",
    "blk.ffn_up_exps": f"{_LAYER}feed_forward.experts.{{expert}}.w3",
    "blk.ffn_down_exps": f"{_LAYER}feed_forward.experts.{{expert}}.w2",
}
_MIXER = "backbone.layers.{layer}.mixer."
_MAMBA_NAMES = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
    "blk.attn_norm": "backbone.layers.{layer}.norm",
    "blk.ssm_in": f"{_MIXER}in_proj",
    "blk.ssm_conv1d": f"{_MIXER}conv1d",
    "blk.ssm_x": f"{_MIXER}x_proj",
    "blk.ssm_dt": f"{_MIXER}dt_proj",
    "blk.ssm_a": f"{_MIXER}A_log",
    "blk.ssm_d": f"{_MIXER}D",
    "blk.ssm_out": f"{_MIXER}out_proj",
}
_MAMBA2_NAMES = _MAMBA_NAMES | {"blk.ssm_dt.bias": f"{_MIXER}dt_bias", "blk.ssm_norm": f"{_MIXER}norm"}
_MAMBA_SIZES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "state_size",
    "ssm.time_step_rank": "time_step_rank",
}


def _lfm2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    counts = kv_heads_by_layer(keys, layers) or [heads] * layers
    head_dim = config["hidden_size"] // heads
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        keys.refuse(key, head_dim)
    return {
        "num_key_value_heads": max(counts),
        "layer_types": ["full_attention" if count else "conv" for count in counts],
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": keys.size("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
    }


def kv_heads_by_layer(keys: Metadata, layers: int) -> list[int]:
    """Return the number of KV heads in each layer, 0 in those without attention; empty where the file does not say it.

    Raises ModelError unless it is one number in all layers with attention."""
    found = keys.numbers("attention.head_count_kv", keys.size("block_count"))
    if found is None:
        return []
    counts = [int(count) for count in found[:layers]]
    if found.dtype.kind not in "iu" or len({count for count in counts if count}) != 1 or min(counts) < 0:
        raise keys.file.fail(
            "attention.head_count_kv", f"must be one number in the layers with attention, got {counts}"
        )
    return counts


def _lfm2_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = _lfm2(keys, tensors, config)
    dense = keys.size("leading_dense_block_count") if keys.value("leading_dense_block_count") else 0
    if keys.value("expert_gating_func") != _SIGMOID:
        raise keys.file.fail("expert_gating_func", "is not a sigmoid")
    return found | {
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "num_dense_layers": dense,
        "use_expert_bias": f"blk.{dense}.exp_probs_b.bias" in tensors,
        "norm_topk_prob": keys.flag("expert_weights_norm", True),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
    }


def _mamba(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = _without_attention(keys, tensors, config)
    if not keys.flag("ssm.dt_b_c_rms", False):
        return found
    return found | {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}


def _mamba2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    heads = config["time_step_rank"]
    found = _without_attention(keys, tensors, config)
    inner = found["expand"] * config["hidden_size"]
    if inner % heads:
        raise keys.file.fail("ssm.time_step_rank", f"{heads} does not divide the inner width {inner}")
    return found | {"num_heads": heads, "head_dim": inner // heads, "n_groups": keys.size("ssm.group_count")}


def _without_attention(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.has("context_length")  # llama.cpp's converter writes an arbitrary one
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        keys.refuse(key, 0)
    inner, width = keys.size("ssm.inner_size"), config["hidden_size"]
    if inner % width:
        raise keys.file.fail("ssm.inner_size", f"{inner} is not a multiple of embedding_length {width}")
    return {
        "expand": inner // width,
        "layer_norm_epsilon": rms(keys)["rms_norm_eps"],
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in tensors,
        "use_bias": "blk.0.ssm_in.bias" in tensors,
    }


def rates_and_convolutions(config: Config, tensor: GgufTensor) -> tuple[GgufTensor]:
    """Return a tensor with its family's dimensions and numbers: llama.cpp stores −exp(A_log), and other shapes."""
    if tensor.name.endswith(".A_log"):
        return (replace(tensor, is_negative_rate=True),)
    if tensor.name.endswith((".conv1d.weight", ".conv.conv.weight")) and len(tensor.shape) == 2:
        return (replace(tensor, shape=(tensor.shape[0], 1, tensor.shape[1])),)
    return (tensor,)


def mamba2_vectors(config: Config, tensor: GgufTensor) -> tuple[GgufTensor]:
    """Return the same of Mamba-2, whose vectors llama.cpp stores with two dimensions."""
    if tensor.name.endswith((".A_log", ".D", ".mixer.norm.weight", ".mamba.norm.weight")):
        tensor = replace(tensor, shape=(int(np.prod(tensor.shape)),))
    return rates_and_convolutions(config, tensor)


_convolved = partial(Architecture, sizes=SIZES, adjust=rates_and_convolutions)
_scanned = partial(Architecture, sizes=_MAMBA_SIZES, rotary=False)

RECURRENT: dict[str, Architecture] = {
    "lfm2": _convolved(name="Lfm2ForCausalLM", model_type="lfm2", names=_LFM2_NAMES, extra=_lfm2),
    "lfm2moe": _convolved(name="Lfm2MoeForCausalLM", model_type="lfm2_moe", names=_LFM2_MOE_NAMES, extra=_lfm2_moe),
    "mamba": _scanned(
        name="MambaForCausalLM", model_type="mamba", names=_MAMBA_NAMES, extra=_mamba, adjust=rates_and_convolutions
    ),
    "mamba2": _scanned(
        name="Mamba2ForCausalLM", model_type="mamba2", names=_MAMBA2_NAMES, extra=_mamba2, adjust=mamba2_vectors
    ),
}
