"""EAGLE-3 heads in GGUF files: what they say is what the same head says in a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import interleave_halves
from safetensors.numpy import load_file

from dragoman.core.errors import ModelError
from dragoman.models import EagleChoice, ModelSettings, describe, draft_head, load, plan_eagle
from dragoman.models.batch import Batch, tables_of_one
from dragoman.models.model import Model

sys.path.append(str(Path(__file__).parent.parent / "engine"))
from tiny_eagle import EAGLE, GUESSED, LLAMA, VOCAB, make_tiny_eagle
from tiny_model import make_tiny_family

TOKENS = 40
NAMES = {
    "fc": "fc",
    "input_norm": "enc.output_norm",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "midlayer.hidden_norm": "blk.0.attn_norm_2",
    "midlayer.input_layernorm": "blk.0.attn_norm",
    "midlayer.post_attention_layernorm": "blk.0.ffn_norm",
    **{f"midlayer.self_attn.{each}_proj": f"blk.0.attn_{each}" for each in "qkv"},
    "midlayer.self_attn.o_proj": "blk.0.attn_output",
    **{f"midlayer.mlp.{each}_proj": f"blk.0.ffn_{each}" for each in ("gate", "up", "down")},
}
Change = Callable[[gguf.GGUFWriter, dict[str, np.ndarray]], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(draft_head, "HEAD_KV_PRECISION", "float32")


def write(
    head: Path,
    config: dict[str, Any],
    *,
    kind: Type = Type.F32,
    depths: tuple[str, list[int]] = ("target_layers", [2, 3, 3]),
    change: Change = lambda writer, tensors: None,
) -> Path:
    """Write a head as llama.cpp's converter does. ``change``: adds keys, or changes tensors under the file's names."""
    stored = load_file(head / "model.safetensors")
    tensors = {"d2t": stored.pop("d2t") + np.arange(GUESSED)}
    for name, value in stored.items():
        module, _, ending = name.rpartition(".")
        if module in NAMES:
            heads = {"blk.0.attn_q": 4, "blk.0.attn_k": 2}.get(NAMES[module])
            tensors[f"{NAMES[module]}.{ending}"] = interleave_halves(value, heads) if heads else value
    writer = gguf.GGUFWriter(head / "head.gguf", "eagle3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(1)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(VOCAB)
    writer.add_array(f"eagle3.{depths[0]}", depths[1])
    writer.add_uint32("eagle3.target_hidden_size", 64)
    for key in ("norm_before_residual", "norm_before_fc"):
        writer.add_bool(f"eagle3.{key}", bool(config.get(key)))
    change(writer, tensors)
    for name, value in tensors.items():
        if value.ndim == 2:
            writer.add_tensor(name, np.asarray(gguf.quantize(value, kind)), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return head / "head.gguf"


def loaded(model: Path, head: Path) -> Model:
    settings = ModelSettings(precision="float32", max_context=64, max_tokens=64, cache_bytes=0)
    return load(model, settings, head_context=64, eagle=EagleChoice(source=str(head)))


def guesses(model: Model) -> np.ndarray:
    """The head's logits of a text, with what it reads of the model."""
    head = model.head
    assert head is not None
    rows, ids = np.arange(TOKENS, dtype=np.int32), np.random.default_rng(4).integers(0, VOCAB, TOKENS).astype(np.int32)
    starts = np.array([0, TOKENS], np.int32)
    model.run(Batch(ids, rows, starts, tables_of_one(model.pools, 2), rows[:0]))
    hidden, following = model.hidden_rows(TOKENS).copy(), np.roll(ids, -1)
    return head.run(Batch(following, rows, starts, tables_of_one(head.pools, 2), rows, rows, hidden)).copy()


@pytest.mark.parametrize(
    ("changed", "own", "depths"),
    [
        ({}, False, ("target_layers", [2, 3, 3])),
        ({"norm_before_residual": True, "norm_before_fc": True}, True, ("extract_layers", [2, 4, 6])),
    ],
    ids=["plain", "normed"],
)
def test_it_says_what_it_says_in_a_folder(
    changed: dict[str, Any], own: bool, depths: tuple[str, list[int]], tmp_path: Path
) -> None:
    model = make_tiny_family(tmp_path / "model", LLAMA)
    config = EAGLE | changed | {"eagle_aux_hidden_state_layer_ids": depths[1]}
    head = make_tiny_eagle(tmp_path / "head", config, own_embedding=own)
    in_folder, in_file = loaded(model, head), loaded(model, write(head, config, depths=depths))
    expected = guesses(in_folder)
    np.testing.assert_allclose(guesses(in_file), expected, atol=1e-4 * np.abs(expected).max())
    assert in_folder.head is not None
    assert in_file.head is not None
    assert in_folder.head.target_ids is not None
    np.testing.assert_array_equal(in_file.head.target_ids, in_folder.head.target_ids)
    assert in_file.card.fingerprint == in_folder.card.fingerprint


def test_blocks_of_numbers_are_read(tmp_path: Path) -> None:
    model, head = make_tiny_family(tmp_path / "model", LLAMA), make_tiny_eagle(tmp_path / "head")
    plain = guesses(loaded(model, head))
    found = guesses(loaded(model, write(head, EAGLE, kind=Type.Q8_0)))
    assert 1e-5 < np.abs(found - plain).max() / np.abs(plain).max() < 0.05


def test_depths_of_files_are_layers_that_come_before(tmp_path: Path) -> None:
    """A checkpoint's list that begins with 1 counts otherwise."""
    model, head = make_tiny_family(tmp_path / "model", LLAMA), make_tiny_eagle(tmp_path / "head")
    found = loaded(model, write(head, EAGLE, depths=("target_layers", [1, 3, 6]))).head
    assert found is not None
    assert found.spec.aux_layers == (1, 3, 6)  # type: ignore[union-attr]


def test_its_memory_is_planned_as_that_of_a_folder(tmp_path: Path) -> None:
    model, head = make_tiny_family(tmp_path / "model", LLAMA), make_tiny_eagle(tmp_path / "head")
    described, settings = describe(str(model)), ModelSettings()
    planned = [
        plan_eagle(described, EagleChoice(source=str(each)), settings, 64) for each in (head, write(head, EAGLE))
    ]
    assert planned[0] == planned[1]


def _depths_twice(writer: gguf.GGUFWriter, tensors: dict[str, np.ndarray]) -> None:
    writer.add_array("eagle3.extract_layers", [2, 3, 3])


def _offsets(writer: gguf.GGUFWriter, tensors: dict[str, np.ndarray]) -> None:
    tensors["d2t"] = tensors["d2t"] - np.arange(GUESSED)


def _short_map(writer: gguf.GGUFWriter, tensors: dict[str, np.ndarray]) -> None:
    tensors["d2t"] = tensors["d2t"][:-1]


def _no_map(writer: gguf.GGUFWriter, tensors: dict[str, np.ndarray]) -> None:
    del tensors["d2t"]


def _no_table(writer: gguf.GGUFWriter, tensors: dict[str, np.ndarray]) -> None:
    del tensors["output.weight"]


def _unknown(writer: gguf.GGUFWriter, tensors: dict[str, np.ndarray]) -> None:
    tensors["blk.0.attn_gate.weight"] = np.ones((64, 64), np.float32)


def _other_integers(writer: gguf.GGUFWriter, tensors: dict[str, np.ndarray]) -> None:
    tensors["t2d"] = np.arange(8)


def _unknown_key(writer: gguf.GGUFWriter, tensors: dict[str, np.ndarray]) -> None:
    writer.add_uint32("eagle3.w8a8.version", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_depths_twice, "target_layers is there beside extract_layers"),
        (_offsets, "d2t: names a token of the model twice"),
        (_short_map, r"d2t: its shape is \[149\], where the output table has 150 rows"),
        (_no_map, "d2t is missing"),
        (_no_table, "output.weight is missing"),
        (_unknown, "blk.0.attn_gate.weight: is of no known use in LlamaForCausalLMEagle3"),
        (_other_integers, "t2d: its type I64 is not supported"),
        (_unknown_key, "w8a8.version is not known"),
    ],
)
def test_what_is_wrong_is_refused_by_name(change: Change, message: str, tmp_path: Path) -> None:
    model, head = make_tiny_family(tmp_path / "model", LLAMA), make_tiny_eagle(tmp_path / "head")
    with pytest.raises(ModelError, match=f"--draft-eagle .*head.*{message}"):
        loaded(model, write(head, EAGLE, change=change))


def test_it_is_no_model(tmp_path: Path) -> None:
    """Neither to be served nor to draft as one, and a model is no head."""
    head = write(make_tiny_eagle(tmp_path / "head"), EAGLE)
    with pytest.raises(ModelError, match="LlamaForCausalLMEagle3"):
        describe(str(head))
