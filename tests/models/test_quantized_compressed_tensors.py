"""compressed-tensors checkpoints, as the package's own compressors write them."""

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
    pack_words,
    quantize_groups,
    torch,
    write_model,
)
from small_models import checkpoint_of

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.tensors import Format

compressors = pytest.importorskip("compressed_tensors.compressors")
quantization = pytest.importorskip("compressed_tensors.quantization")
MODULE = "model.layers.0.mlp.down_proj"
BLOCK = (96, 128)  # divides neither all outputs nor all inputs


def args(**given: Any) -> dict[str, Any]:
    return {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False} | given


def config(weights: dict[str, Any], layout: str, **given: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    } | given


def scales_of(weight: Any, weights: dict[str, Any]) -> tuple[Any, Any]:
    """Scales and zero points for the range of each part that shares them."""
    outputs, inputs = weight.shape
    rows, columns = {
        "tensor": (outputs, inputs),
        "channel": (1, inputs),
        "group": (1, weights.get("group_size")),
        "block": BLOCK,
    }[weights["strategy"]]
    padded = torch.nn.functional.pad(weight, (0, -inputs % columns, 0, -outputs % rows))
    parts = padded.reshape(-(-outputs // rows), rows, -(-inputs // columns), columns)
    low, high = parts.amin((1, 3)).clamp(max=0), parts.amax((1, 3)).clamp(min=0)
    if weights["type"] == "float":
        return torch.maximum(-low, high) / 448, None
    top = 2 ** weights["num_bits"] - 1
    if weights["symmetric"]:
        return torch.maximum(-low, high) * 2 / top, None
    scale = (high - low) / top
    return scale, (torch.round(-low / scale) - 2 ** (weights["num_bits"] - 1)).to(torch.int8)


def packer(weights: dict[str, Any], layout: str, dtype: str = "bfloat16") -> Packer:
    """The package's compressor of the layout; the numbers are what its decompressor makes of it, in float32."""
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=quantization.QuantizationArgs(**weights))
    compressor = compressors.BaseCompressor.get_value_from_registry(layout)

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        tensor = torch.from_numpy(weight)
        scale, zero = scales_of(tensor, weights)
        scale = scale.to(getattr(torch, dtype)).float()
        if weights["strategy"] == "tensor":
            scale = scale.reshape(1)
            zero = None if zero is None else zero.reshape(1)
        state = {"weight": tensor, "weight_scale": scale}
        if zero is not None:
            state["weight_zero_point"] = zero
        pieces = compressor.compress(state, scheme)
        numbers = compressor.decompress(dict(pieces), scheme)["weight"]
        pieces["weight_scale"] = pieces["weight_scale"].to(getattr(torch, dtype))
        return pieces, numbers.float().numpy()

    return pack


SCHEMES: dict[str, tuple[dict[str, Any], str, str, Format, float]] = {
    "W8A8": (args(), "int-quantized", "bfloat16", Format("int8", wide=True), 0),
    "W8A8, float32 scales": (args(), "int-quantized", "float32", Format("int8", wide=True), 3e-4),
    "W8A8 by tensor": (args(strategy="tensor"), "int-quantized", "bfloat16", Format("int8", wide=True), 0),
    "W8A8 by block": (
        args(strategy="block", block_structure=[*BLOCK]),
        "naive-quantized",
        "float16",
        Format("int8", wide=True),
        0,
    ),
    "W8A8, asymmetric": (args(symmetric=False), "int-quantized", "bfloat16", Format("int8"), 0.007),
    "W4 in int8": (args(num_bits=4), "int-quantized", "bfloat16", Format("int8", wide=True), 0),
    "W4A16": (
        args(num_bits=4, strategy="group", group_size=32),
        "pack-quantized",
        "bfloat16",
        Format("int4"),
        0,
    ),
    "W4A16 of 128": (
        args(num_bits=4, strategy="group", group_size=128),
        "pack-quantized",
        "bfloat16",
        Format("int4"),
        0,
    ),
    "W4A16 by channel": (args(num_bits=4), "pack-quantized", "float16", Format("int4"), 0),
    "W4A16, asymmetric": (
        args(num_bits=4, strategy="group", group_size=64, symmetric=False),
        "pack-quantized",
        "bfloat16",
        Format("int4", minimum=True),
        5e-4,
    ),
    "W4A16 by channel, asymmetric": (
        args(num_bits=4, symmetric=False),
        "pack-quantized",
        "bfloat16",
        Format("int4", minimum=True),
        5e-4,
    ),
    "W8A16": (args(strategy="group", group_size=64), "pack-quantized", "bfloat16", Format("int8"), 0),
    "W2A16": (args(num_bits=2, strategy="group", group_size=32), "pack-quantized", "float16", Format("int4"), 0),
    "FP8 by channel": (args(type="float"), "float-quantized", "bfloat16", Format("int8"), 0.007),
    "FP8 by tensor": (args(type="float", strategy="tensor"), "float-quantized", "float32", Format("int8"), 0.007),
    "FP8 by block": (
        args(type="float", strategy="block", block_structure=[*BLOCK]),
        "float-quantized",
        "bfloat16",
        Format("int8"),
        0.007,
    ),
}


@pytest.mark.parametrize(("weights", "layout", "dtype", "form", "error"), SCHEMES.values(), ids=SCHEMES)
def test_numbers_are_those_of_the_package(
    weights: dict[str, Any], layout: str, dtype: str, form: Format, error: float, tmp_path: Path
) -> None:
    model = write_model(tmp_path, packer(weights, layout, dtype), config(weights, layout))
    model.assert_float32_logits_equal_transformers()
    assert model.forms() == {form}
    assert models.describe(model.folder).formats == checkpoint_of(model.folder).formats
    assert max(model.errors().values()) <= error


def test_inputs_in_an_order_of_their_own(tmp_path: Path) -> None:
    """Written by hand: newer versions of the package read no ``weight_g_idx``."""
    random = np.random.default_rng(3)

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        of_input = random.permutation(np.arange(weight.shape[1]) // 32)
        codes, scales, zeros = quantize_groups(weight, of_input, 4, True)
        pieces = {
            "weight_packed": torch.from_numpy(pack_words(codes, 4)),
            "weight_scale": torch.from_numpy(scales).half(),
            "weight_shape": torch.tensor(weight.shape),
            "weight_g_idx": torch.from_numpy(of_input.astype(np.int32)),
        }
        return pieces, scales[:, of_input] * (codes - zeros[:, of_input])

    weights = args(num_bits=4, strategy="group", group_size=32, actorder="group")
    model = write_model(tmp_path, pack, config(weights, "pack-quantized"))
    model.assert_float32_logits_equal_transformers()
    assert all(form.precision == "int4" for form in model.forms() - {Format("int8")})
    assert max(model.errors().values()) <= 0.007


def test_several_groups_and_ignored_modules(tmp_path: Path) -> None:
    four = args(num_bits=4, strategy="group", group_size=32)
    eight = args(type="float")
    small, large = packer(four, "pack-quantized"), packer(eight, "float-quantized")

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        if module.endswith(("0.mlp.gate_proj", "0.mlp.up_proj")):
            half = torch.from_numpy(weight).half()
            return {"weight": half}, half.float().numpy()
        return (large if "self_attn" in module else small)(module, weight)

    groups = {
        "attention": {"targets": [r"re:.*self_attn\..*"], "weights": eight, "format": "float-quantized"},
        "rest": {"targets": ["Linear"], "weights": four, "format": "pack-quantized"},
    }
    ignored = ["lm_head", "model.layers.0.mlp.gate_proj", r"re:.*0\.mlp\.up_proj$"]
    options = config(four, "mixed-precision", config_groups=groups, ignore=ignored)
    model = write_model(tmp_path, pack, options)
    model.assert_float32_logits_equal_transformers()
    formats = checkpoint_of(model.folder).formats
    assert formats == models.describe(model.folder).formats
    assert formats["layers.0.feed_forward_in.weight"] == Format("bfloat16")
    assert formats["layers.1.feed_forward_in.weight"] == Format("int4")
    assert formats["layers.1.qkv.weight"] == Format("int8")


def test_scales_of_activations_and_caches_are_left_out_and_told_of(tmp_path: Path) -> None:
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    options = config(args(), "int-quantized", kv_cache_scheme=cache)
    options["config_groups"]["group_0"]["input_activations"] = args(strategy="tensor")
    model = write_model(tmp_path, packer(args(), "int-quantized"), options)

    def add(tensors: Pieces) -> None:
        for layer in range(2):
            tensors[f"model.layers.{layer}.self_attn.k_scale"] = torch.tensor([1.0])
            tensors[f"model.layers.{layer}.self_attn.v_scale"] = torch.tensor([1.0])
            tensors[f"model.layers.{layer}.mlp.up_proj.input_scale"] = torch.tensor([1.0])

    change_tensors(model.folder, add)
    model.assert_float32_logits_equal_transformers()
    scheme = models.describe(model.folder).quantization
    assert scheme is not None
    assert scheme.summary == "compressed-tensors, int8 with scales by channel"
    assert [note.split(" ")[0] for note in scheme.notes] == ["the", "kv_cache_scheme"]


def test_old_name_of_the_config(tmp_path: Path) -> None:
    import json

    model = write_model(tmp_path, packer(args(), "int-quantized"), config(args(), "int-quantized"))
    written = json.loads((model.folder / "config.json").read_text())
    block = written.pop("quantization_config")
    del block["quant_method"]
    (model.folder / "config.json").write_text(json.dumps(written | {"compression_config": block}))
    model.assert_float32_logits_equal_transformers()


def test_scales_that_float16_holds_badly_keep_their_matrix_at_bfloat16(tmp_path: Path) -> None:
    """Subnormal ones have fewer bits than float16 promises, and a thousandth of an error would pass unseen."""

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        codes = np.rint(weight / np.abs(weight).max() * 127).astype(np.int8)
        scale = np.full(
            (len(weight), 1), 3.3e-6 if "down" in module else 1e5 if "q_proj" in module else 1e-3, np.float32
        )
        return {"weight": torch.from_numpy(codes), "weight_scale": torch.from_numpy(scale)}, codes * scale

    model = write_model(tmp_path, pack, config(args(), "int-quantized"))
    formats = checkpoint_of(model.folder).formats
    assert formats["layers.0.feed_forward_out.weight"] == formats["layers.0.qkv.weight"] == Format("bfloat16")
    assert formats["layers.0.feed_forward_in.weight"] == Format("int8", wide=True)
    assert max(model.errors().values()) <= 2**-8


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, QuantizedModel]:
    four = args(num_bits=4, strategy="group", group_size=32, symmetric=False)
    cases = {"packed": (four, "pack-quantized"), "int": (args(), "int-quantized")}
    cases["float"] = (args(type="float"), "float-quantized")
    return {
        name: write_model(tmp_path_factory.mktemp(name), packer(weights, layout), config(weights, layout))
        for name, (weights, layout) in cases.items()
    }


def _replace(name: str, change: Callable[[Any], Any]) -> Callable[[Pieces], object]:
    return lambda tensors: tensors.update({f"{MODULE}.{name}": change(tensors[f"{MODULE}.{name}"])})


WRONG_TENSORS: dict[str, tuple[str, Callable[[Pieces], object], str]] = {
    "no shape": ("packed", lambda t: t.pop(f"{MODULE}.weight_shape"), r"has no .*weight_shape beside it"),
    "shape of three": ("packed", _replace("weight_shape", lambda t: torch.tensor([1, 2, 3])), r"its shape is \[3\]"),
    "negative shape": ("packed", _replace("weight_shape", lambda t: -t), "says -128 x -256"),
    "other shape": ("packed", _replace("weight_shape", lambda t: t + 8), r"where \[136, 33\] hold 136 x 264 integers"),
    "no scales": ("packed", lambda t: t.pop(f"{MODULE}.weight_scale"), r"has no .*weight_scale beside it"),
    "few scales": ("packed", _replace("weight_scale", lambda t: t[1:]), r"\[127, 8\], where \[128, 8\] would fit"),
    "scales of integers": ("packed", _replace("weight_scale", lambda t: t.int()), "its type I32 does not fit"),
    "no zero points": ("packed", lambda t: t.pop(f"{MODULE}.weight_zero_point"), r"has no .*weight_zero_point"),
    "few zero points": ("packed", _replace("weight_zero_point", lambda t: t[1:]), r"\[15, 8\], where \[16, 8\]"),
    "wide words": ("packed", _replace("weight_packed", lambda t: t.long()), "its type I64 does not fit"),
    "few channels": ("int", _replace("weight_scale", lambda t: t[1:]), r"where \[1\] or \[128, 1\] would fit"),
    "floating weights": ("int", _replace("weight", lambda t: t.half()), "its type float16 does not fit"),
    "whole weights": ("float", _replace("weight", lambda t: t.view(torch.int8)), "its type I8 does not fit"),
    "NaN": ("float", lambda t: t[f"{MODULE}.weight"].view(torch.uint8).__setitem__((0, 0), 127), "not finite"),
    "other shape of weights": ("int", _replace("weight", lambda t: t.T), r"scale: its shape is \[128, 1\]"),
}


def _copy(model: QuantizedModel, folder: Path) -> Path:
    for file in model.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize(("which", "change", "said"), WRONG_TENSORS.values(), ids=WRONG_TENSORS)
def test_wrong_pieces_are_named(
    which: str,
    change: Callable[[Pieces], object],
    said: str,
    wholes: dict[str, QuantizedModel],
    tmp_path: Path,
) -> None:
    folder = _copy(wholes[which], tmp_path)
    change_tensors(folder, change)
    with pytest.raises(ModelError, match=said):
        models.load(folder)


def _group(**weights: Any) -> dict[str, Any]:
    return {"config_groups": {"g": {"targets": ["Linear"], "weights": args(**weights)}}}


WRONG_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "sparse": ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config = 'sparse-24-bitmask'"),
    "rotated": ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config = .* is not known"),
    "no groups": ({"config_groups": {}}, "config_groups is missing"),
    "groups of a preset": ({"config_groups": {"W8A8": ["Linear"]}}, "the group 'W8A8' must be an object"),
    "groups without weights": ({"config_groups": {"g": {"targets": ["Linear"]}}}, "no group quantizes weights"),
    "layout": ({"format": "marlin-24"}, r"group_0: format 'marlin-24' is not supported; known: pack-quantized"),
    "dense": ({"format": "dense"}, "format 'dense' is not supported"),
    "bits": (_group(num_bits=6), "num_bits 6 is not supported; known: 4, 8"),
    "strategy": (_group(strategy="tensor_group"), "strategy 'tensor_group' is not supported"),
    "no size": (_group(strategy="group"), "group_size is missing"),
    "size that is a word": (_group(strategy="group", group_size="x"), "group_size must be a positive integer"),
    "no block": (_group(strategy="block"), "block_structure must be two positive integers"),
    "block of letters": (_group(strategy="block", block_structure="axb"), "block_structure must be"),
    "dynamic weights": (_group(dynamic=True), "dynamic = true is not supported"),
    "order of another kind": (_group(actorder="random"), "actorder 'random' is not known"),
    "unknown option": (_group(rank=3), "rank = 3 is not known"),
    "other type": (_group(type="float"), r"weight: its type I8 does not fit; .* must be F8_E4M3"),
    "ignored": ({"ignore": ["Linear"]}, "is quantized, where the config says that its module is not"),
    "slow pattern": ({"ignore": ["re:(.*)*x"]}, "could take forever to match"),
    "bad pattern": ({"ignore": ["re:["]}, "is not a regular expression"),
    "ignored that is a word": ({"ignore": "lm_head"}, "ignore must be a list of names"),
    "status": ({"quantization_status": "calibration"}, "quantization_status 'calibration' is not supported"),
}


@pytest.mark.parametrize(("change", "said"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS)
def test_wrong_configs_are_named(
    change: dict[str, Any], said: str, wholes: dict[str, QuantizedModel], tmp_path: Path
) -> None:
    folder = _copy(wholes["int"], tmp_path)
    change_config(folder, **change)
    with pytest.raises(ModelError, match=said):
        models.load(folder)
