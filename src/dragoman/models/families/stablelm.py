"""StableLM: LayerNorm, a quarter of each head rotated, and, by size, parallel branches and norms of each head."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.spec import Block, DecoderSpec, HeadNorm

_STABLELM_NAMES: dict[str, tuple[str, ...]] = LLAMA_NAMES | {
    "query_norm": ("model.layers.{layer}.self_attn.q_layernorm.norms.{part}",),
    "key_norm": ("model.layers.{layer}.self_attn.k_layernorm.norms.{part}",),
}


def _read_stablelm(config: Config) -> DecoderSpec:
    config = config.over({"max_position_embeddings": 4096})
    parallel = config.flag("use_parallel_residual", False)
    return llama_like(
        config,
        architecture="StableLmForCausalLM",
        partial=0.25,
        block=Block(parallel=parallel, shared_norm=parallel),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_eps", 1e-5),
        qkv_bias=config.flag("use_qkv_bias", False),
        head_norm=HeadNorm(kind="layer", over="own") if config.flag("qk_layernorm", False) else None,
    )


FAMILIES: dict[str, Family] = {
    "StableLmForCausalLM": Family(
        _read_stablelm,
        _STABLELM_NAMES,
        "stablelm",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="StableLM",
        examples=("stabilityai/stablelm-2-1_6b-chat", "stabilityai/stablelm-zephyr-3b"),
    ),
}
