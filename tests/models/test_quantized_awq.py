"""AWQ checkpoints: four bits with zero points, packed along the outputs in an order of their own."""

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
    quantize_groups,
    torch,
    write_model,
)
from small_models import checkpoint_of

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.tensors import Format

MODULE = "model.layers.0.mlp.up_proj"
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight columns stands at each four bits of a word, from the lowest up


def pack_columns(codes: Array) -> Array:
    """``[rows, N]`` as words ``[rows, N/8]``."""
    eights = codes.astype(np.int64).reshape(len(codes), -1, 8)
    words = sum(eights[..., column] << (4 * place) for place, column in enumerate(_ORDER))
    return np.asarray(words).astype(np.uint32).view(np.int32)


def packer(group: int = 32, symmetric: bool = False) -> Packer:
    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        inputs = weight.shape[1]
        of_input = np.arange(inputs) // (inputs if group < 0 else group)
        codes, scales, zeros = quantize_groups(weight, of_input, 4, symmetric)
        pieces = {
            "qweight": torch.from_numpy(pack_columns(codes.T)),
            "qzeros": torch.from_numpy(pack_columns(zeros.T)),
            "scales": torch.from_numpy(scales.T.copy()).half(),
        }
        return pieces, scales[:, of_input] * (codes - zeros[:, of_input])

    return pack


def options(**given: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"} | given


@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_numbers_are_those_of_the_definition(group: int, tmp_path: Path) -> None:
    model = write_model(tmp_path, packer(group), options(group_size=group))
    model.assert_float32_logits_equal_transformers()
    assert model.forms() == {Format("int4", minimum=True)}
    assert max(model.errors().values()) <= 5e-4
    assert set(model.errors("int8").values()) == {0.0}
    assert model.errors("int4") == model.errors()  # not rounded once more


def test_middle_zero_points_are_none(tmp_path: Path) -> None:
    model = write_model(tmp_path, packer(symmetric=True), options())
    assert model.forms() == {Format("int4")}
    assert set(model.errors().values()) == {0.0}


def test_old_file_says_the_same(tmp_path: Path) -> None:
    old = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
    model = write_model(tmp_path, packer(64), old, quant_config=...)
    model.assert_float32_logits_equal_transformers()
    assert models.describe(model.folder).formats == checkpoint_of(model.folder).formats


def test_modules_that_are_not_converted(tmp_path: Path) -> None:
    quantized = packer()

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        if "down_proj" not in module:
            return quantized(module, weight)
        half = torch.from_numpy(weight).half()
        return {"weight": half}, half.float().numpy()

    model = write_model(tmp_path, pack, options(modules_to_not_convert=["down_proj"]))
    model.assert_float32_logits_equal_transformers()
    formats = checkpoint_of(model.folder).formats
    assert formats == models.describe(model.folder).formats
    assert formats["layers.1.feed_forward_out.weight"] == Format("bfloat16")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> QuantizedModel:
    return write_model(tmp_path_factory.mktemp("awq"), packer(), options())


@pytest.fixture
def copy(whole: QuantizedModel, tmp_path: Path) -> Path:
    for file in whole.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


WRONG: dict[str, tuple[Callable[[Pieces], object], dict[str, Any], str]] = {
    "no scales": (lambda t: t.pop(f"{MODULE}.scales"), {}, r"up_proj\.qweight: has no .*scales beside it"),
    "few zero points": (
        lambda t: t.update({f"{MODULE}.qzeros": t[f"{MODULE}.qzeros"][1:]}),
        {},
        r"qzeros: its shape is \[3, 32\], where \[4, 32\] would fit",
    ),
    "whole scales": (lambda t: t.update({f"{MODULE}.scales": t[f"{MODULE}.scales"].int()}), {}, "its type I32"),
    "a vector": (
        lambda t: t.update({f"{MODULE}.qweight": t[f"{MODULE}.qweight"].reshape(-1)}),
        {},
        "is not that of a matrix",
    ),
    "NaN": (lambda t: t[f"{MODULE}.scales"].__setitem__((0, 0), float("nan")), {}, r"up_proj\.scales: holds numbers"),
    "other groups": (len, {"group_size": 16}, r"qzeros: its shape is \[\d+, \d+\], where"),
    "other layout": (len, {"version": "gemv"}, "AWQ's layout 'gemv' is not supported; known: gemm"),
    "other bits": (len, {"bits": 3}, "bits 3 is not supported; known: 4"),
    "no zero points": (len, {"zero_point": False}, "zero_point = false is not supported"),
    "kept module": (len, {"modules_to_not_convert": ["mlp"]}, "is quantized, where the config says"),
    "names that are none": (len, {"modules_to_not_convert": [1]}, "must be a list of names"),
    "unknown option": (len, {"scale_bits": 2}, "scale_bits = 2 is not known"),
}


@pytest.mark.parametrize(("change", "config", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(
    change: Callable[[Pieces], object], config: dict[str, Any], said: str, copy: Path
) -> None:
    change_tensors(copy, change)
    change_config(copy, **config)
    with pytest.raises(ModelError, match=said):
        models.load(copy)
