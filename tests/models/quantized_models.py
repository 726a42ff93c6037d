"""Small models in every quantized scheme, written from the formats' definitions, beside the numbers they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import VARIANTS, checkpoint_of, maker_of, prompt, run_rows
from transformers_reference import assert_close, load_reference, reference_logits

from dragoman import models
from dragoman.models.model import Model
from dragoman.models.parameters import parameters
from dragoman.models.settings import RequestedPrecision
from dragoman.models.tensors import Format, to_float32

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

Array = NDArray[Any]
Pieces = dict[str, Any]
"""Tensors of torch by what follows the module's name."""

CONFIG = VARIANTS["llama"] | {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class QuantizedModel:
    """``folder`` is written in the scheme; ``plain`` holds the very numbers that it stands for, in float32."""

    folder: Path
    plain: Path

    def load(self, precision: RequestedPrecision = "auto") -> Model:
        """As the server loads it."""
        settings = models.ModelSettings(precision=precision, max_tokens=256, max_logit_rows=256, max_sequences=1)
        return models.load(self.folder, settings)

    def errors(self, precision: RequestedPrecision = "auto") -> dict[str, float]:
        """For each quantized matrix, packed: the root of the mean square error over that of the numbers."""
        model, exact = self.load(precision), checkpoint_of(self.plain)
        found = {}
        for parameter in parameters(exact.spec):
            if parameter.matrix and parameter.module not in ("embedding", "head"):
                packed = model.weights.matrix(parameter.module, parameter.layer)
                numbers = to_float32(exact.read(parameter))
                found[parameter.name] = float(
                    np.sqrt(np.mean((packed.dequantize() - numbers) ** 2) / np.mean(numbers**2))
                )
        return found

    def forms(self) -> set[Format]:
        """The formats of the quantized matrices under auto."""
        return {form for name, form in checkpoint_of(self.folder).formats.items() if name.startswith("layers.")}

    def assert_float32_logits_equal_transformers(self) -> None:
        """On the dequantized numbers, that is."""
        ids = prompt(CONFIG["vocab_size"])
        assert_close(run_rows(self.load("float32"), ids), reference_logits(load_reference(self.plain), ids), 1e-4)


Packer = Callable[[str, Array], tuple[Pieces, Array]]
"""From a module's name and its weight to what is stored, and the numbers that this stands for."""


def write_model(
    root: Path, packer: Packer, quantization: Mapping[str, Any], config: Mapping[str, Any] = CONFIG, **files: Any
) -> QuantizedModel:
    """Quantize all matrices of a random model's layers, and its head where the options have ``lm_head``.

    ``files``: where the options stand, if not in the config.
    """
    plain, folder = root / "plain", root / "quantized"
    maker_of(config)(plain, dict(config), dtype="F32", seed=1, std=0.15)
    folder.mkdir()
    tensors = safetensors_torch.load_file(plain / WEIGHTS)
    stored: Pieces = {}
    for name, tensor in sorted(tensors.items()):
        module = name.removesuffix(".weight")
        if not module.endswith("_proj") and not (module == "lm_head" and quantization.get("lm_head")):
            stored[name] = tensor if "norm" in name else tensor.half()
            tensors[name] = stored[name].float()
            continue
        pieces, numbers = packer(module, tensor.numpy())
        stored |= {f"{module}.{piece}": value for piece, value in pieces.items()}
        tensors[name] = torch.from_numpy(np.ascontiguousarray(numbers, np.float32))
    safetensors_torch.save_file({n: t.clone().contiguous() for n, t in stored.items()}, folder / WEIGHTS)
    safetensors_torch.save_file(tensors, plain / WEIGHTS)
    written = json.loads((plain / "config.json").read_text()) | {"torch_dtype": "float16"}
    (folder / "config.json").write_text(
        json.dumps(written if files else written | {"quantization_config": dict(quantization)})
    )
    for name in files:
        (folder / f"{name}.json").write_text(json.dumps(dict(quantization)))
    return QuantizedModel(folder, plain)


def change_tensors(folder: Path, change: Callable[[Pieces], object]) -> None:
    """Rewrite the weights of a model."""
    tensors = safetensors_torch.load_file(folder / WEIGHTS)
    change(tensors)
    safetensors_torch.save_file({n: t.contiguous() for n, t in tensors.items()}, folder / WEIGHTS)


def change_config(folder: Path, **changes: Any) -> None:
    """Change fields of the quantization's config."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))


def pack_words(codes: Array, bits: int) -> Array:
    """Rows of unsigned integers as int32 words: one stream of bits, the lowest first."""
    rows = codes.shape[0]
    stream = (codes[..., None].astype(np.int64) >> np.arange(bits) & 1).astype(np.uint8).reshape(rows, -1)
    padded = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    return np.packbits(padded, axis=1, bitorder="little").view("<i4")


def quantize_groups(
    weight: Array, of_input: Array, bits: int, symmetric: bool, dtype: Any = np.float16
) -> tuple[Array, Array, Array]:
    """Unsigned integers ``[N, K]``, scales ``[N, G]`` (float32 that ``dtype`` holds) and zero points ``[N, G]``."""
    top, groups = 2**bits - 1, int(of_input.max()) + 1
    scales = np.empty((len(weight), groups), np.float32)
    zeros = np.empty((len(weight), groups), np.int64)
    for group in range(groups):
        part = weight[:, of_input == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            low, high = -np.maximum(-low, high), np.maximum(-low, high)
        scale = ((high - low) / top).astype(dtype).astype(np.float32)
        scales[:, group] = scale
        zeros[:, group] = 2 ** (bits - 1) if symmetric else np.clip(np.rint(-low / scale), 0, top)
    codes = np.clip(np.rint(weight / scales[:, of_input]) + zeros[:, of_input], 0, top).astype(np.int64)
    return codes, scales, zeros
