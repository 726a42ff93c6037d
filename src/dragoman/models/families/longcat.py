"""LongCat-Flash: each of its layers has two with latent attention and a network, and experts beside the first network
whose result joins the stream after the second. Some experts give back what goes in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.latent import LATENT_NAMES, latent_like
from dragoman.models.families.llama import LLAMA_NAMES
from dragoman.models.families.mixtures import checked
from dragoman.models.latent import divide_keys_and_values
from dragoman.models.spec import DecoderSpec, Experts

if TYPE_CHECKING:
    from dragoman.models.tensors import Tensor

_NAMES: dict[str, tuple[str, ...]] = (
    LLAMA_NAMES
    | LATENT_NAMES
    | {
        "router": ("model.layers.{layer}.experts.router.classifier",),
        "router_choice": ("model.layers.{layer}.experts.router.e_score_correction_bias",),
        "expert_in": (
            "model.layers.{layer}.experts.{expert}.gate_proj",
            "model.layers.{layer}.experts.{expert}.up_proj",
        ),
        "expert_out": ("model.layers.{layer}.experts.{expert}.down_proj",),
    }
)
_PART = re.compile(r"(model\.)?layers\.(\d+)\.(self_attn|mlps|input_layernorm|post_attention_layernorm)\.([01])\.(.+)")
_EXPERTS = re.compile(r"(model\.)?layers\.(\d+)\.mlp\.(?:experts\.)?(.+)")


def _read_longcat(config: Config) -> DecoderSpec:
    for key, only in (("router_bias", False), ("attention_method", "MLA"), ("zero_expert_type", "identity")):
        config.refuse(key, only)
    config.refuse("norm_topk_prob", False)
    if config.values.get("q_lora_rank", 0) is None:
        raise ModelError("config.json: q_lora_rank = null is not supported")
    sizes = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    config = config.over(sizes | {"v_head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 131_072})
    halves = config.size("num_layers")
    if halves > 256:
        raise ModelError(f"config.json: num_layers must be a positive integer up to 256, got {halves}")
    layers, width = 2 * halves, config.size("hidden_size")
    if (stated := config.value("num_hidden_layers", layers)) not in (layers, halves):
        raise ModelError(f"config.json: num_hidden_layers {stated!r} is not that of num_layers {halves}")
    named = {"num_hidden_layers": layers, "intermediate_size": config.size("ffn_hidden_size")}
    rotated = config.size("qk_rope_head_dim")
    if (stated := config.size("head_dim", rotated)) != rotated:
        raise ModelError(f"config.json: head_dim {stated} must be the {rotated} of qk_rope_head_dim")
    query, latent = config.size("q_lora_rank"), config.size("kv_lora_rank")
    return latent_like(
        config.having(named),
        architecture="LongcatFlashForCausalLM",
        theta=10_000_000.0,
        query_factor=(width / query) ** 0.5,
        latent_factor=(width / latent) ** 0.5,
        experts=_read_experts(config, layers),
    )


def _read_experts(config: Config, layers: int) -> Experts:
    experts = Experts(
        count=config.size("n_routed_experts", 512),
        active=config.size("moe_topk", 12),
        feed_forward=config.size("expert_ffn_hidden_size", 2048),
        over_all=True,
        choice_bias=True,
        factor=config.number("routed_scaling_factor", 6.0),
        identities=config.count("zero_expert_num", 256),
        delayed=True,
        dense_layers=tuple(range(1, layers, 2)),
    )
    return checked(experts)


def _by_attention(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors by names in which each of a layer's two parts is a layer of its own."""
    renamed = {_renamed(name): tensor for name, tensor in tensors.items()}
    return divide_keys_and_values(spec, renamed)


def _renamed(name: str) -> str:
    if found := _PART.fullmatch(name):
        base, layer, module, part, rest = found.groups()
        module = "mlp" if module == "mlps" else module
        return f"{base or ''}layers.{2 * int(layer) + int(part)}.{module}.{rest}"
    if found := _EXPERTS.fullmatch(name):
        base, layer, rest = found.groups()
        return f"{base or ''}layers.{2 * int(layer)}.experts.{rest}"
    return name


def _experts_without_matrices(spec: DecoderSpec) -> frozenset[str]:
    """Return the names under which transformers saves matrices of experts that have none."""
    assert spec.experts is not None
    count, end = spec.experts.count, spec.experts.count + spec.experts.identities
    return frozenset(
        f"model.layers.{layer}.experts.{expert}.{name}.weight"
        for layer in range(0, spec.layers, 2)
        for expert in range(count, end)
        for name in ("gate_proj", "up_proj")
    )


FAMILIES: dict[str, Family] = {
    "LongcatFlashForCausalLM": Family(
        _read_longcat,
        _NAMES,
        "longcat_flash",
        base="model.",
        other_names={
            "expert_in": ("model.layers.{layer}.experts.gate_up_proj",),
            "expert_out": ("model.layers.{layer}.experts.down_proj",),
        },
        divide=_by_attention,
        ignored=re.compile(r"mtp\..*"),
        unused=_experts_without_matrices,
        title="LongCat-Flash",
        examples=("meituan-longcat/LongCat-Flash-Chat",),
    ),
}
