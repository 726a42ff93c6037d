"""Architecture of GGUF files of Kimi-Linear: delta rules with decays of keys, latent attention and experts."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from dragoman.models.gguf import names
from dragoman.models.gguf.architecture import Architecture, Config, Tensors, rms, scored_experts
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.recurrent import kv_heads_by_layer, rates_and_convolutions
from dragoman.models.gguf.tensors import GgufTensor

_SIGMOID = 2  # of expert_gating_func
_LAYER = "model.layers.{layer}."
_MIXER = f"{_LAYER}self_attn."
_NAMES = names.DEEPSEEK2 | {
    "blk.attn_k": f"{_MIXER}k_proj",
    "blk.attn_v": f"{_MIXER}v_proj",
    "blk.ssm_conv1d_q": f"{_MIXER}q_conv1d",
    "blk.ssm_conv1d_k": f"{_MIXER}k_conv1d",
    "blk.ssm_conv1d_v": f"{_MIXER}v_conv1d",
    "blk.ssm_f_a": f"{_MIXER}f_a_proj",
    "blk.ssm_f_b": f"{_MIXER}f_b_proj",
    "blk.ssm_beta": f"{_MIXER}b_proj",
    "blk.ssm_a": f"{_MIXER}A_log",
    "blk.ssm_dt.bias": f"{_MIXER}dt_bias",
    "blk.ssm_g_a": f"{_MIXER}g_a_proj",
    "blk.ssm_g_b": f"{_MIXER}g_b_proj",
    "blk.ssm_norm": f"{_MIXER}o_norm",
    "blk.ffn_gate_exps": f"{_LAYER}mlp.experts.{{expert}}.w1",
    "blk.ffn_up_exps": f"{_LAYER}mlp.experts.{{expert}}.w3",
    "blk.ffn_down_exps": f"{_LAYER}mlp.experts.{{expert}}.w2",
}


def _kimi_linear(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    kinds = ["full_attention" if count else "linear_attention" for count in kv_heads_by_layer(keys, layers)]
    if not kinds:
        raise keys.file.fail("attention.head_count_kv", "is missing")
    rank, rotated = keys.size("attention.kv_lora_rank"), keys.size("rope.dimension_count")
    key = keys.size("attention.key_length_mla")
    if key <= rotated:
        raise keys.file.fail("rope.dimension_count", f"{rotated} leaves nothing of a key of {key}")
    keys.refuse("attention.key_length", rank + rotated)
    for unused in ("attention.value_length", "rope.freq_base"):
        keys.has(unused)  # written of every config; nothing is rotated
    keys.refuse("expert_gating_func", _SIGMOID)
    return rms(keys) | scored_experts(keys) | {
        "norm_topk_prob": keys.flag("expert_weights_norm", True),
        "num_key_value_heads": heads,
        "layer_types": kinds,
        "linear_num_heads": heads,
        "linear_head_dim": keys.size("kda.head_dim"),
        "linear_conv_kernel_dim": keys.size("ssm.conv_kernel"),
        "kv_lora_rank": rank,
        "q_lora_rank": keys.size("attention.q_lora_rank") if keys.has("attention.q_lora_rank") else None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": keys.size("attention.value_length_mla"),
        "first_k_dense_replace": keys.count("leading_dense_block_count"),
    }  # fmt: skip


def _adjust(config: Config, tensor: GgufTensor) -> tuple[GgufTensor]:
    """Return a tensor with its family's dimensions: of files, those of size 1 are elsewhere, or left out."""
    if tensor.name.endswith(".A_log"):
        tensor = replace(tensor, shape=(1, 1, int(np.prod(tensor.shape)), 1))
    if tensor.name.endswith("_conv1d.weight") and tensor.shape:
        taps = tensor.shape[-1]
        tensor = replace(tensor, shape=(int(np.prod(tensor.shape[:-1])), 1, taps))
    return rates_and_convolutions(config, tensor)


KIMI_LINEAR = Architecture(
    name="KimiLinearForCausalLM",
    model_type="kimi_linear",
    names=_NAMES,
    extra=_kimi_linear,
    rotary=False,
    adjust=_adjust,
)
