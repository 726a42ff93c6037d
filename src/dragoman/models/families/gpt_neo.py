"""GPT-Neo, the TinyStories models too: scores without a factor, and windows in every other layer; and XGLM, whose
positions are sinusoids."""

from __future__ import annotations

import re

from dragoman.core.errors import ModelError
from dragoman.models.config import MOST, Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.llama import ACTIVATIONS
from dragoman.models.spec import DecoderSpec, Embedding

_LAYER = "transformer.h.{layer}."
_NEO_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("transformer.wte",),
    "positions": ("transformer.wpe",),
    "attention_norm": (f"{_LAYER}ln_1",),
    "qkv": tuple(f"{_LAYER}attn.attention.{part}_proj" for part in "qkv"),
    "attention_out": (f"{_LAYER}attn.attention.out_proj",),
    "feed_forward_norm": (f"{_LAYER}ln_2",),
    "feed_forward_in": (f"{_LAYER}mlp.c_fc",),
    "feed_forward_out": (f"{_LAYER}mlp.c_proj",),
    "final_norm": ("transformer.ln_f",),
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


def _read_gpt_neo(config: Config) -> DecoderSpec:
    width, heads, layers = config.size("hidden_size"), config.size("num_heads"), config.size("num_layers")
    head_dim = even_head_dim(width, heads, "hidden_size", "num_heads")
    return DecoderSpec(
        architecture="GPTNeoForCausalLM",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=config.size("intermediate_size", 4 * width),
        context=config.size("max_position_embeddings", 2048),
        embedding=Embedding(positions=True),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        activation=config.choice("activation_function", "gelu_new", ACTIVATIONS),
        gated=False,
        attention_out_bias=True,
        feed_forward_bias=True,
        windows=_windows(config, layers),
        attention_scales=(1.0,) * layers,
        tied=config.flag("tie_word_embeddings", True),
    )


def _windows(config: Config, layers: int) -> tuple[int, ...]:
    """Return the windows of layers by ``attention_types``: lists of kinds, each with how often it is repeated."""
    window, runs = config.size("window_size", 256), config.value("attention_types")
    if runs is None and layers != 24:  # GPT-Neo 1.3B has as many
        raise ModelError(f"{config.where}: attention_types is missing")
    runs = [[["global", "local"], 12]] if runs is None else runs
    problem = f'{config.where}: attention_types must name {layers} layers, as [[["global", "local"], 12]]'
    kinds: list[object] = []
    for run in runs if isinstance(runs, list) else [None]:
        if not isinstance(run, list) or len(run) != 2 or not isinstance(run[0], list) or type(run[1]) is not int:
            raise ModelError(problem)
        kinds += run[0] * min(run[1], MOST["num_layers"])
    if len(kinds) != layers or not all(kind in ("global", "local") for kind in kinds):
        raise ModelError(problem)
    return tuple(window if kind == "local" else 0 for kind in kinds)


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
    "GPTNeoForCausalLM": Family(
        _read_gpt_neo,
        _NEO_NAMES,
        "gpt_neo",
        base="transformer.",
        ignored=re.compile(r"h\.\d+\.attn\.attention\.(bias|masked_bias)"),
        title="GPT-Neo, TinyStories",
        examples=("EleutherAI/gpt-neo-125m", "EleutherAI/gpt-neo-1.3B", "roneneldan/TinyStories-33M"),
        note="TinyStories' repositories hold pickled weights alone: the error at start says what to do.",
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
