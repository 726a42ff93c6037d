"""Models in GGUF files against transformers on the same weights, dequantized by the `gguf` package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import interleave_halves, write_gguf
from safetensors.numpy import load_file
from small_models import VARIANTS, checkpoint_of, make_folder, prompt, run_rows
from transformers_reference import assert_close, load_reference, reference_logits

from dragoman import kernels
from dragoman.models import describe, load, loading
from dragoman.models.layout import format_shares, plan_layout
from dragoman.models.parameters import parameters
from dragoman.models.settings import ModelSettings
from dragoman.models.tensors import Format

Config = dict[str, Any]
Change = Callable[[str, np.ndarray, Config], np.ndarray]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


def as_stored(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    return value


def describe_llama(writer: gguf.GGUFWriter, config: Config) -> None:
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    if "rope_theta" in config:
        writer.add_rope_freq_base(config["rope_theta"])
    if config["model_type"] == "llama":
        writer.add_vocab_size(config["vocab_size"])


def rotated_heads(name: str, config: Config) -> int | None:
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    return next((config[key] for part, key in heads.items() if part in name), None)


def change_llama(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    heads = rotated_heads(name, config)
    return value if heads is None else interleave_halves(value, heads)


def back_llama(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    heads = rotated_heads(name, config)
    return value if heads is None else value.reshape(heads, -1, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def describe_gpt2(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(1e-5)


def transpose_gpt2(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    return value.T if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else value


@dataclass(frozen=True)
class Case:
    """How llama.cpp's converter writes one architecture."""

    arch: str
    config: Config
    describe: Callable[[gguf.GGUFWriter, Config], None]
    change: Change = as_stored
    back: Change = as_stored


WIDE: Config = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
LLAMA = Case("llama", VARIANTS["llama"] | WIDE, describe_llama, change_llama, back_llama)
CASES = {
    "llama": LLAMA,
    "llama-tied": Case("llama", VARIANTS["llama-tied"], describe_llama, change_llama, back_llama),
    "llama-biases": Case("llama", VARIANTS["llama-biases"] | {"intermediate_size": 64}, describe_llama, change_llama,
                         back_llama),
    "qwen2": Case("qwen2", VARIANTS["qwen2"] | {"rope_theta": 1e6}, describe_llama),
    "qwen3": Case("qwen3", VARIANTS["qwen3"] | {"head_dim": 32}, describe_llama),
    "gpt2": Case("gpt2", VARIANTS["gpt2"] | {"n_embd": 64}, describe_gpt2, transpose_gpt2, transpose_gpt2),
}  # fmt: skip


def make_file(case: Case, tmp_path: Path, kind: Callable[[str], Type], **options: Any) -> tuple[Path, Path]:
    """The GGUF file, and the folder with its weights, dequantized."""
    folder = make_folder(tmp_path, case.config)
    file = tmp_path / "model.gguf"
    return write_gguf(file, folder, case.arch, kind, case.describe, case.change, case.back, **options), folder


def logits_of(file: Path, **settings: Any) -> np.ndarray:
    model = load(file, ModelSettings(max_context=64, **settings))
    return run_rows(model, prompt(model.vocab_size))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    file, folder = make_file(case, tmp_path, lambda name: Type.F32)
    theirs = reference_logits(load_reference(folder), prompt(case.config["vocab_size"]))
    assert_close(logits_of(file), theirs, 2e-5)


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1,
                                  Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.IQ4_XS,
                                  Type.TQ1_0, Type.TQ2_0, Type.MXFP4],
                         ids=lambda kind: kind.name)  # fmt: skip
def test_numbers_of_every_type_reach_the_model(kind: Type, tmp_path: Path) -> None:
    file, folder = make_file(LLAMA, tmp_path, lambda name: kind)
    theirs = reference_logits(load_reference(folder), prompt(LLAMA.config["vocab_size"]))
    assert_close(logits_of(file, precision="float32"), theirs, 5e-5)
    # As stored, activations too are rounded to 8 bits: for weights this large an error of 3 to 7 %.
    off = logits_of(file) - theirs
    assert np.sqrt(np.mean(off**2)) <= 0.1 * np.sqrt(np.mean(theirs**2))


@pytest.mark.parametrize(
    ("kind", "form"),
    [(Type.Q8_0, Format("int8")), (Type.Q4_0, Format("int4")), (Type.Q4_1, Format("int4", True)),
     (Type.Q5_0, Format("int8")), (Type.TQ1_0, Format("int4")), (Type.TQ2_0, Format("int4")),
     (Type.MXFP4, Format("mxfp4")), (Type.IQ4_NL, Format("iq4_nl")),
     (Type.IQ4_XS, Format("iq4_xs")), (Type.Q3_K, Format("q3_k")), (Type.Q4_K, Format("q4_k")),
     (Type.Q5_K, Format("q5_k")), (Type.Q6_K, Format("q6_k"))],
    ids=lambda value: value.name if isinstance(value, Type) else "",
)  # fmt: skip
def test_packed_numbers_are_the_stored_ones_to_the_bit(kind: Type, form: Format, tmp_path: Path) -> None:
    file, folder = make_file(LLAMA, tmp_path, lambda name: kind)
    assert set(describe(file).formats.values()) == {form}
    model = load(file, ModelSettings(max_context=64))
    stored = load_file(folder / "model.safetensors")
    for layer in range(2):
        parts = [stored[f"model.layers.{layer}.self_attn.{part}_proj.weight"] for part in "qkv"]
        assert (model.weights.matrix("qkv", layer).dequantize() == np.concatenate(parts)).all()
    assert (model.weights.matrix("embedding").dequantize() == stored["model.embed_tokens.weight"]).all()


@pytest.mark.parametrize("kind", [Type.MXFP4, Type.IQ4_XS, Type.Q3_K, Type.Q6_K], ids=lambda kind: kind.name)
def test_blocks_are_read_again_from_the_packed_cache(
    kind: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_SMALLEST_CACHED_BYTES", 0)
    file, _ = make_file(LLAMA, tmp_path, lambda name: kind)
    settings = ModelSettings(max_context=64, cache_folder=str(tmp_path / "packed"))
    first = load(file, settings)
    assert len(list((tmp_path / "packed").glob("*.packed"))) == 1
    monkeypatch.delattr(loading, "pack_checkpoint")
    second = load(file, settings)
    assert second.card.fingerprint == first.card.fingerprint
    ids = prompt(first.vocab_size)
    assert (run_rows(second, ids) == run_rows(first, ids)).all()


def test_blocks_take_the_bytes_of_the_plan(tmp_path: Path) -> None:
    file, _ = make_file(LLAMA, tmp_path, lambda name: Type.Q5_K)
    described = describe(file)
    layout = plan_layout(described.spec, described.precision("auto"), described.formats)
    assert format_shares(layout) == {"q5_k": 1.0}
    model = load(file, ModelSettings(max_context=64))
    for entry in layout.entries:
        if entry.form is not None:
            assert model.weights[entry.parameter.name].nbytes == entry.nbytes


def test_matrices_keep_their_own_formats_and_a_precision_overrides_all(tmp_path: Path) -> None:
    kinds = {"v_proj": Type.Q8_0, "down_proj": Type.Q6_K, "embed": Type.F16, "lm_head": Type.F32, "o_proj": Type.BF16}
    file, _ = make_file(
        LLAMA, tmp_path, lambda name: next((kind for part, kind in kinds.items() if part in name), Type.Q4_0)
    )
    described = describe(file)
    assert described.formats["layers.0.qkv.weight"] == Format("int8")  # int4 and int8 side by side
    assert described.formats["layers.0.feed_forward_in.weight"] == Format("int4")
    assert described.formats["layers.0.feed_forward_out.weight"] == Format("q6_k")
    assert described.formats["layers.0.attention_out.weight"] == Format("bfloat16")
    assert described.formats["embedding.weight"] == Format("bfloat16")
    assert described.formats["head.weight"] == Format("float32")
    assert described.precision("auto") == "int8"  # nearest to that of most numbers
    assert described.stored_as == "GGUF Q4_0, Q6_K, Q8_0"
    for precision in ("bfloat16", "int8", "int4"):
        model = load(file, ModelSettings(max_context=64, precision=precision))
        assert model.weights.matrix("feed_forward_in", 0).precision == precision


def test_an_asked_precision_is_packed_from_the_dequantized_numbers(tmp_path: Path) -> None:
    file, folder = make_file(LLAMA, tmp_path, lambda name: Type.Q6_K)
    checkpoint = checkpoint_of(folder)
    model = load(file, ModelSettings(max_context=64, precision="int4"))
    for parameter in parameters(checkpoint.spec):
        if parameter.module == "feed_forward_out":
            stored = checkpoint.read(parameter)
            packed = kernels.pack_blocks(kernels.quantize_blocks(stored), stored.shape[1], "iq4_nl")
            assert (model.weights.matrix("feed_forward_out", parameter.layer).data == packed.data).all()


def test_parts_of_a_split_model_are_joined(tmp_path: Path) -> None:
    file, folder = make_file(LLAMA, tmp_path, lambda name: Type.Q8_0, split_max_tensors=8)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert len(parts) == 3
    assert not file.exists()
    theirs = reference_logits(load_reference(folder), prompt(LLAMA.config["vocab_size"]))
    for part in parts:
        assert_close(logits_of(part, precision="float32"), theirs, 5e-5)
    assert describe(parts[1]).source.name == "model"


def test_divisors_of_frequencies_are_llama3s(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}  # fmt: skip
    case = Case("llama", LLAMA.config | {"rope_scaling": scaling}, LLAMA.describe, change_llama, back_llama)
    head_dim = 64
    frequencies = 10_000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = 32 * frequencies / (2 * np.pi)
    smooth = np.clip((turns - 1.0) / (4.0 - 1.0), 0, 1)
    divisors = (1 / ((1 - smooth) / 4.0 + smooth)).astype(np.float32)

    def describe_scaled(writer: gguf.GGUFWriter, config: Config) -> None:
        describe_llama(writer, config)
        writer.add_tensor("rope_freqs.weight", divisors)

    folder = make_folder(tmp_path, case.config)
    file = write_gguf(
        tmp_path / "m.gguf", folder, "llama", lambda name: Type.F32, describe_scaled, change_llama, back_llama
    )
    theirs = reference_logits(load_reference(folder), prompt(131))
    assert_close(logits_of(file), theirs, 2e-5)
    before, found = describe(file).source.folder, describe(file).spec.rope(0)
    divisors += 0.5  # in a file with the same header
    other = write_gguf(
        tmp_path / "m2.gguf", folder, "llama", lambda name: Type.F32, describe_scaled, change_llama, back_llama
    )
    assert describe(other).source.folder != before
    assert describe(other).spec.rope(0) != found
