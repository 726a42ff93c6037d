"""ERNIE 4.5: a Llama whose heads are rotated in neighbouring pairs; and its mixtures of experts."""

from __future__ import annotations

import re
from typing import Any

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import LLAMA_NAMES, llama_like
from dragoman.models.families.mixtures import checked
from dragoman.models.families.scored_mixtures import DEEPSEEK_NAMES, DEEPSEEK_STACKS
from dragoman.models.spec import DecoderSpec, Experts

_MOE_NAMES = DEEPSEEK_NAMES | {"router_choice": ("model.layers.{layer}.mlp.moe_statics.e_score_correction_bias",)}
_DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def _read_ernie(config: Config) -> DecoderSpec:
    config = config.over(_DEFAULTS | {"num_key_value_heads": 2, "head_dim": 128})
    return _ernie_like(config, architecture="Ernie4_5ForCausalLM")


def _read_ernie_moe(config: Config) -> DecoderSpec:
    config.refuse("use_bias", False)
    config.refuse("moe_gate", "topk")
    config = config.over(_DEFAULTS)
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    layers, inner = config.size("num_hidden_layers"), config.size("moe_intermediate_size")
    first, step = config.count("moe_layer_start_index", 1), config.size("moe_layer_interval", 1)
    last = layers - 1 if config.value("moe_layer_end_index", -1) == -1 else config.count("moe_layer_end_index", 0)
    dense = tuple(layer for layer in range(layers) if not first <= layer <= last or (layer + 1) % step)
    experts = Experts(
        count=config.size("moe_num_experts", config.size("num_experts", 64)),
        active=config.size("moe_k", config.size("num_experts_per_tok", 6)),
        feed_forward=inner,
        choice_bias=True,
        least=config.number("moe_norm_min", 1e-12),
        shared=inner * config.count("moe_num_shared_experts", 2),
        dense_layers=dense,
    )
    return _ernie_like(config, architecture="Ernie4_5_MoeForCausalLM", experts=checked(experts))


def _ernie_like(config: Config, **variant: Any) -> DecoderSpec:
    bias = config.flag("use_bias", False)
    return llama_like(
        config,
        theta=500_000.0,
        interleaved=True,
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=bias,
        **variant,
    )


FAMILIES: dict[str, Family] = {
    "Ernie4_5ForCausalLM": Family(
        _read_ernie,
        LLAMA_NAMES,
        "ernie4_5",
        base="model.",
        title="ERNIE 4.5",
        examples=("baidu/ERNIE-4.5-0.3B-PT",),
        others={"Ernie4_5_ForCausalLM": None},  # in the first files
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        _read_ernie_moe,
        _MOE_NAMES,
        "ernie4_5_moe",
        base="model.",
        aliases=((r"\.mlp\.gate\.moe_statics\.", ".mlp.moe_statics."),),
        other_names=DEEPSEEK_STACKS,
        ignored=re.compile(r"mtp_.*"),
        title="ERNIE 4.5 MoE",
        examples=("baidu/ERNIE-4.5-21B-A3B-PT", "baidu/ERNIE-4.5-300B-A47B-PT"),
    ),
}
