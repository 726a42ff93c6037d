"""LFM2: gated short convolutions in most layers, and grouped attention with norms of heads in the others; dense, or
with experts. LFM3 adds windows, norms after the branches, and gates of heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import HEAD_NORM_NAMES, LLAMA_NAMES, llama_like
from dragoman.models.families.mixtures import checked
from dragoman.models.families.state_space import read_taps
from dragoman.models.optional_parts import AttentionGate
from dragoman.models.recurrent import ShortConvolution
from dragoman.models.rope_config import blocks_by_layer_type, read_rope_block
from dragoman.models.spec import Block, DecoderSpec, Experts, HeadNorm
from dragoman.models.tensors import RepeatedRows, Tensor

_LAYER = "model.layers.{layer}."
LFM2_NAMES = LLAMA_NAMES | {
    "attention_norm": (f"{_LAYER}operator_norm",),
    "attention_out": (f"{_LAYER}self_attn.out_proj",),
    "query_norm": (f"{_LAYER}self_attn.q_layernorm",),
    "key_norm": (f"{_LAYER}self_attn.k_layernorm",),
    "mixer_in": (f"{_LAYER}conv.in_proj",),
    "mixer_convolution": (f"{_LAYER}conv.conv",),
    "mixer_out": (f"{_LAYER}conv.out_proj",),
    "feed_forward_norm": (f"{_LAYER}ffn_norm",),
    "feed_forward_in": (f"{_LAYER}feed_forward.w1", f"{_LAYER}feed_forward.w3"),
    "feed_forward_out": (f"{_LAYER}feed_forward.w2",),
    "final_norm": ("model.embedding_norm",),
}
_MOE_NAMES = LFM2_NAMES | {
    "router": (f"{_LAYER}feed_forward.gate",),
    "router_choice": (f"{_LAYER}feed_forward.expert_bias",),
    "expert_in": (f"{_LAYER}feed_forward.experts.{{expert}}.w1", f"{_LAYER}feed_forward.experts.{{expert}}.w3"),
    "expert_out": (f"{_LAYER}feed_forward.experts.{{expert}}.w2",),
}
_STACKS = {
    "expert_in": (f"{_LAYER}feed_forward.experts.gate_up_proj",),
    "expert_out": (f"{_LAYER}feed_forward.experts.down_proj",),
}


_LFM3_NAMES = (
    LFM2_NAMES
    | HEAD_NORM_NAMES
    | {
        "qkv": tuple(f"{_LAYER}self_attn.{each}_proj" for each in ("q", "gate", "k", "v")),
        "attention_out": (f"{_LAYER}self_attn.o_proj",),
        "attention_out_norm": (f"{_LAYER}post_operator_norm",),
        "feed_forward_out_norm": (f"{_LAYER}post_ffn_norm",),
    }
)


def _read_lfm2(config: Config) -> DecoderSpec:
    return _hybrid(config.having({"intermediate_size": _feed_forward(config)}), architecture="Lfm2ForCausalLM")


def _read_lfm2_moe(config: Config) -> DecoderSpec:
    config = config.over({"intermediate_size": 7168})
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    if config.value("layer_types") is None:
        raise ModelError(f"{config.where}: layer_types is missing")
    layers = config.size("num_hidden_layers")
    experts = Experts(
        count=config.size("num_local_experts", config.size("num_experts", 32)),
        active=config.size("num_experts_per_tok", 4),
        feed_forward=config.size("moe_intermediate_size", 1792),
        over_all=not config.flag("norm_topk_prob", True),
        scores="sigmoid",
        choice_bias=config.flag("use_expert_bias", True),
        least=1e-6,  # transformers adds it, which is the same for sums as large as any model has
        factor=config.number("routed_scaling_factor", 1.0),
        dense_layers=tuple(range(min(config.count("num_dense_layers", 2), layers))),
    )
    return _hybrid(config, architecture="Lfm2MoeForCausalLM", experts=checked(experts))


def _hybrid(config: Config, **variant: Any) -> DecoderSpec:
    config = config.over({"max_position_embeddings": 128_000})
    layers, width = config.size("num_hidden_layers"), config.size("hidden_size")
    taps = read_taps(config, "conv_L_cache", 3)
    convolution = ShortConvolution(width=width, taps=taps, bias=config.flag("conv_bias", False))
    tied = "tie_embedding" if config.value("tie_embedding") is not None else "tie_word_embeddings"
    return llama_like(
        config,
        theta=1_000_000.0,
        norm_eps=config.number("norm_eps", 1e-5),
        activation="silu",
        head_norm=HeadNorm(),
        mixers=_mixers(config, layers, convolution),
        tied=config.flag(tied, True),
        **variant,
    )


def _read_lfm3(config: Config) -> DecoderSpec:
    defaults = {"num_key_value_heads": 4, "head_dim": 128, "conv_L_cache": 7, "sliding_window": 256}
    config = config.over(defaults)
    layers = config.size("num_hidden_layers")
    if config.value("layer_types") is None:
        kinds = [("full_attention" if layer % 4 == 2 else "sliding_attention") for layer in range(layers)]
        kinds = ["conv" if layer % 2 or not layer else kind for layer, kind in enumerate(kinds)]
        config = config.having({"layer_types": kinds})
    meanings = {"full_attention": 0, "conv": 0, "sliding_attention": config.size("sliding_window")}
    windows = config.choices("layer_types", layers, meanings)
    assert windows is not None
    head_dim, positions = config.size("head_dim"), config.size("max_position_embeddings", 128_000)
    full, sliding = blocks_by_layer_type(config)
    if not config.block("rope_parameters") and not config.block("rope_scaling"):
        full = {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5}
    wide = read_rope_block(config, full, head_dim, positions, theta=1_000_000.0)
    near = read_rope_block(config, sliding, head_dim, positions, theta=10_000.0)
    config.refuse("use_attention_gate", True)
    config.refuse("attention_bias", False)
    return _hybrid(
        config,
        architecture="Lfm3ForCausalLM",
        block=Block(norms="around" if config.flag("use_sandwich_norm", True) else "before"),
        attention_gate=AttentionGate(),
        ropes=tuple(near if window else wide for window in windows),
        windows=windows,
    )


def _gates_of_heads(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Have each head's gate in as many rows as the head has numbers."""
    return {
        name: RepeatedRows(tensor, spec.head_dim) if name.endswith(".self_attn.gate_proj.weight") else tensor
        for name, tensor in tensors.items()
    }


def _mixers(config: Config, layers: int, convolution: ShortConvolution) -> tuple[ShortConvolution | None, ...]:
    """Return the convolutions of the layers: by ``layer_types``, or all but ``full_attn_idxs``."""
    kinds = {"full_attention": None, "sliding_attention": None, "conv": convolution}
    named = config.choices("layer_types", layers, kinds)
    if named is None:
        listed = config.value("full_attn_idxs")
        attention = list(range(layers)) if listed is None else listed
        if not isinstance(attention, list) or not all(type(each) is int and 0 <= each < layers for each in attention):
            raise ModelError(f"{config.where}: full_attn_idxs must list some of {layers} layers, got {attention!r}")
        named = tuple(None if layer in attention else convolution for layer in range(layers))
    if None not in named:
        raise ModelError(f"{config.where}: layer_types without full_attention are not supported")
    return named


def _feed_forward(config: Config) -> int:
    """Return the inner width of the feed-forward networks, which is adjusted unless the config says otherwise."""
    size = config.size("block_ff_dim" if config.value("block_ff_dim") is not None else "intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim", True):
        return size
    multiple = config.size("block_multiple_of", 256)
    adjusted = config.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3)
    if not adjusted < 2**31:
        raise ModelError(f"{config.where}: block_ffn_dim_multiplier makes the networks wider than any")
    return multiple * max(1, -(-int(adjusted) // multiple))


FAMILIES: dict[str, Family] = {
    "Lfm2ForCausalLM": Family(
        _read_lfm2,
        LFM2_NAMES,
        "lfm2",
        base="model.",
        title="LFM2 and LFM2.5",
        examples=("LiquidAI/LFM2-1.2B", "LiquidAI/LFM2-350M", "LiquidAI/LFM2.5-1.2B-Instruct"),
        note="Most layers are short convolutions, which keep a [state](recurrent-state.md) of two tokens.",
    ),
    "Lfm3ForCausalLM": Family(
        _read_lfm3,
        _LFM3_NAMES,
        "lfm3",
        base="model.",
        divide=_gates_of_heads,
        aliases=((r"\.self_attn\.g_proj\.", ".self_attn.gate_proj."),),
        title="LFM3",
        examples=("LiquidAI/LFM3-1.7B",),
        note="Half of the layers are short convolutions, which keep a [state](recurrent-state.md) of a few tokens.",
    ),
    "Lfm2MoeForCausalLM": Family(
        _read_lfm2_moe,
        _MOE_NAMES,
        "lfm2_moe",
        base="model.",
        other_names=_STACKS,
        title="LFM2 MoE",
        examples=("LiquidAI/LFM2-8B-A1B",),
        note="Most layers are short convolutions, which keep a [state](recurrent-state.md) of two tokens.",
    ),
}
