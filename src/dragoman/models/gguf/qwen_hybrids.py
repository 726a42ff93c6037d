"""Architectures of GGUF files with gated delta rules: Qwen3-Next, Qwen 3.5 and 3.6, dense and with experts."""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman.models.gguf import names
from dragoman.models.gguf.architecture import (
    SIZES_WITHOUT_WIDTH,
    Architecture,
    Config,
    Tensors,
    head_size,
    partly_rotated,
    rms,
)
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.recurrent import rates_and_convolutions
from dragoman.models.gguf.tensors import GgufTensor

_LAYER = "model.layers.{layer}."
_MIXER = f"{_LAYER}linear_attn."
_MIXER_NAMES = {
    "blk.post_attention_norm": f"{_LAYER}post_attention_layernorm",
    "blk.attn_qkv": f"{_MIXER}in_proj_qkv",
    "blk.attn_gate": f"{_MIXER}in_proj_z",
    "blk.ssm_in": f"{_MIXER}in_proj_qkvz",  # files of Qwen3-Next before 2026 have both in one
    "blk.ssm_beta": f"{_MIXER}in_proj_b",
    "blk.ssm_alpha": f"{_MIXER}in_proj_a",
    "blk.ssm_ba": f"{_MIXER}in_proj_ba",  # of Qwen3-Next
    "blk.ssm_conv1d": f"{_MIXER}conv1d",
    "blk.ssm_a": f"{_MIXER}A_log",
    "blk.ssm_dt.bias": f"{_MIXER}dt_bias",
    "blk.ssm_norm": f"{_MIXER}norm",
    "blk.ssm_out": f"{_MIXER}out_proj",
}


def _dense(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    values, inner = keys.size("ssm.time_step_rank"), keys.size("ssm.inner_size")
    if inner % values:
        raise keys.file.fail("ssm.inner_size", f"{inner} is not a multiple of ssm.time_step_rank {values}")
    keys.has("rope.dimension_sections")  # divides a head between positions in images; in texts all are equal
    return rms(keys) | partly_rotated(keys, config) | {
        "head_dim": head_size(keys, config),
        "attention_bias": any(f"blk.{layer}.attn_q.bias" in tensors for layer in range(layers)),
        "layer_types": _layer_types(keys, layers),
        "linear_conv_kernel_dim": keys.size("ssm.conv_kernel"),
        "linear_key_head_dim": keys.size("ssm.state_size"),
        "linear_num_key_heads": keys.size("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_value_head_dim": inner // values,
    }  # fmt: skip


def _mixture(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.has("feed_forward_length")  # of networks for all tokens, which no layer has
    keys.refuse("expert_gating_func", 1)  # softmax
    keys.refuse("expert_weights_norm", True)
    keys.refuse("expert_weights_scale", 1.0, 0.0)
    for key in ("expert_group_count", "expert_group_used_count"):
        keys.refuse(key, 0, 1)
    return _dense(keys, tensors, config) | {
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.size("expert_shared_feed_forward_length"),
    }


def _layer_types(keys: Metadata, layers: int) -> list[str]:
    """Return the type of each layer: as the file lists them, or delta rules except every n-th."""
    key = "attention.recurrent_layers"
    every = keys.size("full_attention_interval", 4)
    recurrent = [bool((layer + 1) % every) for layer in range(layers)]
    if keys.has(key):
        listed = keys.numbers(key, keys.size("block_count"))
        recurrent = [bool(each) for each in listed[:layers]]  # type: ignore[index]
    return ["linear_attention" if each else "full_attention" for each in recurrent]


def _adjust_fused(config: Config, tensor: GgufTensor) -> tuple[GgufTensor, ...]:
    """Return the tensors of a Qwen3-Next, with what its files store by key head apart."""
    keys, group = _heads(config)
    values = group * config["linear_value_head_dim"]
    if tensor.name.endswith(".in_proj_ba.weight"):
        parts = {"b": group, "a": group}
    elif tensor.name.endswith(".in_proj_qkvz.weight"):
        parts = {"q": config["linear_key_head_dim"], "k": config["linear_key_head_dim"], "v": values, "z": values}
    else:
        return _adjust(tensor)
    stored = np.arange(keys * sum(parts.values())).reshape(keys, -1)
    ends = np.cumsum(list(parts.values()))[:-1]
    rows = dict(zip(parts, (part.ravel() for part in np.split(stored, ends, axis=1)), strict=True))
    if "q" in rows:
        rows = {"qkv": np.concatenate([rows["q"], rows["k"], rows["v"]]), "z": rows["z"]}
    base = tensor.name.rpartition("_")[0]
    return tuple(replace(tensor.with_rows(order), name=f"{base}_{part}.weight") for part, order in rows.items())


def _adjust_tiled(config: Config, tensor: GgufTensor) -> tuple[GgufTensor, ...]:
    """Return the tensor of a Qwen 3.5 with its value heads in order.

    The family stores the value heads of one key head after each other; llama.cpp stores the first of each key head,
    then the second of each.
    """
    (found,) = _adjust(tensor)
    keys, group = _heads(config)
    module = tensor.name.partition(".linear_attn.")[2].removesuffix(".weight")
    if group == 1 or not module:
        return (found,)
    heads = np.arange(keys * group).reshape(group, keys).T.ravel()
    values = _numbers(heads, config["linear_value_head_dim"])
    if module == "out_proj":
        return (found.with_columns(values),)
    if module in ("in_proj_qkv", "conv1d"):
        width = 2 * keys * config["linear_key_head_dim"]
        return (found.with_rows(np.concatenate([np.arange(width), width + values])),)
    if module == "in_proj_z":
        return (found.with_rows(values),)
    return (found.with_rows(heads),) if module in ("in_proj_a", "in_proj_b", "A_log", "dt_bias") else (found,)


def _adjust(tensor: GgufTensor) -> tuple[GgufTensor]:
    """Return a tensor with its family's dimensions and numbers. To all norms but those of heads 1 is added."""
    if tensor.name.endswith("norm.weight") and not tensor.name.endswith(".linear_attn.norm.weight"):
        return (replace(tensor, offset=1.0),)
    return rates_and_convolutions({}, tensor)


def _heads(config: Config) -> tuple[int, int]:
    """Return the number of key heads, and of value heads of each."""
    keys: int = config["linear_num_key_heads"]
    return keys, config["linear_num_value_heads"] // keys


def _numbers(heads: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the places of the numbers of these heads."""
    return (heads[:, None] * size + np.arange(size)).ravel()


_mixture_of = partial(Architecture, names=names.QWEN_MOE | _MIXER_NAMES, extra=_mixture, sizes=SIZES_WITHOUT_WIDTH)

QWEN_HYBRIDS: dict[str, Architecture] = {
    # Qwen3-Next is a Qwen 3.5 whose checkpoints store some matrices in one.
    "qwen3next": _mixture_of(name="Qwen3_5MoeForCausalLM", model_type="qwen3_5_moe_text", adjust=_adjust_fused),
    "qwen35": Architecture(
        name="Qwen3_5ForCausalLM",
        model_type="qwen3_5_text",
        names=names.LLAMA | _MIXER_NAMES,
        extra=_dense,
        adjust=_adjust_tiled,
    ),
    "qwen35moe": _mixture_of(name="Qwen3_5MoeForCausalLM", model_type="qwen3_5_moe_text", adjust=_adjust_tiled),
}
