"""Weight files: single and sharded, every stored type, and everything that can be wrong with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mllama_models
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from small_models import VARIANTS, checkpoint_of, make_folder, make_models, prompt, run_rows

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models import describe
from dragoman.models.parameters import parameters
from dragoman.models.safetensors_file import choose_weight_files, read_header
from dragoman.models.tensors import to_float32

WEIGHTS = "model.safetensors"


def all_values(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = checkpoint_of(folder)
    return {parameter.name: checkpoint.read(parameter) for parameter in parameters(checkpoint.spec)}


def test_tensors_are_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["qwen2"])
    theirs = load_file(folder / WEIGHTS)
    ours = all_values(folder)
    stacked = np.concatenate([theirs[f"model.layers.1.self_attn.{p}_proj.weight"] for p in "qkv"])
    assert (ours["layers.1.qkv.weight"] == stacked).all()
    assert (ours["final_norm.weight"] == theirs["model.norm.weight"]).all()


def test_conv1d_matrices_of_gpt2_are_turned(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["gpt2"])
    stored = load_file(folder / WEIGHTS)["transformer.h.2.mlp.c_fc.weight"]
    assert (all_values(folder)["layers.2.feed_forward_in.weight"] == stored.T).all()


def test_shards_and_single_file_give_the_same_tensors(tmp_path: Path) -> None:
    whole = all_values(make_folder(tmp_path / "whole", VARIANTS["llama"]))
    folder = make_folder(tmp_path / "shards", VARIANTS["llama"], shard_bytes=100_000)
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert all((whole[name] == value).all() for name, value in all_values(folder).items())


def test_what_a_wrapper_saved_is_told_with_how_to_save_the_model(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    save_file({f"_orig_mod.{name}": value for name, value in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS)
    with pytest.raises(ModelError, match=r"missing; there is _orig_mod\.model\.embed_tokens\.weight: save the model"):
        checkpoint_of(folder)


def test_an_output_that_is_missing_may_be_the_embedding(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"] | {"tie_word_embeddings": False})
    save_file({k: v for k, v in load_file(folder / WEIGHTS).items() if k != "lm_head.weight"}, folder / WEIGHTS)
    with pytest.raises(
        ModelError, match=r"lm_head\.weight is missing; where the output .* tie_word_embeddings is true"
    ):
        checkpoint_of(folder)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_stored_types_hold_the_same_numbers_up_to_their_rounding(dtype: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"], dtype)
    exact = all_values(make_folder(tmp_path / "exact", VARIANTS["llama"]))
    rounding = {"F32": 0.0, "F16": 2.0**-11, "BF16": 2.0**-8}[dtype]
    for name, value in all_values(folder).items():
        np.testing.assert_allclose(to_float32(value), exact[name], rtol=rounding, atol=1e-6 if dtype == "F16" else 0)
    assert describe(folder).precision("auto") == ("float32" if dtype == "F32" else "bfloat16")


def rewrite(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe"])
def test_experts_in_stacks_and_one_by_one_are_the_same(name: str, tmp_path: Path) -> None:
    """As transformers holds them, and as it saves them."""
    apart = all_values(make_folder(tmp_path / "apart", VARIANTS[name]))
    folder = make_folder(tmp_path / "stacked", VARIANTS[name], save_original_format=False)
    stacked = load_file(folder / WEIGHTS)
    assert any(value.ndim == 3 for value in stacked.values())
    assert all((apart[name] == value).all() for name, value in all_values(folder).items())


def test_stack_of_another_number_of_experts_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["qwen3-moe"], save_original_format=False)
    name = "model.layers.1.mlp.experts.down_proj"
    rewrite(folder, lambda tensors: tensors.update({name: tensors[name][:6].copy()}))
    with pytest.raises(
        ModelError, match=r"down_proj: its shape is \[6, 64, 33\], where the config asks for \[7, 64, 33\]"
    ):
        checkpoint_of(folder)


def test_names_without_the_base_prefix_are_found(tmp_path: Path) -> None:
    """GPT-2's own checkpoint says ``h.0…`` where others say ``transformer.h.0…``, and carries its causal masks."""
    folder = make_folder(tmp_path, VARIANTS["gpt2"])
    before = all_values(folder)
    tensors = {name.removeprefix("transformer."): value for name, value in load_file(folder / WEIGHTS).items()}
    tensors["h.0.attn.bias"] = np.ones((1, 1, 256, 256), np.uint8)
    save_file(tensors, folder / WEIGHTS)
    assert all((before[name] == value).all() for name, value in all_values(folder).items())


def test_tied_tables_that_differ_in_the_file_are_not_tied(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama-tied"])
    head = np.zeros((160, 64), np.float32)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}))
    assert checkpoint_of(folder).spec.tied
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": head}))
    assert not checkpoint_of(folder).spec.tied
    assert (all_values(folder)["head.weight"] == head).all()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_mixed_types_are_read_as_float32(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS[name])
    before = all_values(folder)
    mixed = "model.layers.0.self_attn.k_proj.weight" if name == "llama" else "transformer.h.0.attn.c_attn.weight"
    rewrite(folder, lambda tensors: tensors.update({mixed: tensors[mixed].astype(np.float16)}))
    after = all_values(folder)
    assert after["layers.0.qkv.weight"].dtype == (np.float32 if name == "llama" else np.float16)
    np.testing.assert_allclose(after["layers.0.qkv.weight"], before["layers.0.qkv.weight"], rtol=2**-10, atol=1e-6)


def test_file_cut_short_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    checkpoint = checkpoint_of(folder)
    os.truncate(folder / WEIGHTS, 10_000)
    with pytest.raises(ModelError, match=r"lm_head\.weight: the file was cut short"):
        checkpoint.read(parameters(checkpoint.spec)[-1])
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"lm_head\.weight: cannot be read: No such file"):
        checkpoint.read(parameters(checkpoint.spec)[-1])


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"], shard_bytes=100_000)
    shards = sorted(folder.glob("*.safetensors"))
    save_file(load_file(shards[0]) | load_file(shards[1]), shards[1])
    with pytest.raises(ModelError, match=r"tensor model\.embed_tokens\.weight: is in .*00001-of.* too"):
        checkpoint_of(folder)


def test_missing_tensor_is_named_with_its_file(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(
        ModelError, match=r"model\.safetensors: tensor model\.layers\.1\.mlp\.up_proj\.weight is missing"
    ):
        checkpoint_of(folder)


def test_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": np.ones(63, np.float32)}))
    with pytest.raises(ModelError, match=r"model\.norm\.weight: its shape is \[63\], where the config asks for \[64\]"):
        checkpoint_of(folder)


def test_tensor_of_no_known_use_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    name = "model.layers.0.self_attn.q_proj.bias"  # the config says there are no biases
    rewrite(folder, lambda tensors: tensors.update({name: np.ones(64, np.float32)}))
    with pytest.raises(ModelError, match=r"q_proj\.bias: is not part of LlamaForCausalLM"):
        checkpoint_of(folder)


def test_type_that_is_no_weight_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": np.ones(64, np.int64)}))
    with pytest.raises(ModelError, match=r"model\.norm\.weight: its type I64 is not supported"):
        checkpoint_of(folder)


def test_truncated_file_is_named_with_the_tensor(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors: tensor lm_head\.weight: the file is truncated"):
        describe(folder)
    (folder / WEIGHTS).write_bytes(whole[:5])
    with pytest.raises(ModelError, match="truncated or not a safetensors file"):
        describe(folder)


@given(data=st.data())
def test_no_damage_to_a_header_escapes_as_anything_but_a_model_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    file = folder / "x.safetensors"
    save_file({"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 3), np.float16)}, file)
    content = bytearray(file.read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    try:
        tensors = list(read_header(file).tensors.values())
    except ModelError as error:
        tensors, said = [], str(error)
    else:
        said = str(file)
    assert str(file) in said
    assert all(end <= tensor.start <= tensor.stop <= len(content) for tensor in tensors)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps({"a": entry, "b": entry}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ModelError, match="overlap"):
        read_header(file)


def choose(*names: str, index: dict[str, Any] | None = None) -> tuple[str, ...]:
    return choose_weight_files(names, lambda: index or {}, Path("folder"))


def test_pickle_files_are_refused_with_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle file.*save_pretrained"):
        choose("config.json", "pytorch_model.bin")
    for name in ("model.pt", "consolidated.00.pth", "model.ckpt"):
        with pytest.raises(ModelError, match=name):
            choose("config.json", name)
    assert choose("pytorch_model.bin", "model.safetensors") == ("model.safetensors",)


def test_index_names_the_shards_and_nothing_else_is_read() -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    names = ("consolidated.safetensors", "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json")
    assert choose(*names, index=index) == ("model-1.safetensors", "model-2.safetensors")
    with pytest.raises(ModelError, match=r"model-2\.safetensors is missing, which"):
        choose(names[1], names[3], index=index)
    with pytest.raises(ModelError, match="weight_map"):
        choose(*names, index={"weight_map": {"a": "../elsewhere.safetensors"}})


def test_no_weights_and_ambiguous_weights_are_refused() -> None:
    with pytest.raises(ModelError, match="no weights"):
        choose("config.json", "onnx/model.onnx")
    with pytest.raises(ModelError, match="2 safetensors files"):
        choose("a.safetensors", "b.safetensors")


def test_making_a_model_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    one, other = (make_folder(tmp_path / name, VARIANTS["qwen3"], "BF16") for name in ("one", "other"))
    assert (one / WEIGHTS).read_bytes() == (other / WEIGHTS).read_bytes()
    assert make_models.SHAPES.keys() >= {"qwen2.5-0.5b", "llama-3.2-1b", "tiny"}


def test_of_published_mllama_files_the_text_part_is_read(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["mllama"])
    settings = models.ModelSettings(precision="float32", max_tokens=64, kv_tokens=288, cache_bytes=0)
    expected = run_rows(models.load(folder, settings), prompt(131))
    weights = {f"language_model.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    assert "language_model.model.layers.3.cross_attn.q_proj.weight" in weights
    save_file(weights, folder / "model.safetensors")
    found = models.load(folder, settings)
    np.testing.assert_array_equal(run_rows(found, prompt(131)), expected)
    assert found.tower is None
    seeing = VARIANTS["mllama"] | {"vision_config": mllama_models.CONFIG["vision_config"]}
    (folder / "config.json").write_text(json.dumps(seeing))
    half = {"multi_modal_projector.weight": np.zeros((64, 32), np.float32)}
    save_file(weights | half, folder / "model.safetensors")
    with pytest.raises(ModelError, match="missing"):
        models.load(folder, models.ModelSettings(precision="float32", cache_bytes=0))
    config = VARIANTS["mllama"] | {"text_config": {"cross_attention_layers": [40]}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="cross_attention_layers must list some of 40 layers"):
        describe(folder)
