"""Ling and Ring 2 (inclusionAI): GLM-4.5 with queries, keys and values in one matrix. In their linear versions most
layers are lightning attention (https://arxiv.org/abs/2510.19338); in version 2.5 the others have latents."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.latent import LATENT_NAMES, latent_like
from dragoman.models.families.llama import ROTARY_BUFFER, llama_like
from dragoman.models.families.scored_mixtures import DEEPSEEK_NAMES, deepseek_experts
from dragoman.models.latent import divide_keys_and_values
from dragoman.models.recurrent import LightningAttention
from dragoman.models.spec import DecoderSpec, Experts, HeadNorm

_ATTENTION = "model.layers.{layer}.attention."
_NAMES = DEEPSEEK_NAMES | {
    "embedding": ("model.word_embeddings",),
    "qkv": (f"{_ATTENTION}query_key_value",),
    "attention_out": (f"{_ATTENTION}dense",),
    "query_norm": (f"{_ATTENTION}query_layernorm",),
    "key_norm": (f"{_ATTENTION}key_layernorm",),
    "router_choice": ("model.layers.{layer}.mlp.gate.expert_bias",),
}
_LINEAR_NAMES = _NAMES | {
    "mixer_in": (f"{_ATTENTION}query_key_value",),
    "mixer_scale": (f"{_ATTENTION}g_norm",),
    "mixer_opening": (f"{_ATTENTION}g_proj",),
    "mixer_out": (f"{_ATTENTION}dense",),
}
_HYBRID_NAMES = _LINEAR_NAMES | {
    module: tuple(name.replace("self_attn", "attention") for name in names) for module, names in LATENT_NAMES.items()
}
_DIRECT = {"latent_query": (f"{_ATTENTION}q_proj",)}
_BUFFERS = re.compile(rf"layers\.\d+\.attention\.slope|{ROTARY_BUFFER.pattern}")
_SIZES = {"head_dim": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_KNOWN: dict[str, Any] = {
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True,
    "use_qk_norm": True,
    "use_rmsnorm": True,
    "use_qkv_bias": False,
    "use_bias": False,
    "use_sliding_window": False,
    "norm_head": False,
}


def _read_ling(config: Config, architecture: str = "BailingMoeV2ForCausalLM", **variant: Any) -> DecoderSpec:
    return llama_like(
        config,
        architecture=architecture,
        theta=600_000.0,
        partial=0.5,
        head_norm=HeadNorm(),
        experts=_read_experts(config),
        **variant,
    )


def _read_experts(config: Config) -> Experts:
    for key, known in _KNOWN.items():
        config.refuse(key, known)
    config.refuse("moe_shared_expert_intermediate_size", config.size("moe_intermediate_size"))
    named = {
        "n_routed_experts": config.size("num_experts"),
        "n_shared_experts": config.count("num_shared_experts", 0),
    }
    return deepseek_experts(config.having(named), dense=0, normalized=True)


def _read_linear(config: Config) -> DecoderSpec:
    config.refuse("linear_silu", False)
    return _read_ling(config, "BailingMoeLinearV2ForCausalLM", mixers=_read_mixers(config))


def _read_hybrid(config: Config) -> DecoderSpec:
    """Return Ling 2.5. Both kinds of layers rotate by the same angles, pairs of neighbours where there are latents."""
    config.refuse("linear_silu", False)
    config.refuse("rope_interleave", True)
    config = config.having({"q_lora_rank": config.value("q_lora_rank")})  # absent, queries are projected directly
    config = config.over(_SIZES)
    config = config.having({"num_key_value_heads": config.size("num_attention_heads")})  # of no effect
    share, rotated = config.number("partial_rotary_factor", 0.5), config.size("qk_rope_head_dim")
    if int(config.size("head_dim") * share) != rotated:
        raise ModelError(f"{config.where}: partial_rotary_factor {share:g} is not that of qk_rope_head_dim {rotated}")
    mixers = _read_mixers(config)
    spec = latent_like(
        config,
        architecture="BailingMoeV2_5ForCausalLM",
        theta=600_000.0,
        experts=_read_experts(config),
        mixers=mixers,
    )
    ropes = zip(spec.ropes, mixers or (None,) * spec.layers, strict=True)
    return replace(spec, ropes=tuple(rope and replace(rope, interleaved=mixer is None) for rope, mixer in ropes))


def _read_mixers(config: Config) -> tuple[LightningAttention | None, ...]:
    """Return what each layer is: attention at the end of each group, and after the last whole one."""
    layers, heads = config.size("num_hidden_layers"), config.size("num_attention_heads")
    group, norm_groups = config.size("layer_group_size", 1), config.size("group_norm_size", 1)
    dim = config.size("head_dim", config.size("hidden_size") // heads)
    if heads % norm_groups:
        raise ModelError(f"{config.where}: group_norm_size {norm_groups} must divide the {heads} heads")
    mixer = LightningAttention(
        heads=heads, dim=dim, norm_eps=config.number("rms_norm_eps", 1e-6), norm_groups=norm_groups, rotated=True
    )
    whole = layers // group * group
    found = tuple(None if (layer + 1) % group == 0 or layer >= whole else mixer for layer in range(layers))
    return found if any(found) else ()


FAMILIES: dict[str, Family] = {
    "BailingMoeV2ForCausalLM": Family(
        _read_ling,
        _NAMES,
        "bailing_moe",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="Ling 2 and Ring 2",
        examples=("inclusionAI/Ling-mini-2.0", "inclusionAI/Ring-mini-2.0", "inclusionAI/Ling-flash-2.0"),
    ),
    "BailingMoeLinearV2ForCausalLM": Family(
        _read_linear,
        _LINEAR_NAMES,
        "bailing_moe_linear",
        base="model.",
        ignored=_BUFFERS,
        title="Ring 2 linear",
        examples=("inclusionAI/Ring-mini-linear-2.0", "inclusionAI/Ring-flash-linear-2.0"),
        note="Layers with lightning attention keep a [state](recurrent-state.md).",
    ),
    "BailingMoeV2_5ForCausalLM": Family(
        _read_hybrid,
        _HYBRID_NAMES,
        "bailing_hybrid",
        base="model.",
        other_names=_DIRECT,
        divide=divide_keys_and_values,
        ignored=re.compile(rf"layers\.(32|80)\..*|{_BUFFERS.pattern}"),
        title="Ling and Ring 2.5 and 2.6",
        examples=("inclusionAI/Ling-2.6-flash", "inclusionAI/Ling-2.5-1T", "inclusionAI/Ring-2.5-1T"),
        note="Layers with lightning attention keep a [state](recurrent-state.md), the others latents. The layers that "
        "guess one token more (MTP) are not loaded.",
    ),
}
