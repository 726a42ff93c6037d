"""Cohere's Command R: parallel branches, LayerNorm without bias, interleaved rotation, a factor on the logits.

Command R+ adds norms of heads; Command R7B and A (Cohere 2) rotate only in layers with a window;
Command A+ has experts.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import HEAD_NORM_NAMES, LLAMA_NAMES, llama_like
from dragoman.models.families.mixtures import QWEN_STACKS, checked
from dragoman.models.families.scored_mixtures import DEEPSEEK_NAMES
from dragoman.models.spec import Block, DecoderSpec, Experts, HeadNorm, Output

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


def _read_cohere2_moe(config: Config) -> DecoderSpec:
    """Return Cohere 2 with experts. Its first layers may have one network, and kinds of their own."""
    config = config.over({"sliding_window": 4096, "head_dim": 128})
    layers, window = config.size("num_hidden_layers"), config.size("sliding_window")
    first = min(config.count("first_k_dense_replace", 0), layers)
    kinds = config.choices("mlp_layer_types", layers, {"dense": True, "sparse": False})
    dense = tuple(layer for layer in range(layers) if (kinds[layer] if kinds else layer < first))
    every_dense, every = config.size("prefix_dense_sliding_window_pattern", 1), config.size("sliding_window_pattern", 4)
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        patterns = [(layer, every_dense) for layer in range(first)]
        patterns += [(layer, every) for layer in range(layers - first)]
        windows = tuple(window if (layer + 1) % pattern else 0 for layer, pattern in patterns)
    inner, shared = config.size("intermediate_size"), config.count("num_shared_experts", 0)
    factors = {"average": 0.5, "sum": 1.0}
    factor = config.choice("shared_expert_combination_strategy", "average", factors)
    scores = config.choice("expert_selection_fn", "softmax", {"softmax": "softmax", "sigmoid": "sigmoid"})
    over_all = not config.flag("norm_topk_prob", True) and scores == "sigmoid"
    experts = Experts(
        count=config.size("num_local_experts", config.size("num_experts", 8)),
        active=config.size("num_experts_per_tok", 2),
        feed_forward=inner,
        scores=scores,
        over_all=over_all,
        shared=inner * shared,
        dense_layers=dense,
        out_factor=factor if shared else 1.0,
    )
    variant: dict[str, Any] = {"experts": checked(experts), "windows": windows}
    variant["feed_forward"] = config.size("prefix_dense_intermediate_size", inner)
    if config.value("rms_norm_eps") is not None:
        variant |= {"norm": "rms", "norm_eps": config.number("rms_norm_eps", 1e-5)}
    spec = _cohere_like(config, architecture="Cohere2MoeForCausalLM", **variant)
    rotated = [bool(windows[layer]) or (layer in dense and every_dense == 1) for layer in range(layers)]
    return replace(spec, ropes=tuple(spec.rope(layer) if rotated[layer] else None for layer in range(layers)))


def _cohere_like(config: Config, **variant: Any) -> DecoderSpec:
    config = config.over({"max_position_embeddings": 8192, "tie_word_embeddings": True})
    bias = config.flag("attention_bias", False)
    norm: dict[str, Any] = {"norm": "layer", "norm_eps": config.number("layer_norm_eps", 1e-5)}
    return llama_like(
        config,
        interleaved=True,
        block=Block(parallel=True, shared_norm=True),
        output=Output(scale=config.number("logit_scale", 0.0625)),
        qkv_bias=bias,
        attention_out_bias=bias,
        **norm | variant,
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
    "Cohere2MoeForCausalLM": Family(
        _read_cohere2_moe,
        _COHERE2_NAMES
        | {name: DEEPSEEK_NAMES[name] for name in DEEPSEEK_NAMES if "expert" in name or name == "router"},
        "cohere2_moe",
        base="model.",
        other_names=QWEN_STACKS,
        title="Command A+, North Mini Code",
        examples=("CohereLabs/command-a-plus-05-2026", "CohereLabs/North-Mini-Code-1.0"),
    ),
}
