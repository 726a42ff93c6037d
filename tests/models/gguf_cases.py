"""Architectures as llama.cpp's converter writes them: small models, their metadata, their tensors' changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf_files import Weights, interleave_halves, write_gguf
from small_models import make_folder, prompt, run_rows
from transformers_reference import assert_close, load_reference, reference_logits, transformers

from dragoman.models import load
from dragoman.models.settings import ModelSettings

Config = dict[str, Any]
Describe = Callable[[gguf.GGUFWriter, Any], None]


def say_nothing(writer: gguf.GGUFWriter, config: Any) -> None:
    """No keys but those that all architectures have."""


def as_stored(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    return value


def interleave(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if part in name:
            return interleave_halves(value, config[key])
    return value


def stack_experts(weights: Weights) -> Weights:
    """Matrices of single experts, or gates and ups in one, as three stacks for each layer."""
    found: dict[str, dict[int, np.ndarray]] = {}
    rest = {}
    for name, value in weights.items():
        single = re.fullmatch(r"(.+experts)\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight", name)
        if single is None:
            rest[name] = value
        else:
            found.setdefault(f"{single[1]}.{single[3]}.weight", {})[int(single[2])] = value
    stacks = {name: np.stack([part[i] for i in range(len(part))]) for name, part in found.items()}
    # The converter renames Mixtral's.
    return rest | {
        re.sub(r"model\.(layers\.\d+)\.block_sparse_moe", r"\1.feed_forward", n): v for n, v in stacks.items()
    }


def rename_choice(weights: Weights) -> Weights:
    """Stacks of experts, and biases of their choice as the converter names them."""
    stacked = stack_experts(weights)
    return {name.replace("e_score_correction_bias", "e_score_correction.bias"): v for name, v in stacked.items()}


@dataclass(frozen=True)
class Case:
    """How llama.cpp's converter writes one architecture."""

    arch: str
    config: Config
    describe: Describe = say_nothing
    change: Callable[[str, np.ndarray, Config], np.ndarray] = as_stored
    gather: Callable[[Weights], Weights] = lambda weights: weights
    names_of: str = ""


def describe_all(case: Case, config: Any) -> Callable[[gguf.GGUFWriter, Config], None]:
    """The keys that the converter writes of every config, and the architecture's own."""

    def first(*names: str) -> Any:
        return next((value for name in names if (value := getattr(config, name, None)) is not None), None)

    def describe(writer: gguf.GGUFWriter, _: Config) -> None:
        writer.add_context_length(first("max_position_embeddings", "seq_length") or 2048)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(first("intermediate_size", "ffn_hidden_size") or 4 * config.hidden_size)
        writer.add_head_count(config.num_attention_heads)
        if case.config.get("new_decoder_architecture"):
            writer.add_head_count_kv(config.num_kv_heads)
        elif case.arch != "falcon" and (kv_heads := first("num_key_value_heads")):
            writer.add_head_count_kv(kv_heads)
        if eps := first("rms_norm_eps"):
            writer.add_layer_norm_rms_eps(eps)
        if eps := first("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"):
            writer.add_layer_norm_eps(eps)
        if case.config.get("head_dim"):
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
        rope = first("rope_parameters") or {}
        rope = rope.get("full_attention", rope)
        if "rope_theta" in rope:
            writer.add_rope_freq_base(rope["rope_theta"])
        case.describe(writer, config)

    return describe


def write_case(case: Case, root: Path, kind: Callable[[str], Type] = lambda name: Type.F32) -> tuple[Path, Path]:
    """The folder of a case's model, and its GGUF file."""
    folder = make_folder(root, case.config)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.allow_global_per_layer_attribute_access = True  # Gemma 4's sizes of layers without one of their own
    describe = describe_all(case, config)
    path, options = root / "model.gguf", {"gather": case.gather, "names_of": case.names_of}
    file = write_gguf(path, folder, case.arch, kind, describe, case.change, **options)
    return folder, file


def check_logits(case: Case, root: Path) -> None:
    """The file's logits are those of transformers with the folder."""
    folder, file = write_case(case, root)
    model = load(file, ModelSettings(max_context=64))
    tokens = prompt(131)
    assert_close(run_rows(model, tokens), reference_logits(load_reference(folder), tokens), 5e-5)


def describe_yarn(writer: gguf.GGUFWriter, rope: Config) -> None:
    """The keys of YaRN that the converter writes of every config."""
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "beta_fast" in rope:
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
