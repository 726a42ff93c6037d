"""FP8 checkpoints: every number of eight bits, and scales for blocks, outputs or whole matrices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantized_models import (
    Array,
    Packer,
    Pieces,
    QuantizedModel,
    change_config,
    change_tensors,
    torch,
    write_model,
)
from small_models import checkpoint_of

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.quantized.float8 import float8_numbers
from dragoman.models.tensors import Format

MODULE = "model.layers.0.self_attn.k_proj"


@pytest.mark.parametrize(("word", "dtype"), [("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")])
def test_every_number_is_torchs(word: str, dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(codes).view(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(float8_numbers(codes, word), theirs)


def packer(
    rows: int | None,
    columns: int | None,
    piece: str = "weight_scale_inv",
    dtype: str = "float8_e4m3fn",
    power: bool = False,
) -> Packer:
    """A scale for each ``rows`` x ``columns``, all of them where None. ``power``: as exponents of 2 in a byte."""

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        outputs, inputs = weight.shape
        height, width = rows or outputs, columns or inputs
        padded = np.pad(weight, ((0, -outputs % height), (0, -inputs % width)))
        parts = padded.reshape(padded.shape[0] // height, height, -1, width)
        scale = (np.abs(parts).max((1, 3)) / 448).astype(np.float32)
        stored = torch.from_numpy(scale)
        if power:
            exponents = np.ceil(np.log2(scale)).astype(np.int64)
            scale = np.exp2(exponents).astype(np.float32)
            stored = torch.from_numpy((exponents + 127).astype(np.uint8))
        spread = scale.repeat(height, 0).repeat(width, 1)[:outputs, :inputs]
        codes = torch.from_numpy(weight / spread).to(getattr(torch, dtype))
        if rows is None and columns is None:
            stored = stored.reshape(())
        return {"weight": codes, piece: stored}, codes.float().numpy() * spread

    return pack


def options(**given: Any) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]} | given


CASES: dict[str, tuple[Packer, dict[str, Any]]] = {
    "blocks": (packer(128, 128), options()),
    "blocks of MiniMax-M2": (packer(128, 128), options(fmt="float8_e4m3fn")),
    "blocks that do not divide": (packer(96, 48), options(weight_block_size=[96, 48])),
    "one scale": (packer(None, None, "weight_scale"), options(weight_block_size=None)),
    "static": (packer(None, None, "weight_scale"), options(weight_block_size=None, activation_scheme="static")),
    "powers of two": (packer(128, 128, power=True), options(scale_fmt="ue8m0")),
    "five bits of exponent": (packer(128, 128, dtype="float8_e5m2"), options(fmt="e5m2")),
    "fbgemm": (
        packer(1, None, "weight_scale"),
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
    ),
}


@pytest.mark.parametrize(("pack", "config"), CASES.values(), ids=CASES)
def test_numbers_are_those_of_the_definition(pack: Packer, config: dict[str, Any], tmp_path: Path) -> None:
    model = write_model(tmp_path, pack, config)
    if config.get("activation_scheme") == "static":
        change_tensors(model.folder, lambda t: t.update({f"{MODULE}.input_scale": torch.tensor(0.5)}))
    model.assert_float32_logits_equal_transformers()
    assert model.forms() == {Format("int8")}
    assert models.describe(model.folder).formats == checkpoint_of(model.folder).formats
    assert max(model.errors().values()) <= 0.007
    assert max(model.errors("bfloat16").values()) <= 0.0025


def test_modules_that_are_not_converted(tmp_path: Path) -> None:
    quantized = packer(128, 128)

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        if "layers.0." not in module:
            return quantized(module, weight)
        half = torch.from_numpy(weight).half()
        return {"weight": half}, half.float().numpy()

    model = write_model(tmp_path, pack, options(ignored_layers=["model.layers.0"]))
    model.assert_float32_logits_equal_transformers()
    assert models.describe(model.folder).formats == checkpoint_of(model.folder).formats


MODELOPT: dict[str, Any] = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
OF_MODELOPT: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN",
    "ignore": ["lm_head", "model.layers.0.*"],
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["Linear"]}},
    "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.33.0"},
}


def test_files_of_model_optimizer(tmp_path: Path) -> None:
    by_tensor, by_output = packer(None, None, "weight_scale"), packer(1, None, "weight_scale")

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        if "layers.0." not in module:
            return by_output(module, weight)
        half = torch.from_numpy(weight).half()
        return {"weight": half}, half.float().numpy()

    for name in ("older", "newer"):
        (tmp_path / name).mkdir()
    older = write_model(
        tmp_path / "older",
        by_tensor,
        {"producer": {"name": "modelopt"}, "quantization": MODELOPT | {"exclude_modules": ["lm_head"]}},
        hf_quant_config=True,
    )
    unused = {f"{MODULE}.input_scale": torch.tensor(0.5), f"{MODULE}.k_scale": torch.tensor(0.5)}
    change_tensors(older.folder, lambda t: t.update(unused))
    for model in (older, write_model(tmp_path / "newer", pack, OF_MODELOPT)):
        model.assert_float32_logits_equal_transformers()
        described = models.describe(model.folder)
        assert described.formats == checkpoint_of(model.folder).formats
        assert described.quantization is not None
        assert len(described.quantization.notes) == 2


@pytest.mark.parametrize(
    "quantization", [{"quant_algo": "NVFP4_AWQ", "group_size": 16}, {"quant_algo": "INT4_AWQ"}, {}]
)
def test_other_formats_of_model_optimizer_are_named(quantization: dict[str, Any], tmp_path: Path) -> None:
    model = write_model(tmp_path, packer(None, None, "weight_scale"), {"quantization": quantization}, hf_quant_config=1)
    with pytest.raises(ModelError, match=r"hf_quant_config\.json.*quant_algo (None|'NVFP4_AWQ'|'INT4_AWQ')"):
        models.load(model.folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> QuantizedModel:
    return write_model(tmp_path_factory.mktemp("fp8"), packer(32, 64), options(weight_block_size=[32, 64]))


WRONG: dict[str, tuple[Callable[[Pieces], object], dict[str, Any], str]] = {
    "no scales": (lambda t: t.pop(f"{MODULE}.weight_scale_inv"), {}, r"has no .*weight_scale beside it"),
    "few scales": (
        lambda t: t.update({f"{MODULE}.weight_scale_inv": t[f"{MODULE}.weight_scale_inv"][1:]}),
        {},
        r"its shape is \[1, 2\], where \[2, 2\] would fit",
    ),
    "scales without weights": (
        lambda t: t.update({f"{MODULE}.weight": t[f"{MODULE}.weight"].half()}),
        {},
        r"weight: its type float16 does not fit",
    ),
    "NaN": (
        lambda t: t[f"{MODULE}.weight"].view(torch.uint8).__setitem__((3, 3), 255),
        {},
        r"k_proj\.weight: holds numbers that are not finite",
    ),
    "infinite scale": (
        lambda t: t[f"{MODULE}.weight_scale_inv"].__setitem__((0, 0), float("inf")),
        {},
        r"weight_scale_inv: holds numbers that are not finite",
    ),
    "other blocks": (len, {"weight_block_size": [128, 128]}, r"where \[\d, \d\] would fit"),
    "blocks of words": (len, {"weight_block_size": ["a", 1]}, "weight_block_size must be two positive integers"),
    "kept module": (len, {"modules_to_not_convert": ["self_attn"]}, "is quantized, where the config says"),
    "four bits": (len, {"expert_dtype": "fp4"}, "expert_dtype 'fp4' is not supported"),
    "other activations": (len, {"activation_scheme": "sometimes"}, "activation_scheme 'sometimes'"),
    "unknown option": (len, {"rotated": True}, "rotated = True is not known"),
}


@pytest.mark.parametrize(("change", "config", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(
    change: Callable[[Pieces], object], config: dict[str, Any], said: str, whole: QuantizedModel, tmp_path: Path
) -> None:
    for file in whole.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change_tensors(tmp_path, change)
    change_config(tmp_path, **config)
    with pytest.raises(ModelError, match=said):
        models.load(tmp_path)
