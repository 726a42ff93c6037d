"""Llama 4: chunks of attention in layers with positions, none in the others, and experts whose inputs are weighed."""

from __future__ import annotations

import re

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import WITH_IMAGES, Family
from dragoman.models.families.llama import LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.families.mixtures import checked
from dragoman.models.positions import QueryScale
from dragoman.models.spec import DecoderSpec, Experts, HeadNorm

_NAMES: dict[str, tuple[str, ...]] = LLAMA_NAMES | {
    "feed_forward_in": ("model.layers.{layer}.feed_forward.gate_proj", "model.layers.{layer}.feed_forward.up_proj"),
    "feed_forward_out": ("model.layers.{layer}.feed_forward.down_proj",),
    "router": ("model.layers.{layer}.feed_forward.router",),
    "expert_in": ("model.layers.{layer}.feed_forward.experts.gate_up_proj",),
    "expert_out": ("model.layers.{layer}.feed_forward.experts.down_proj",),
    "shared_expert_in": (
        "model.layers.{layer}.feed_forward.shared_expert.gate_proj",
        "model.layers.{layer}.feed_forward.shared_expert.up_proj",
    ),
    "shared_expert_out": ("model.layers.{layer}.feed_forward.shared_expert.down_proj",),
}

_GATES_APART: dict[str, tuple[str, ...]] = {  # in GGUF files
    "expert_in": (
        "model.layers.{layer}.feed_forward.experts.{expert}.gate_proj",
        "model.layers.{layer}.feed_forward.experts.{expert}.up_proj",
    ),
    "expert_out": ("model.layers.{layer}.feed_forward.experts.{expert}.down_proj",),
}


def _read_llama4(config: Config) -> DecoderSpec:
    config = config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 131_072})
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    layers = config.size("num_hidden_layers")
    rotated = _rotated(config, layers)
    turning = tuple(layer for layer in range(layers) if rotated[layer])
    chunk = config.size("attention_chunk_size", 8192)
    chunks = config.choices("layer_types", layers, {"full_attention": 0, "chunked_attention": chunk})
    if chunks is None:
        chunks = tuple(chunk if turns else 0 for turns in rotated)
    tuned = None
    if config.flag("attn_temperature_tuning", True):
        still = tuple(layer for layer in range(layers) if not rotated[layer])
        tuned = QueryScale(
            factor=config.number("attn_scale", 0.1), span=config.number("floor_scale", 8192), shift=1, layers=still
        )
    bias = config.flag("attention_bias", False)
    spec = llama_like(
        config.over({"intermediate_size": config.size("intermediate_size_mlp")}),
        architecture="Llama4ForCausalLM",
        default_head_dim=128,
        theta=500_000.0,
        interleaved=True,
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=HeadNorm(rotated=True, weighted=False, layers=turning) if config.flag("use_qk_norm", True) else None,
        query_scale=tuned,
        chunks=chunks,
        experts=_experts(config, layers),
        feed_forward=config.size("intermediate_size_mlp"),
    )
    return replace(spec, ropes=tuple(spec.rope(layer) if turns else None for layer, turns in enumerate(rotated)))


def _read_llama4_with_images(config: Config) -> DecoderSpec:
    """Return the text decoder of the models with images: only prompts without them are served."""
    return replace(_read_llama4(config.within("text_config")), architecture="Llama4ForConditionalGeneration")


def _rotated(config: Config, layers: int) -> tuple[bool, ...]:
    """Return whether each layer has positions. ``no_rope_layers``, despite its name, says 1 for those that have."""
    flags = config.value("no_rope_layers") or None
    if flags is None:
        every = config.size("no_rope_layer_interval", 4)
        return tuple((layer + 1) % every != 0 for layer in range(layers))
    if not isinstance(flags, list) or len(flags) != layers or any(flag not in (0, 1) for flag in flags):
        raise ModelError(f"config.json: no_rope_layers must hold 0 or 1 for each of {layers} layers, got {flags!r}")
    return tuple(map(bool, flags))


def _experts(config: Config, layers: int) -> Experts:
    routed = config.value("moe_layers")
    if routed is None:
        step = config.size("interleave_moe_layer_step", 1)
        routed = list(range(step - 1, layers, step))
    if not isinstance(routed, list) or not all(type(layer) is int and 0 <= layer < layers for layer in routed):
        raise ModelError(f"config.json: moe_layers must list some of {layers} layers, got {routed!r}")
    inner = config.size("intermediate_size")
    return checked(
        Experts(
            count=config.size("num_local_experts", 16),
            active=config.size("num_experts_per_tok", 1),
            feed_forward=inner,
            over_all=True,
            scores="sigmoid",
            scale_inputs=True,
            shared=inner,
            dense_layers=tuple(layer for layer in range(layers) if layer not in routed),
        )
    )


_IMAGES = ((r"^(model\.)?(vision_model)\.", r"model.\2."), *WITH_IMAGES)

FAMILIES: dict[str, Family] = {
    "Llama4ForCausalLM": Family(
        _read_llama4,
        _NAMES,
        "llama4_text",
        base="model.",
        transposed=frozenset({"expert_in", "expert_out"}),
        other_names=_GATES_APART,
        ignored=ROTARY_BUFFER,
        title="Llama 4, text",
        examples=("meta-llama/Llama-4-Scout-17B-16E",),
    ),
    "Llama4ForConditionalGeneration": Family(
        _read_llama4_with_images,
        _NAMES,
        "llama4",
        base="model.",
        aliases=_IMAGES,
        transposed=frozenset({"expert_in", "expert_out"}),
        ignored=re.compile(r"(vision_model|multi_modal_projector)\..*|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),
        title="Llama 4 with images",
        examples=("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"),
        note="Text only: the vision model is not loaded.",
    ),
}
