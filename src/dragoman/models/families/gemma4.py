"""Gemma 4: heads of two sizes, keys and values that layers share, inputs of layers, and experts beside a network.

Layers with full attention have larger heads than those with windows; in the larger models they have fewer of keys and
values, and the keys are the values. The last layers of the small models have no keys and values, but use those of the
last layer of their kind that has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import ACTIVATIONS, HEAD_NORM_NAMES, LLAMA_NAMES, llama_like
from dragoman.models.families.mixtures import MOST_EXPERTS
from dragoman.models.optional_parts import LayerInputs, LayerSizes
from dragoman.models.rope import Rope
from dragoman.models.rope_config import blocks_by_layer_type, read_rope_block
from dragoman.models.spec import (
    Block,
    DecoderSpec,
    Embedding,
    Experts,
    HeadNorm,
    Output,
)
from dragoman.models.vision.parameters import gemma4_names

_ATTENTION = "model.layers.{layer}.self_attn."
LAYER_INPUT_NAMES = {
    "query": (f"{_ATTENTION}q_proj",),
    "attention_out_norm": ("model.layers.{layer}.post_attention_layernorm",),
    "feed_forward_norm": ("model.layers.{layer}.pre_feedforward_layernorm",),
    "feed_forward_out_norm": ("model.layers.{layer}.post_feedforward_layernorm",),
    "layer_embedding": ("model.embed_tokens_per_layer",),
    "layer_inputs": ("model.per_layer_model_projection",),
    "layer_inputs_norm": ("model.per_layer_projection_norm",),
    "layer_input_gate": ("model.layers.{layer}.per_layer_input_gate",),
    "layer_input_out": ("model.layers.{layer}.per_layer_projection",),
    "layer_input_norm": ("model.layers.{layer}.post_per_layer_input_norm",),
}
"""Names of Gemma 3n and 4."""

_NAMES = LLAMA_NAMES | HEAD_NORM_NAMES | LAYER_INPUT_NAMES | {
    "query_key": (f"{_ATTENTION}q_proj", f"{_ATTENTION}k_proj"),
    "layer_scale": ("model.layers.{layer}.layer_scalar",),
    "router": ("model.layers.{layer}.router.proj",),
    "router_scale": ("model.layers.{layer}.router.scale",),
    "expert_scale": ("model.layers.{layer}.router.per_expert_scale",),
    "expert_in": ("model.layers.{layer}.experts.gate_up_proj",),
    "expert_out": ("model.layers.{layer}.experts.down_proj",),
    "dense_out_norm": ("model.layers.{layer}.post_feedforward_layernorm_1",),
    "expert_norm": ("model.layers.{layer}.pre_feedforward_layernorm_2",),
    "expert_out_norm": ("model.layers.{layer}.post_feedforward_layernorm_2",),
}  # fmt: skip

OTHER_SENSES = re.compile(r"(vision_tower|audio_tower|embed_vision|embed_audio)\..*")
_GGUF_SCALES = (
    (r"\.router\.proj\.scale$", ".router.scale"),
    (r"\.experts\.down_proj\.scale$", ".router.per_expert_scale"),
)
TEXT_PART = ((r"^model\.language_model\.", "model."),)
_PARTS = ((r"^(model\.)?(vision_tower|embed_vision)\.", r"model.\2."), *TEXT_PART)

# Defaults of fields that configs may omit, from transformers' class.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
}
_FULL_ROPE = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0}


def _read_gemma4(config: Config) -> DecoderSpec:
    config = config.over(_DEFAULTS)
    config.refuse("use_bidirectional_attention", "vision")  # of images alone
    layers, window = config.size("num_hidden_layers"), config.size("sliding_window", 512)
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        windows = tuple(window if (layer + 1) % 6 else 0 for layer in range(layers))
    windows = (*windows[:-1], 0)  # as transformers has it, whatever the config says
    sources = read_kv_sources(config, windows, 0)
    keys_as_values = config.flag("attention_k_eq_v", False)
    bias, width = config.flag("attention_bias", False), config.size("hidden_size")
    spec = llama_like(
        config,
        architecture="Gemma4ForCausalLM",
        block=Block(norms="around"),
        embedding=Embedding(scale=width**0.5, scale_rounded=True),
        output=Output(softcap=read_softcap(config)),
        activation=config.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
        head_norm=HeadNorm(),
        value_norm=True,
        layer_scale=True,
        qkv_bias=bias,
        attention_out_bias=bias,
        ropes=(),
        windows=windows,
        attention_scales=(1.0,) * layers,
        kv_sources=sources,
        keys_as_values=tuple(layer for layer, seen in enumerate(windows) if keys_as_values and not seen),
        layer_inputs=read_layer_inputs(config),
        experts=_read_experts(config),
    )
    sizes = _read_sizes(config, spec)
    return replace(spec, sizes=sizes, ropes=_read_ropes(config, spec, sizes))


def _read_gemma4_with_images(config: Config) -> DecoderSpec:
    return replace(_read_gemma4(config.within("text_config")), architecture="Gemma4ForConditionalGeneration")


def read_kv_sources(config: Config, windows: Sequence[int], default: int) -> tuple[int, ...]:
    """Return for each layer the one whose keys and values it uses: of the last layers the last before them of their
    kind. Raises ModelError where there is none."""
    shared, layers = config.count("num_kv_shared_layers", default), len(windows)
    own = range(layers - shared)
    last = {bool(windows[layer]): layer for layer in own}
    if {bool(window) for window in windows} != last.keys():
        raise ModelError(
            f"config.json: num_kv_shared_layers {shared} of {layers} leaves no layer whose keys and values they share"
        )
    return (*own, *(last[bool(window)] for window in windows[len(own) :]))


def read_layer_inputs(config: Config) -> LayerInputs | None:
    """Return the inputs of layers; None where they have none."""
    width = config.count("hidden_size_per_layer_input", 256)
    return LayerInputs(vocab=config.size("vocab_size_per_layer_input", 262_144), width=width) if width else None


def read_softcap(config: Config, default: float = 0.0) -> float:
    """Return the soft cap of the logits; 0: they have none."""
    if config.value("final_logit_softcapping") is None:
        return default
    return config.number("final_logit_softcapping", 0.0)


def _read_experts(config: Config) -> Experts | None:
    keys = ("num_experts", "top_k_experts", "moe_intermediate_size")
    count, active, inner = (config.count(key, 0) for key in keys)
    if not config.flag("enable_moe_block", False):
        return None
    for key in keys:
        config.size(key)
    if active > count or count > MOST_EXPERTS:
        raise ModelError(f"config.json: {active} of {count} experts are not supported; known: up to {MOST_EXPERTS}")
    return Experts(count=count, active=active, feed_forward=inner, beside=True)


def _read_sizes(config: Config, spec: DecoderSpec) -> tuple[LayerSizes, ...]:
    """Return the sizes of each layer. The heads of layers with full attention are in fields of their own, or in a block
    with an entry for each layer, as newer configs have it."""
    by_layer = config.block("per_layer_config")
    where = f"{config.where}: per_layer_config"
    if unknown := sorted(by_layer.keys() - {str(layer) for layer in range(spec.layers)}):
        raise ModelError(f"{where} has no layer {unknown[0][:20]!r}")
    wide = config.flag("use_double_wide_mlp", False)
    full = {"head_dim": config.size("global_head_dim", 512), "num_key_value_heads": spec.kv_heads}
    if spec.keys_as_values:
        full["num_key_value_heads"] = config.size("num_global_key_value_heads", spec.kv_heads)
    heads: dict[bool, tuple[int, int]] = {}
    found = []
    for layer, window in enumerate(spec.windows):
        own: dict[str, Any] = {} if window or by_layer else full
        own = Config(by_layer, where).block(str(layer)) or own
        if other := sorted(own.keys() - full.keys()):
            raise ModelError(f"{where}: {other[0][:40]} of layer {layer} is not supported")
        values = Config(own, f"{where}: layer {layer}")
        kv_heads = values.size("num_key_value_heads", spec.kv_heads)
        head_dim = values.size("head_dim", spec.head_dim)
        if heads.setdefault(bool(window), (kv_heads, head_dim)) != (kv_heads, head_dim):
            raise ModelError(f"{where}: layer {layer} has other heads than those of its kind before it")
        if spec.heads % kv_heads:
            raise ModelError(f"config.json: {spec.heads} query heads cannot share {kv_heads} key-value heads evenly")
        double = 2 if wide and spec.kv_source(layer) != layer else 1
        found.append(LayerSizes(kv_heads=kv_heads, head_dim=head_dim, feed_forward=double * spec.feed_forward))
    return tuple(found)


def _read_ropes(config: Config, spec: DecoderSpec, sizes: Sequence[LayerSizes]) -> tuple[Rope, ...]:
    full, sliding = blocks_by_layer_type(config)
    if not config.block("rope_parameters") and not config.block("rope_scaling"):
        full = _FULL_ROPE
    found: dict[bool, Rope] = {}
    for window, own in zip(spec.windows, sizes, strict=True):
        if bool(window) not in found:
            block, theta = (sliding, 10_000.0) if window else (full, 1_000_000.0)
            found[bool(window)] = read_rope_block(config, block, own.head_dim, spec.context, theta=theta)
    return tuple(found[bool(window)] for window in spec.windows)


def unused_keys_and_values(spec: DecoderSpec) -> frozenset[str]:
    """Return the names of keys and values, and their norms, in layers that use those of others."""
    shared = (layer for layer in range(spec.layers) if spec.kv_source(layer) != layer)
    kinds = ("k_proj", "v_proj", "k_norm", "v_norm")
    return frozenset(f"{_ATTENTION.format(layer=layer)}{kind}.weight" for layer in shared for kind in kinds)


FAMILIES: dict[str, Family] = {
    "Gemma4ForCausalLM": Family(
        _read_gemma4,
        _NAMES,
        "gemma4_text",
        base="model.",
        unused=unused_keys_and_values,
        aliases=_GGUF_SCALES,
        title="Gemma 4",
        examples=("google/gemma-4-E2B-it (its text part)",),
    ),
    "Gemma4ForConditionalGeneration": Family(
        _read_gemma4_with_images,
        _NAMES | gemma4_names("model.vision_tower.", "model.embed_vision."),
        "gemma4",
        base="model.",
        ignored=OTHER_SENSES,
        unused=unused_keys_and_values,
        aliases=_PARTS,
        title="Gemma 4 with images and sound",
        examples=(
            "google/gemma-4-E2B-it",
            "google/gemma-4-E4B-it",
            "google/gemma-4-26B-A4B-it",
            "google/gemma-4-31B-it",
        ),
        note="It [sees images](vision.md); the part for sound is not loaded. The table of the layers' inputs stays in "
        "the packed file, of which the rows of a step's tokens are read (not with `--weights-memory copy`).",
    ),
}
