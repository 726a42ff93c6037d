"""Architectures of GGUF files with latent attention: DeepSeek V2 and V3, and what has their layers (GLM-4.7-Flash,
Youtu-LLM, Mistral Large 3); DeepSeek V3.2, Mistral Small 4, GLM-5 and MiniCPM3."""

from __future__ import annotations

from dragoman.models.gguf import names
from dragoman.models.gguf.architecture import (
    LONGROPE,
    Architecture,
    Config,
    Tensors,
    growth,
    longrope,
    rms,
    scored_experts,
    tenth_score_scaling,
)
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.mixtures import SIGMOID, SOFTMAX

_INDEXER = "model.layers.{layer}.self_attn.indexer."
_NAMES_WITH_INDEXER = names.DEEPSEEK2 | {
    "blk.indexer.k_norm": f"{_INDEXER}k_norm",
    "blk.indexer.proj": f"{_INDEXER}weights_proj",
    "blk.indexer.attn_k": f"{_INDEXER}wk",
    "blk.indexer.attn_q_b": f"{_INDEXER}wq_b",
}


def _latent(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    """Return the sizes. To llama.cpp it is attention with one key head, or, in older files, with all."""
    rank, rotated = keys.size("attention.kv_lora_rank"), keys.size("rope.dimension_count")
    if "blk.0.attn_kv_b.weight" in tensors:
        heads = config["num_attention_heads"]
        keys.refuse("attention.head_count_kv", heads)
        key = keys.size("attention.key_length")
        value = keys.size("attention.value_length", config["hidden_size"] // heads)
    else:
        for name, one in (("head_count_kv", 1), ("key_length", rank + rotated), ("value_length", rank)):
            keys.refuse(f"attention.{name}", one)
        key, value = keys.size("attention.key_length_mla"), keys.size("attention.value_length_mla")
    if key <= rotated:
        raise keys.file.fail("rope.dimension_count", f"{rotated} leaves nothing of a key of {key}")
    return rms(keys) | {
        "kv_lora_rank": rank,
        "q_lora_rank": keys.size("attention.q_lora_rank") if keys.has("attention.q_lora_rank") else None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
    }


def _deepseek2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    layers, dense = config["num_hidden_layers"], keys.count("leading_dense_block_count")
    if not keys.is_on("expert_count"):
        if dense != layers:
            raise keys.file.fail("leading_dense_block_count", f"{dense} of {layers} layers, and there are no experts")
        for unused in ("expert_feed_forward_length", "expert_shared_count"):
            keys.has(unused)
        for key, harmless in (("gating_func", 0), ("weights_scale", 1.0), ("group_count", 1), ("group_used_count", 1)):
            keys.refuse(f"expert_{key}", harmless)
        return _latent(keys, tensors, config) | {"architectures": ["YoutuForCausalLM"], "model_type": "youtu"}
    found = _latent(keys, tensors, config) | scored_experts(keys) | {"first_k_dense_replace": dense}
    if _scored_by_sigmoid(keys, tensors):
        return found | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    if grown := growth(keys):
        return found | _mistral4_rotation(config, grown)
    return found | {"topk_method": "group_limited_greedy" if found["n_group"] > 1 else "greedy"}


def _scored_by_sigmoid(keys: Metadata, tensors: Tensors) -> bool:
    """Return whether experts are scored by a sigmoid, not by softmax. Without a key (GLM-4.7-Flash) the biases of the
    choice say it: DeepSeek V2, whose files have no key either, has none."""
    if not keys.is_on("expert_gating_func"):
        return any(name.endswith(".exp_probs_b.bias") for name in tensors)
    keys.refuse("expert_gating_func", SOFTMAX, SIGMOID)
    return keys.count("expert_gating_func") == SIGMOID


def _mistral4(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SOFTMAX, 0)
    found = _latent(keys, tensors, config) | scored_experts(keys)
    found["first_k_dense_replace"] = keys.count("leading_dense_block_count")
    return found | _mistral4_rotation(config, growth(keys))


def _mistral4_rotation(config: Config, grown: Config) -> Config:
    """Return the rotation; the growth of queries that a file lacks is the family's own."""
    return {
        "architectures": ["Mistral4ForCausalLM"],
        "model_type": "mistral4",
        "rope_scaling": None,
        "rope_parameters": (config["rope_scaling"] or {"rope_type": "default"}) | grown,
    }


def _with_indexer(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("expert_gating_func", SIGMOID)
    for unused in ("head_count", "key_length", "types"):  # of the indexer, which is not needed
        keys.has(f"attention.indexer.{unused}")
    return _latent(keys, tensors, config) | scored_experts(keys) | {
        "first_k_dense_replace": keys.count("leading_dense_block_count"),
        "index_topk": keys.size("attention.indexer.top_k"),
    }  # fmt: skip


def _minicpm3(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    original = keys.size("rope.scaling.original_context_length", config["max_position_embeddings"])
    return _latent(keys, tensors, config) | longrope(keys, tensors) | {
        "original_max_position_embeddings": original,
        "scale_emb": 12,  # no key has these three: the only published model's
        "scale_depth": 1.4,
        "dim_model_base": 256,
    }  # fmt: skip


LATENT: dict[str, Architecture] = {
    "deepseek2": Architecture(
        name="DeepseekV2ForCausalLM",
        model_type="deepseek_v2",
        names=names.DEEPSEEK2,
        extra=_deepseek2,
        score_scaling=tenth_score_scaling,
    ),
    "mistral4": Architecture(
        name="Mistral4ForCausalLM",
        model_type="mistral4",
        names=names.DEEPSEEK2,
        extra=_mistral4,
        score_scaling=tenth_score_scaling,
    ),
    "deepseek32": Architecture(
        name="DeepseekV32ForCausalLM",
        model_type="deepseek_v32",
        names=_NAMES_WITH_INDEXER,
        extra=_with_indexer,
        score_scaling=tenth_score_scaling,
    ),
    "glm-dsa": Architecture(
        name="GlmMoeDsaForCausalLM",
        model_type="glm_moe_dsa",
        names=_NAMES_WITH_INDEXER,
        extra=_with_indexer,
        score_scaling=tenth_score_scaling,
    ),
    "minicpm3": Architecture(
        name="MiniCPM3ForCausalLM", model_type="minicpm3", names=names.DEEPSEEK2, extra=_minicpm3, described=LONGROPE
    ),
}
