"""Granite: a Llama with factors on embeddings, branches, attention scores and logits; its mixtures of experts; its
variants with windows and attention sinks; and HyperCLOVA X, with norms around the branches."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.families.mixtures import checked
from dragoman.models.rope import Rope
from dragoman.models.rope_config import read_rope_block
from dragoman.models.spec import Block, DecoderSpec, Embedding, Experts, Norms, Output

_MOE_NAMES = LLAMA_NAMES | {
    "router": ("model.layers.{layer}.block_sparse_moe.router.layer",),
    "expert_in": ("model.layers.{layer}.block_sparse_moe.input_linear",),  # stacks of all experts
    "expert_out": ("model.layers.{layer}.block_sparse_moe.output_linear",),
}
# Names in newer versions of transformers.
MOE_ALIASES = (
    (r"\.router\.(?!layer\.)", ".router.layer."),
    (r"\.experts\.gate_up_proj", ".input_linear"),
    (r"\.block_sparse_moe\.experts\.down_proj", ".block_sparse_moe.output_linear"),
)
# Names in GGUF files.
MOE_SEPARATE_NAMES = {
    "expert_in": (
        "model.layers.{layer}.block_sparse_moe.experts.{expert}.gate_proj",
        "model.layers.{layer}.block_sparse_moe.experts.{expert}.up_proj",
    ),
    "expert_out": ("model.layers.{layer}.block_sparse_moe.experts.{expert}.down_proj",),
    "shared_expert_in": (
        "model.layers.{layer}.shared_mlp.gate_proj",
        "model.layers.{layer}.shared_mlp.up_proj",
    ),
}
MOE_SHARED_NAMES = _MOE_NAMES | {
    "shared_expert_in": ("model.layers.{layer}.shared_mlp.input_linear",),
    "shared_expert_out": ("model.layers.{layer}.shared_mlp.output_linear",),
}
_SINKS = {"sinks": ("model.layers.{layer}.self_attn.sinks",)}
_POST_NORMS = {
    "attention_out_norm": ("model.layers.{layer}.post_norm1",),
    "feed_forward_out_norm": ("model.layers.{layer}.post_norm2",),
}


def _read_granite(config: Config) -> DecoderSpec:
    return granite_like(config, architecture="GraniteForCausalLM", feed_forward_bias=config.flag("mlp_bias", False))


def _read_granite_moe(config: Config) -> DecoderSpec:
    return granite_like(config, architecture="GraniteMoeForCausalLM", experts=read_experts(config))


def _read_granite_moe_shared(config: Config) -> DecoderSpec:
    shared = 0 if config.value("shared_intermediate_size", 0) == 0 else config.size("shared_intermediate_size")
    experts = replace(read_experts(config), shared=shared)
    return granite_like(config, architecture="GraniteMoeSharedForCausalLM", experts=experts)


def read_experts(config: Config) -> Experts:
    """Return the experts of a Granite MoE's config. Raises ModelError."""
    return checked(
        Experts(
            count=config.size("num_local_experts", 8),
            active=config.size("num_experts_per_tok", 2),
            feed_forward=config.size("intermediate_size"),
        )
    )


def _read_granite_swa(config: Config) -> DecoderSpec:
    config = config.over({"num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5})
    config = config.over({"tie_word_embeddings": True})
    bias = config.flag("mlp_bias", False)
    return _with_windows(granite_like(config, architecture="GraniteSWAForCausalLM", feed_forward_bias=bias), config)


def _read_granite_moe_swa(config: Config) -> DecoderSpec:
    spec = replace(_read_granite_moe_shared(config), architecture="GraniteMoeSWAForCausalLM")
    return _with_windows(spec, config)


def _with_windows(spec: DecoderSpec, config: Config) -> DecoderSpec:
    """Return the decoder with attention sinks, a window in layers that have one, and each layer's base of the rotation,
    of which 0 means that it has none."""
    window = config.size("sliding_window", 128)
    windows = config.choices("layer_types", spec.layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        windows = tuple(window if layer % 4 else 0 for layer in range(spec.layers))
    spec = replace(spec, windows=windows, sinks=True)
    bases = config.value("layer_rope_theta")
    if bases is None:
        return spec
    if not isinstance(bases, list) or len(bases) != spec.layers:
        raise ModelError(f"{config.where}: layer_rope_theta must list {spec.layers} numbers, got {bases!r:.80}")
    block = config.block("rope_scaling") or config.block("rope_parameters")
    positions = config.size("max_position_embeddings", 2048)
    ropes: list[Rope | None] = []
    for base in bases:
        if type(base) in (int, float) and base == 0:
            ropes.append(None)
        else:
            theta = Config({"layer_rope_theta": base}).number("layer_rope_theta", 0.0)
            ropes.append(read_rope_block(config, {**block, "rope_theta": theta}, spec.head_dim, positions, theta=theta))
    return replace(spec, ropes=tuple(ropes))


def _read_hyperclova(config: Config) -> DecoderSpec:
    head_dim = config.size("head_dim", config.size("hidden_size") // config.size("num_attention_heads"))
    norms: Norms = "around" if config.flag("use_post_norm", True) else "before"
    return granite_like(
        config.over({"attention_multiplier": head_dim**-0.5}).having({"logits_scaling": None}),
        architecture="HyperCLOVAXForCausalLM",
        block=Block(norms=norms, branch_scale=config.number("residual_multiplier", 1.0)),
        output=Output(scale=config.number("logits_scaling", 1.0)),
        feed_forward_bias=config.flag("mlp_bias", False),
    )


def granite_like(config: Config, **variant: Any) -> DecoderSpec:
    """Return the spec of a Llama with Granite's four factors, with fields of a ``variant``. Raises ModelError."""
    layers, bias = config.size("num_hidden_layers"), config.flag("attention_bias", False)
    fields: dict[str, Any] = {
        "embedding": Embedding(scale=config.number("embedding_multiplier", 1.0)),
        "block": Block(branch_scale=config.number("residual_multiplier", 1.0)),
        "output": Output(scale=1 / config.number("logits_scaling", 1.0)),
        "attention_scales": (config.number("attention_multiplier", 1.0),) * layers,
        "qkv_bias": bias,
        "attention_out_bias": bias,
    }
    return llama_like(config, **fields | variant)


FAMILIES: dict[str, Family] = {
    "GraniteForCausalLM": Family(
        _read_granite,
        LLAMA_NAMES,
        "granite",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="Granite 3",
        examples=("ibm-granite/granite-3.3-2b-instruct", "ibm-granite/granite-3.3-8b-instruct"),
    ),
    "GraniteMoeForCausalLM": Family(
        _read_granite_moe,
        _MOE_NAMES,
        "granitemoe",
        base="model.",
        aliases=MOE_ALIASES,
        other_names=MOE_SEPARATE_NAMES,
        ignored=ROTARY_BUFFER,
        title="Granite 3 MoE",
        examples=("ibm-granite/granite-3.1-1b-a400m-instruct", "ibm-granite/granite-3.1-3b-a800m-instruct"),
    ),
    "GraniteMoeSharedForCausalLM": Family(
        _read_granite_moe_shared,
        MOE_SHARED_NAMES,
        "granitemoeshared",
        base="model.",
        aliases=MOE_ALIASES,
        other_names=MOE_SEPARATE_NAMES,
        ignored=ROTARY_BUFFER,
        title="Granite MoE with a shared expert",
        examples=("ibm-research/moe-7b-1b-active-shared-experts",),
    ),
    "GraniteSWAForCausalLM": Family(
        _read_granite_swa,
        LLAMA_NAMES | _SINKS,
        "granite_swa",
        base="model.",
        title="Granite with windows",
        examples=("ibm-granite/granite-swash-2b",),
    ),
    "GraniteMoeSWAForCausalLM": Family(
        _read_granite_moe_swa,
        MOE_SHARED_NAMES | _SINKS,
        "granitemoe_swa",
        base="model.",
        aliases=MOE_ALIASES,
        other_names=MOE_SEPARATE_NAMES,
        title="Granite MoE with windows",
        examples=("ibm-granite/granite-swash-3b-a600m",),
    ),
    "HyperCLOVAXForCausalLM": Family(
        _read_hyperclova,
        LLAMA_NAMES | _POST_NORMS,
        "hyperclovax",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="HyperCLOVA X SEED",
        examples=("naver-hyperclovax/HyperCLOVAX-SEED-Think-14B",),
    ),
}
