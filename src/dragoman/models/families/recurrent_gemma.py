"""RecurrentGemma: two layers of three are RG-LRUs, the third attention within a window; norms stored minus 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import llama_like
from dragoman.models.families.state_space import read_taps
from dragoman.models.recurrent import GatedUnit
from dragoman.models.spec import DecoderSpec, Embedding, Output
from dragoman.models.tensors import Tensor, Transposed, nearest_bfloat16

if TYPE_CHECKING:
    pass

_LAYER = "model.layers.{layer}."
_MIXER = f"{_LAYER}temporal_block."
_UNIT = f"{_MIXER}rg_lru."
_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens",),
    "attention_norm": (f"{_LAYER}temporal_pre_norm",),
    "qkv": (f"{_MIXER}q_proj", f"{_MIXER}k_proj", f"{_MIXER}v_proj"),
    "attention_out": (f"{_MIXER}o_proj",),
    "mixer_in": (f"{_MIXER}linear_x", f"{_MIXER}linear_y"),
    "mixer_convolution": (f"{_MIXER}conv_1d",),
    "mixer_rate": (f"{_UNIT}recurrent_param",),
    "mixer_input_gate": (f"{_UNIT}input_gate_weight",),
    "mixer_input_gate.bias": (f"{_UNIT}input_gate_bias",),
    "mixer_decay_gate": (f"{_UNIT}recurrent_gate_weight",),
    "mixer_decay_gate.bias": (f"{_UNIT}recurrent_gate_bias",),
    "mixer_out": (f"{_MIXER}linear_out",),
    "feed_forward_norm": (f"{_LAYER}channel_pre_norm",),
    "feed_forward_in": (f"{_LAYER}mlp_block.gate_proj", f"{_LAYER}mlp_block.up_proj"),
    "feed_forward_out": (f"{_LAYER}mlp_block.down_proj",),
    "final_norm": ("model.final_norm",),
    "head": ("lm_head",),
}
_GATE_WEIGHTS = (".rg_lru.input_gate_weight", ".rg_lru.recurrent_gate_weight")
_LEAST_BLOCK = 32
"""Channels of a block are a multiple of this: a packed matrix has its outputs in blocks of 32."""

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 256_000,
    "hidden_size": 2560,
    "intermediate_size": 7680,
    "num_hidden_layers": 26,
    "num_attention_heads": 10,
    "max_position_embeddings": 8192,  # that of its training; configs say none
    "tie_word_embeddings": True,
}


def _read_recurrent_gemma(config: Config) -> DecoderSpec:
    config = config.over(_DEFAULTS)
    width, layers, heads = (config.size(key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    inner = width if config.value("lru_width") is None else config.size("lru_width")
    if inner % heads or inner // heads % _LEAST_BLOCK:
        raise ModelError(
            f"{config.where}: lru_width {inner} is not {heads} (num_attention_heads) times a multiple of {_LEAST_BLOCK}"
        )
    unit = GatedUnit(inner=inner, blocks=heads, taps=read_taps(config, "conv1d_width"))
    if (wide := config.size("intermediate_size")) % 2:
        raise ModelError(f"{config.where}: intermediate_size {wide}, of gates and values together, is odd")
    config.choice("hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh": "gelu_tanh"})
    window = config.size("sliding_window", config.size("attention_window_size", 2048))
    return llama_like(
        config,
        partial=0.5,
        architecture="RecurrentGemmaForCausalLM",
        embedding=Embedding(scale=nearest_bfloat16(width**0.5)),
        output=Output(softcap=config.number("logits_soft_cap", 30.0)),
        activation="gelu_tanh",
        feed_forward=wide // 2,
        qkv_bias=config.flag("attention_bias", False),
        attention_out_bias=True,
        feed_forward_bias=True,
        windows=(window,) * layers,
        mixers=_mixers(config, unit, layers),
    )


def _mixers(config: Config, unit: GatedUnit, layers: int) -> tuple[GatedUnit | None, ...]:
    """Return what each layer is: the kinds that the config lists, over and over."""
    kinds: dict[str, GatedUnit | None] = {"recurrent": unit, "attention": None}
    listed: Any = config.value("block_types", ["recurrent", "recurrent", "attention"])
    known = isinstance(listed, list) and all(isinstance(kind, str) and kind in kinds for kind in listed)
    if not known or not 0 < len(listed) <= 512:
        raise ModelError(f"{config.where}: block_types must list recurrent and attention, got {str(listed)[:80]}")
    found = tuple(kinds[listed[layer % len(listed)]] for layer in range(layers))
    if None not in found:
        raise ModelError(f"{config.where}: block_types without attention are not supported")
    return found if any(found) else ()


def _transpose_gates(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with the matrices of gates transposed: they are stored ``[blocks, inputs, outputs]``."""
    return {name: Transposed(tensor) if name.endswith(_GATE_WEIGHTS) else tensor for name, tensor in tensors.items()}


FAMILIES: dict[str, Family] = {
    "RecurrentGemmaForCausalLM": Family(
        _read_recurrent_gemma,
        _NAMES,
        "recurrent_gemma",
        base="model.",
        norm_offset=1.0,
        divide=_transpose_gates,
        title="RecurrentGemma",
        examples=("google/recurrentgemma-2b-it", "google/recurrentgemma-9b-it"),
        note="Layers with RG-LRU keep a [state](recurrent-state.md), the others keys and values of a window.",
    ),
}
