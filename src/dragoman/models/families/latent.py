"""Decoders with latent attention: DeepSeek V2, V3 and V3.2, GLM-4.7-Flash and GLM-5, Youtu-LLM, MiniCPM3, Mistral
Small 4, and A.X K1. (DeepSeek-AI 2024, DeepSeek-V2, https://arxiv.org/abs/2405.04434.)"""

from __future__ import annotations

import math
import re
from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import MTP_AFTER_LAYERS, Family
from dragoman.models.families.llama import ACTIVATIONS, LLAMA_NAMES, ROTARY_BUFFER
from dragoman.models.families.scored_mixtures import DEEPSEEK_NAMES, DEEPSEEK_STACKS, deepseek_experts
from dragoman.models.latent import divide_keys_and_values
from dragoman.models.optional_parts import Latent
from dragoman.models.positions import QueryScale
from dragoman.models.rope import Yarn
from dragoman.models.rope_config import read_rope_block
from dragoman.models.spec import Block, DecoderSpec, Embedding, Experts, Output

LATENT_NAMES: dict[str, tuple[str, ...]] = {
    "latent_query_in": ("model.layers.{layer}.self_attn.q_a_proj",),
    "latent_query_norm": ("model.layers.{layer}.self_attn.q_a_layernorm",),
    "latent_query": ("model.layers.{layer}.self_attn.q_b_proj",),
    "latent_in": ("model.layers.{layer}.self_attn.kv_a_proj_with_mqa",),
    "latent_norm": ("model.layers.{layer}.self_attn.kv_a_layernorm",),
    "latent_key": ("model.layers.{layer}.self_attn.k_b_proj",),
    "latent_value": ("model.layers.{layer}.self_attn.v_b_proj",),
}
DIRECT_QUERIES = {"latent_query": ("model.layers.{layer}.self_attn.q_proj",)}
_NAMES = DEEPSEEK_NAMES | LATENT_NAMES
_OTHER_NAMES = DEEPSEEK_STACKS | DIRECT_QUERIES
_SIZES = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}

_LARGEST_KEY = 1024  # the kernels' limit
_LARGEST_SCALE = 1e6  # far above any model's
_GROUP = 32  # the kernels divide matrices of all heads by blocks of so many rows


def latent_like(
    config: Config,
    *,
    interleaved: bool = True,
    rotation: dict[str, Any] | None = None,
    theta: float = 10_000.0,
    query_factor: float = 1.0,
    latent_factor: float = 1.0,
    **variant: Any,
) -> DecoderSpec:
    """Return the spec of a config with latent attention.

    Args:
        interleaved: of the rotation. rotation: its parameters, in place of the config's. theta: its default base.
        query_factor, latent_factor: of queries, and of the latent.
        variant: fields of the spec in which a family differs.
    """
    heads, layers = config.size("num_attention_heads"), config.size("num_hidden_layers")
    if (kv_heads := config.size("num_key_value_heads", heads)) != heads:
        raise ModelError(f"config.json: num_key_value_heads {kv_heads} must be the {heads} of num_attention_heads")
    latent = replace(_read_latent(config), scale=latent_factor)
    positions = config.size("max_position_embeddings", 2048)
    if rotation is None:
        rotation = config.block("rope_scaling") or config.block("rope_parameters")
    rope = read_rope_block(config, rotation, latent.rotated, positions, theta=theta, interleaved=interleaved)
    scale = query_factor * (latent.plain + latent.rotated) ** -0.5
    if isinstance(rope.scaling, Yarn):
        scale *= rope.scaling.score_factor
    if not 0 < scale < _LARGEST_SCALE:
        raise ModelError(f"config.json: rope scaling 'yarn' gives no usable scale of scores: {scale:g}")
    bias = config.flag("attention_bias", False)
    fields: dict[str, Any] = {
        "vocab_size": config.size("vocab_size"),
        "width": config.size("hidden_size"),
        "layers": layers,
        "heads": heads,
        "kv_heads": 1,
        "head_dim": latent.rank + latent.rotated,
        "latent": latent,
        "feed_forward": config.size("intermediate_size"),
        "context": rope.scaling.context(positions),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "activation": config.choice("hidden_act", "silu", ACTIVATIONS),
        "ropes": (rope,) * layers,
        "windows": (0,) * layers,
        "attention_scales": (scale,) * layers,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "tied": config.flag("tie_word_embeddings", False),
    }
    return DecoderSpec(**fields | variant)


def _read_latent(config: Config) -> Latent:
    """Return the sizes; a ``q_lora_rank`` of null means that queries are projected directly."""
    direct = config.values.get("q_lora_rank", 0) is None
    latent = Latent(
        rank=config.size("kv_lora_rank"),
        rotated=config.size("qk_rope_head_dim"),
        plain=config.size("qk_nope_head_dim"),
        value=config.size("v_head_dim"),
        query_rank=0 if direct else config.size("q_lora_rank"),
    )
    for key, size in (("kv_lora_rank", latent.rank), ("v_head_dim", latent.value)):
        if size % _GROUP:
            raise ModelError(f"config.json: {key} {size} is not supported: it must be a multiple of {_GROUP}")
    if latent.rotated % 2:
        raise ModelError(f"config.json: qk_rope_head_dim {latent.rotated} is odd and cannot be rotated in pairs")
    if (size := latent.rank + latent.rotated) > _LARGEST_KEY:
        raise ModelError(
            f"config.json: kv_lora_rank and qk_rope_head_dim are {size} numbers, more than the supported {_LARGEST_KEY}"
        )
    return latent


def _read_deepseek_v2(config: Config) -> DecoderSpec:
    for key, only in (("mlp_bias", False), ("norm_topk_prob", False), ("scoring_func", "softmax")):
        config.refuse(key, only)
    config = config.over(_SIZES | {"n_shared_experts": 2, "moe_intermediate_size": 1407})
    config.size("num_experts_per_tok")
    grouped = config.choice("topk_method", "greedy", {"greedy": False, "group_limited_greedy": True})
    groups = {} if grouped else {"groups": 1, "active_groups": 1}
    experts = latent_experts(
        config, dense=0, normalized=False, scores="softmax", choice_bias=False, group_top=1, **groups
    )
    return latent_like(config, architecture="DeepseekV2ForCausalLM", experts=experts)


_V3_SIZES = {"n_group": 8, "topk_group": 4, "n_routed_experts": 256, "moe_intermediate_size": 2048}


def _read_deepseek_v3(config: Config) -> DecoderSpec:
    config = config.over(_SIZES | _V3_SIZES | {"routed_scaling_factor": 2.5, "max_position_embeddings": 4096})
    return latent_like(
        config,
        architecture="DeepseekV3ForCausalLM",
        interleaved=config.flag("rope_interleave", True),
        experts=latent_experts(config, dense=3, normalized=True),
    )


def _read_axk1(config: Config) -> DecoderSpec:
    """Return DeepSeek V3 with a norm of the experts' result."""
    defaults = {"routed_scaling_factor": 2.5, "max_position_embeddings": 32_768, "n_routed_experts": 192}
    config = config.over(_SIZES | _V3_SIZES | defaults)
    if config.values.get("q_lora_rank", 0) is None:
        raise ModelError("config.json: q_lora_rank = null is not supported")
    return latent_like(
        config,
        architecture="AXK1ForCausalLM",
        interleaved=config.flag("rope_interleave", True),
        experts=latent_experts(config, dense=1, normalized=True, out_norm=True),
    )


def _read_deepseek_v32(config: Config) -> DecoderSpec:
    config = config.over(_SIZES | _V3_SIZES | {"routed_scaling_factor": 2.5, "max_position_embeddings": 163_840})
    return _within_index(config, architecture="DeepseekV32ForCausalLM")


def _read_glm_dsa(config: Config) -> DecoderSpec:
    sizes = _SIZES | {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256}
    experts = {"n_routed_experts": 256, "moe_intermediate_size": 2048, "routed_scaling_factor": 2.5}
    config = config.over(sizes | experts | {"rms_norm_eps": 1e-5, "max_position_embeddings": 202_752})
    return _within_index(config, architecture="GlmMoeDsaForCausalLM")


def _within_index(config: Config, *, architecture: str) -> DecoderSpec:
    """Return the decoder whose indexer chooses among positions, for contexts of which it chooses all."""
    config.refuse("mlp_bias", False)
    if config.values.get("q_lora_rank", 0) is None:
        raise ModelError("config.json: q_lora_rank = null is not supported: the indexer needs it")
    spec = latent_like(config, architecture=architecture, experts=latent_experts(config, dense=3, normalized=True))
    return replace(spec, context=min(spec.context, config.size("index_topk", 2048)))


def _read_glm_lite(config: Config) -> DecoderSpec:
    config.refuse("first_k_dense_replace", 1)  # which layers are dense is in mlp_layer_types
    sizes = _SIZES | {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 64}
    experts = {"num_experts_per_tok": 4, "moe_intermediate_size": 1536, "routed_scaling_factor": 1.8}
    config = config.over(sizes | experts | {"rms_norm_eps": 1e-5, "max_position_embeddings": 202_752})
    return latent_like(
        config,
        architecture="Glm4MoeLiteForCausalLM",
        interleaved=config.flag("rope_interleave", True),
        experts=latent_experts(config, dense=1, normalized=True),
    )


def _read_youtu(config: Config) -> DecoderSpec:
    config = config.over(_SIZES | {"tie_word_embeddings": True, "max_position_embeddings": 131_072})
    interleaved = config.flag("rope_interleave", True)
    return latent_like(config, architecture="YoutuForCausalLM", interleaved=interleaved)


def _read_minicpm3(config: Config) -> DecoderSpec:
    sizes = {"kv_lora_rank": 256, "q_lora_rank": 768, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64}
    config = config.over(sizes | {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 32_768})
    width, layers = config.size("hidden_size"), config.size("num_hidden_layers")
    config = config.over({"v_head_dim": width // config.size("num_attention_heads")})
    depth, base = math.sqrt(layers), float(width)  # null: no factor
    if config.values.get("scale_depth", 0) is not None:
        depth = config.number("scale_depth", 1.4)
    if config.values.get("dim_model_base", 0) is not None:
        base = config.number("dim_model_base", 256)
    return latent_like(
        config,
        architecture="MiniCPM3ForCausalLM",
        interleaved=False,
        embedding=Embedding(scale=config.number("scale_emb", 12), scale_rounded=True),
        block=Block(branch_scale=depth / math.sqrt(layers)),
        output=Output(scale=base / width),
        feed_forward_bias=config.flag("mlp_bias", False),
    )


# Of Mistral Small 4, where a config has no rotation at all.
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def read_mistral4(config: Config) -> DecoderSpec:
    """Return Mistral Small 4, whose queries grow with their position."""
    sizes = _SIZES | {"kv_lora_rank": 256, "q_lora_rank": 1024, "qk_nope_head_dim": 64, "n_routed_experts": 128}
    experts = {"num_experts_per_tok": 4, "moe_intermediate_size": 2048}
    config = config.over(sizes | experts | {"max_position_embeddings": 1_048_576})
    block = dict(config.block("rope_parameters") or config.block("rope_scaling") or _YARN)
    block.pop("max_position_embeddings", None)
    rotated, plain = config.size("qk_rope_head_dim"), config.size("qk_nope_head_dim")
    partial = block.pop("partial_rotary_factor", config.value("partial_rotary_factor"))
    if partial not in (None, rotated / (rotated + plain)):
        raise ModelError(f"config.json: partial_rotary_factor {partial!r} is not that of qk_rope_head_dim {rotated}")
    query_scale = pop_query_scale(block, span=8192, layers=config.size("num_hidden_layers"))
    return latent_like(
        config,
        architecture="Mistral4ForCausalLM",
        interleaved=config.flag("rope_interleave", True),
        rotation=block,
        query_scale=query_scale,
        experts=latent_experts(config, dense=0, normalized=True, scores="softmax", choice_bias=False),
    )


def pop_query_scale(block: dict[str, Any], *, span: float, layers: int) -> QueryScale | None:
    """Take the growth of queries with their position out of Mistral's block of the rotation; None: they do not grow.

    ``span``: the positions of a step of it, unless the block has them.
    """
    scale = Config({key: block.get(key) for key in ("llama_4_scaling_beta", "original_max_position_embeddings")})
    span = scale.number("original_max_position_embeddings", span)
    if block.pop("llama_4_scaling_beta", None) == 0:
        return None
    return QueryScale(factor=scale.number("llama_4_scaling_beta", 0.1), span=span, shift=0, layers=tuple(range(layers)))


def latent_experts(config: Config, *, dense: int, normalized: bool, **variant: Any) -> Experts:
    """Return the experts; the layers without are the first ones, or those that ``mlp_layer_types`` names."""
    config.refuse("moe_layer_freq", 1)
    if variant.get("scores", "sigmoid") == "sigmoid":
        config.refuse("scoring_func", "sigmoid")
        config.refuse("topk_method", "noaux_tc")
    experts = deepseek_experts(config, dense=dense, normalized=normalized, **variant)
    kinds = config.choices("mlp_layer_types", config.size("num_hidden_layers"), {"dense": True, "sparse": False})
    if kinds is None:
        return experts
    return replace(experts, dense_layers=tuple(layer for layer, is_dense in enumerate(kinds) if is_dense))


def _family(read: Any, model_type: str, ignored: str = "", **others: Any) -> Family:
    return Family(
        read,
        others.pop("names", _NAMES),
        model_type,
        base="model.",
        other_names=_OTHER_NAMES,
        divide=divide_keys_and_values,
        ignored=re.compile(f"{ROTARY_BUFFER.pattern}|{ignored}") if ignored else ROTARY_BUFFER,
        **others,
    )


def _norms_of_dense_layers(spec: DecoderSpec) -> frozenset[str]:
    assert spec.experts is not None
    return frozenset(f"model.layers.{layer}.post_mlp_layernorm.weight" for layer in spec.experts.dense_layers)


_INDEXER = r"layers\.\d+\.self_attn\.indexer\..*"
_SHORT = "Contexts of at most `index_topk` tokens (2,048), of which the indexer chooses all: there it is not needed."

FAMILIES: dict[str, Family] = {
    "DeepseekV2ForCausalLM": _family(
        _read_deepseek_v2,
        "deepseek_v2",
        title="DeepSeek V2",
        examples=("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct"),
    ),
    "DeepseekV3ForCausalLM": _family(
        _read_deepseek_v3,
        "deepseek_v3",
        r"layers\.61\..*",
        head=MTP_AFTER_LAYERS,
        title="DeepSeek V3, R1, and Kimi K2",
        examples=("deepseek-ai/DeepSeek-V3.1", "moonshotai/Moonlight-16B-A3B-Instruct", "moonshotai/Kimi-K2-Instruct"),
    ),
    "AXK1ForCausalLM": _family(
        _read_axk1,
        "axk1",
        names=_NAMES | {"expert_out_norm": ("model.layers.{layer}.post_mlp_layernorm",)},
        aliases=((r"\.mlp\.post_mlp_layernorm\.", ".post_mlp_layernorm."),),
        unused=_norms_of_dense_layers,
        title="A.X K1",
        examples=("skt/A.X-K1",),
    ),
    "DeepseekV32ForCausalLM": _family(
        _read_deepseek_v32,
        "deepseek_v32",
        rf"layers\.61\..*|{_INDEXER}",
        head=MTP_AFTER_LAYERS,
        title="DeepSeek V3.2",
        examples=("deepseek-ai/DeepSeek-V3.2",),
        note=_SHORT,
    ),
    "GlmMoeDsaForCausalLM": _family(
        _read_glm_dsa,
        "glm_moe_dsa",
        rf"layers\.78\..*|{_INDEXER}",
        head=MTP_AFTER_LAYERS,
        title="GLM-5",
        examples=("zai-org/GLM-5",),
        note=_SHORT,
    ),
    "Glm4MoeLiteForCausalLM": _family(
        _read_glm_lite,
        "glm4_moe_lite",
        r"layers\.47\..*",
        head=MTP_AFTER_LAYERS,
        title="GLM-4.7-Flash",
        examples=("zai-org/GLM-4.7-Flash",),
    ),
    "YoutuForCausalLM": _family(
        _read_youtu,
        "youtu",
        names=LLAMA_NAMES | LATENT_NAMES,
        title="Youtu-LLM",
        examples=("tencent/Youtu-LLM-2B",),
    ),
    "MiniCPM3ForCausalLM": _family(
        _read_minicpm3,
        "minicpm3",
        names=LLAMA_NAMES | LATENT_NAMES,
        title="MiniCPM3",
        examples=("openbmb/MiniCPM3-4B",),
    ),
    "Mistral4ForCausalLM": _family(
        read_mistral4,
        "mistral4",
        title="Mistral Small 4",
        examples=("mistralai/Mistral-Small-4-119B-2603",),
    ),
}
