"""OLMo 2 and 3 and FlexOlmo: norms after the branches instead of before them, and of all queries and keys together; and
OLMo 1, whose norms have no weights."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import HEAD_NORM_NAMES, LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.families.mixtures import QWEN_MOE_NAMES, QWEN_STACKS, checked
from dragoman.models.rope_config import blocks_by_layer_type, read_rope_block
from dragoman.models.spec import Block, DecoderSpec, Experts, HeadNorm

_OLMO2_NAMES: dict[str, tuple[str, ...]] = {
    **LLAMA_NAMES,
    **HEAD_NORM_NAMES,
    "attention_out_norm": ("model.layers.{layer}.post_attention_layernorm",),
    "feed_forward_out_norm": ("model.layers.{layer}.post_feedforward_layernorm",),
}
del _OLMO2_NAMES["attention_norm"], _OLMO2_NAMES["feed_forward_norm"]


def _read_olmo(config: Config) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    return llama_like(
        config,
        architecture="OlmoForCausalLM",
        norm="layer",
        norm_weight=False,
        norm_eps=1e-5,
        qkv_bias=bias,
        attention_out_bias=bias,
        qkv_clip=0.0 if config.value("clip_qkv") is None else config.number("clip_qkv", 0.0),
    )


def _read_olmo2(config: Config, architecture: str = "Olmo2ForCausalLM", **variant: Any) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    return llama_like(
        config,
        architecture=architecture,
        block=Block(norms="after"),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=HeadNorm(over="all"),
        **variant,
    )


def _read_olmo3(config: Config) -> DecoderSpec:
    """Return OLMo 2 with windows in three of four layers; a scaling of the rotation applies only to the others."""
    config = config.over({"sliding_window": 4096})
    layers, window = config.size("num_hidden_layers"), config.size("sliding_window")
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        windows = tuple(window if (layer + 1) % 4 else 0 for layer in range(layers))
    positions = config.size("max_position_embeddings", 2048)
    spec = _read_olmo2(config, "Olmo3ForCausalLM", windows=windows, ropes=())
    full, sliding = (
        read_rope_block(config, block, spec.head_dim, positions, theta=500_000.0)
        for block in blocks_by_layer_type(config)
    )
    ropes = tuple(sliding if window else full for window in windows)
    return replace(spec, ropes=ropes, context=full.scaling.context(positions))


def _read_flex_olmo(config: Config) -> DecoderSpec:
    """Return OLMo 2 with experts."""
    experts = Experts(
        count=config.size("num_local_experts", config.size("num_experts", 7)),  # newer configs have the first
        active=config.size("num_experts_per_tok", 5),
        feed_forward=config.size("intermediate_size"),
        over_all=not config.flag("norm_topk_prob", False),
    )
    config = config.over({"rms_norm_eps": 1e-6, "max_position_embeddings": 4096})
    return _read_olmo2(config, "FlexOlmoForCausalLM", theta=500_000.0, experts=checked(experts))


FAMILIES: dict[str, Family] = {
    "OlmoForCausalLM": Family(
        _read_olmo,
        {name: stored for name, stored in LLAMA_NAMES.items() if not name.endswith("norm")},
        "olmo",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="OLMo",
        examples=("allenai/OLMo-1B-hf", "allenai/OLMo-7B-0724-Instruct-hf"),
    ),
    "Olmo2ForCausalLM": Family(
        _read_olmo2,
        _OLMO2_NAMES,
        "olmo2",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="OLMo 2",
        examples=("allenai/OLMo-2-0425-1B-Instruct", "allenai/OLMo-2-1124-7B-Instruct"),
    ),
    "Olmo3ForCausalLM": Family(
        _read_olmo3,
        _OLMO2_NAMES,
        "olmo3",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="OLMo 3",
        examples=("allenai/Olmo-3-7B-Instruct",),
    ),
    "FlexOlmoForCausalLM": Family(
        _read_flex_olmo,
        _OLMO2_NAMES | {name: QWEN_MOE_NAMES[name] for name in ("router", "expert_in", "expert_out")},
        "flex_olmo",
        base="model.",
        other_names=QWEN_STACKS,
        ignored=ROTARY_BUFFER,
        title="FlexOlmo",
        examples=("allenai/FlexOlmo-7x7B-1T",),
    ),
}
