"""Mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, Mellum 2 and Flint, each a Llama whose feed-forward
networks are routed."""

from __future__ import annotations

import re

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import HEAD_NORM_NAMES, LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.families.qwen import qwen_windows
from dragoman.models.rope_config import blocks_by_layer_type, read_rope_block
from dragoman.models.spec import DecoderSpec, Experts, HeadNorm

MOST_EXPERTS = 1024  # limit of the kernels
MIXTRAL_NAMES = LLAMA_NAMES | {
    "router": ("model.layers.{layer}.block_sparse_moe.gate",),
    "expert_in": (
        "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1",
        "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3",
    ),
    "expert_out": ("model.layers.{layer}.block_sparse_moe.experts.{expert}.w2",),
}
MIXTRAL_STACKS = {
    "expert_in": ("model.layers.{layer}.block_sparse_moe.experts.gate_up_proj",),
    "expert_out": ("model.layers.{layer}.block_sparse_moe.experts.down_proj",),
}
QWEN_MOE_NAMES = LLAMA_NAMES | {
    "router": ("model.layers.{layer}.mlp.gate",),
    "expert_in": (
        "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
        "model.layers.{layer}.mlp.experts.{expert}.up_proj",
    ),
    "expert_out": ("model.layers.{layer}.mlp.experts.{expert}.down_proj",),
}
QWEN_STACKS = {
    "expert_in": ("model.layers.{layer}.mlp.experts.gate_up_proj",),
    "expert_out": ("model.layers.{layer}.mlp.experts.down_proj",),
}
QWEN2_MOE_NAMES = QWEN_MOE_NAMES | {
    "router": ("model.layers.{layer}.mlp.gate", "model.layers.{layer}.mlp.shared_expert_gate"),
    "shared_expert_in": (
        "model.layers.{layer}.mlp.shared_expert.gate_proj",
        "model.layers.{layer}.mlp.shared_expert.up_proj",
    ),
    "shared_expert_out": ("model.layers.{layer}.mlp.shared_expert.down_proj",),
}

_FLINT_NAMES = {
    "router": ("model.layers.{layer}.mlp.gate",),
    "sinks": ("model.layers.{layer}.self_attn.sinks",),
}


def _read_mixtral(config: Config) -> DecoderSpec:
    config = config.over({"rms_norm_eps": 1e-5})
    window = config.window()
    experts = Experts(
        count=config.size("num_local_experts", 8),
        active=config.size("num_experts_per_tok", 2),
        feed_forward=config.size("intermediate_size"),
    )
    return llama_like(
        config,
        architecture="MixtralForCausalLM",
        theta=1_000_000.0,
        experts=checked(experts),
        windows=(window,) * config.size("num_hidden_layers"),
    )


def _read_qwen2_moe(config: Config) -> DecoderSpec:
    if config.flag("use_sliding_window", False) and config.value("layer_types") is None:
        raise ModelError("config.json: use_sliding_window also needs layer_types")
    return llama_like(
        config,
        architecture="Qwen2MoeForCausalLM",
        qkv_bias=config.flag("qkv_bias", True),
        experts=qwen_experts(
            config, 60, 4, shared=config.size("shared_expert_intermediate_size", 5632), shared_gated=True
        ),
        windows=qwen_windows(config),
    )


def _read_qwen3_moe(config: Config) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    sliding = config.flag("use_sliding_window", False) and config.value("sliding_window", 4096) is not None
    window = config.size("sliding_window", 4096) if sliding else 0
    return llama_like(
        config,
        architecture="Qwen3MoeForCausalLM",
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=HeadNorm(),
        experts=qwen_experts(config, 128, 8),
        windows=(window,) * config.size("num_hidden_layers"),
    )


def qwen_experts(config: Config, count: int, active: int, shared: int = 0, shared_gated: bool = False) -> Experts:
    """Return the experts. The layers that ``mlp_only_layers`` names are dense, and all but each
    ``decoder_sparse_step``-th."""
    layers, step = config.size("num_hidden_layers"), config.size("decoder_sparse_step", 1)
    named = config.value("mlp_only_layers", [])
    if not isinstance(named, list) or not all(type(layer) is int and 0 <= layer < layers for layer in named):
        raise ModelError(f"config.json: mlp_only_layers must list some of {layers} layers, got {named!r}")
    dense = tuple(layer for layer in range(layers) if layer in named or (layer + 1) % step)
    return checked(
        Experts(
            count=config.size("num_local_experts", config.size("num_experts", count)),  # newer configs have the first
            active=config.size("num_experts_per_tok", active),
            feed_forward=config.size("moe_intermediate_size"),
            over_all=not config.flag("norm_topk_prob", False),
            shared=shared,
            shared_gated=shared_gated,
            dense_layers=dense,
        )
    )


def _read_olmoe(config: Config) -> DecoderSpec:
    config.refuse("clip_qkv")
    config = config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 4096})
    bias = config.flag("attention_bias", False)
    experts = Experts(
        count=config.size("num_experts", 64),
        active=config.size("num_experts_per_tok", 8),
        feed_forward=config.size("intermediate_size"),
        over_all=not config.flag("norm_topk_prob", False),
    )
    return llama_like(
        config,
        architecture="OlmoeForCausalLM",
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=HeadNorm(over="all"),
        experts=checked(experts),
    )


def _read_mellum(config: Config) -> DecoderSpec:
    """Return Qwen3-MoE with windows in some layers, and a rotation for each type of layer."""
    config = config.over({"norm_topk_prob": True, "max_position_embeddings": 131_072, "sliding_window": 1024})
    config.refuse("use_sliding_window", True)
    layers, window = config.size("num_hidden_layers"), config.size("sliding_window")
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    bias, positions = config.flag("attention_bias", False), config.size("max_position_embeddings")
    dense = config.choices("mlp_layer_types", layers, {"dense": True, "sparse": False}) or (False,) * layers
    experts = Experts(
        count=config.size("num_local_experts", config.size("num_experts", 64)),
        active=config.size("num_experts_per_tok", 8),
        feed_forward=config.size("moe_intermediate_size", 896),
        over_all=not config.flag("norm_topk_prob", True),
        dense_layers=tuple(layer for layer in range(layers) if dense[layer]),
    )
    spec = llama_like(
        config,
        architecture="MellumForCausalLM",
        default_head_dim=128,
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=HeadNorm(),
        experts=checked(experts),
        windows=windows or (0,) * layers,
        ropes=(),
    )
    full, sliding = (
        read_rope_block(config, block, spec.head_dim, positions, theta=theta)
        for block, theta in zip(blocks_by_layer_type(config), (500_000.0, 10_000.0), strict=True)
    )
    ropes = tuple(sliding if seen else full for seen in spec.windows)
    return replace(spec, ropes=ropes, context=full.scaling.context(positions))


def _read_flint(config: Config) -> DecoderSpec:
    """Return Qwen3-MoE with attention sinks, positions only in layers with a window, and sigmoid scores."""
    defaults = {"norm_topk_prob": True, "max_position_embeddings": 262_144, "mlp_only_layers": [0, 1]}
    config = config.over(defaults | {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 1024})
    config.refuse("attention_bias", False)
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    layers, window = config.size("num_hidden_layers"), config.size("sliding_window", 513)
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        windows = tuple(0 if n < 2 or n % 4 == 1 or n == layers - 1 else window for n in range(layers))
    shared = config.size("shared_expert_intermediate_size")
    experts = replace(qwen_experts(config, 256, 6, shared=shared), scores="sigmoid")
    spec = llama_like(
        config,
        architecture="FlintForCausalLM",
        default_head_dim=128,
        head_norm=HeadNorm(),
        sinks=True,
        experts=experts,
        windows=windows,
    )
    return replace(spec, ropes=tuple(rope if seen else None for rope, seen in zip(spec.ropes, windows, strict=True)))


def checked(experts: Experts) -> Experts:
    """Return the experts unchanged. Raises ModelError on too many experts or too many active ones."""
    if (selectable := experts.count + experts.identities) > MOST_EXPERTS:
        raise ModelError(f"config.json: {selectable} experts are more than {MOST_EXPERTS}")
    if experts.active > selectable:
        raise ModelError(f"config.json: num_experts_per_tok {experts.active} is more than {experts.count} experts")
    size = experts.count // experts.groups
    if experts.count % experts.groups or experts.active_groups > experts.groups or size < experts.group_top:
        raise ModelError(
            f"config.json: {experts.count} experts cannot form {experts.groups} groups (n_group) of which "
            f"{experts.active_groups} (topk_group) are chosen"
        )
    if experts.groups > 1 and experts.active > size * experts.active_groups:
        raise ModelError(f"config.json: num_experts_per_tok {experts.active} is more than the chosen groups have")
    return experts


FAMILIES: dict[str, Family] = {
    "MixtralForCausalLM": Family(
        _read_mixtral,
        MIXTRAL_NAMES,
        "mixtral",
        base="model.",
        aliases=((r"\.mlp\.", ".block_sparse_moe."),),
        other_names=MIXTRAL_STACKS,
        ignored=ROTARY_BUFFER,
        title="Mixtral",
        examples=("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x22B-v0.1"),
    ),
    "Qwen2MoeForCausalLM": Family(
        _read_qwen2_moe,
        QWEN2_MOE_NAMES,
        "qwen2_moe",
        base="model.",
        other_names=QWEN_STACKS,
        ignored=ROTARY_BUFFER,
        title="Qwen 1.5 and 2 MoE",
        examples=("Qwen/Qwen1.5-MoE-A2.7B-Chat", "Qwen/Qwen2-57B-A14B-Instruct"),
    ),
    "Qwen3MoeForCausalLM": Family(
        _read_qwen3_moe,
        QWEN_MOE_NAMES | HEAD_NORM_NAMES,
        "qwen3_moe",
        base="model.",
        other_names=QWEN_STACKS,
        ignored=ROTARY_BUFFER,
        title="Qwen 3 MoE",
        examples=("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
    ),
    "OlmoeForCausalLM": Family(
        _read_olmoe,
        QWEN_MOE_NAMES | HEAD_NORM_NAMES,
        "olmoe",
        base="model.",
        other_names=QWEN_STACKS,
        ignored=ROTARY_BUFFER,
        title="OLMoE",
        examples=("allenai/OLMoE-1B-7B-0924-Instruct",),
    ),
    "MellumForCausalLM": Family(
        _read_mellum,
        QWEN_MOE_NAMES | HEAD_NORM_NAMES,
        "mellum",
        base="model.",
        other_names=QWEN_STACKS,
        ignored=re.compile(r"mtp\..*"),
        title="Mellum 2",
        examples=("JetBrains/Mellum2-12B-A2.5B-Base",),
    ),
    "FlintForCausalLM": Family(
        _read_flint,
        QWEN2_MOE_NAMES | HEAD_NORM_NAMES | _FLINT_NAMES,
        "flint",
        base="model.",
        other_names=QWEN_STACKS,
        aliases=((r"\.self_attn\.softmax_offset$", ".self_attn.sinks"),),
        title="Flint",
        examples=("RecursiveSI/flint",),
    ),
}
