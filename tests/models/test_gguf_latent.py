"""Decoders with latent attention as llama.cpp's converter writes them, against transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_cases import Case, check_logits, describe_yarn, rename_choice, write_case
from gguf_files import Weights
from small_models import VARIANTS

from dragoman.core.errors import ModelError
from dragoman.models.gguf import open_gguf, tensor_files
from dragoman.models.gguf.latent import LATENT


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


def describe_latent(writer: gguf.GGUFWriter, config: Any) -> None:
    """To llama.cpp it is attention with one key head, whose size is that of the latent and the rotated part."""
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    describe_ranks(writer, config)


def describe_ranks(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)


def describe_mixture(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)


def describe_deepseek2(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_latent(writer, config)
    describe_scored(writer, config)


def describe_whole_deepseek2(writer: gguf.GGUFWriter, config: Any) -> None:
    """As it was written before April 2025."""
    writer.add_head_count_kv(config.num_attention_heads)
    writer.add_key_length(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length(config.v_head_dim)
    describe_ranks(writer, config)
    describe_scored(writer, config)


def describe_scored(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_mixture(writer, config)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    if config.model_type == "deepseek_v3":
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    rope = config.rope_parameters
    if rope["rope_type"] == "yarn":
        describe_yarn(writer, rope)
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def divide_latents(weights: Weights) -> Weights:
    """``kv_b_proj`` as two stacks of the heads' matrices, that of keys transposed; and stacks of experts."""
    found = {}
    for name, value in rename_choice(weights).items():
        if name.endswith("kv_b_proj.weight"):
            heads = value.reshape(4, -1, value.shape[1])
            found[name.replace("kv_b_proj", "k_b_proj")] = heads[:, :10].transpose(0, 2, 1)
            found[name.replace("kv_b_proj", "v_b_proj")] = heads[:, 10:]
        else:
            found[name] = value
    return found


def describe_unscored(writer: gguf.GGUFWriter, config: Any) -> None:
    """GLM-4.7-Flash, whose config does not say how experts are scored."""
    describe_latent(writer, config)
    describe_mixture(writer, config)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_weights_norm(config.norm_topk_prob)


def describe_large(writer: gguf.GGUFWriter, config: Any) -> None:
    """Mistral Large 3, a DeepSeek whose queries grow."""
    describe_mistral4(writer, config)
    rope = config.rope_parameters
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    writer.add_attn_temperature_length(rope["original_max_position_embeddings"])


def describe_mistral4(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_latent(writer, config)
    describe_mixture(writer, config)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    rope = config.rope_parameters
    describe_yarn(writer, rope)
    writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def describe_dense(writer: gguf.GGUFWriter, config: Any) -> None:
    """Youtu-LLM: all its blocks are leading ones."""
    describe_latent(writer, config)
    writer.add_leading_dense_block_count(config.num_hidden_layers)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_shared_count(0)


def describe_glm_dsa(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_latent(writer, config)
    describe_mixture(writer, config)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk)


def describe_minicpm3(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    for which, first in (("long", 2.0), ("short", 1.0)):
        writer.add_tensor(f"rope_factors_{which}.weight", np.linspace(first, first + 1, 6, dtype=np.float32))


def divide_stacks(weights: Weights) -> Weights:
    """Stacks of experts as the checkpoint has them, under names with an ending."""
    ends = (".gate_up_proj", ".experts.down_proj")
    return {f"{n}.weight" if n.endswith(ends) else n: v for n, v in divide_latents(weights).items()}


def divide_gates(weights: Weights) -> Weights:
    """The same with gates and ups apart, as Mistral Large 3's own files have them."""
    found = {}
    for name, value in divide_stacks(weights).items():
        if name.endswith(".gate_up_proj.weight"):
            module = name.removesuffix("gate_up_proj.weight")
            found[f"{module}gate_proj.weight"], found[f"{module}up_proj.weight"] = np.split(value, 2, axis=1)
        else:
            found[name] = value
    return found


_DEEPSEEK_V3 = VARIANTS["deepseek-v3"] | {"attention_bias": False}
_DEEPSEEK_V3["rope_parameters"] = _DEEPSEEK_V3["rope_parameters"] | {"mscale": 0.9}  # files have one of the two
_YARN = VARIANTS["mistral4"]["rope_parameters"] | {"mscale": 0.9}
_MISTRAL4 = VARIANTS["mistral4"] | {"rope_parameters": _YARN}
_OWN_GROWTH = VARIANTS["mistral4"] | {"rope_parameters": _YARN | {"llama_4_scaling_beta": 0.1}}  # files do not have it
_SHORT = np.linspace(1.0, 2.0, 6, dtype=np.float32).tolist()
_LONG = np.linspace(2.0, 3.0, 6, dtype=np.float32).tolist()
_MINICPM3 = VARIANTS["minicpm3"] | {
    "dim_model_base": 256,
    "rope_scaling": {
        "rope_type": "longrope",
        "short_factor": _SHORT,
        "long_factor": _LONG,
        "original_max_position_embeddings": 256,
    },
}
CASES = {
    "deepseek2": Case("deepseek2", VARIANTS["deepseek-v2"], describe_deepseek2, gather=divide_latents),
    "deepseek2-v3": Case("deepseek2", _DEEPSEEK_V3, describe_deepseek2, gather=divide_latents),
    "deepseek2-whole": Case("deepseek2", _DEEPSEEK_V3, describe_whole_deepseek2, gather=rename_choice),
    "deepseek2-unscored": Case("deepseek2", VARIANTS["glm4-moe-lite"], describe_unscored, gather=divide_latents),
    "deepseek2-large": Case("deepseek2", _MISTRAL4, describe_large, gather=divide_gates),
    "deepseek2-dense": Case(
        "deepseek2", VARIANTS["youtu"] | {"rope_interleave": True}, describe_dense, gather=divide_latents
    ),
    "mistral4": Case("mistral4", _OWN_GROWTH, describe_mistral4, gather=divide_stacks),
    "glm-dsa": Case("glm-dsa", VARIANTS["glm-5"], describe_glm_dsa, gather=divide_latents),
    "deepseek32": Case(
        "deepseek32", VARIANTS["deepseek-v3.2"], describe_glm_dsa, gather=divide_latents, names_of="glm-dsa"
    ),
    "minicpm3": Case("minicpm3", _MINICPM3, describe_minicpm3),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


def test_every_architecture_has_a_case() -> None:
    assert {case.arch for case in CASES.values()} == LATENT.keys()


WRONG: dict[str, tuple[str, Callable[[gguf.GGUFWriter], None], str]] = {
    "dense layers without experts": (
        "deepseek2-dense",
        lambda writer: writer.add_leading_dense_block_count(1),
        r"leading_dense_block_count 1 of 3 layers, and there are no experts",
    ),
    "experts scored otherwise": (
        "deepseek2-unscored",
        lambda writer: writer.add_uint32("deepseek2.expert_gating_func", 4),
        r"deepseek2.expert_gating_func = 4 is not supported",
    ),
    "queries that grow in other steps": (
        "deepseek2-large",
        lambda writer: writer.add_attn_temperature_length(33),
        r"attention.temperature_length = 33 is not supported",
    ),
    "an indexer that chooses none": (
        "glm-dsa",
        lambda writer: writer.add_indexer_top_k(0),
        r"attention.indexer.top_k must be a positive integer",
    ),
    "a key that is all rotated": (
        "minicpm3",
        lambda writer: writer.add_key_length(12),
        r"rope.dimension_count 12 leaves nothing of a key of 12",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_by_its_key(name: str, tmp_path: Path) -> None:
    arch, spoil, message = WRONG[name]
    case = CASES[arch]

    def describe(writer: gguf.GGUFWriter, config: Any) -> None:
        case.describe(writer, config)
        spoil(writer)

    _, file = write_case(dataclasses.replace(case, describe=describe), tmp_path)
    with pytest.raises(ModelError, match=message):
        tensor_files(open_gguf([file]))
