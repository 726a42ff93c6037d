"""Gemma 1, 2 and 3, and PaliGemma: embeddings scaled by the root of the width, norms stored minus 1, GELU gates.

Gemma 2 adds norms after the branches, soft caps, and windows in every other layer; Gemma 3 norms of heads and a
separate rotation for layers with windows, but has no caps on attention.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from dragoman.models.config import Config
from dragoman.models.families.family import IMAGE_PARTS, WITH_IMAGES, Family
from dragoman.models.families.llama import ACTIVATIONS, HEAD_NORM_NAMES, LLAMA_NAMES, llama_like
from dragoman.models.rope_config import blocks_by_layer_type, read_rope_block
from dragoman.models.spec import Block, DecoderSpec, Embedding, HeadNorm, Output
from dragoman.models.vision.parameters import siglip_names

GEMMA2_NAMES = LLAMA_NAMES | {
    "attention_out_norm": ("model.layers.{layer}.post_attention_layernorm",),
    "feed_forward_norm": ("model.layers.{layer}.pre_feedforward_layernorm",),
    "feed_forward_out_norm": ("model.layers.{layer}.post_feedforward_layernorm",),
}
_GEMMA3_NAMES = GEMMA2_NAMES | HEAD_NORM_NAMES
_PROJECTOR = "model.multi_modal_projector."
_GEMMA3_VISION_NAMES = siglip_names("model.vision_tower.") | {
    "vision_project_norm": (f"{_PROJECTOR}mm_soft_emb_norm",),
    "vision_project_out": (f"{_PROJECTOR}mm_input_projection_weight",),
}
_PALIGEMMA_NAMES = (
    GEMMA2_NAMES
    | siglip_names("model.vision_tower.")
    | {"feed_forward_norm": LLAMA_NAMES["feed_forward_norm"], "vision_project_out": (f"{_PROJECTOR}linear",)}
)
_VAULT_NAMES = LLAMA_NAMES | {"feed_forward_norm": GEMMA2_NAMES["feed_forward_norm"]}

# Defaults of fields that configs may omit, from transformers' classes.
_DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA2_DEFAULTS = _DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA3_DEFAULTS = _DEFAULTS | {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}
_PALIGEMMA_DEFAULTS = {
    "vocab_size": 257_152,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
}


def _read_gemma(config: Config) -> DecoderSpec:
    config = config.over(_DEFAULTS | {"hidden_act": "gelu_pytorch_tanh"})
    # The first configs say gelu and mean its tanh approximation.
    activation = config.choice("hidden_act", "gelu", ACTIVATIONS | {"gelu": "gelu_tanh"})
    return _gemma_like(config, architecture="GemmaForCausalLM", activation=activation)


def _read_gemma2(config: Config) -> DecoderSpec:
    config = config.over(_GEMMA2_DEFAULTS)
    softcap = _cap(config, "attn_logit_softcapping")
    return _gemma2_like(config, every=2, architecture="Gemma2ForCausalLM", attention_softcap=softcap)


def _read_vault_gemma(config: Config) -> DecoderSpec:
    """Return Gemma 2 without norms after the branches."""
    config = config.over(_GEMMA2_DEFAULTS)
    softcap = _cap(config, "attn_logit_softcapping")
    return _gemma2_like(config, every=2, architecture="VaultGemmaForCausalLM", block=Block(), attention_softcap=softcap)


def _read_gemma3(config: Config) -> DecoderSpec:
    config = config.over(_GEMMA3_DEFAULTS)
    spec = _gemma2_like(
        config,
        every=config.size("sliding_window_pattern", 6),
        architecture="Gemma3ForCausalLM",
        head_norm=HeadNorm(),
        ropes=(),
    )
    positions = config.size("max_position_embeddings")
    full, sliding = (
        read_rope_block(config, block, spec.head_dim, positions, theta=theta)
        for block, theta in zip(blocks_by_layer_type(config), (1_000_000.0, 10_000.0), strict=True)
    )
    return replace(spec, ropes=tuple(sliding if window else full for window in spec.windows))


def _read_gemma3_with_images(config: Config) -> DecoderSpec:
    """Return the text decoder of the models with a vision tower."""
    return replace(_read_gemma3(config.within("text_config")), architecture="Gemma3ForConditionalGeneration")


def _read_paligemma(config: Config) -> DecoderSpec:
    """Return the text decoder of PaliGemma 1 or 2.

    A prompt with an image is seen whole by each of its tokens, those of layers with windows too. So contexts are as
    long as the window, which has then no effect.
    """
    text = config.within("text_config").over(_DEFAULTS | _PALIGEMMA_DEFAULTS)
    text.flag("use_bidirectional_attention", True)  # it says what its prompts always are
    text = text.having({"use_bidirectional_attention": False})
    read = text.choice("model_type", "gemma", {"paligemma": _read_gemma, "gemma": _read_gemma, "gemma2": _read_gemma2})
    spec: DecoderSpec = read(text)
    window = min((each for each in spec.windows if each), default=spec.context)
    spec = replace(spec, context=min(spec.context, window))
    return replace(spec, architecture="PaliGemmaForConditionalGeneration")


def _read_embedding(config: Config) -> DecoderSpec:
    """Return Gemma 3 without a head: in EmbeddingGemma, an encoder, each token sees tokens to both sides."""
    if not config.flag("use_bidirectional_attention", False):
        return replace(_read_gemma3(config), architecture="Gemma3TextModel")
    # Half of the published window is to each side, and the token's own position.
    window = config.size("sliding_window", 4096) // 2 + 1
    spec = _read_gemma3(config.having({"use_bidirectional_attention": False, "sliding_window": window}))
    return replace(spec, architecture="Gemma3TextModel", output=Output(), tied=True, causal=False)


def _gemma2_like(config: Config, *, every: int, **variant: Any) -> DecoderSpec:
    """Return the spec of Gemma 2 or 3. ``every``: every so-manieth layer has full attention, unless the config lists
    them."""
    layers = config.size("num_hidden_layers")
    window = config.size("sliding_window")
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        windows = tuple(window if (layer + 1) % every else 0 for layer in range(layers))
    scale = config.number("query_pre_attn_scalar", 256) ** -0.5
    return _gemma_like(
        config,
        output=Output(softcap=_cap(config, "final_logit_softcapping")),
        activation=config.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
        windows=windows,
        attention_scales=(scale,) * layers,
        **{"block": Block(norms="around")} | variant,
    )


def _gemma_like(config: Config, **variant: Any) -> DecoderSpec:
    config.refuse("use_bidirectional_attention", False)
    bias = config.flag("attention_bias", False)
    return llama_like(
        config,
        embedding=Embedding(scale=config.size("hidden_size") ** 0.5, scale_rounded=True),
        qkv_bias=bias,
        attention_out_bias=bias,
        **variant,
    )


def _cap(config: Config, key: str) -> float:
    """Return the cap; 0 for ``null`` or an absent field."""
    return 0.0 if config.value(key) is None else config.number(key, 0.0)


FAMILIES: dict[str, Family] = {
    "GemmaForCausalLM": Family(
        _read_gemma,
        LLAMA_NAMES,
        "gemma",
        base="model.",
        norm_offset=1.0,
        title="Gemma",
        examples=("google/gemma-2b-it", "google/gemma-7b-it"),
    ),
    "Gemma2ForCausalLM": Family(
        _read_gemma2,
        GEMMA2_NAMES,
        "gemma2",
        base="model.",
        norm_offset=1.0,
        title="Gemma 2",
        examples=("google/gemma-2-2b-it", "google/gemma-2-9b-it"),
    ),
    "VaultGemmaForCausalLM": Family(
        _read_vault_gemma,
        _VAULT_NAMES,
        "vaultgemma",
        base="model.",
        norm_offset=1.0,
        title="VaultGemma",
        examples=("google/vaultgemma-1b",),
    ),
    "Gemma3TextModel": Family(
        _read_embedding,
        _GEMMA3_NAMES,
        "gemma3_text",
        base="model.",
        ignored=re.compile(r"dense_[23]\..*"),
        norm_offset=1.0,
        title="EmbeddingGemma",
        examples=("google/embeddinggemma-300m",),
        note="With `use_bidirectional_attention` an encoder: it makes [vectors of texts](embeddings.md), and generates "
        "none.",
    ),
    "Gemma3ForCausalLM": Family(
        _read_gemma3,
        _GEMMA3_NAMES,
        "gemma3_text",
        base="model.",
        norm_offset=1.0,
        title="Gemma 3",
        examples=("google/gemma-3-1b-it", "google/gemma-3-270m-it"),
    ),
    "Gemma3ForConditionalGeneration": Family(
        _read_gemma3_with_images,
        _GEMMA3_NAMES | _GEMMA3_VISION_NAMES,
        "gemma3",
        base="model.",
        ignored=IMAGE_PARTS,
        aliases=WITH_IMAGES,
        transposed=frozenset(["vision_project_out"]),
        norm_offset=1.0,
        title="Gemma 3 with images",
        examples=("google/gemma-3-4b-it", "google/gemma-3-12b-it"),
        note="It [sees images](vision.md).",
    ),
    "PaliGemmaForConditionalGeneration": Family(
        _read_paligemma,
        _PALIGEMMA_NAMES,
        "paligemma",
        base="model.",
        ignored=IMAGE_PARTS,
        aliases=WITH_IMAGES,
        other_names={"feed_forward_norm": GEMMA2_NAMES["feed_forward_norm"]},
        norm_offset=1.0,
        title="PaliGemma 1 and 2",
        examples=("google/paligemma-3b-mix-224", "google/paligemma2-3b-mix-448"),
        note="It [sees images](vision.md), and prompts with them both ways. Contexts are as long as Gemma 2's window.",
    ),
}
