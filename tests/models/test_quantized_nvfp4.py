"""NVFP4 checkpoints: numbers of four bits, a scale of eight bits for 16, and one for the matrix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantized_models import (
    CONFIG,
    Array,
    Packer,
    Pieces,
    QuantizedModel,
    change_config,
    change_tensors,
    torch,
    write_model,
)
from small_models import VARIANTS, checkpoint_of, prompt, run_greedy, run_rows
from transformers_reference import assert_close, load_reference, reference_logits

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.tensors import Format

MODULE = "model.layers.0.self_attn.k_proj"
STACK = "model.layers.1.mlp.experts.gate_up_proj"
STACKED = {"": torch.zeros(4, 8, 16, dtype=torch.uint8), "_weight_scale": torch.ones(4, 8, 2)}
NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def packer(divides: bool = False, kept: tuple[str, ...] = ()) -> Packer:
    """As the Optimizer stores it, or as compressed-tensors does, whose one scale ``divides``."""

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        if any(name in module for name in kept):
            half = torch.from_numpy(weight).half()
            return {"weight": half}, half.float().numpy()
        groups = weight.reshape(len(weight), -1, 16)
        whole = np.float32(np.abs(weight).max() / (6 * 448))
        if divides:
            whole = np.float32(1) / np.float32(1 / whole)
        scales = torch.from_numpy(np.abs(groups).max(2) / 6 / whole).to(torch.float8_e4m3fn)
        factors = scales.float().numpy()[..., None] * whole
        if divides:
            factors = scales.float().numpy()[..., None] / np.float32(1 / whole)
        wanted = np.divide(groups, factors, out=np.zeros_like(groups), where=factors > 0)
        codes = np.abs(wanted[..., None] - NUMBERS).argmin(-1).astype(np.uint8).reshape(weight.shape)
        numbers = (NUMBERS[codes].reshape(groups.shape) * factors).reshape(weight.shape)
        halves = torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4)
        if divides:
            globals_ = {"weight_global_scale": torch.tensor([1 / whole]), "input_global_scale": torch.tensor([0.5])}
            return {"weight_packed": halves, "weight_scale": scales, **globals_}, numbers
        globals_ = {"weight_scale_2": torch.tensor(whole), "input_scale": torch.tensor(0.5)}
        return {"weight": halves, "weight_scale": scales, **globals_}, numbers

    return pack


OPTIMIZER: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "group_size": 16,
    "ignore": ["lm_head"],
    "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.39.0"},
}
WEIGHTS: dict[str, Any] = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "symmetric": True,
    "dynamic": False,
    "actorder": None,
    "block_structure": None,
    "observer": "static_minmax",
    "scale_dtype": "torch.float8_e4m3fn",
    "zp_dtype": None,
}
COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "nvfp4-pack-quantized",
            "weights": WEIGHTS,
            "input_activations": {"num_bits": 4, "type": "float", "dynamic": "local", "group_size": 16},
        }
    },
    "ignore": ["lm_head"],
    "transform_config": {},
}
CASES: dict[str, tuple[Packer, dict[str, Any]]] = {
    "optimizer": (packer(), OPTIMIZER),
    "weights alone": (packer(), OPTIMIZER | {"quant_algo": "W4A16_NVFP4"}),
    "compressed-tensors": (packer(divides=True), COMPRESSED),
}


@pytest.mark.parametrize(("pack", "config"), CASES.values(), ids=CASES)
def test_numbers_are_those_of_the_definition(pack: Packer, config: dict[str, Any], tmp_path: Path) -> None:
    model = write_model(tmp_path, pack, config)
    model.assert_float32_logits_equal_transformers()
    ids = prompt(CONFIG["vocab_size"])
    plain = models.load(model.plain, models.ModelSettings(precision="float32", max_tokens=256, max_sequences=1))
    assert run_greedy(model.load("float32"), ids, 12) == run_greedy(plain, ids, 12)
    assert model.forms() == {Format("int8")}
    described = models.describe(model.folder)
    assert described.formats == checkpoint_of(model.folder).formats
    assert described.quantization is not None
    assert any("activations' own format is not used" in note for note in described.quantization.notes)
    assert max(model.errors().values()) <= 0.007
    assert max(model.errors("bfloat16").values()) <= 0.0025


SHAPES = {
    "tied embeddings": CONFIG | {"tie_word_embeddings": True},
    "one matrix of queries, keys and values": VARIANTS["phi3"] | {"hidden_size": 128, "intermediate_size": 256},
    "a mixture": VARIANTS["qwen3-moe"] | {"hidden_size": 128, "moe_intermediate_size": 64, "intermediate_size": 96},
}


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_models_of_other_shapes(shape: str, divides: bool, tmp_path: Path) -> None:
    routers = "re:.*mlp.gate$" if divides else "*.mlp.gate"
    config = (COMPRESSED if divides else OPTIMIZER) | {"ignore": ["lm_head", routers]}
    model = write_model(tmp_path, packer(divides), config, SHAPES[shape])
    ids = prompt(SHAPES[shape]["vocab_size"])
    expected = reference_logits(load_reference(model.plain), ids)
    assert_close(run_rows(model.load("float32"), ids), expected, 1e-4)
    assert models.describe(model.folder).formats == checkpoint_of(model.folder).formats


@pytest.mark.parametrize("name", ["model.layers.0", "model.layers.0.*", "*self_attn*"])
def test_modules_that_are_not_quantized(name: str, tmp_path: Path) -> None:
    kept = ("layers.0.",) if "layers" in name else ("self_attn",)
    older = {"producer": {"name": "modelopt"}}
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16}
    options = older | {"quantization": quantization | {"exclude_modules": ["lm_head", name]}}
    model = write_model(tmp_path, packer(kept=kept), options, hf_quant_config=True)
    model.assert_float32_logits_equal_transformers()
    assert models.describe(model.folder).formats == checkpoint_of(model.folder).formats


def test_a_quantized_head(tmp_path: Path) -> None:
    model = write_model(tmp_path, packer(), OPTIMIZER | {"ignore": [], "lm_head": True})
    change = json.loads((model.folder / "config.json").read_text())
    del change["quantization_config"]["lm_head"]
    (model.folder / "config.json").write_text(json.dumps(change))
    model.assert_float32_logits_equal_transformers()
    assert models.describe(model.folder).formats == checkpoint_of(model.folder).formats


def test_a_model_with_both_formats_of_the_optimizer(tmp_path: Path) -> None:
    nvfp4 = packer(kept=("layers.1.mlp",))

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        if "self_attn" not in module:
            return nvfp4(module, weight)
        scale = np.float32(np.abs(weight).max() / 448)
        codes = torch.from_numpy(weight / scale).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": torch.tensor(scale)}, codes.float().numpy() * scale

    layers = {f"model.layers.{i}.self_attn": {"quant_algo": "FP8"} for i in range(2)}
    names = ("gate_proj", "up_proj", "down_proj")
    layers |= {f"model.layers.0.mlp.{name}": {"quant_algo": "NVFP4", "group_size": 16} for name in names}
    options = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    model = write_model(tmp_path, pack, options)
    model.assert_float32_logits_equal_transformers()
    described = models.describe(model.folder)
    assert described.formats == checkpoint_of(model.folder).formats
    assert described.quantization is not None
    assert described.quantization.summary == "modelopt, 4 and 8 bits, floating"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, QuantizedModel]:
    return {
        name: write_model(tmp_path_factory.mktemp("nvfp4"), *CASES[name])
        for name in ("optimizer", "compressed-tensors")
    }


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Pieces], object]:
    def apply(tensors: Pieces) -> None:
        tensors[f"{MODULE}.{name}"] = change(tensors[f"{MODULE}.{name}"])

    return apply


def group(**weights: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS | weights}}}


NAN = torch.tensor([127], dtype=torch.uint8).view(torch.float8_e4m3fn)
WRONG: dict[str, tuple[str, Callable[[Pieces], object], dict[str, Any], str]] = {
    "no scales": ("optimizer", lambda t: t.pop(f"{MODULE}.weight_scale"), {}, "has no .*weight_scale beside it"),
    "no factor": ("optimizer", lambda t: t.pop(f"{MODULE}.weight_scale_2"), {}, "has no .*weight_scale_2 beside it"),
    "no divisor": (
        "compressed-tensors",
        lambda t: t.pop(f"{MODULE}.weight_global_scale"),
        {},
        "has no .*weight_global_scale beside it",
    ),
    "few scales": ("optimizer", changed("weight_scale", lambda t: t[1:]), {}, r"its shape is .*would fit"),
    "scales of another type": ("optimizer", changed("weight_scale", lambda t: t.half()), {}, "must be F8_E4M3"),
    "few numbers": ("optimizer", changed("weight", lambda t: t[:, 1:]), {}, "no multiple of 16"),
    "several factors": ("optimizer", changed("weight_scale_2", lambda t: t.repeat(2)), {}, r"where \[1\] would fit"),
    "no divisor but 0": (
        "compressed-tensors",
        changed("weight_global_scale", torch.zeros_like),
        {},
        "is 0, by which the scales are divided",
    ),
    "infinite factor": ("optimizer", changed("weight_scale_2", lambda t: t / 0), {}, "not finite"),
    "a scale that is no number": (
        "optimizer",
        changed("weight_scale", lambda t: torch.cat([NAN.expand(1, t.shape[1]), t[1:]])),
        {},
        "weight_scale: holds numbers that are not finite",
    ),
    "scales of inputs": (
        "optimizer",
        lambda t: t.update({f"{MODULE}.pre_quant_scale": torch.ones(4)}),
        {},
        r"pre_quant_scale: scales of inputs \(AWQ\) are not supported",
    ),
    "stacked experts": (
        "optimizer",
        lambda t: t.update({f"{STACK}{end}": value for end, value in STACKED.items()}),
        {},
        r"mlp.experts.gate_up_proj: is quantized under another name than weight, as stacked experts are",
    ),
    "scales of inputs of a kept module": (
        "optimizer",
        lambda t: t.update({"lm_head.pre_quant_scale": torch.ones(4)}),
        {},
        r"lm_head.pre_quant_scale",
    ),
    "kept module": ("optimizer", len, {"ignore": ["self_attn"]}, "is quantized, where the config says"),
    "other groups": ("optimizer", len, {"group_size": 32}, "group_size 32 is not supported"),
    "other algorithm": ("optimizer", len, {"quant_algo": "NVFP4_SVD"}, "quant_algo 'NVFP4_SVD' is not supported"),
    "mixed without layers": ("optimizer", len, {"quant_algo": "MIXED_PRECISION"}, "quantized_layers is missing"),
    "mixed with another": (
        "optimizer",
        len,
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "INT4_AWQ"}}},
        "quantized_layers: a: quant_algo 'INT4_AWQ' is not supported",
    ),
    "groups of 32": ("compressed-tensors", len, group(group_size=32), "groups of 16, not of 32"),
    "integers": ("compressed-tensors", len, group(type="int"), "has floats in groups of 16"),
    "scales by channel": ("compressed-tensors", len, group(strategy="channel"), "strategy 'channel' is not supported"),
    "eight bits": ("compressed-tensors", len, group(num_bits=8), "num_bits 8 is not supported"),
    "another layout": ("compressed-tensors", len, {"format": "mxfp4-pack-quantized"} | group(), "mxfp4-pack-quantized"),
}


@pytest.mark.parametrize(("name", "change", "config", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(
    name: str,
    change: Callable[[Pieces], object],
    config: dict[str, Any],
    said: str,
    whole: dict[str, QuantizedModel],
    tmp_path: Path,
) -> None:
    for file in whole[name].folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change_tensors(tmp_path, change)
    change_config(tmp_path, **config)
    with pytest.raises(ModelError, match=said):
        models.load(tmp_path)
