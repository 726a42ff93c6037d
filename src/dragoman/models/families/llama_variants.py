"""Decoders that differ from Llama in a point or two: Seed-OSS, EXAONE 4, Arcee, Apertus, BitNet, CWM and Helium."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import ACTIVATIONS, HEAD_NORM_NAMES, LLAMA_NAMES, llama_like
from dragoman.models.spec import Block, DecoderSpec, HeadNorm

_EXAONE4_NAMES: dict[str, tuple[str, ...]] = {
    **LLAMA_NAMES,
    **HEAD_NORM_NAMES,
    "attention_out_norm": ("model.layers.{layer}.post_attention_layernorm",),
    "feed_forward_out_norm": ("model.layers.{layer}.post_feedforward_layernorm",),
}
del _EXAONE4_NAMES["attention_norm"], _EXAONE4_NAMES["feed_forward_norm"]

_APERTUS_NAMES = (
    LLAMA_NAMES
    | HEAD_NORM_NAMES
    | {
        "attention_norm": ("model.layers.{layer}.attention_layernorm",),
        "feed_forward_norm": ("model.layers.{layer}.feedforward_layernorm",),
        "feed_forward_in": ("model.layers.{layer}.mlp.up_proj",),
        "xielu_positive": ("model.layers.{layer}.mlp.act_fn.alpha_p",),
        "xielu_negative": ("model.layers.{layer}.mlp.act_fn.alpha_n",),
        "xielu_linear": ("model.layers.{layer}.mlp.act_fn.beta",),
        "xielu_least": ("model.layers.{layer}.mlp.act_fn.eps",),
    }
)
# Where a config has no rotation at all.
_APERTUS_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_CWM_ROPE = _APERTUS_ROPE | {"rope_theta": 1_000_000.0, "factor": 16.0}


def _read_seed_oss(config: Config) -> DecoderSpec:
    """Return a Llama whose projections have biases of their own, but for the last of attention."""
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    return llama_like(
        config.over({"max_position_embeddings": 524_288}),
        architecture="SeedOssForCausalLM",
        default_head_dim=128,
        qkv_bias=config.flag("attention_bias", True),
        attention_out_bias=config.flag("attention_out_bias", False),
        feed_forward_bias=config.flag("mlp_bias", False),
    )


def _read_exaone4(config: Config) -> DecoderSpec:
    """Return a Llama with norms after the branches and of heads. Where it has windows, only layers with one have
    positions."""
    config = config.over({"rms_norm_eps": 1e-5})
    return exaone_like(config, architecture="Exaone4ForCausalLM", block=Block(norms="after"))


def exaone_like(config: Config, **variant: Any) -> DecoderSpec:
    """Return a Llama with norms of heads, and positions only in layers with a window where any have one."""
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    layers = config.size("num_hidden_layers")
    hybrid = config.values.get("sliding_window", 4096) is not None
    window = config.size("sliding_window", 4096) if hybrid else 0
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        every = config.size("sliding_window_pattern", 4) if hybrid else 1
        windows = tuple(window if (layer + 1) % every else 0 for layer in range(layers))
    spec = llama_like(config, head_norm=HeadNorm(), windows=windows, **variant)
    return replace(
        spec, ropes=tuple(rope if seen or not hybrid else None for rope, seen in zip(spec.ropes, windows, strict=True))
    )


def _read_arcee(config: Config) -> DecoderSpec:
    """Return a Llama without gates whose activation is the square of ReLU."""
    bias = config.flag("attention_bias", False)
    return llama_like(
        config.over({"hidden_act": "relu2", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}),
        architecture="ArceeForCausalLM",
        gated=False,
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=config.flag("mlp_bias", False),
    )


def _read_apertus(config: Config) -> DecoderSpec:
    """Return a Llama without gates, with a trained activation and norms of heads."""
    config = config.over({"hidden_act": "xielu", "rms_norm_eps": 1e-5, "max_position_embeddings": 65_536})
    bias = config.flag("attention_bias", False)
    return llama_like(
        _rotated(config, _APERTUS_ROPE),
        architecture="ApertusForCausalLM",
        theta=12_000_000.0,
        gated=False,
        activations=ACTIVATIONS | {"xielu": "xielu"},
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=HeadNorm(),
    )


def _read_bitnet(config: Config) -> DecoderSpec:
    """Return a Llama with norms before the last product of each branch, gated by the square of ReLU."""
    bias = config.flag("attention_bias", False)
    return llama_like(
        config.over({"hidden_act": "relu2", "rms_norm_eps": 1e-5}),
        architecture="BitNetForCausalLM",
        theta=500_000.0,
        block=Block(inner_norms=True),
        qkv_bias=bias,
        attention_out_bias=bias,
    )


def _read_cwm(config: Config) -> DecoderSpec:
    """Return a Llama with windows in three of four layers."""
    config = _rotated(config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 131_072}), _CWM_ROPE)
    config.refuse("attention_bias", False)
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    layers, window = config.size("num_hidden_layers"), config.size("sliding_window", 8192)
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        windows = tuple(window if layer % 4 else 0 for layer in range(layers))
    return llama_like(
        config,
        architecture="CwmForCausalLM",
        default_head_dim=128,
        theta=1_000_000.0,
        feed_forward_bias=config.flag("mlp_bias", False),
        windows=windows,
    )


def _read_helium(config: Config) -> DecoderSpec:
    """Return a Llama whose heads are rotated in neighbouring pairs."""
    config = config.over({"max_position_embeddings": 4096, "rms_norm_eps": 1e-8})
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    return llama_like(
        config,
        architecture="HeliumForCausalLM",
        default_head_dim=128,
        theta=100_000.0,
        interleaved=True,
        qkv_bias=config.flag("attention_bias", False),
        feed_forward_bias=config.flag("mlp_bias", False),
    )


def _rotated(config: Config, rotation: dict[str, Any]) -> Config:
    """Return the config with a family's rotation where it has none."""
    if config.value("rope_parameters") or config.value("rope_scaling"):
        return config
    return config.having({"rope_parameters": rotation})


FAMILIES: dict[str, Family] = {
    "SeedOssForCausalLM": Family(
        _read_seed_oss,
        LLAMA_NAMES,
        "seed_oss",
        base="model.",
        title="Seed-OSS",
        examples=("ByteDance-Seed/Seed-OSS-36B-Instruct",),
    ),
    "Exaone4ForCausalLM": Family(
        _read_exaone4,
        _EXAONE4_NAMES,
        "exaone4",
        base="model.",
        title="EXAONE 4",
        examples=("LGAI-EXAONE/EXAONE-4.0-1.2B", "LGAI-EXAONE/EXAONE-4.0-32B"),
    ),
    "ArceeForCausalLM": Family(
        _read_arcee,
        LLAMA_NAMES | {"feed_forward_in": ("model.layers.{layer}.mlp.up_proj",)},
        "arcee",
        base="model.",
        title="Arcee",
        examples=("arcee-ai/AFM-4.5B",),
    ),
    "ApertusForCausalLM": Family(
        _read_apertus,
        _APERTUS_NAMES,
        "apertus",
        base="model.",
        title="Apertus",
        examples=("swiss-ai/Apertus-8B-Instruct-2509",),
    ),
    "BitNetForCausalLM": Family(
        _read_bitnet,
        LLAMA_NAMES
        | {
            "attention_inner_norm": ("model.layers.{layer}.self_attn.attn_sub_norm",),
            "feed_forward_inner_norm": ("model.layers.{layer}.mlp.ffn_sub_norm",),
        },
        "bitnet",
        base="model.",
        title="BitNet b1.58",
        examples=("microsoft/bitnet-b1.58-2B-4T", "microsoft/bitnet-b1.58-2B-4T-bf16"),
        note="Packed ternary weights are read exactly: [quantized.md](quantized.md).",
    ),
    "CwmForCausalLM": Family(
        _read_cwm,
        LLAMA_NAMES,
        "cwm",
        base="model.",
        title="CWM",
        examples=("facebook/cwm",),
    ),
    "HeliumForCausalLM": Family(
        _read_helium,
        LLAMA_NAMES,
        "helium",
        base="model.",
        title="Helium",
        examples=("kyutai/helium-1-2b",),
    ),
}
