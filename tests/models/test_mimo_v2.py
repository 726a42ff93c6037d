"""What a config of MiMo-V2-Flash may say, in the names of transformers and in those of the published one; and the
shards of MiMo-V2.5's matrices in float8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantized_models import Pieces, change_tensors, safetensors_torch, torch
from small_models import VARIANTS, checkpoint_of, make_folder, prompt, run_greedy, run_rows
from test_own_code import MIMO_V2_5, SETTINGS, mimo_v2_5
from text_part_variants import UNMADE
from transformers_reference import assert_close, load_reference, reference_confirms

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec

BASE = VARIANTS["mimo-v2"]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "values wider than keys": ({"v_head_dim": 128}, "values of 128 numbers"),
    "narrow values of another size": ({"v_head_dim": 40}, "both multiples of 32"),
    "narrow values beside odd keys": ({"head_dim": 80, "v_head_dim": 64}, "both multiples of 32"),
    "other heads with a window": ({"swa_num_attention_heads": 2}, "swa_num_attention_heads = 2"),
    "other keys with a window": ({"swa_head_dim": 64}, "swa_head_dim = 64"),
    "other values with a window": ({"swa_v_head_dim": 32}, "swa_v_head_dim = 32"),
    "heads that do not divide": ({"swa_num_key_value_heads": 3}, "4 query heads cannot share 3"),
    "sinks in all layers": ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias = true"),
    "no sinks": ({"add_swa_attention_sink_bias": False}, "add_swa_attention_sink_bias = false"),
    "a shared expert": ({"n_shared_experts": 1}, "n_shared_experts = 1"),
    "a pattern of other layers": ({"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern must have 3 numbers"),
    "a pattern in words": ({"moe_layer_freq": ["a"] * 3}, "moe_layer_freq must have 3 numbers"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(BASE | change)


def test_the_published_names_say_the_same() -> None:
    newer = BASE | {
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "sliding_window": 21,
        "rms_norm_eps": 1e-4,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
            for kind, theta in (("full_attention", 3000.0), ("sliding_attention", 500.0))
        },
    }
    older = {key: value for key, value in BASE.items() if key != "rms_norm_eps"} | {
        "hybrid_layer_pattern": [0, 1, 0],
        "moe_layer_freq": [1, 0, 1],
        "sliding_window": 20,
        "sliding_window_size": 20,
        "layernorm_epsilon": 1e-4,
        "rope_theta": 3000.0,
        "swa_rope_theta": 500.0,
        "partial_rotary_factor": 0.5,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 96,
        "n_shared_experts": None,
    }
    assert read_spec(older) == read_spec(newer)


def test_layers_with_a_window_have_sinks_and_more_keys() -> None:
    spec = read_spec(BASE)
    assert [spec.has_sinks(layer) for layer in range(3)] == [False, True, True]
    assert [spec.of_layer(layer).kv_heads for layer in range(3)] == [1, 2, 2]
    assert spec.value_scale == 0.707
    assert read_spec(BASE | {"attention_value_scale": None}).value_scale == 1.0


BLOCK = (160, 48)  # none of the three dimensions of a shard is a multiple
OPTIONS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": list(BLOCK)} | {
    "ignored_layers": [*(f"model.layers.{layer}.self_attn.o_proj" for layer in range(3)), "model.layers.0.mlp"]
}
SHARDS = MIMO_V2_5["num_key_value_heads"]


def quantize(weight: Any) -> tuple[Any, Any, Any]:
    """Float8 numbers, a scale for each block, and the numbers that they stand for."""
    (rows, columns), (height, width) = weight.shape, BLOCK
    padded = np.pad(weight, ((0, -rows % height), (0, -columns % width)))
    parts = padded.reshape(padded.shape[0] // height, height, -1, width)
    scales = (np.abs(parts).max((1, 3)) / 448).astype(np.float32)
    spread = scales.repeat(height, 0).repeat(width, 1)[:rows, :columns]
    codes = torch.from_numpy(weight / spread).to(torch.float8_e4m3fn)
    return codes, torch.from_numpy(scales), codes.float().numpy() * spread


def in_shards(plain: Pieces, layer: int) -> Pieces:
    """A layer's queries, keys and values by the heads of a shard, each shard quantized by itself. ``plain`` gets the
    numbers that remain."""
    names = [f"model.layers.{layer}.self_attn.{each}_proj.weight" for each in "qkv"]
    divided = [np.split(plain[name], SHARDS) for name in names]
    shards = [quantize(np.concatenate(parts)) for parts in zip(*divided, strict=True)]
    for number, name in enumerate(names):
        ends = np.cumsum([parts[0].shape[0] for parts in divided])[:-1]
        plain[name] = np.concatenate([np.split(numbers, ends)[number] for _, _, numbers in shards])
    fused = f"model.layers.{layer}.self_attn.qkv_proj.weight"
    return {fused: torch.cat([c for c, _, _ in shards]), f"{fused}_scale_inv": torch.cat([s for _, s, _ in shards])}


def write_float8(folder: Path, reference: Path) -> None:
    """Write MiMo-V2.5 with attention in float8, beside what transformers reads, with the numbers that it stands for."""
    file = "model.safetensors"
    plain = {name: tensor.numpy() for name, tensor in safetensors_torch.load_file(reference / file).items()}
    quantized: Pieces = {}
    for layer in range(MIMO_V2_5["num_hidden_layers"]):
        quantized |= in_shards(plain, layer)
    stored = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in mimo_v2_5(plain, MIMO_V2_5).items()}
    folder.mkdir()
    safetensors_torch.save_file(stored | quantized, folder / file)
    safetensors_torch.save_file({n: torch.from_numpy(v.copy()) for n, v in plain.items()}, reference / file)
    (folder / "config.json").write_text(json.dumps(UNMADE["mimo-v2.5"] | {"quantization_config": OPTIONS}))


def test_float8_in_shards_is_what_each_stands_for(tmp_path: Path) -> None:
    reference = make_folder(tmp_path, MIMO_V2_5)
    folder = tmp_path / "float8"
    write_float8(folder, reference)
    theirs, ours = load_reference(reference), models.load(folder, SETTINGS)
    ids = prompt(MIMO_V2_5["vocab_size"])
    expected = reference_confirms(theirs, ids, run_greedy(ours, ids, 64))
    assert_close(run_rows(ours, ids), expected, 1e-4)


EXPERTS = MIMO_V2_5 | {"moe_intermediate_size": 64}


def write_mxfp4(folder: Path, reference: Path) -> None:
    """Write MiMo-V2.5 with experts in MXFP4, as it is published with four bits, and as ``write_float8`` does else."""
    random, file = np.random.default_rng(3), "model.safetensors"
    plain, packed = safetensors_torch.load_file(reference / file), dict[str, Any]()
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    for name in [name for name in plain if ".mlp.experts." in name]:
        outputs, inputs = plain[name].shape
        halves = random.integers(0, 256, (outputs, inputs // 2), np.uint8)
        exponents = random.integers(120, 124, (outputs, inputs // 32), np.uint8)
        numbers = table[np.stack([halves & 15, halves >> 4], axis=-1)].reshape(outputs, inputs)
        plain[name] = torch.from_numpy(numbers * np.exp2(exponents.astype(np.float32) - 127).repeat(32, axis=1))
        packed |= {name: torch.from_numpy(halves), f"{name}_scale": torch.from_numpy(exponents)}
    assert len(packed) == 2 * 2 * 6 * 3  # layers, experts, matrices
    safetensors_torch.save_file(plain, reference / file)
    write_float8(folder, reference)
    change_tensors(folder, lambda tensors: tensors.update(packed))
    config = UNMADE["mimo-v2.5"] | {"moe_intermediate_size": EXPERTS["moe_intermediate_size"]}
    options = OPTIONS | {"store_dtype": "mxfp4", "mxfp4_block_size": 32}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": options}))


def test_experts_in_mxfp4_are_what_they_stand_for(tmp_path: Path) -> None:
    reference, folder = make_folder(tmp_path, EXPERTS), tmp_path / "mxfp4"
    write_mxfp4(folder, reference)
    theirs, ours = load_reference(reference), models.load(folder, SETTINGS)
    ids = prompt(EXPERTS["vocab_size"])
    expected = reference_confirms(theirs, ids, run_greedy(ours, ids, 64))
    assert_close(run_rows(ours, ids), expected, 1e-4)
    stored, described = checkpoint_of(folder).formats, models.describe(folder).formats
    wrong = {name for name, form in described.items() if stored[name] != form}
    assert all(name.endswith(".router.weight") for name in wrong)  # float32 in any case
    assert {form.precision for name, form in stored.items() if ".expert_" in name} == {"mxfp4"}
    left_out = "audio_encoder, speech_embeddings, visual"
    assert checkpoint_of(folder).text_only == f"text only: {left_out} of the files are not loaded"


def test_experts_in_mxfp4_are_named_where_they_do_not_fit(tmp_path: Path) -> None:
    folder = tmp_path / "mxfp4"
    write_mxfp4(folder, make_folder(tmp_path, EXPERTS))
    name = "model.layers.1.mlp.experts.0.up_proj.weight_scale"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name][:, :1]}))
    with pytest.raises(ModelError, match=r"up_proj.weight_scale: its shape is \[64, 1\], where \[64, 2\] would fit"):
        models.load(folder, SETTINGS)
    (folder / "config.json").write_text(json.dumps(UNMADE["mimo-v2.5"] | {"quantization_config": OPTIONS}))
    with pytest.raises(ModelError, match="its type U8 does not fit"):
        models.load(folder, SETTINGS)


def test_float8_that_is_not_in_shards_is_refused(tmp_path: Path) -> None:
    """The first layer has 6 rows of scales: as a whole it would have 5."""
    folder = tmp_path / "float8"
    write_float8(folder, make_folder(tmp_path, MIMO_V2_5))
    name = "model.layers.0.self_attn.qkv_proj.weight_scale_inv"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name][:5]}))
    with pytest.raises(ModelError, match=r"scale_inv: its shape is \[5, 2\], where \[6, 2\] would fit 2 shards"):
        models.load(folder, SETTINGS)


@pytest.mark.parametrize("key", ["hybrid_layer_pattern", "moe_layer_freq"])
def test_the_layers_of_mimo_v2_5_are_never_guessed(key: str) -> None:
    with pytest.raises(ModelError, match=f"{key} is missing"):
        read_spec(UNMADE["mimo-v2.5"] | {key: None})


def test_another_layout_of_attention_is_refused() -> None:
    with pytest.raises(ModelError, match="attention_projection_layout 'rows' is not supported"):
        read_spec(UNMADE["mimo-v2.5"] | {"attention_projection_layout": "rows"})
