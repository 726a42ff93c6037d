"""GPT-2 and the first GPT: learned positions, LayerNorm, biases everywhere."""

from __future__ import annotations

import re

from dragoman.models.config import Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.llama import ACTIVATIONS
from dragoman.models.spec import Activation, Block, DecoderSpec, Embedding, Output

GPT2_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("transformer.wte",),
    "positions": ("transformer.wpe",),
    "attention_norm": ("transformer.h.{layer}.ln_1",),
    "qkv": ("transformer.h.{layer}.attn.c_attn",),
    "attention_out": ("transformer.h.{layer}.attn.c_proj",),
    "feed_forward_norm": ("transformer.h.{layer}.ln_2",),
    "feed_forward_in": ("transformer.h.{layer}.mlp.c_fc",),
    "feed_forward_out": ("transformer.h.{layer}.mlp.c_proj",),
    "final_norm": ("transformer.ln_f",),
    "head": ("lm_head",),
}

_GPT_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("transformer.tokens_embed",),
    "positions": ("transformer.positions_embed",),
    "qkv": GPT2_NAMES["qkv"],
    "attention_out": GPT2_NAMES["attention_out"],
    "attention_out_norm": ("transformer.h.{layer}.ln_1",),
    "feed_forward_in": GPT2_NAMES["feed_forward_in"],
    "feed_forward_out": GPT2_NAMES["feed_forward_out"],
    "feed_forward_out_norm": ("transformer.h.{layer}.ln_2",),
    "head": ("lm_head",),
}
_GPT_ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
_CONV1D = frozenset({"qkv", "attention_out", "feed_forward_in", "feed_forward_out"})

CAUSAL_MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")


def read_gpt2(config: Config) -> DecoderSpec:
    """Return the spec of a GPT-2."""
    width, heads, layers = config.size("n_embd"), config.size("n_head"), config.size("n_layer")
    head_dim = even_head_dim(width, heads, "n_embd", "n_head")
    scale = head_dim**-0.5 if config.flag("scale_attn_weights", True) else 1.0
    by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    return DecoderSpec(
        architecture="GPT2LMHeadModel",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=config.size("n_inner", 4 * width),
        context=config.size("n_positions", 1024),
        embedding=Embedding(positions=True),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        activation=config.choice("activation_function", "gelu_new", ACTIVATIONS),
        gated=False,
        qkv_bias=True,
        attention_out_bias=True,
        feed_forward_bias=True,
        windows=(0,) * layers,
        attention_scales=tuple(scale / (layer + 1) if by_layer else scale for layer in range(layers)),
        tied=config.flag("tie_word_embeddings", True),
    )


def _read_gpt(config: Config) -> DecoderSpec:
    """Return GPT-2 with norms after the branches have joined the stream."""
    width, heads, layers = config.size("n_embd"), config.size("n_head"), config.size("n_layer")
    head_dim = even_head_dim(width, heads, "n_embd", "n_head")
    return DecoderSpec(
        architecture="OpenAIGPTLMHeadModel",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=4 * width,
        context=config.size("n_positions", 512),
        embedding=Embedding(positions=True),
        block=Block(norms="joined"),
        output=Output(norm=False),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        activation=config.choice("afn", "gelu", _GPT_ACTIVATIONS),
        gated=False,
        qkv_bias=True,
        attention_out_bias=True,
        feed_forward_bias=True,
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        tied=config.flag("tie_word_embeddings", True),
    )


FAMILIES: dict[str, Family] = {
    "GPT2LMHeadModel": Family(
        read_gpt2,
        GPT2_NAMES,
        "gpt2",
        base="transformer.",
        transposed=_CONV1D,
        ignored=CAUSAL_MASK_BUFFER,
        title="GPT-2",
        examples=("openai-community/gpt2", "openai-community/gpt2-xl", "AI-Sweden-Models/gpt-sw3-126m"),
    ),
    "OpenAIGPTLMHeadModel": Family(
        _read_gpt,
        _GPT_NAMES,
        "openai-gpt",
        base="transformer.",
        transposed=_CONV1D,
        ignored=CAUSAL_MASK_BUFFER,
        title="GPT",
        examples=("openai-community/openai-gpt",),
    ),
}
