"""Metadata of every architecture with one key that no model has: it is refused by name, or changes nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import test_gguf_architectures
import test_gguf_latent
import test_gguf_llama_variants
import test_gguf_mixtures
from gguf_cases import Case, describe_all
from transformers_checkpoint import auto_class
from transformers_reference import transformers

from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec
from dragoman.models.gguf.architecture import read_config
from dragoman.models.gguf.architectures import find_architecture
from dragoman.models.gguf.file import GgufFile

CASES: dict[str, Case] = (
    test_gguf_architectures.CASES
    | test_gguf_mixtures.CASES
    | test_gguf_latent.CASES
    | test_gguf_llama_variants.CASES
    | {"apertus": test_gguf_llama_variants.APERTUS}
)
JUNK = [
    0, 1, 3, 511, 2**31 - 1, 2**32 - 1, -1, 0.0, -2.5, 1e-30, 1e30, math.nan, math.inf, True, "", "junk", [], ["a"],
    np.array([], np.float32), np.array([1, 2, 3], np.uint32), np.array([0, 0, 0], np.uint32),
    np.array([math.nan] * 3, np.float32), np.array([2**31 - 1] * 4, np.int32),
]  # fmt: skip
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (131, 64),
    "blk.0.ffn_gate_exps.weight": (4, 32, 64),
    "blk.0.laurel_l.weight": (12, 64),
    "blk.0.attn_q.bias": (64,),
    "output.weight": (131, 64),
}
# Tensors that say what the metadata does not.
FURTHER: dict[str, tuple[str, ...]] = {
    "deepseek2-whole": ("blk.0.attn_kv_b.weight",),
    "deepseek2-unscored": ("blk.1.exp_probs_b.bias",),
    "minicpm3": ("blk.0.attn_kv_b.weight",),
}


def written(case: Case) -> gguf.GGUFWriter:
    """The keys that the converter writes of a case's config, and the tensors that describe it."""
    auto_class(case.config)
    config = transformers.AutoConfig.for_model(**case.config)
    config.allow_global_per_layer_attribute_access = True
    writer = gguf.GGUFWriter(None, case.arch)
    describe_all(case, config)(writer, {})
    return writer


def metadata(writer: gguf.GGUFWriter) -> dict[str, Any]:
    found = {key: value.value for key, value in writer.kv_data[0].items()}
    return {key: np.array(value) if isinstance(value, list) else value for key, value in found.items()}


def stored(name: str, writer: gguf.GGUFWriter) -> dict[str, Any]:
    """The tensors of a case's file that its config depends on."""
    found: dict[str, Any] = {each: SimpleNamespace(shape=shape) for each, shape in SHAPES.items()}
    found |= {each: SimpleNamespace(shape=(1,)) for each in FURTHER.get(name, ())}
    for each, info in writer.tensors[0].items():
        numbers = info.tensor
        found[each] = SimpleNamespace(shape=numbers.shape, dtype="float32", read=lambda numbers=numbers: numbers)
    return found


def outcome(values: dict[str, Any], tensors: dict[str, Any]) -> str:
    """What reading the metadata says; empty where it is read."""
    file = GgufFile(Path("model.gguf"), 3, values, {}, b"")
    try:
        read_spec(read_config(find_architecture(file, tensors), file, tensors))
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", CASES)
def test_junk_in_any_key_is_refused_or_read(name: str) -> None:
    writer = written(CASES[name])
    values, tensors = metadata(writer), stored(name, writer)
    assert outcome(values, tensors) == ""
    arch = values["general.architecture"]
    for key in [key for key in values if key.startswith(f"{arch}.")]:
        for junk in JUNK:
            outcome(values | {key: junk}, tensors)
        outcome({other: value for other, value in values.items() if other != key}, tensors)


@pytest.mark.parametrize("name", CASES)
def test_a_key_that_is_not_known_is_refused(name: str) -> None:
    writer = written(CASES[name])
    values = metadata(writer)
    key = f"{values['general.architecture']}.chameleon"
    assert outcome(values | {key: 1}, stored(name, writer)).startswith(f"model.gguf: {key} is not known")


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gpt-oss", "glm4moe", "minimax-m2", "nemotron"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_length": 1025, "value_length": 1025}, "attention.key_length heads of 1025 numbers are not supported"),
        ({"key_length": 2**31 - 1}, "attention.key_length heads of 2147483647 numbers are not supported"),
        ({"value_length": 48}, "attention.value_length 48 is not supported: keys have 24 dimensions"),
        ({"head_count": 511, "key_length": None}, "attention.key_length heads of 0 numbers are not supported"),
    ],
)
def test_heads_of_a_size_that_is_not_served_are_told_by_their_size(
    arch: str, changes: dict[str, int | None], message: str
) -> None:
    case = CASES.get(arch, CASES["glm4moe"])
    values = {key.replace(f"{case.arch}.", f"{arch}."): value for key, value in metadata(written(case)).items()}
    values |= {"general.architecture": arch, f"{arch}.attention.key_length": 24, f"{arch}.attention.value_length": 24}
    values |= {f"{arch}.attention.{key}": value for key, value in changes.items()}
    found = outcome(
        {key: value for key, value in values.items() if value is not None and (arch in CASES or "expert" not in key)},
        stored("", written(case)),
    )
    assert found.startswith(f"model.gguf: {message}")
