"""Idefics 1: a Llama with added tokens, and gated cross-attention layers between its layers, which look at images."""

from __future__ import annotations

import re

from dragoman.models.config import Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.llama import LLAMA_NAMES, llama_like
from dragoman.models.optional_parts import ImageLayers
from dragoman.models.spec import DecoderSpec, Embedding
from dragoman.models.vision.parameters import idefics_names, siglip_names
from dragoman.models.vision.readers_idefics import cross_attention_layers

_SIZES = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}


def _read_idefics(config: Config) -> DecoderSpec:
    config = config.over(_SIZES)
    head_dim = even_head_dim(
        config.size("hidden_size"), config.size("num_attention_heads"), "hidden_size", "num_attention_heads"
    )
    config.refuse("head_dim", head_dim)
    added = config.count("additional_vocab_size", 0)
    layers = ImageLayers(
        before=cross_attention_layers(config),
        wide_gates=config.choice("alpha_type", "float", {"float": False, "vector": True}),
        head_norm=config.flag("qk_layer_norms", False),
    )
    return llama_like(
        config.having({"num_key_value_heads": None, "head_dim": None}),  # it has neither
        architecture="IdeficsForVisionText2Text",
        vocab_size=config.size("vocab_size") + added,
        embedding=Embedding(added=added),
        image_layers=layers,
    )


_LOOKING = "model.gated_cross_attn_layers.{layer}."
_NAMES: dict[str, tuple[str, ...]] = LLAMA_NAMES | {
    "embedding": ("model.embed_tokens", "model.embed_tokens.additional_embedding"),
    "head": ("lm_head", "lm_head.additional_fc"),
    "image_norm": (f"{_LOOKING}input_layernorm",),
    "image_query": (f"{_LOOKING}cross_attn.q_proj",),
    "image_key_value": (f"{_LOOKING}cross_attn.k_proj", f"{_LOOKING}cross_attn.v_proj"),
    "image_query_norm": (f"{_LOOKING}cross_attn.q_layer_norm",),
    "image_key_norm": (f"{_LOOKING}cross_attn.k_layer_norm",),
    "image_out": (f"{_LOOKING}cross_attn.o_proj",),
    "image_out_gate": (f"{_LOOKING}alpha_cross_attn",),
    "image_feed_forward_norm": (f"{_LOOKING}post_attention_layernorm",),
    "image_feed_forward_in": (f"{_LOOKING}mlp.gate_proj", f"{_LOOKING}mlp.up_proj"),
    "image_feed_forward_out": (f"{_LOOKING}mlp.down_proj",),
    "image_feed_forward_out_gate": (f"{_LOOKING}alpha_dense",),
}
_BUFFERS = r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
_SEEING = r"gated_cross_attn_layers\.\d+\.(cross_attn\..*|input_layernorm\.weight|alpha_cross_attn)"

FAMILIES: dict[str, Family] = {
    "IdeficsForVisionText2Text": Family(
        _read_idefics,
        _NAMES | siglip_names("model.vision_model.") | idefics_names("model.perceiver_resampler."),
        "idefics",
        base="model.",
        ignored=re.compile(rf"(vision_model|perceiver_resampler)\..*|{_SEEING}|{_BUFFERS}"),
        title="Idefics",
        examples=(
            "HuggingFaceM4/idefics-9b",
            "HuggingFaceM4/idefics-9b-instruct",
            "HuggingFaceM4/idefics-80b",
        ),
        note="It [sees images](vision.md).",
    ),
}
