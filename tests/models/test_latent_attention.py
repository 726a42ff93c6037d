"""Latent attention beside what every family shows: what is kept, quantized files, adapters, and contexts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from latent_variants import PUBLISHED
from safetensors.numpy import load_file, save_file
from small_models import VARIANTS, make_folder, prompt, run_rows
from test_quantized_gptq import packer
from transformers_reference import assert_close

from dragoman.core.errors import ModelError
from dragoman.models import ModelDescription, ModelSettings, load, plan
from dragoman.models.families import read_spec
from dragoman.models.source import Source

SETTINGS = ModelSettings(precision="float32", max_tokens=64, max_logit_rows=64)


@pytest.mark.parametrize(
    ("kv_precision", "bytes_per_layer"), [("float32", 4 * 576), ("bfloat16", 2 * 576), ("int8", 576 + 2 * 18)]
)
def test_plan_counts_the_latent_and_the_rotated_part(kv_precision: str, bytes_per_layer: int) -> None:
    description = ModelDescription(
        source=Source("DeepSeek-V2-Lite", folder=None),  # type: ignore[arg-type]
        spec=read_spec(PUBLISHED["DeepSeek V2-Lite"][0]),
        stored_dtype="bfloat16",
        eos_token_ids=(0,),
        bos_token_id=None,
    )
    settings = ModelSettings(precision="int8", kv_precision=kv_precision)  # type: ignore[arg-type]
    assert plan(description, settings, available_bytes=32 << 30).kv_bytes_per_token == 27 * bytes_per_layer


def test_keys_in_int4_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["youtu"])
    with pytest.raises(ModelError, match="latent attention cannot keep its keys in int4"):
        load(folder, ModelSettings(kv_precision="int4"))


def test_pool_has_the_bytes_that_were_planned(tmp_path: Path) -> None:
    model = load(make_folder(tmp_path, VARIANTS["youtu"]), SETTINGS)
    assert model.plan.kv_bytes_per_token == 3 * 4 * 48  # 44 numbers, padded to whole vectors
    assert model.kv.bytes_per_block == 32 * model.plan.kv_bytes_per_token


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5"])
def test_an_indexer_limits_the_context_to_what_it_always_chooses(name: str) -> None:
    assert read_spec(VARIANTS[name] | {"index_topk": 100}).context == 100
    assert read_spec(VARIANTS[name] | {"index_topk": 5000}).context == 256


def test_longer_contexts_than_the_indexer_chooses_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["glm-5"])
    with pytest.raises(ModelError, match="a context of 129 was requested; this model allows 1 to 128 tokens"):
        load(folder, ModelSettings(max_context=129))


def test_what_lacks_a_projection_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["youtu"])
    weights = load_file(folder / "model.safetensors")
    whole = weights.pop("model.layers.1.self_attn.kv_b_proj.weight")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.layers\.1\.self_attn\.k_b_proj\.weight is missing"):
        load(folder, SETTINGS)
    save_file(weights | {"model.layers.1.self_attn.kv_b_proj.weight": whole[1:]}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"its shape is \[295, 32\], where the config asks for \[296, 32\]"):
        load(folder, SETTINGS)


def test_of_quantized_files_values_keep_their_integers_and_keys_become_bfloat16(tmp_path: Path) -> None:
    sizes = {"q_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "intermediate_size": 96}
    plain = make_folder(tmp_path, VARIANTS["youtu"] | sizes)
    weights, pack = load_file(plain / "model.safetensors"), packer(bits=4, group=32)
    stored, numbers = {}, {}
    for name, value in weights.items():
        module = name.removesuffix(".weight")
        if "_proj" in module:
            pieces, numbers[name] = pack(module, value)
            stored |= {f"{module}.{piece}": tensor.numpy() for piece, tensor in pieces.items()}
        else:
            stored[name] = numbers[name] = value.astype(np.float16).astype(np.float32)
    folder = tmp_path / "quantized"
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    options = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
    config = json.loads((plain / "config.json").read_text()) | {"quantization_config": options}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: np.ascontiguousarray(v, np.float32) for n, v in numbers.items()}, plain / "model.safetensors")

    ids = prompt(131)
    assert_close(run_rows(load(folder, SETTINGS), ids), run_rows(load(plain, SETTINGS), ids), 1e-5)
    packed = load(folder, ModelSettings())
    assert packed.weights.matrix("latent_key", 1).precision == "bfloat16"
    values = packed.weights.matrix("latent_value", 1)
    assert values.precision == "int4"
    whole = numbers["model.layers.1.self_attn.kv_b_proj.weight"].reshape(4, -1, 32)
    np.testing.assert_allclose(values.dequantize(), whole[:, 32:].reshape(-1, 32), rtol=1e-6, atol=1e-7)


def test_adapters_change_all_projections_but_that_of_keys_and_values(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["youtu"])
    weights, rng = load_file(folder / "model.safetensors"), np.random.default_rng(5)
    shapes = {name: value.shape for name, value in weights.items() if "self_attn" in name and "_proj" in name}
    apart = {name for name in shapes if "kv_b_proj" in name}

    def write(place: Path, names: set[str]) -> dict[str, np.ndarray]:
        place.mkdir()
        changes, factors = {}, {}
        for name in sorted(names):
            rows, columns = shapes[name]
            a, b = (rng.normal(scale=0.2, size=size).astype(np.float32) for size in ((3, columns), (rows, 3)))
            module = f"base_model.model.{name.removesuffix('.weight')}"
            factors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
            changes[name] = 2 * (b @ a)
        targets = sorted({name.split(".")[-2] for name in names})
        config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": targets}
        (place / "adapter_config.json").write_text(json.dumps(config))
        save_file(factors, place / "adapter_model.safetensors")
        return changes

    model, ids = load(folder, SETTINGS), prompt(131)
    changes = write(tmp_path / "some", set(shapes) - apart)
    model.load_adapter(0, "some", str(tmp_path / "some"))
    found = run_rows(model, ids, adapter=0)
    write(tmp_path / "all", set(shapes))
    with pytest.raises(ModelError, match=r"YoutuForCausalLM has no matrix .*kv_b_proj that can be changed"):
        model.load_adapter(1, "all", str(tmp_path / "all"))
    save_file(weights | {n: weights[n] + change for n, change in changes.items()}, folder / "model.safetensors")
    assert_close(found, run_rows(load(folder, SETTINGS), ids), 1e-4)
