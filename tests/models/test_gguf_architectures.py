"""Every architecture of GGUF files that is served, written as llama.cpp's converter writes it, against transformers."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_cases import (
    Case,
    Config,
    Describe,
    check_logits,
    describe_yarn,
    interleave,
    stack_experts,
)
from gguf_files import Weights
from small_models import VARIANTS

from dragoman.models.gguf.architectures import ARCHITECTURES
from dragoman.models.gguf.latent import LATENT
from dragoman.models.gguf.llama_variants import LLAMA_VARIANTS
from dragoman.models.gguf.mamba_hybrids import MAMBA_HYBRIDS
from dragoman.models.gguf.mixtures import MIXTURES
from dragoman.models.gguf.qwen_hybrids import QWEN_HYBRIDS
from dragoman.models.gguf.recurrent import RECURRENT
from dragoman.models.gguf.text_parts import TEXT_PARTS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


def add_one(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    return value + 1 if name.endswith("norm.weight") else value


def heads_apart(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    """Queries, keys and values by turns for each head become all queries, all keys, all values."""
    if "query_key_value" not in name:
        return value
    heads = config.get("num_attention_heads") or config["n_head"]
    return value.reshape(heads, 3, -1, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)


def groups_apart(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    """The same where heads share a key and a value."""
    if "query_key_value" not in name:
        return value
    heads, groups = config["num_attention_heads"], config.get("num_kv_heads", 1)
    parts = value.reshape(groups, heads // groups + 2, -1, value.shape[1])
    return np.concatenate([parts[:, :-2].reshape(-1, value.shape[1]), parts[:, -2].reshape(-1, value.shape[1]),
                           parts[:, -1].reshape(-1, value.shape[1])])  # fmt: skip


def split_granite(weights: Weights) -> Weights:
    """Gates and ups of Granite's stacks, in the names that the package's map knows."""
    found = {}
    for name, value in weights.items():
        stack = re.fullmatch(
            r"(model\.layers\.\d+\.)(block_sparse_moe|shared_mlp)\.(?:experts\.)?(\w+)(\.weight)?", name
        )
        place = stack and stack[1] + ("mlp.experts." if stack[2] == "block_sparse_moe" else "mlp.shared_expert.")
        if stack and stack[3] in ("input_linear", "gate_up_proj"):
            found[f"{place}gate_proj.weight"], found[f"{place}up_proj.weight"] = np.split(value, 2, axis=-2)
        elif stack and stack[3] in ("output_linear", "down_proj"):
            found[f"{place}down_proj.weight"] = value
        else:
            found[name.replace("router.weight", "router.layer.weight")] = value
    return found


def fuse_attention(weights: Weights) -> Weights:
    """Queries, keys and values in one, as converters wrote Phi-2 in 2024."""
    rest = {n: v for n, v in weights.items() if not re.search(r"\.[qkv]_proj\.", n)}
    for name, value in weights.items():
        if ".q_proj." in name:
            three = [value, *(weights[name.replace(".q_proj.", f".{part}_proj.")] for part in "kv")]
            layer, kind = name.split(".")[2], name.rpartition(".")[2]
            rest[f"transformer.h.{layer}.mixer.Wqkv.{kind}"] = np.concatenate(three)
    return rest


def stack_head_norms(weights: Weights) -> Weights:
    found: dict[str, list[np.ndarray]] = {}
    rest = {}
    for name, value in weights.items():
        part = re.fullmatch(r"(.+_layernorm)\.norms\.(\d+)\.weight", name)
        if part is None:
            rest[name] = value
        else:
            found.setdefault(f"{part[1]}.weight", []).append(value)
    return rest | {name: np.stack(part) for name, part in found.items()}


def without_base(weights: Weights) -> Weights:
    """The converter drops it from BLOOM's names, and so the package's map has it."""
    return {name.removeprefix("transformer."): value for name, value in weights.items()}


def partial(share: float) -> Describe:
    def describe(writer: gguf.GGUFWriter, config: Any) -> None:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or {}
        writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", share) * head_dim))

    return describe


def describe_gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def describe_gemma3(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def describe_layers(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_gemma3(writer, config)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)


def describe_gemma3n(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_layers(writer, config)
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    shares = config.activation_sparsity_pattern
    deviations = [NormalDist().inv_cdf(share) if share else -math.inf for share in shares]
    writer.add_activation_sparsity_scale(deviations)


def describe_gemma4(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_layers(writer, config)
    written = config.to_dict()
    full = next(iter(written["per_layer_config"].values()))
    writer.add_key_length(full["head_dim"])
    writer.add_value_length(full["head_dim"])
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count(full["head_dim"])
    writer.add_rope_dimension_count_swa(config.head_dim)
    if config.use_double_wide_mlp:
        own, inner = config.num_hidden_layers - config.num_kv_shared_layers, config.intermediate_size
        writer.add_feed_forward_length([inner] * own + [2 * inner] * config.num_kv_shared_layers)
    if kv_heads := full.get("num_key_value_heads"):
        own_heads = {"full_attention": kv_heads, "sliding_attention": config.num_key_value_heads}
        writer.add_head_count_kv([own_heads[kind] for kind in config.layer_types])
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    turning = int(full["head_dim"] * config.rope_parameters["full_attention"]["partial_rotary_factor"] / 2)
    divisors = [1.0] * turning + [1e30] * (full["head_dim"] // 2 - turning)
    writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))


def stack_parts(weights: Weights) -> Weights:
    """The projections of Gemma 3n's parts in two stacks."""
    found = {name: value for name, value in weights.items() if "altup_" not in name}
    found = {f"{n}.weight" if n.endswith("_scale") else n: value for n, value in found.items()}
    for kind in ("altup_projections", "altup_unembed_projections"):
        single = [weights[name] for name in sorted(weights) if f".{kind}." in name]
        found[f"model.{kind}.weight"] = np.stack(single)
    return found


def name_scales(weights: Weights) -> Weights:
    """Gemma 4's vectors and stacks under the names that the converter gives them."""

    def renamed(name: str) -> str:
        layer = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
        if name.endswith(".router.scale"):
            return f"{layer}ffn_gate_inp.scale"
        if name.endswith(".per_expert_scale"):
            return f"{layer}ffn_down_exps.scale"
        return f"{name}.weight" if name.endswith(("layer_scalar", ".gate_up_proj", ".experts.down_proj")) else name

    return {renamed(name): value for name, value in weights.items()}


def describe_longrope(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    writer.add_sliding_window(config.sliding_window or 0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if "long_factor" in rope:
        scale = config.max_position_embeddings / config.original_max_position_embeddings
        factor = np.sqrt(1 + np.log(scale) / np.log(config.original_max_position_embeddings))
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_attn_factors(float(factor))
        for which in ("long", "short"):
            writer.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))


def describe_cohere(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_logit_scale(config.logit_scale)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if config.model_type == "cohere2":
        describe_gemma3(writer, config)


def describe_granite(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def describe_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if getattr(config, "moe_intermediate_size", None):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def describe_granite_moe(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_granite(writer, config)
    describe_experts(writer, config)
    if shared := getattr(config, "shared_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(shared)


def describe_neox(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_parallel_residual(config.use_parallel_residual)
    partial(0.25)(writer, config)


def describe_falcon(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_tensor_data_layout("jploski")
    if not config.new_decoder_architecture:
        writer.add_head_count_kv(1)


def describe_exaone4(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def describe_hunyuan(writer: gguf.GGUFWriter, config: Any) -> None:
    """The converter writes a scaling that does nothing; ``alpha`` is in the base."""
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1)
    writer.add_rope_scaling_orig_ctx_len(256)


def describe_ministral3(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    describe_yarn(writer, rope)
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def describe_sections(writer: gguf.GGUFWriter, config: Any) -> None:
    """Heads divided between positions in images, and what else their text parts have."""
    writer.add_rope_dimension_sections([4, 4, 4, 0])
    if config.model_type != "qwen2":
        writer.add_num_deepstack_layers(3)
    if config.model_type == "qwen3_moe":
        describe_experts(writer, config)


def describe_mpt(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_clamp_kqv(config.attn_config.clip_qkv)
    writer.add_max_alibi_bias(config.attn_config.alibi_bias_max)


_SCALAR = {"query_pre_attn_scalar": 24}  # a head's size: the files do not say another
CASES = {
    "gemma3n": Case("gemma3n", VARIANTS["gemma3n"], describe_gemma3n, gather=stack_parts),
    "gemma4": Case("gemma4", VARIANTS["gemma4-shared"], describe_gemma4, gather=name_scales),
    "gemma4-moe": Case("gemma4", VARIANTS["gemma4-moe"], describe_gemma4, gather=name_scales),
    "gemma": Case("gemma", VARIANTS["gemma"], change=add_one),
    "gemma2": Case("gemma2", VARIANTS["gemma2"] | _SCALAR, describe_gemma2, add_one),
    "gemma3": Case("gemma3", VARIANTS["gemma3"] | _SCALAR, describe_gemma3, add_one),
    "phi2": Case("phi2", VARIANTS["phi"], partial(0.5)),
    "phi2-fused": Case("phi2", VARIANTS["phi"], partial(0.5), gather=fuse_attention),
    "phi3": Case("phi3", VARIANTS["phi3"], describe_longrope),
    "phi3-long": Case("phi3", VARIANTS["phi3-long"], describe_longrope),
    "stablelm": Case("stablelm", VARIANTS["stablelm"], partial(0.25), gather=stack_head_norms),
    "stablelm-parallel": Case("stablelm", VARIANTS["stablelm-parallel"], partial(0.25), gather=stack_head_norms),
    "starcoder2": Case("starcoder2", VARIANTS["starcoder2"] | {"sliding_window": None}),
    "olmo2": Case("olmo2", VARIANTS["olmo2"]),
    "granite": Case("granite", VARIANTS["granite"], describe_granite, interleave),
    "granitemoe": Case("granitemoe", VARIANTS["granite-moe"], describe_granite_moe, interleave, split_granite),
    "granitemoe-shared": Case(
        "granitemoe", VARIANTS["granite-moe-shared"], describe_granite_moe, interleave, split_granite
    ),
    "smollm3": Case("smollm3", VARIANTS["smollm3"] | {"no_rope_layer_interval": 4}, change=interleave),
    "command-r": Case("command-r", VARIANTS["cohere"], describe_cohere),
    "cohere2": Case("cohere2", VARIANTS["cohere2"], describe_cohere),
    "glm4": Case("glm4", VARIANTS["glm4"], partial(0.5)),
    "gptneox": Case("gptneox", VARIANTS["gpt-neox"], describe_neox, heads_apart),
    "bloom": Case("bloom", VARIANTS["bloom"], change=heads_apart, gather=without_base),
    "falcon": Case("falcon", VARIANTS["falcon"], describe_falcon, groups_apart),
    "falcon-40b": Case("falcon", VARIANTS["falcon-40b"] | {"bias": False}, describe_falcon, groups_apart),
    "ernie4_5": Case("ernie4_5", VARIANTS["ernie4.5"]),
    "arcee": Case("arcee", VARIANTS["arcee"], change=interleave),
    "seed_oss": Case("seed_oss", VARIANTS["seed-oss"]),
    "hunyuan-dense": Case("hunyuan-dense", VARIANTS["hunyuan"] | {"rope_scaling": None}, describe_hunyuan),
    "exaone4": Case("exaone4", VARIANTS["exaone4"], describe_exaone4),
    "starcoder": Case("starcoder", VARIANTS["gpt-bigcode"]),
    "mistral3": Case("mistral3", VARIANTS["ministral3"], describe_ministral3, interleave),
    "mistral3-plain": Case("mistral3", VARIANTS["mistral"], change=interleave),
    "mpt": Case("mpt", VARIANTS["mpt"], describe_mpt),
    "mixtral": Case("llama", VARIANTS["mixtral"], describe_experts, interleave, stack_experts),
    "qwen2vl": Case("qwen2vl", VARIANTS["qwen2"], describe_sections),
    "qwen3vl": Case("qwen3vl", VARIANTS["qwen3"], describe_sections),
    "qwen3vlmoe": Case("qwen3vlmoe", VARIANTS["qwen3-moe"], describe_sections, gather=stack_experts),
    "qwen2moe": Case("qwen2moe", VARIANTS["qwen2-moe"], describe_experts, gather=stack_experts),
    "qwen3moe": Case("qwen3moe", VARIANTS["qwen3-moe"], describe_experts, gather=stack_experts),
    "olmoe": Case("olmoe", VARIANTS["olmoe"], describe_experts, gather=stack_experts),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


def test_every_architecture_has_a_case() -> None:
    elsewhere = {"llama", "qwen2", "qwen3", "gpt2"}  # test_gguf_models.py
    elsewhere |= {"t5"}  # test_gguf_t5.py
    elsewhere |= {"eagle3"}  # test_gguf_eagle.py
    elsewhere |= {"gemma-embedding", "bert", "nomic-bert", "nomic-bert-moe", "modern-bert"}  # test_gguf_encoders.py
    others = (TEXT_PARTS, LLAMA_VARIANTS, QWEN_HYBRIDS, MAMBA_HYBRIDS, MIXTURES, LATENT, RECURRENT)
    assert {case.arch for case in CASES.values()}.union(elsewhere, {"kimi-linear"}, *others) == set(ARCHITECTURES)
