"""Cohere's Command R: parallel branches, LayerNorm without bias, interleaved rotation, a factor on the logits.

Command R+ adds norms of heads; Command R7B and A (Cohere 2) rotate only in layers with a window.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import HEAD_NORM_NAMES, LLAMA_NAMES, llama_like
from dragoman.models.spec import Block, DecoderSpec, HeadNorm, Output

_COHERE2_NAMES = {name: stored for name, stored in LLAMA_NAMES.items() if name != "feed_forward_norm"}
_COHERE_NAMES = _COHERE2_NAMES | HEAD_NORM_NAMES


def _read_cohere(config: Config) -> DecoderSpec:
    norms = HeadNorm(kind="layer", over="own") if config.flag("use_qk_norm", False) else None
    return _cohere_like(config, architecture="CohereForCausalLM", theta=500_000.0, head_norm=norms)


def _read_cohere2(config: Config) -> DecoderSpec:
    config.refuse("use_qk_norm", False)
    config = config.over({"sliding_window": 4096})
    layers, window = config.size("num_hidden_layers"), config.size("sliding_window")
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        every = config.size("sliding_window_pattern", 4)
        windows = tuple(window if (layer + 1) % every else 0 for layer in range(layers))
    spec = _cohere_like(config, architecture="Cohere2ForCausalLM", windows=windows)
    return replace(spec, ropes=tuple(spec.rope(layer) if windows[layer] else None for layer in range(layers)))


def _cohere_like(config: Config, **variant: Any) -> DecoderSpec:
    config = config.over({"max_position_embeddings": 8192, "tie_word_embeddings": True})
    bias = config.flag("attention_bias", False)
    return llama_like(
        config,
        interleaved=True,
        block=Block(parallel=True, shared_norm=True),
        output=Output(scale=config.number("logit_scale", 0.0625)),
        norm="layer",
        norm_eps=config.number("layer_norm_eps", 1e-5),
        qkv_bias=bias,
        attention_out_bias=bias,
        **variant,
    )


FAMILIES: dict[str, Family] = {
    "CohereForCausalLM": Family(
        _read_cohere,
        _COHERE_NAMES,
        "cohere",
        base="model.",
        title="Command R and R+",
        examples=("CohereForAI/c4ai-command-r-v01", "CohereForAI/c4ai-command-r-plus"),
    ),
    "Cohere2ForCausalLM": Family(
        _read_cohere2,
        _COHERE2_NAMES,
        "cohere2",
        base="model.",
        title="Command R7B and A",
        examples=("CohereForAI/c4ai-command-r7b-12-2024",),
    ),
}
