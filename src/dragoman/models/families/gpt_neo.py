"""GPT-Neo, the TinyStories models too: scores without a factor, and windows in every other layer."""

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
}
