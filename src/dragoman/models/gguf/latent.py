"""Architectures of GGUF files with latent attention: DeepSeek V2 and V3, and what has their layers."""

from __future__ import annotations

from dragoman.models.gguf import names
from dragoman.models.gguf.architecture import (
    Architecture,
    Config,
    Tensors,
    rms,
    scored_experts,
    tenth_score_scaling,
)
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.mixtures import SIGMOID, SOFTMAX


def _latent(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    """Return the sizes. To llama.cpp it is attention with one key head, or, in older files, with all."""
    rank, rotated = keys.size("attention.kv_lora_rank"), keys.size("rope.dimension_count")
    if "blk.0.attn_kv_b.weight" in tensors:
        keys.refuse("attention.head_count_kv", config["num_attention_heads"])
        key, value = keys.size("attention.key_length"), keys.size("attention.value_length")
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
    found = _latent(keys, tensors, config) | scored_experts(keys)
    found["first_k_dense_replace"] = keys.count("leading_dense_block_count")
    if keys.count("expert_gating_func") == SIGMOID:
        return found | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    keys.refuse("expert_gating_func", SOFTMAX)  # as in files without it
    return found | {"topk_method": "group_limited_greedy" if found["n_group"] > 1 else "greedy"}


LATENT: dict[str, Architecture] = {
    "deepseek2": Architecture(
        name="DeepseekV2ForCausalLM",
        model_type="deepseek_v2",
        names=names.DEEPSEEK2,
        extra=_deepseek2,
        score_scaling=tenth_score_scaling,
    ),
}
