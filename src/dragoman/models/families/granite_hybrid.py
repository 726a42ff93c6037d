"""Granite 4: Mamba-2 in most layers, or attention in all, with Granite's factors; dense, or with experts."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.granite import (
    MOE_ALIASES,
    MOE_SEPARATE_NAMES,
    MOE_SHARED_NAMES,
    granite_like,
    read_experts,
)
from dragoman.models.families.llama import ROTARY_BUFFER
from dragoman.models.families.state_space import mixer_names, read_inner, read_state_space
from dragoman.models.recurrent import StateSpace
from dragoman.models.spec import DecoderSpec

_LAYER = "model.layers.{layer}."
_NAMES = (
    MOE_SHARED_NAMES
    | mixer_names(f"{_LAYER}mamba.")
    | {
        "feed_forward_in": (f"{_LAYER}shared_mlp.input_linear",),
        "feed_forward_out": (f"{_LAYER}shared_mlp.output_linear",),
    }
)


def _read_granite_hybrid(config: Config) -> DecoderSpec:
    layers, shared = config.size("num_hidden_layers"), config.size("shared_intermediate_size", 1024)
    config.choice("hidden_act", "silu", {"silu": "silu", "swish": "silu"})  # of the convolutions too
    config = config.over({"intermediate_size": shared})
    variant: dict[str, Any] = {"mixers": _mixers(config, layers)}
    if config.choice("position_embedding_type", "nope", {"nope": True, "rope": False}):
        variant["ropes"] = ()
    if config.value("num_local_experts", 8) == 0:
        variant["feed_forward"] = shared
    else:
        variant["experts"] = replace(read_experts(config), shared=shared)
    return granite_like(config, architecture="GraniteMoeHybridForCausalLM", **variant)


def _mixers(config: Config, layers: int) -> tuple[StateSpace | None, ...]:
    mixer = read_state_space(config, read_inner(config, "mamba_expand"))
    kinds = {"full_attention": None, "attention": None, "linear_attention": mixer, "mamba": mixer}
    field = "layers_block_type" if "layers_block_type" in config.values else "layer_types"
    named = config.choices(field, layers, kinds)
    if named is None:
        raise ModelError(f"{config.where}: {field} is missing")
    if None not in named:
        raise ModelError(f"{config.where}: layer_types without full_attention are not supported")
    return named if any(named) else ()


FAMILIES: dict[str, Family] = {
    "GraniteMoeHybridForCausalLM": Family(
        _read_granite_hybrid,
        _NAMES,
        "granitemoehybrid",
        base="model.",
        aliases=MOE_ALIASES,
        other_names=MOE_SEPARATE_NAMES | {"feed_forward_in": MOE_SEPARATE_NAMES["shared_expert_in"]},
        ignored=ROTARY_BUFFER,
        title="Granite 4",
        examples=("ibm-granite/granite-4.0-h-1b", "ibm-granite/granite-4.0-h-350m", "ibm-granite/granite-4.0-micro"),
        note="Layers with Mamba-2 keep a [state](recurrent-state.md).",
    ),
}
