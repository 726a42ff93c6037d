"""Decoders that differ from Llama in a point or two, as llama.cpp's converter writes them, against transformers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_cases import Case, Config, check_logits, interleave, write_case
from gguf_files import Weights
from safetensors.numpy import load_file
from small_models import VARIANTS

from dragoman.core.errors import ModelError
from dragoman.models.gguf import open_gguf, tensor_files
from dragoman.models.gguf.llama_variants import LLAMA_VARIANTS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


XIELU = ("alpha_n", "alpha_p", "beta", "eps")


def describe_apertus(writer: gguf.GGUFWriter, config: Any) -> None:
    for name in XIELU:
        getattr(writer, f"add_xielu_{name}")([0.5] * config.num_hidden_layers)
    describe_rotation(writer, config)


def describe_rotation(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_dimension_count(16)
    writer.add_tensor("rope_freqs.weight", divisors(config.rope_parameters, 16))


def divisors(rope: Config, dim: int) -> np.ndarray:
    """What Llama 3's scaling divides each frequency by."""
    lengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    turns = rope["original_max_position_embeddings"] / lengths
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def without_numbers(weights: Weights) -> Weights:
    return {name: value for name, value in weights.items() if ".act_fn." not in name}


def describe_bitnet(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(1.0)
    writer.add_string("bitnet.hidden_act", "relu2")


def name_norms(weights: Weights) -> Weights:
    """The norms before the last products under their names in the file: the package's map has those of older models."""
    pattern = r"model\.layers\.(\d+)\.\w+\.(attn|ffn)_sub_norm\.weight"
    return {re.sub(pattern, r"blk.\1.\2_sub_norm.weight", name): value for name, value in weights.items()}


def describe_nemotron(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_layer_norm_eps(config.norm_eps)
    writer.add_rope_dimension_count(int(config.rope_parameters["partial_rotary_factor"] * config.head_dim))
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def add_one(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    return value + 1 if name.endswith("norm.weight") else value


def describe_jais2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_dimension_count(16)


def describe_olmo(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_layer_norm_eps(1e-5)
    writer.add_clamp_kqv(config.clip_qkv)


def describe_chatglm(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_dimension_count(8)
    writer.add_add_bos_token(False)


def fuse(weights: Weights) -> Weights:
    """Queries, keys and values in one, as the models' own repositories have them."""
    found = {name: value for name, value in weights.items() if not re.search(r"\.[qkv]_proj\.", name)}
    for name, value in weights.items():
        if ".q_proj." in name:
            three = [value, *(weights[name.replace(".q_proj.", f".{part}_proj.")] for part in "kv")]
            layer, kind = name.split(".")[2], name.rpartition(".")[2]
            found[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate(three)
    return found


def describe_gptj(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_dimension_count(config.rotary_dim)


def describe_minicpm(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def describe_long(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_minicpm(writer, config)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    writer.add_rope_dimension_count(16)
    for which in ("short", "long"):
        writer.add_tensor(f"rope_factors_{which}.weight", np.ones(8, np.float32))


_MINICPM = VARIANTS["granite"] | {"attention_multiplier": 0.25, "tie_word_embeddings": True}

LLAMA3: Config = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}

CASES = {
    "baichuan": Case("baichuan", VARIANTS["llama"] | {"num_key_value_heads": 4}, change=interleave),
    "bitnet": Case("bitnet", VARIANTS["bitnet"], describe_bitnet, gather=name_norms),
    "nemotron": Case("nemotron", VARIANTS["nemotron"], describe_nemotron, add_one),
    "nemotron-biases": Case("nemotron", VARIANTS["nemotron-biases"], describe_nemotron, add_one),
    "jais2": Case("jais2", VARIANTS["jais2"], describe_jais2),
    "olmo": Case("olmo", VARIANTS["olmo"], describe_olmo, interleave),
    "chatglm": Case("chatglm", VARIANTS["glm"], describe_chatglm),
    "chatglm-fused": Case("chatglm", VARIANTS["glm"], describe_chatglm, gather=fuse),
    "exaone": Case("exaone", VARIANTS["llama"] | {"rope_scaling": LLAMA3}, describe_rotation),
    "exaone-tied": Case("exaone", VARIANTS["llama-tied"]),
    "internlm2": Case("internlm2", VARIANTS["llama"], change=interleave),
    "internlm2-biases": Case("internlm2", VARIANTS["llama"] | {"attention_bias": True}, change=interleave),
    "minicpm": Case("minicpm", _MINICPM, describe_minicpm, interleave),
    "minicpm-long": Case("minicpm", _MINICPM, describe_long, interleave),
    "minicpm-first": Case(
        "minicpm",
        _MINICPM | {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / 3**0.5, "logits_scaling": 64 / 256},
        change=interleave,
    ),
    "gptj": Case("gptj", VARIANTS["gptj"], describe_gptj),
}
APERTUS = Case("apertus", VARIANTS["apertus"], describe_apertus, gather=without_numbers)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


def test_apertus_has_the_numbers_of_its_activation_in_the_metadata(tmp_path: Path) -> None:
    numbers = {}

    def describe(writer: gguf.GGUFWriter, config: Any) -> None:
        weights = load_file(next(tmp_path.glob("apertus-*")) / "model.safetensors")
        for name in XIELU:
            values = [
                float(weights[f"model.layers.{layer}.mlp.act_fn.{name}"].ravel()[0])
                for layer in range(config.num_hidden_layers)
            ]
            numbers[name] = values
            getattr(writer, f"add_xielu_{name}")(values)
        describe_rotation(writer, config)

    check_logits(dataclasses.replace(APERTUS, describe=describe), tmp_path)
    found = tensor_files(open_gguf([tmp_path / "model.gguf"])).tensors
    for name, values in numbers.items():
        assert [float(found[f"model.layers.{n}.mlp.act_fn.{name}"].read()[0]) for n in range(3)] == values


def test_every_architecture_has_a_case() -> None:
    assert {case.arch for case in CASES.values()} | {"apertus"} == LLAMA_VARIANTS.keys()


WRONG: dict[str, tuple[Case, Callable[[gguf.GGUFWriter], None], str]] = {
    "numbers of too few layers": (
        APERTUS,
        lambda writer: writer.add_xielu_beta([0.5, 0.5]),
        r"xielu.beta must be an array of 3 numbers",
    ),
    "no numbers": (APERTUS, lambda writer: writer.kv_data[0].pop("xielu.eps"), r"xielu.eps is missing"),
    "numbers that are none": (
        APERTUS,
        lambda writer: writer.add_xielu_alpha_n([float("nan")] * 3),
        r"xielu.alpha_n must be an array of 3 numbers",
    ),
    "more rotated than a head has": (
        CASES["nemotron"],
        lambda writer: writer.add_rope_dimension_count(48),
        r"rope.dimension_count 48 is more than the 24 dimensions of a head",
    ),
    "another epsilon of OLMo": (
        CASES["olmo"],
        lambda writer: writer.add_layer_norm_eps(1e-6),
        r"attention.layer_norm_epsilon 1e-06 is not supported: it is 1e-05",
    ),
    "another base of GPT-J": (
        CASES["gptj"],
        lambda writer: writer.add_rope_freq_base(500.0),
        r"gptj.rope.freq_base = 500.0 is not supported",
    ),
    "nothing rotated": (
        CASES["gptj"],
        lambda writer: writer.add_rope_dimension_count(0),
        r"gptj.rope.dimension_count must be a positive integer",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_by_its_key(name: str, tmp_path: Path) -> None:
    case, spoil, message = WRONG[name]

    def describe(writer: gguf.GGUFWriter, config: Any) -> None:
        case.describe(writer, config)
        spoil(writer)

    _, file = write_case(dataclasses.replace(case, describe=describe), tmp_path)
    with pytest.raises(ModelError, match=message):
        tensor_files(open_gguf([file]))
