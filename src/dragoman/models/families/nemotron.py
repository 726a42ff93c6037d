"""Decoders with LayerNorm and a feed-forward network without gate: Nemotron and Minitron, whose norms are stored less
1, and Jais 2."""

from __future__ import annotations

from typing import Any

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import LLAMA_NAMES, llama_like
from dragoman.models.spec import DecoderSpec

_NAMES = LLAMA_NAMES | {"feed_forward_in": ("model.layers.{layer}.mlp.up_proj",)}


def _read_nemotron(config: Config) -> DecoderSpec:
    config = config.over({"max_position_embeddings": 4096})
    bias = config.flag("attention_bias", False)
    return _ungated(
        config,
        architecture="NemotronForCausalLM",
        partial=0.5,
        norm_eps=config.number("norm_eps", 1e-5),
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=config.flag("mlp_bias", False),
    )


def _read_jais2(config: Config) -> DecoderSpec:
    config = config.over({"max_position_embeddings": 8192})
    bias = config.flag("attention_bias", True)
    return _ungated(
        config,
        architecture="Jais2ForCausalLM",
        norm_eps=config.number("layer_norm_eps", 1e-5),
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=config.flag("mlp_bias", True),
    )


def _ungated(config: Config, **variant: Any) -> DecoderSpec:
    return llama_like(config.over({"hidden_act": "relu2"}), norm="layer", norm_bias=True, gated=False, **variant)


FAMILIES: dict[str, Family] = {
    "NemotronForCausalLM": Family(
        _read_nemotron,
        _NAMES,
        "nemotron",
        base="model.",
        norm_offset=1.0,
        title="Nemotron 4, Minitron",
        examples=("nvidia/Minitron-4B-Base", "nvidia/Nemotron-Mini-4B-Instruct"),
    ),
    "Jais2ForCausalLM": Family(
        _read_jais2,
        _NAMES,
        "jais2",
        base="model.",
        title="Jais 2",
        examples=("inceptionai/Jais-2-8B-Chat",),
    ),
}
