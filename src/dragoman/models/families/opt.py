"""OPT and Galactica: learned positions after two unused rows; OPT-350m has norms after its branches. XGLM has sinusoids
in place of learned positions."""

from __future__ import annotations

import re

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.llama import ACTIVATIONS
from dragoman.models.spec import Block, DecoderSpec, Embedding, Output

_OPT_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("model.decoder.embed_tokens",),
    "embedding_in": ("model.decoder.project_in",),
    "positions": ("model.decoder.embed_positions",),
    "attention_norm": ("model.decoder.layers.{layer}.self_attn_layer_norm",),
    "qkv": tuple(f"model.decoder.layers.{{layer}}.self_attn.{part}_proj" for part in "qkv"),
    "attention_out_norm": ("model.decoder.layers.{layer}.self_attn_layer_norm",),
    "attention_out": ("model.decoder.layers.{layer}.self_attn.out_proj",),
    "feed_forward_norm": ("model.decoder.layers.{layer}.final_layer_norm",),
    "feed_forward_in": ("model.decoder.layers.{layer}.fc1",),
    "feed_forward_out": ("model.decoder.layers.{layer}.fc2",),
    "feed_forward_out_norm": ("model.decoder.layers.{layer}.final_layer_norm",),
    "final_norm": ("model.decoder.final_layer_norm",),
    "embedding_out": ("model.decoder.project_out",),
    "head": ("lm_head",),
}

_XGLM_LAYER = "model.layers.{layer}."
_XGLM_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens",),
    "attention_norm": (f"{_XGLM_LAYER}self_attn_layer_norm",),
    "qkv": tuple(f"{_XGLM_LAYER}self_attn.{part}_proj" for part in "qkv"),
    "attention_out": (f"{_XGLM_LAYER}self_attn.out_proj",),
    "feed_forward_norm": (f"{_XGLM_LAYER}final_layer_norm",),
    "feed_forward_in": (f"{_XGLM_LAYER}fc1",),
    "feed_forward_out": (f"{_XGLM_LAYER}fc2",),
    "final_norm": ("model.layer_norm",),
    "head": ("lm_head",),
}


def _read_opt(config: Config) -> DecoderSpec:
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    layers = config.size("num_hidden_layers")
    head_dim = even_head_dim(width, heads, "hidden_size", "num_attention_heads")
    before = config.flag("do_layer_norm_before", True)
    embedded = config.size("word_embed_proj_dim", width)
    bias, affine = config.flag("enable_bias", True), config.flag("layer_norm_elementwise_affine", True)
    return DecoderSpec(
        architecture="OPTForCausalLM",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=config.size("ffn_dim"),
        context=config.size("max_position_embeddings", 2048),
        embedding=Embedding(width=None if embedded == width else embedded, positions=True, positions_offset=2),
        block=Block(norms="before" if before else "joined"),
        output=Output(norm=before and not config.flag("_remove_final_layer_norm", False)),
        norm="layer",
        norm_weight=affine,
        norm_bias=affine,
        norm_eps=1e-5,
        activation=config.choice("activation_function", "relu", ACTIVATIONS),
        gated=False,
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=bias,
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        tied=config.flag("tie_word_embeddings", True),
    )


def _read_xglm(config: Config) -> DecoderSpec:
    width, heads, layers = config.size("d_model"), config.size("attention_heads"), config.size("num_layers")
    head_dim = even_head_dim(width, heads, "d_model", "attention_heads")
    if width % 2 or width < 4:
        raise ModelError(f"{config.where}: d_model {width} is odd or too small for sinusoidal positions")
    return DecoderSpec(
        architecture="XGLMForCausalLM",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=config.size("ffn_dim"),
        context=config.size("max_position_embeddings", 2048),
        embedding=Embedding(
            scale=width**0.5 if config.flag("scale_embedding", True) else 1.0,
            positions=True,
            positions_offset=2,
            sinusoidal="whole",
        ),
        norm="layer",
        norm_bias=True,
        norm_eps=1e-5,
        activation=config.choice("activation_function", "gelu", ACTIVATIONS),
        gated=False,
        qkv_bias=True,
        attention_out_bias=True,
        feed_forward_bias=True,
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        tied=config.flag("tie_word_embeddings", True),
    )


FAMILIES: dict[str, Family] = {
    "OPTForCausalLM": Family(
        _read_opt,
        _OPT_NAMES,
        "opt",
        base="model.",
        title="OPT, Galactica",
        examples=("facebook/opt-1.3b", "facebook/opt-350m", "facebook/galactica-1.3b"),
    ),
    "XGLMForCausalLM": Family(
        _read_xglm,
        _XGLM_NAMES,
        "xglm",
        base="model.",
        ignored=re.compile(r"embed_positions\.weights"),
        title="XGLM",
        examples=("facebook/xglm-564M", "facebook/xglm-7.5B"),
    ),
}
