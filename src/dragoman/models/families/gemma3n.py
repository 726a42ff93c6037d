"""Gemma 3n: a stream of several parts, products of low rank beside attention, sparse gates, and inputs of layers."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.gemma4 import (
    LAYER_INPUT_NAMES,
    OTHER_SENSES,
    TEXT_PART,
    read_kv_sources,
    read_layer_inputs,
    read_softcap,
    unused_keys_and_values,
)
from dragoman.models.families.llama import ACTIVATIONS, HEAD_NORM_NAMES, LLAMA_NAMES, llama_like
from dragoman.models.optional_parts import AltUp, LayerSizes
from dragoman.models.rope_config import blocks_by_layer_type, read_rope_block
from dragoman.models.spec import Block, DecoderSpec, Embedding, HeadNorm, Output

_MOST_PARTS = 16  # limit of the kernels
_ALTUP = "model.layers.{layer}.altup."
_NAMES = LLAMA_NAMES | HEAD_NORM_NAMES | LAYER_INPUT_NAMES | {
    "part_in": ("model.altup_projections.{part}",),
    "part_out": ("model.altup_unembed_projections.{expert}",),
    "part_router": (f"{_ALTUP}modality_router",),
    "part_router_norm": (f"{_ALTUP}router_norm",),
    "part_prediction": (f"{_ALTUP}prediction_coefs",),
    "part_correction": (f"{_ALTUP}correction_coefs",),
    "part_scale": (f"{_ALTUP}correct_output_scale",),
    "low_rank_in": ("model.layers.{layer}.laurel.linear_left",),
    "low_rank_out": ("model.layers.{layer}.laurel.linear_right",),
    "low_rank_norm": ("model.layers.{layer}.laurel.post_laurel_norm",),
}  # fmt: skip

# Defaults of fields that configs may omit, from transformers' class.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}


def _read_gemma3n(config: Config) -> DecoderSpec:
    config = config.over(_DEFAULTS)
    layers, window = config.size("num_hidden_layers"), config.size("sliding_window", 512)
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        windows = tuple(window if (layer + 1) % 5 else 0 for layer in range(layers))
    widths = _read_widths(config, layers)
    bias, width = config.flag("attention_bias", False), config.size("hidden_size")
    inputs = read_layer_inputs(config)
    if inputs is None:
        raise ModelError("config.json: hidden_size_per_layer_input 0 is not supported")
    spec = llama_like(
        config.having({"intermediate_size": widths[0]}),
        architecture="Gemma3nForCausalLM",
        block=Block(norms="around"),
        embedding=Embedding(scale=width**0.5, scale_rounded=True),
        output=Output(softcap=read_softcap(config, 30.0)),
        activation=config.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
        head_norm=HeadNorm(),
        value_norm=True,
        qkv_bias=bias,
        attention_out_bias=bias,
        ropes=(),
        windows=windows,
        attention_scales=(1.0,) * layers,
        kv_sources=read_kv_sources(config, windows, 15),
        layer_inputs=inputs,
        altup=_read_altup(config, layers),
    )
    full, sliding = (
        read_rope_block(config, block, spec.head_dim, spec.context, theta=theta)
        for block, theta in zip(blocks_by_layer_type(config), (1_000_000.0, 10_000.0), strict=True)
    )
    if len(set(widths)) > 1:
        sizes = (LayerSizes(kv_heads=spec.kv_heads, head_dim=spec.head_dim, feed_forward=inner) for inner in widths)
        spec = replace(spec, sizes=tuple(sizes))
    return replace(spec, ropes=tuple(sliding if seen else full for seen in windows))


def _read_gemma3n_with_images(config: Config) -> DecoderSpec:
    return replace(_read_gemma3n(config.within("text_config")), architecture="Gemma3nForConditionalGeneration")


def _read_widths(config: Config, layers: int) -> tuple[int, ...]:
    """Return the inner width of each layer's network: of all, or a list."""
    value = config.value("intermediate_size")
    if not isinstance(value, list):
        return (config.size("intermediate_size"),) * layers
    if len(value) != layers:
        raise ModelError(f"config.json: intermediate_size has {len(value)} widths for {layers} layers")
    return tuple(Config({"intermediate_size": each}, config.where).size("intermediate_size") for each in value)


def _read_altup(config: Config, layers: int) -> AltUp:
    parts, active = config.size("altup_num_inputs", 4), config.count("altup_active_idx", 0)
    if not 2 <= parts <= _MOST_PARTS:
        raise ModelError(f"config.json: altup_num_inputs {parts} is not supported; known: 2 to {_MOST_PARTS}")
    if active >= parts:
        raise ModelError(f"config.json: altup_active_idx {active} is not one of {parts} parts")
    return AltUp(
        parts=parts,
        active=active,
        scaled=config.flag("altup_correct_scale", True),
        rank=config.size("laurel_rank", 64),
        deviations=_read_deviations(config, layers),
    )


def _read_deviations(config: Config, layers: int) -> tuple[float | None, ...]:
    """Return how far above the mean a gate remains, in standard deviations: what a share of a normal distribution is
    below."""
    key = "activation_sparsity_pattern"
    shares = config.value(key)
    if shares is None:
        sparse = 10 if layers > 10 else 0
        shares = [0.95] * sparse + [0.0] * (layers - sparse)
    fine = isinstance(shares, list) and all(
        isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < 1 for each in shares
    )
    if not fine or len(shares) != layers:
        raise ModelError(f"config.json: {key} must list {layers} numbers from 0 to less than 1")
    return tuple(NormalDist().inv_cdf(share) if share else None for share in shares)


FAMILIES: dict[str, Family] = {
    "Gemma3nForCausalLM": Family(
        _read_gemma3n,
        _NAMES,
        "gemma3n_text",
        base="model.",
        unused=unused_keys_and_values,
        title="Gemma 3n",
        examples=("google/gemma-3n-E2B-it (its text part)",),
    ),
    "Gemma3nForConditionalGeneration": Family(
        _read_gemma3n_with_images,
        _NAMES,
        "gemma3n",
        base="model.",
        ignored=OTHER_SENSES,
        unused=unused_keys_and_values,
        aliases=TEXT_PART,
        title="Gemma 3n with images and sound",
        examples=("google/gemma-3n-E2B-it", "google/gemma-3n-E4B-it"),
        note="Text only: the parts for images and sound are not loaded. The table of the layers' inputs stays in the "
        "packed file, of which the rows of a step's tokens are read (not with `--weights-memory copy`).",
    ),
}
