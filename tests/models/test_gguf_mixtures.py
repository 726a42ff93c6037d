"""Newer mixtures of experts as llama.cpp's converter writes them, against transformers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_cases import Case, Config, check_logits, describe_yarn, rename_choice, stack_experts, write_case
from gguf_files import Weights
from gguf_uneven_layers import (
    LAGUNA_M1,
    LAGUNA_XS,
    describe_laguna,
    describe_mimo,
    fuse_projections,
    name_gates,
    name_sinks,
)
from small_models import VARIANTS

from dragoman import kernels
from dragoman.core.errors import ModelError
from dragoman.models import ModelSettings, load
from dragoman.models.gguf import open_gguf, tensor_files
from dragoman.models.gguf.mixtures import MIXTURES

_SIGMOID = gguf.ExpertGatingFuncType.SIGMOID


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


def describe_gpt_oss(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_yarn(writer, config.rope_parameters)
    writer.add_sliding_window(config.sliding_window)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def divide_gates(weights: Weights) -> Weights:
    """Gates and ups, whose rows alternate, apart, in stacks of upright matrices."""
    found = {}
    for name, value in weights.items():
        if name.endswith(".sinks"):
            found[f"{name}.weight"] = value
        elif "gate_up_proj" in name:
            kind = "bias" if name.endswith("_bias") else "weight"
            columns = value if kind == "bias" else value.swapaxes(1, 2)
            module = name.partition("gate_up_proj")[0]
            found[f"{module}gate_proj.{kind}"], found[f"{module}up_proj.{kind}"] = columns[:, ::2], columns[:, 1::2]
        elif name.endswith("down_proj"):
            found[f"{name}.weight"] = value.swapaxes(1, 2)
        else:
            found[name.replace("down_proj_bias", "down_proj.bias")] = value
    return found


def describe_scored(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_gating_func(_SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)


def describe_glm(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_scored(writer, config)
    writer.add_rope_dimension_count(config.head_dim // 2)


def describe_ling(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_glm(writer, config)
    writer.add_expert_shared_feed_forward_length(config.moe_intermediate_size)


def fuse_attention(weights: Weights) -> Weights:
    """Ling's queries, keys and values in one, among a GLM's."""
    found = {name: value for name, value in weights.items() if not re.search(r"\.[qkv]_proj\.", name)}
    for name, value in weights.items():
        if ".q_proj." in name:
            three = [value, *(weights[name.replace(".q_proj.", f".{part}_proj.")] for part in "kv")]
            found[f"blk.{name.split('.')[2]}.attn_qkv.weight"] = np.concatenate(three)
    return rename_choice(found)


def describe_solar(writer: gguf.GGUFWriter, config: Any) -> None:
    """Solar Open, a GLM-4.5 that rotates whole heads and has experts in all layers."""
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_gating_func(_SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)
    writer.add_leading_dense_block_count(0)
    writer.add_rope_dimension_count(config.head_dim)


def describe_ernie(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.moe_num_experts)
    writer.add_expert_used_count(config.moe_k)
    writer.add_interleave_moe_layer_step(1)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.moe_num_shared_experts)
    writer.add_expert_shared_feed_forward_length(config.intermediate_size // config.num_key_value_heads)


def describe_hunyuan(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.moe_topk)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.intermediate_size)
    writer.add_expert_shared_count(1)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1)
    writer.add_rope_scaling_orig_ctx_len(256)


def describe_minimax(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_rope_dimension_count(12)
    writer.add_expert_gating_func(_SIGMOID)


def describe_llama4(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_feed_forward_length(config.intermediate_size_mlp)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)


def halve_gates(weights: Weights) -> Weights:
    """Gates and ups of Llama 4 apart, in stacks of upright matrices."""
    found = {}
    for name, value in weights.items():
        if name.endswith(".gate_up_proj"):
            module = name.removesuffix("gate_up_proj")
            halves = np.split(value.swapaxes(1, 2), 2, axis=1)
            found[f"{module}gate_proj.weight"], found[f"{module}up_proj.weight"] = halves
        elif name.endswith("experts.down_proj"):
            found[f"{name}.weight"] = value.swapaxes(1, 2)
        else:
            found[name] = value
    return found


def describe_phi(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_scaling_orig_ctx_len(getattr(config, "original_max_position_embeddings", None) or 256)
    writer.add_sliding_window(getattr(config, "sliding_window", None) or 0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def describe_long_phi(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_phi(writer, config)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    writer.add_rope_scaling_attn_factors(config.rope_parameters["short_mscale"])
    for which in ("long", "short"):
        factors = np.array(config.rope_parameters[f"{which}_factor"], np.float32)
        writer.add_tensor(f"rope_factors_{which}.weight", factors)


def describe_exaone(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.num_shared_experts)
    writer.add_expert_shared_feed_forward_length(config.moe_intermediate_size * config.num_shared_experts)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_gating_func(_SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_nextn_predict_layers(0)


def describe_afmoe(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.num_shared_experts)
    writer.add_leading_dense_block_count(config.num_dense_layers)
    writer.add_expert_gating_func(_SIGMOID)
    writer.add_expert_weights_scale(config.route_scale)
    writer.add_expert_weights_norm(True)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_dimension_count(config.head_dim)


def describe_cohere(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_logit_scale(config.logit_scale)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_vocab_size(config.vocab_size)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_expert_weights_norm(config.norm_topk_prob)
    if config.expert_selection_fn == "softmax":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    if config.num_shared_experts:
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_expert_shared_feed_forward_length(config.intermediate_size * config.num_shared_experts)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def name_biases(weights: Weights) -> Weights:
    return {name.replace(".expert_bias", ".expert_bias.bias"): v for name, v in stack_experts(weights).items()}


def describe_dbrx(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_seq_len)
    writer.add_feed_forward_length(config.ffn_config.ffn_hidden_size)
    writer.add_head_count_kv(config.attn_config.kv_n_heads)
    writer.add_rope_freq_base(config.attn_config.rope_theta)
    writer.add_clamp_kqv(config.attn_config.clip_qkv)
    writer.add_expert_count(config.ffn_config.moe_num_experts)
    writer.add_expert_used_count(config.ffn_config.moe_top_k)
    writer.add_layer_norm_eps(1e-5)


def stack_dbrx(weights: Weights) -> Weights:
    """Matrices that are one under the other as stacks; those of outputs upright."""
    found = {}
    for name, value in weights.items():
        if ".experts.mlp." not in name:
            found[name] = value
            continue
        stack = value.reshape(4, -1, value.shape[1])
        found[f"{name}.weight"] = stack.swapaxes(1, 2) if name.endswith("w2") else stack
    return found


def squeeze(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    return value[0] if name.endswith("e_score_correction.bias") else value


_DOTS = VARIANTS["dots1-groups"] | {"sliding_window": None}
_LLAMA4 = VARIANTS["llama4-text"] | {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}
_AFMOE = VARIANTS["afmoe"] | {"global_attn_every_n_layers": 4, "num_hidden_layers": 4}
_PHI = VARIANTS["phi-moe"] | {"router_jitter_noise": 0.01}
_LONG = {
    "original_max_position_embeddings": 128,
    "rope_scaling": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.7],
        "short_mscale": 1.25,
        "long_mscale": 1.25,
        "original_max_position_embeddings": 128,
    },
}
_LING = VARIANTS["glm4-moe"] | {"attention_bias": False, "n_group": 3, "topk_group": 2}

_COHERE = VARIANTS["cohere2-moe"]
_NORTH = _COHERE | {"expert_selection_fn": "sigmoid", "rms_norm_eps": 1e-6, "num_shared_experts": 0}

CASES = {
    "mimo2": Case("mimo2", VARIANTS["mimo-v2"], describe_mimo, gather=name_sinks),
    "mimo2-fused": Case("mimo2", VARIANTS["mimo-v2"], describe_mimo, gather=fuse_projections),
    "laguna": Case("laguna", LAGUNA_XS, describe_laguna, gather=name_gates, names_of="dots1"),
    "laguna-m1": Case("laguna", LAGUNA_M1, describe_laguna, gather=name_gates, names_of="dots1"),
    "cohere2moe": Case("cohere2moe", _COHERE, describe_cohere, gather=stack_experts, names_of="glm4moe"),
    "cohere2moe-north": Case("cohere2moe", _NORTH, describe_cohere, gather=stack_experts, names_of="glm4moe"),
    "gpt-oss": Case("gpt-oss", VARIANTS["gpt-oss"], describe_gpt_oss, gather=divide_gates),
    "glm4moe": Case("glm4moe", VARIANTS["glm4-moe"], describe_glm, gather=rename_choice),
    "bailingmoe2": Case("bailingmoe2", _LING, describe_ling, gather=fuse_attention),
    "glm4moe-solar": Case("glm4moe", VARIANTS["solar-open"], describe_solar, gather=rename_choice),
    "dots1": Case("dots1", _DOTS, describe_scored, gather=rename_choice),
    "ernie4_5-moe": Case("ernie4_5-moe", VARIANTS["ernie4.5-moe"], describe_ernie, squeeze, rename_choice),
    "hunyuan-moe": Case("hunyuan-moe", VARIANTS["hunyuan-moe"], describe_hunyuan, gather=stack_experts),
    "llama4": Case("llama4", _LLAMA4, describe_llama4, gather=halve_gates),
    "phimoe": Case("phimoe", _PHI, describe_phi, gather=stack_experts),
    "phimoe-long": Case("phimoe", _PHI | _LONG, describe_long_phi, gather=stack_experts),
    "dbrx": Case("dbrx", VARIANTS["dbrx"], describe_dbrx, gather=stack_dbrx),
    "exaone-moe": Case("exaone-moe", VARIANTS["exaone-moe"], describe_exaone, gather=rename_choice),
    "afmoe": Case("afmoe", _AFMOE, describe_afmoe, gather=name_biases),
    "minimax-m2": Case("minimax-m2", VARIANTS["minimax-m2"], describe_minimax, gather=rename_choice),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


def test_blocks_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    """As of GLM-4.5, whose last block does."""
    case = CASES["glm4moe"]

    def describe(writer: gguf.GGUFWriter, config: Any) -> None:
        case.describe(writer, config)
        writer.add_block_count(config.num_hidden_layers + 1)
        writer.add_nextn_predict_layers(1)

    def gather(weights: Weights) -> Weights:
        found = rename_choice(weights)
        last = {name.replace("layers.2.", "blk.3."): v for name, v in weights.items() if "layers.2.input" in name}
        return found | {"blk.3.attn_norm.weight": next(iter(last.values())), "blk.3.nextn.eh_proj.weight": np.eye(64)}

    check_logits(dataclasses.replace(case, describe=describe, gather=gather), tmp_path)


def test_every_architecture_has_a_case() -> None:
    assert {case.arch for case in CASES.values()} == MIXTURES.keys()


def test_experts_in_mxfp4_are_packed_without_a_rounding(tmp_path: Path) -> None:
    """The numbers are those that the `gguf` package decodes."""

    def kind(name: str) -> Type:
        return Type.MXFP4 if re.search(r"experts\.\w+_proj\.weight", name) else Type.F32

    config = VARIANTS["gpt-oss"] | {"intermediate_size": 32, "head_dim": 16}
    _, file = write_case(dataclasses.replace(CASES["gpt-oss"], config=config), tmp_path, kind)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    numbers = {
        part: gguf.dequantize(stored[f"blk.1.ffn_{part}_exps.weight"].data, Type.MXFP4)
        for part in ("gate", "up", "down")
    }
    model = load(file, ModelSettings(max_context=64))
    for expert in range(config["num_local_experts"]):
        inward = model.weights[f"layers.1.expert_in.{expert}.weight"]
        outward = model.weights[f"layers.1.expert_out.{expert}.weight"]
        assert isinstance(inward, kernels.PackedMatrix)
        assert isinstance(outward, kernels.PackedMatrix)
        assert inward.precision == outward.precision == "mxfp4"
        both = np.concatenate([numbers["gate"][expert], numbers["up"][expert]])
        np.testing.assert_array_equal(inward.dequantize(), both)
        np.testing.assert_array_equal(outward.dequantize(), numbers["down"][expert])


WRONG: dict[str, tuple[str, Callable[[gguf.GGUFWriter], None], str]] = {
    "experts of gpt-oss by sigmoid": (
        "gpt-oss",
        lambda writer: writer.add_expert_gating_func(_SIGMOID),
        r"gpt-oss.expert_gating_func = 2 is not supported",
    ),
    "no experts at all": (
        "gpt-oss",
        lambda writer: writer.add_expert_count(0),
        r"gpt-oss.expert_count must be a positive integer",
    ),
    "a window of many sizes": (
        "gpt-oss",
        lambda writer: writer.add_array("gpt-oss.attention.sliding_window", [20, 30, 20]),
        r"sliding_window must be a positive integer",
    ),
    "more rotated than a head has": (
        "glm4moe",
        lambda writer: writer.add_rope_dimension_count(48),
        r"rope.dimension_count 48 is more than the 24 dimensions of a head",
    ),
    "MiniMax with more rotated than a head has": (
        "minimax-m2",
        lambda writer: writer.add_rope_dimension_count(26),
        r"rope.dimension_count 26 is more than the 24 dimensions of a head",
    ),
    "experts of dots.1 by softmax": (
        "dots1",
        lambda writer: writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX),
        r"dots1.expert_gating_func = 1 is not supported",
    ),
    "Hunyuan's shared experts of another width": (
        "hunyuan-moe",
        lambda writer: writer.add_expert_shared_feed_forward_length(7),
        r"expert_shared_feed_forward_length = 7 is not supported",
    ),
    "no rotation of chunks": (
        "llama4",
        lambda writer: writer.add_sliding_window(0),
        r"llama4.attention.sliding_window = 0 is not supported",
    ),
    "another epsilon of DBRX": (
        "dbrx",
        lambda writer: writer.add_layer_norm_eps(1e-6),
        r"attention.layer_norm_epsilon 1e-06 is not supported: it is 1e-05",
    ),
    "half of LongRoPE": (
        "phimoe",
        lambda writer: writer.add_tensor("rope_factors_long.weight", np.ones(8, np.float32)),
        r"of rope_factors_short.weight and rope_factors_long.weight one is missing",
    ),
    "a step of no layers": (
        "ernie4_5-moe",
        lambda writer: writer.add_interleave_moe_layer_step(0),
        r"interleave_moe_layer_step must be a positive integer",
    ),
    "a key of unknown effect": (
        "minimax-m2",
        lambda writer: writer.add_uint32("minimax-m2.lightning", 1),
        r"minimax-m2.lightning is not known",
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


def test_a_stack_of_too_few_dimensions_is_told_by_name(tmp_path: Path) -> None:
    def flatten(name: str, value: np.ndarray, config: Config) -> np.ndarray:
        return value.reshape(-1) if name.endswith("layers.1.mlp.experts.down_proj.bias") else value

    _, file = write_case(dataclasses.replace(CASES["gpt-oss"], change=flatten), tmp_path)
    with pytest.raises(ModelError, match=r"blk.1.ffn_down_exps.bias: has 1 dimensions, where 2 are expected"):
        tensor_files(open_gguf([file]))
