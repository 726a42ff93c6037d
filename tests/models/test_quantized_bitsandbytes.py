"""bitsandbytes checkpoints: int8 by output, and four bits of a table by block, factors quantized or not."""

from __future__ import annotations

import json
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
from dragoman.models.tensors import Format

MODULE = "model.layers.1.self_attn.o_proj"
# Quantiles of the normal distribution, scaled to 1 (QLoRA, appendix E).
NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)  # fmt: skip
# A sign, two bits of exponent and one of fraction, in sixths.
FP4 = tuple(sign * size / 12 for sign in (1, -1) for size in (0.0, 0.0625, 8, 12, 4, 6, 2, 3))
TABLES = {"nf4": np.array(NF4, np.float32), "fp4": np.array(FP4, np.float32)}


def int8_packer(module: str, weight: Array) -> tuple[Pieces, Array]:
    largest = np.abs(weight).max(1).astype(np.float32)
    codes = np.rint(weight * (127 / largest[:, None])).astype(np.int8)
    pieces = {
        "weight": torch.from_numpy(codes),
        "SCB": torch.from_numpy(largest),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return pieces, codes * (largest[:, None] / np.float32(127))


def four_bit_packer(kind: str = "nf4", block: int = 64, nested: bool = False, storage: str = "uint8") -> Packer:
    table = TABLES[kind]

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        flat = weight.reshape(-1, block)
        factors = np.abs(flat).max(1).astype(np.float32)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float16", "shape": weight.shape}
        pieces: Pieces = {"weight.quant_map": torch.from_numpy(table)}
        pieces["weight.absmax"] = torch.from_numpy(factors)
        if nested:
            offset = float(factors.mean())
            inner = np.linspace(-1, 1, 256).astype(np.float32)
            wide = np.pad(factors - np.float32(offset), (0, -len(factors) % 256)).reshape(-1, 256)
            outer = np.abs(wide).max(1).astype(np.float32)
            places = np.abs(wide[..., None] / outer[:, None, None] - inner).argmin(-1).astype(np.uint8)
            factors = (inner[places] * outer[:, None]).reshape(-1)[: len(factors)] + np.float32(offset)
            pieces["weight.absmax"] = torch.from_numpy(places.reshape(-1)[: len(factors)].copy())
            pieces["weight.nested_absmax"] = torch.from_numpy(outer)
            pieces["weight.nested_quant_map"] = torch.from_numpy(inner)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        codes = np.abs((flat / factors[:, None])[..., None] - table).argmin(-1).astype(np.uint8).reshape(-1)
        packed = torch.from_numpy((codes[0::2] << 4 | codes[1::2]).reshape(-1, 1))
        pieces["weight"] = packed.reshape(-1).view(getattr(torch, storage)).reshape(-1, 1)
        text = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
        pieces[f"weight.quant_state.bitsandbytes__{kind}"] = torch.from_numpy(text)
        return pieces, (table[codes].reshape(-1, block) * factors[:, None]).reshape(weight.shape)

    return pack


def options(**given: Any) -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "_load_in_4bit": True,
        "_load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": False,
        "bnb_4bit_compute_dtype": "bfloat16",
        "llm_int8_skip_modules": None,
    } | given


EIGHT = {"load_in_4bit": False, "load_in_8bit": True, "_load_in_4bit": False, "_load_in_8bit": True}


def test_int8_keeps_its_integers(tmp_path: Path) -> None:
    model = write_model(tmp_path, int8_packer, options(**EIGHT))
    model.assert_float32_logits_equal_transformers()
    assert model.forms() == {Format("int8", wide=True)}
    assert 0 < max(model.errors().values()) <= 3e-4  # scales of float32 become float16


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("block", [64, 128])
def test_four_bits_are_those_of_the_table(kind: str, nested: bool, block: int, tmp_path: Path) -> None:
    config = options(bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=nested)
    model = write_model(tmp_path, four_bit_packer(kind, block, nested), config)
    model.assert_float32_logits_equal_transformers()
    assert model.forms() == {Format("int8")}
    assert max(model.errors().values()) <= 0.006


@pytest.mark.parametrize("storage", ["bfloat16", "float32"])
def test_bytes_stored_as_other_numbers(storage: str, tmp_path: Path) -> None:
    config = options(bnb_4bit_quant_storage=storage)
    write_model(tmp_path, four_bit_packer(storage=storage), config).assert_float32_logits_equal_transformers()


def test_modules_that_are_skipped(tmp_path: Path) -> None:
    quantized = four_bit_packer()

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        if "o_proj" not in module:
            return quantized(module, weight)
        half = torch.from_numpy(weight).half()
        return {"weight": half}, half.float().numpy()

    model = write_model(tmp_path, pack, options(llm_int8_skip_modules=["o_proj"]))
    model.assert_float32_logits_equal_transformers()
    assert models.describe(model.folder).formats == checkpoint_of(model.folder).formats


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, QuantizedModel]:
    return {
        "4": write_model(tmp_path_factory.mktemp("nf4"), four_bit_packer(nested=True), options()),
        "8": write_model(tmp_path_factory.mktemp("int8"), int8_packer, options(**EIGHT)),
    }


def _state(**changes: Any) -> Callable[[Pieces], object]:
    def change(tensors: Pieces) -> None:
        name = f"{MODULE}.weight.quant_state.bitsandbytes__nf4"
        state = json.loads(bytes(tensors[name].numpy())) | changes
        tensors[name] = torch.from_numpy(np.frombuffer(json.dumps(state).encode(), np.uint8).copy())

    return change


def _replace(name: str, change: Callable[[Any], Any]) -> Callable[[Pieces], object]:
    return lambda tensors: tensors.update({f"{MODULE}.{name}": change(tensors[f"{MODULE}.{name}"])})


STATE = "weight.quant_state.bitsandbytes__nf4"
WRONG: dict[str, tuple[str, Callable[[Pieces], object], dict[str, Any], str]] = {
    "no state": ("4", lambda t: t.pop(f"{MODULE}.{STATE}"), {}, r"has no .*quant_state\.bitsandbytes__nf4 beside it"),
    "other kind": ("4", len, {"bnb_4bit_quant_type": "fp4"}, r"bitsandbytes__fp4 beside it"),
    "state is no JSON": ("4", _replace(STATE, lambda t: t[:-3]), {}, "is not valid JSON"),
    "state without a shape": ("4", _state(shape=None), {}, "lacks one of"),
    "state of another kind": ("4", _state(quant_type="fp4"), {}, "contradicts"),
    "huge shape": ("4", _state(shape=[2**40, 2**40]), {}, "contradicts"),
    "negative block": ("4", _state(blocksize=-64), {}, "contradicts"),
    "other shape": ("4", _state(shape=[128, 130]), {}, r"holds 8192 bytes, where 128 x 130 codes take 8320"),
    "turned shape": ("4", _state(shape=[64, 256]), {}, r"its shape is \[64, 256\], where the config asks"),
    "few factors": ("4", _replace("weight.absmax", lambda t: t[1:]), {}, r"absmax: its shape is \[255\]"),
    "factors that are no places": ("4", _replace("weight.absmax", lambda t: t.float()), {}, "its type float32 does"),
    "short table": ("4", _replace("weight.quant_map", lambda t: t[1:]), {}, r"quant_map: its shape is \[15\]"),
    "short nested table": ("4", _replace("weight.nested_quant_map", lambda t: t[1:]), {}, r"its shape is \[255\]"),
    "infinite factors": (
        "4",
        _replace("weight.nested_absmax", lambda t: t * float("inf")),
        {},
        "holds numbers that are not finite",
    ),
    "no offset": ("4", _state(nested_offset=float("nan")), {}, "contradicts"),
    "short bytes": ("4", _replace("weight", lambda t: t[1:]), {}, "holds 8191 bytes"),
    "no scales": ("8", lambda t: t.pop(f"{MODULE}.SCB"), {}, r"has no .*SCB beside it"),
    "few scales": ("8", _replace("SCB", lambda t: t[1:]), {}, r"SCB: its shape is \[127\], where \[128\]"),
    "order of a card": ("8", _replace("weight_format", lambda t: t + 2), {}, "an order of some graphics card"),
    "neither": ("8", len, {"load_in_8bit": False}, "one of load_in_8bit and load_in_4bit must be true"),
    "both": ("4", len, {"load_in_8bit": True}, "one of load_in_8bit and load_in_4bit must be true"),
}


@pytest.mark.parametrize(("bits", "change", "config", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(
    bits: str,
    change: Callable[[Pieces], object],
    config: dict[str, Any],
    said: str,
    wholes: dict[str, QuantizedModel],
    tmp_path: Path,
) -> None:
    for file in wholes[bits].folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change_tensors(tmp_path, change)
    change_config(tmp_path, **config)
    with pytest.raises(ModelError, match=said):
        models.load(tmp_path)
