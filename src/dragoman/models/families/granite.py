"""Granite: a Llama with a factor on embeddings, branches, attention scores and logits."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.spec import Block, DecoderSpec, Embedding, Output


def _read_granite(config: Config) -> DecoderSpec:
    layers, bias = config.size("num_hidden_layers"), config.flag("attention_bias", False)
    return llama_like(
        config,
        architecture="GraniteForCausalLM",
        embedding=Embedding(scale=config.number("embedding_multiplier", 1.0)),
        block=Block(branch_scale=config.number("residual_multiplier", 1.0)),
        output=Output(scale=1 / config.number("logits_scaling", 1.0)),
        attention_scales=(config.number("attention_multiplier", 1.0),) * layers,
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=config.flag("mlp_bias", False),
    )


FAMILIES: dict[str, Family] = {
    "GraniteForCausalLM": Family(
        _read_granite,
        LLAMA_NAMES,
        "granite",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="Granite 3",
        examples=("ibm-granite/granite-3.3-2b-instruct", "ibm-granite/granite-3.3-8b-instruct"),
    ),
}
