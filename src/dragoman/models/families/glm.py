"""GLM-4: half of each head rotated, interleaved, and gate and up in one matrix; GLM-4-0414 has norms after the branches
too."""

from __future__ import annotations

from typing import Any

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.spec import Block, DecoderSpec

_GLM_NAMES: dict[str, tuple[str, ...]] = LLAMA_NAMES | {
    "feed_forward_in": ("model.layers.{layer}.mlp.gate_up_proj",),
}
_GLM4_NAMES = _GLM_NAMES | {
    "attention_out_norm": ("model.layers.{layer}.post_self_attn_layernorm",),
    "feed_forward_out_norm": ("model.layers.{layer}.post_mlp_layernorm",),
}


def _read_glm(config: Config) -> DecoderSpec:
    return _glm_like(config, architecture="GlmForCausalLM")


def _read_glm4(config: Config) -> DecoderSpec:
    return _glm_like(config, architecture="Glm4ForCausalLM", block=Block(norms="around"))


def _glm_like(config: Config, **variant: Any) -> DecoderSpec:
    config = config.over({"num_key_value_heads": 2, "max_position_embeddings": 131_072, "rms_norm_eps": 1.5625e-7})
    return llama_like(
        config,
        default_head_dim=128,
        partial=0.5,
        interleaved=True,
        qkv_bias=config.flag("attention_bias", True),
        **variant,
    )


FAMILIES: dict[str, Family] = {
    "GlmForCausalLM": Family(
        _read_glm,
        _GLM_NAMES,
        "glm",
        base="model.",
        other_names={"qkv": ("model.layers.{layer}.self_attn.qkv_proj",)},  # in GGUF files
        ignored=ROTARY_BUFFER,
        title="GLM-4",
        examples=("THUDM/glm-4-9b-chat-hf",),
    ),
    "Glm4ForCausalLM": Family(
        _read_glm4,
        _GLM4_NAMES,
        "glm4",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="GLM-4-0414",
        examples=("THUDM/GLM-4-9B-0414", "THUDM/GLM-4-32B-0414"),
    ),
}
