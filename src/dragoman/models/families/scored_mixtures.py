"""Mixtures whose router scores each expert by itself, with a sigmoid, and has learned biases for the choice: GLM-4.5,
Solar Open, dots.1, K-EXAONE, Hy3 and MiniMax-M2. (DeepSeek-AI 2024, DeepSeek-V3, https://arxiv.org/abs/2412.19437.)"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import MTP_AFTER_LAYERS, Family
from dragoman.models.families.llama import HEAD_NORM_NAMES, LLAMA_NAMES, llama_like
from dragoman.models.families.llama_variants import exaone_like
from dragoman.models.families.mixtures import checked
from dragoman.models.spec import DecoderSpec, Experts, HeadNorm

DEEPSEEK_NAMES: dict[str, tuple[str, ...]] = LLAMA_NAMES | {
    "router": ("model.layers.{layer}.mlp.gate",),
    "router_choice": ("model.layers.{layer}.mlp.gate.e_score_correction_bias",),
    "expert_in": (
        "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
        "model.layers.{layer}.mlp.experts.{expert}.up_proj",
    ),
    "expert_out": ("model.layers.{layer}.mlp.experts.{expert}.down_proj",),
    "shared_expert_in": (
        "model.layers.{layer}.mlp.shared_experts.gate_proj",
        "model.layers.{layer}.mlp.shared_experts.up_proj",
    ),
    "shared_expert_out": ("model.layers.{layer}.mlp.shared_experts.down_proj",),
}
DEEPSEEK_STACKS = {
    "expert_in": ("model.layers.{layer}.mlp.experts.gate_up_proj",),
    "expert_out": ("model.layers.{layer}.mlp.experts.down_proj",),
}
_MINIMAX_NAMES = (
    LLAMA_NAMES
    | HEAD_NORM_NAMES
    | {
        "router": ("model.layers.{layer}.block_sparse_moe.gate",),
        "router_choice": ("model.layers.{layer}.block_sparse_moe.e_score_correction_bias",),
        "expert_in": (
            "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1",
            "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3",
        ),
        "expert_out": ("model.layers.{layer}.block_sparse_moe.experts.{expert}.w2",),
    }
)
_MINIMAX_STACKS = {
    "expert_in": ("model.layers.{layer}.block_sparse_moe.experts.gate_up_proj",),
    "expert_out": ("model.layers.{layer}.block_sparse_moe.experts.down_proj",),
}


def _read_glm_moe(config: Config) -> DecoderSpec:
    config = config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 131_072})
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    return llama_like(
        config,
        architecture="Glm4MoeForCausalLM",
        partial=0.5,
        qkv_bias=config.flag("attention_bias", False),
        head_norm=HeadNorm() if config.flag("use_qk_norm", False) else None,
        experts=deepseek_experts(config, dense=1, normalized=True),
    )


def _read_solar(config: Config) -> DecoderSpec:
    config.refuse("use_qk_norm", False)
    config.refuse("first_k_dense_replace", 0)
    config = config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 131_072, "intermediate_size": 1})
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    return llama_like(
        config,
        architecture="SolarOpenForCausalLM",
        default_head_dim=128,
        theta=1_000_000.0,
        partial=1.0,
        qkv_bias=config.flag("attention_bias", False),
        feed_forward=0,
        experts=deepseek_experts(config.having({"first_k_dense_replace": 0}), dense=0, normalized=True),
    )


def _read_exaone_moe(config: Config) -> DecoderSpec:
    config.refuse("scoring_func", "sigmoid")
    config.refuse("topk_method", "noaux_tc")
    config = config.over({"rms_norm_eps": 1e-5, "routed_scaling_factor": 2.5, "moe_intermediate_size": 1024})
    named = {
        "n_routed_experts": config.value("num_local_experts", config.value("num_experts", 64)),
        "n_shared_experts": config.value("num_shared_experts", 1),
    }
    experts = deepseek_experts(config.having(named), dense=1, normalized=True)
    return exaone_like(config, architecture="ExaoneMoeForCausalLM", experts=_layers_by_type(config, experts))


def _read_hy3(config: Config) -> DecoderSpec:
    config.refuse("qk_norm", True)
    config.refuse("moe_router_use_sigmoid", True)
    config.refuse("moe_router_enable_expert_bias", True)
    config.refuse("route_norm", True)
    config = config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 131_072})
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    inner, bias = config.size("moe_intermediate_size", 1536), config.flag("attention_bias", False)
    experts = Experts(
        count=config.size("num_local_experts", config.size("num_experts", 192)),
        active=config.size("num_experts_per_tok", 8),
        feed_forward=inner,
        scores="sigmoid",
        choice_bias=True,
        least=1e-20,
        factor=config.number("router_scaling_factor", 2.826),
        shared=inner * config.count("num_shared_experts", 1),
        dense_layers=(0,),
    )
    config.refuse("mlp_bias", False)
    return llama_like(
        config,
        architecture="HYV3ForCausalLM",
        default_head_dim=128,
        theta=11_158_840.0,
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=HeadNorm(),
        experts=checked(_layers_by_type(config, experts)),
    )


def _layers_by_type(config: Config, experts: Experts) -> Experts:
    """Return the experts in the layers that ``mlp_layer_types`` names, where it is there."""
    kinds = config.choices("mlp_layer_types", config.size("num_hidden_layers"), {"dense": True, "sparse": False})
    if kinds is None:
        return experts
    return replace(experts, dense_layers=tuple(layer for layer, is_dense in enumerate(kinds) if is_dense))


def _read_dots(config: Config) -> DecoderSpec:
    config.refuse("scoring_func", "noaux_tc", "sigmoid")
    layers, bias = config.size("num_hidden_layers"), config.flag("attention_bias", False)
    window = 0 if config.values.get("sliding_window", 4096) is None else config.size("sliding_window", 4096)
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        first = config.count("max_window_layers", 62)
        windows = tuple(window if layer >= first else 0 for layer in range(layers))
    return llama_like(
        config,
        architecture="Dots1ForCausalLM",
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=HeadNorm(),
        experts=deepseek_experts(config, dense=0, normalized=False),
        windows=windows,
    )


def _read_minimax(config: Config) -> DecoderSpec:
    config.refuse("scoring_func", "sigmoid")
    config.refuse("qk_norm_type", "per_layer")
    config.refuse("use_qk_norm", True)
    config.refuse("use_routing_bias", True)
    config.refuse("shared_intermediate_size", 0)
    kinds = config.value("attn_type_list", [])
    if not isinstance(kinds, list) or any(kind != 1 for kind in kinds):
        raise ModelError(f"config.json: attn_type_list = {kinds!r} is not supported: all layers have softmax attention")
    config = config.over({"max_position_embeddings": 196_608})
    head_dim = config.size("head_dim", 128)
    experts = Experts(
        count=config.size("num_local_experts", config.size("num_experts", 256)),
        active=config.size("num_experts_per_tok", 8),
        feed_forward=config.size("intermediate_size"),
        scores="sigmoid",
        choice_bias=True,
    )
    return llama_like(
        config,
        architecture="MiniMaxM2ForCausalLM",
        default_head_dim=128,
        theta=5_000_000.0,
        partial=config.size("rotary_dim", head_dim) / head_dim,
        head_norm=HeadNorm(over="all"),
        experts=checked(experts),
    )


def deepseek_experts(config: Config, *, dense: int, normalized: bool, **variant: Any) -> Experts:
    """Return the experts of a config in the terms of DeepSeek.

    Args:
        dense, normalized: defaults of ``first_k_dense_replace`` and of ``norm_topk_prob``.
        variant: fields of the result in which a family differs.
    """
    layers = config.size("num_hidden_layers")
    first = config.count("first_k_dense_replace", dense)
    inner = config.size("moe_intermediate_size")
    groups = config.size("n_group", 1)
    count = config.size("n_routed_experts", config.value("num_local_experts"))
    fields: dict[str, Any] = {
        "count": count,
        "active": config.size("num_experts_per_tok", 8),
        "feed_forward": inner,
        "over_all": not config.flag("norm_topk_prob", normalized),
        "scores": "sigmoid",
        "choice_bias": True,
        "groups": groups,
        "active_groups": config.size("topk_group", 1),
        "group_top": 2 if groups > 1 else 1,
        "least": 1e-20,
        "factor": config.number("routed_scaling_factor", 1.0),
        "shared": inner * config.count("n_shared_experts", 1),
        "dense_layers": tuple(range(min(first, layers))),
    }
    return checked(Experts(**fields | variant))


_MTP = re.compile(r"layers\.(46|92)\..*")  # what predicts further tokens, after the last layer

FAMILIES: dict[str, Family] = {
    "Glm4MoeForCausalLM": Family(
        _read_glm_moe,
        DEEPSEEK_NAMES | HEAD_NORM_NAMES,
        "glm4_moe",
        base="model.",
        other_names=DEEPSEEK_STACKS,
        ignored=_MTP,
        head=MTP_AFTER_LAYERS,
        title="GLM-4.5, 4.6 and 4.7 MoE",
        examples=("zai-org/GLM-4.5-Air", "zai-org/GLM-4.6", "zai-org/GLM-4.7"),
    ),
    "SolarOpenForCausalLM": Family(
        _read_solar,
        DEEPSEEK_NAMES,
        "solar_open",
        base="model.",
        other_names=DEEPSEEK_STACKS,
        title="Solar Open",
        examples=("upstage/Solar-Open-100B",),
    ),
    "ExaoneMoeForCausalLM": Family(
        _read_exaone_moe,
        DEEPSEEK_NAMES | HEAD_NORM_NAMES,
        "exaone_moe",
        base="model.",
        aliases=((r"\.mlp\.e_score_correction_bias$", ".mlp.gate.e_score_correction_bias"),),
        other_names=DEEPSEEK_STACKS,
        ignored=re.compile(r"mtp\..*"),
        title="K-EXAONE",
        examples=("LGAI-EXAONE/K-EXAONE-236B-A23B",),
    ),
    "HYV3ForCausalLM": Family(
        _read_hy3,
        DEEPSEEK_NAMES | HEAD_NORM_NAMES | {"router_choice": ("model.layers.{layer}.mlp.e_score_correction_bias",)},
        "hy_v3",
        base="model.",
        aliases=(
            (r"\.mlp\.router\.gate\.", ".mlp.gate."),
            (r"\.mlp\.expert_bias$", ".mlp.e_score_correction_bias"),
            (r"\.mlp\.shared_mlp\.", ".mlp.shared_experts."),
        ),
        other_names=DEEPSEEK_STACKS,
        ignored=re.compile(r"layers\.80\..*"),
        title="Hy3",
        examples=("tencent/Hy3-preview",),
    ),
    "Dots1ForCausalLM": Family(
        _read_dots,
        DEEPSEEK_NAMES | HEAD_NORM_NAMES,
        "dots1",
        base="model.",
        other_names=DEEPSEEK_STACKS,
        title="dots.llm1",
        examples=("rednote-hilab/dots.llm1.inst",),
    ),
    "MiniMaxM2ForCausalLM": Family(
        _read_minimax,
        _MINIMAX_NAMES,
        "minimax_m2",
        base="model.",
        aliases=((r"\.mlp\.gate\.", ".block_sparse_moe.gate."), (r"\.mlp\.", ".block_sparse_moe.")),
        other_names=_MINIMAX_STACKS,
        ignored=re.compile(r"mtp\..*|layers\.6[2-4]\..*"),
        title="MiniMax-M2",
        examples=("MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2.1"),
    ),
}
