"""MXFP4: experts of gpt-oss are the numbers that their blocks encode, and products with them are exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import checkpoint_of, make_folder, prompt, run_rows
from transformers_reference import assert_close, load_reference, reference_logits
from variants import Config, family_config

from dragoman import kernels, models
from dragoman.core.errors import ModelError
from dragoman.models import describe
from dragoman.models.parameters import parameters

safetensors = pytest.importorskip("safetensors.numpy")

# Widths of whole blocks.
CONFIG: Config = family_config(
    "GptOssForCausalLM",
    "gpt_oss",
    head_dim=16,
    num_hidden_layers=2,
    intermediate_size=32,
    num_local_experts=3,
    num_experts_per_tok=2,
    sliding_window=20,
    rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
)
METHOD = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}}
INWARD = "model.layers.1.mlp.experts.gate_up_proj"
NUMBERS = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def numbers_of(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """``[..., N, K]``, number by number."""
    table = np.array(NUMBERS + [-n for n in NUMBERS], np.float32)
    pairs = np.stack([table[blocks & 15], table[blocks >> 4]], axis=-1).reshape(*blocks.shape[:-1], 32)
    scaled = np.ldexp(pairs, scales[..., None].astype(np.int32) - 127)
    return scaled.reshape(*blocks.shape[:-2], -1).astype(np.float32)


class Made:
    """The same model twice: its experts in MXFP4, and as the numbers that these encode."""

    def __init__(self, root: Path) -> None:
        self.plain = make_folder(root / "plain", CONFIG, "F32")
        file = self.plain / "model.safetensors"
        tensors = safetensors.load_file(file)
        rng, quantized = np.random.default_rng(5), {}
        self.blocks: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
        for name, value in tensors.items():
            if not name.endswith(("gate_up_proj", "down_proj")):
                quantized[name] = value
                continue
            experts, inputs, outputs = value.shape
            blocks = rng.integers(0, 256, (experts, outputs, inputs // 32, 16)).astype(np.uint8)
            scales = rng.integers(121, 126, (experts, outputs, inputs // 32)).astype(np.uint8)
            self.blocks[name] = (blocks, scales)
            tensors[name] = np.ascontiguousarray(numbers_of(blocks, scales).transpose(0, 2, 1))
            quantized |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        safetensors.save_file(tensors, file, {"format": "pt"})
        self.quantized = root / "quantized"
        self.quantized.mkdir()
        safetensors.save_file(quantized, self.quantized / "model.safetensors")
        config = json.loads((self.plain / "config.json").read_text()) | METHOD
        (self.quantized / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("mxfp4"))


def test_transformers_decodes_blocks_to_the_same_numbers(made: Made) -> None:
    torch = pytest.importorskip("torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    for blocks, scales in made.blocks.values():
        theirs = mxfp4.convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32)
        np.testing.assert_array_equal(theirs.numpy().transpose(0, 2, 1), numbers_of(blocks, scales))


def test_float32_equals_transformers_on_the_decoded_numbers(made: Made) -> None:
    settings = models.ModelSettings(precision="float32", max_tokens=64, max_logit_rows=64)
    ids = prompt(131, length=40)
    ours = run_rows(models.load(made.quantized, settings), ids)
    assert_close(ours, reference_logits(load_reference(made.plain), ids), 1e-4)
    assert (ours == run_rows(models.load(made.plain, settings), ids)).all()


def test_experts_are_packed_without_a_rounding(made: Made) -> None:
    described = describe(made.quantized)
    assert described.quantized_as == "mxfp4, 4 bits, groups of 32"
    model = models.load(made.quantized, models.ModelSettings(max_tokens=64, max_logit_rows=64))
    exact = checkpoint_of(made.plain)
    experts = [p for p in parameters(exact.spec) if p.matrix and p.expert is not None]
    assert len(experts) == 2 * 2 * 3
    for parameter in experts:
        matrix = model.weights[parameter.name]
        assert isinstance(matrix, kernels.PackedMatrix)
        assert matrix.precision == "mxfp4"
        assert (
            matrix.nbytes == kernels.packed_bytes(*matrix.shape, "mxfp4") < kernels.packed_bytes(*matrix.shape, "int8")
        )
        np.testing.assert_array_equal(matrix.dequantize(), exact.read(parameter))


def test_requested_int8_keeps_experts_in_mxfp4(made: Made) -> None:
    """It is for what the file has in floats."""
    model = models.load(made.quantized, models.ModelSettings(max_tokens=64, max_logit_rows=64, precision="int8"))
    exact = checkpoint_of(made.plain)
    for parameter in parameters(exact.spec):
        if parameter.matrix and parameter.module != "router":
            matrix = model.weights[parameter.name]
            assert matrix.precision == ("int8" if parameter.expert is None else "mxfp4"), parameter.name
            if parameter.expert is not None:
                np.testing.assert_array_equal(matrix.dequantize(), exact.read(parameter))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("model.layers.0.mlp.experts.down_proj_scales"), "has no .*down_proj_scales beside it"),
        (lambda t: t["model.layers.0.mlp.experts.down_proj_scales"].fill(255), "not finite"),
        (lambda t: t.update({f"{INWARD}_blocks": np.zeros((3, 64, 2, 8), np.uint8)}), "blocks of 32"),
        (lambda t: t.update({f"{INWARD}_scales": np.zeros((3, 64, 1), np.uint8)}), "would fit"),
        (lambda t: t.update({f"{INWARD}_scales": np.zeros((3, 64, 2), np.int8)}), "must be U8"),
    ],
)
def test_damaged_pieces_are_an_error_by_name(made: Made, tmp_path: Path, change: Any, said: str) -> None:
    stored = safetensors.load_file(made.quantized / "model.safetensors")
    tensors = {name: value.copy() for name, value in stored.items()}
    change(tensors)
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((made.quantized / "config.json").read_text())
    with pytest.raises(ModelError, match=said):
        models.load(tmp_path, models.ModelSettings(max_tokens=64, max_logit_rows=64))


def test_unknown_options_are_refused(made: Made, tmp_path: Path) -> None:
    config = json.loads((made.quantized / "config.json").read_text())
    config["quantization_config"]["block"] = 16
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(made.quantized / "model.safetensors")
    with pytest.raises(ModelError, match="block = 16 is not known"):
        describe(tmp_path)
