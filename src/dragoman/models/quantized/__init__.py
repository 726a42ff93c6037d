"""Quantized safetensors: schemes that decode stored integers or small floating-point numbers to a model's weights.

A scheme is chosen by the config, and joins the pieces in which a matrix is stored (integers, scales, zero points, an
order of inputs) into one tensor under the matrix's own name. Later stages see a checkpoint like any other, whose
tensors have a specific packed format. ``docs/quantized.md`` describes what is exact.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import ModelError
from dragoman.models.config import read_json
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import TensorFiles

if TYPE_CHECKING:
    from dragoman.models.quantized.scheme import Scheme

__all__ = ["CONFIG_FILES", "SCHEMES", "find_scheme", "join_quantized"]

SCHEMES = {
    "gptq": "gptq",
    "awq": "awq",
    "compressed-tensors": "compressed_tensors",
    "bitsandbytes": "bitsandbytes",
    "bitnet": "bitnet",
    "mxfp4": "mxfp4",
    "fp8": "float8",
    "fbgemm_fp8": "float8",
    "modelopt": "modelopt",
}
"""By ``quant_method``: the module, imported for a model that needs it, whose ``read_`` with its name reads options."""

CONFIG_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""Files that older repositories have in place of an entry in ``config.json``, and the method that each means."""

_CONFIG_KEYS = {"quantization_config": None, "compression_config": "compressed-tensors"}


def find_scheme(folder: Path, config: Mapping[str, Any]) -> Scheme | None:
    """Return the scheme of a model, from its config or a file next to it; None where its weights are not quantized.

    Raises ModelError on an unknown method, naming it and the known ones, and on unknown options.
    """
    for key, method in _CONFIG_KEYS.items():
        values = config.get(key)
        if values is not None and not isinstance(values, dict):
            raise ModelError(f"config.json: {key} must be an object, got {str(values)[:80]}")
        if values:
            return _read(values, f"config.json: {key}", method)
    _refuse_mlx(config.get("quantization"), "config.json: quantization")
    for name, method in CONFIG_FILES.items():
        if (folder / name).is_file():
            return _read(read_json(folder / name), name, method)
    return None


def join_quantized(files: TensorFiles, scheme: Scheme) -> TensorFiles:
    """Return weight files whose quantized matrices are one tensor each. Raises ModelError where they do not fit the
    scheme."""
    stored = {name: tensor for name, tensor in files.tensors.items() if isinstance(tensor, StoredTensor)}
    upright = getattr(scheme, "upright", False)  # as a scheme's own matrices are, where a family's are not
    return TensorFiles(scheme.join(stored), files.files, files.where, upright)


def _refuse_mlx(values: object, where: str) -> None:
    """Raise ModelError for the options of MLX, which names no method."""
    if isinstance(values, dict) and {"group_size", "bits"} <= values.keys():
        raise ModelError(
            f"{where}: weights that MLX quantized are not supported; take the model that they were made of, or one in "
            "GGUF"
        )


def _read(values: dict[str, Any], where: str, default: str | None) -> Scheme:
    old = "bitsandbytes" if "load_in_8bit" in values or "load_in_4bit" in values else default
    method = values.get("quant_method") or old
    if method is None:
        _refuse_mlx(values, where)
    if not isinstance(method, str) or method not in SCHEMES:
        raise ModelError(f"{where}: the method {method!r} is not supported; known: {', '.join(SCHEMES)}")
    from dragoman.models.quantized.scheme import Options

    reader = importlib.import_module(f"{__name__}.{SCHEMES[method]}")
    scheme: Scheme = getattr(reader, f"read_{SCHEMES[method]}")(Options({**values, "quant_method": method}, where))
    return scheme
