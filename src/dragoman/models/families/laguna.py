"""Laguna: attention whose output is gated by softplus, with more heads where it has a window, and experts chosen by
sigmoid scores."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import MOST, Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import HEAD_NORM_NAMES, llama_like
from dragoman.models.families.mixtures import checked
from dragoman.models.families.scored_mixtures import DEEPSEEK_NAMES, DEEPSEEK_STACKS
from dragoman.models.optional_parts import AttentionGate, LayerSizes
from dragoman.models.rope import Rope
from dragoman.models.rope_config import blocks_by_layer_type, read_rope_block
from dragoman.models.spec import DecoderSpec, Experts, HeadNorm

GATED_BLOCK = 32
"""Numbers of a head come in multiples of this where a gate has one number for each head: a limit of the kernels."""

_NAMES = DEEPSEEK_NAMES | HEAD_NORM_NAMES | {
    "qkv": (
        "model.layers.{layer}.self_attn.q_proj",
        "model.layers.{layer}.self_attn.g_proj",
        "model.layers.{layer}.self_attn.k_proj",
        "model.layers.{layer}.self_attn.v_proj",
    ),
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 100_352,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 40,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "head_dim": 128,
    "gating": True,
}
_FULL_ROPE = {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5}
_GATES: dict[object, bool] = {True: True, "per-head": True, "per-element": False}
"""Values of ``gating``, and whether they say one number for each head."""


def _read_laguna(config: Config) -> DecoderSpec:
    config = config.over(_DEFAULTS)
    config.refuse("attention_bias", False)
    config.refuse("moe_apply_router_weight_on_input", False)
    config.refuse("moe_router_logit_softcapping", 0, 0.0)
    layers = config.size("num_hidden_layers")
    sliding = config.choices("layer_types", layers, {"full_attention": False, "sliding_attention": True})
    window = config.count("sliding_window", 512)  # 0 where no layer has one
    if sliding and any(sliding) and not window:
        raise ModelError("config.json: sliding_window is 0, and layer_types name layers with one")
    windows = tuple(window if slides else 0 for slides in sliding or (False,) * layers)
    spec = llama_like(
        config,
        architecture="LagunaForCausalLM",
        head_norm=HeadNorm(),
        attention_gate=AttentionGate(by_head=_read_gating(config), softplus=True),
        experts=_read_experts(config, layers),
        windows=windows,
        ropes=(),
    )
    if spec.attention_gate and spec.attention_gate.by_head and spec.head_dim % GATED_BLOCK:
        raise ModelError(
            f"config.json: gates of heads of {spec.head_dim} numbers are not supported: known are multiples of "
            f"{GATED_BLOCK}"
        )
    full, local = _read_ropes(config, spec)
    ropes = tuple(local if seen else full for seen in windows)
    return replace(spec, ropes=ropes, context=full.scaling.context(spec.context), sizes=_read_sizes(config, spec))


def _read_gating(config: Config) -> bool:
    value = config.value("gating")
    if not isinstance(value, str | bool) or value not in _GATES:
        raise ModelError(f"config.json: gating = {value!r} is not supported; known: true, 'per-head', 'per-element'")
    return _GATES[value]


def _read_ropes(config: Config, spec: DecoderSpec) -> tuple[Rope, Rope]:
    full, local = blocks_by_layer_type(config)
    if not full and not local:
        full = dict(_FULL_ROPE)
    full, local = ({"partial_rotary_factor": 1.0, **block} for block in (full, local))
    return (
        read_rope_block(config, full, spec.head_dim, spec.context, theta=500_000.0, partial=1.0),
        read_rope_block(config, local, spec.head_dim, spec.context, theta=10_000.0, partial=1.0),
    )


def _read_experts(config: Config, layers: int) -> Experts:
    dense = config.choices("mlp_layer_types", layers, {"dense": True, "sparse": False})
    if dense is None:
        dense = (True, *(False,) * (layers - 1))
    experts = Experts(
        count=config.size("num_local_experts", config.size("num_experts", 256)),
        active=config.size("num_experts_per_tok", 8),
        feed_forward=config.size("moe_intermediate_size", 512),
        scores="sigmoid",
        choice_bias=True,
        factor=config.number("moe_routed_scaling_factor", 1.0),
        shared=config.size("shared_expert_intermediate_size", 512),
        dense_layers=tuple(layer for layer in range(layers) if dense[layer]),
    )
    return checked(experts)


def _read_sizes(config: Config, spec: DecoderSpec) -> tuple[LayerSizes, ...]:
    """Return the sizes of each layer; nothing where all have the same heads."""
    heads = config.value("num_attention_heads_per_layer")
    if heads is None:
        return ()
    most, listed = MOST["num_attention_heads"], heads if isinstance(heads, list) else []
    if len(listed) != spec.layers or not all(
        type(count) is int and 0 < count <= most and count % spec.kv_heads == 0 for count in listed
    ):
        raise ModelError(
            f"config.json: num_attention_heads_per_layer must have {spec.layers} numbers of heads, each a multiple of "
            f"{spec.kv_heads}"
        )
    if set(listed) == {spec.heads}:
        return ()
    sizes = {"kv_heads": spec.kv_heads, "head_dim": spec.head_dim, "feed_forward": spec.feed_forward}
    return tuple(LayerSizes(heads=count, **sizes) for count in listed)


FAMILIES: dict[str, Family] = {
    "LagunaForCausalLM": Family(
        _read_laguna,
        _NAMES,
        "laguna",
        base="model.",
        aliases=(
            (r"\.mlp\.experts\.e_score_correction_bias$", ".mlp.gate.e_score_correction_bias"),
            (r"\.mlp\.shared_expert\.", ".mlp.shared_experts."),
        ),
        other_names=DEEPSEEK_STACKS,
        title="Laguna",
        examples=("poolside/Laguna-XS.2", "poolside/Laguna-M.1"),
    ),
}
