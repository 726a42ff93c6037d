"""Checkpoints of NVIDIA's Model Optimizer (``modelopt``), whose options are in ``config.json`` or in
``hf_quant_config.json``: FP8, whose matrices are those of ``float8``, NVFP4, and both in one model."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import msgspec

from dragoman.core.errors import ModelError
from dragoman.models.quantized.float8 import FLOAT8, FLOAT8_FORM, Float8, float8_matrix
from dragoman.models.quantized.module_names import in_layers, is_kept
from dragoman.models.quantized.nvfp4 import NVFP4_FORM, NVFP4_GROUP, nvfp4_matrix
from dragoman.models.quantized.scheme import Options, Pieces, find_pieces, replace_pieces
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import Format, Tensor

_DECISIVE = frozenset(
    {"quant_method", "quant_algo", "ignore", "exclude_modules", "kv_cache_quant_algo", "group_size", "quantized_layers"}
)
_HARMLESS = frozenset({"kv_cache_scheme", "config_groups", "producer", "quantization"})
_FLOAT8 = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")
_NVFP4 = ("NVFP4", "W4A16_NVFP4")
_MIXED = "MIXED_PRECISION"
_PIECES = ("weight_scale", "weight_scale_2", "pre_quant_scale", "input_scale", "k_scale", "v_scale", "output_scale")
_CACHE_SCALES = (".k_scale", ".v_scale", ".k_proj.output_scale", ".v_proj.output_scale")


class ModelOpt(msgspec.Struct, frozen=True):
    """``algorithms``: by the names of modules, each also for those inside of it; empty: NVFP4 for all that are not
    ``kept``. What of a module is stored decides."""

    algorithms: Mapping[str, str]
    kept: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The method, and its bits."""
        kinds = sorted({"8" if each in _FLOAT8 else "4" for each in self.algorithms.values()}) or ["4"]
        return f"modelopt, {' and '.join(kinds)} bits, floating"

    def form(self, module: str) -> Format | None:
        """Return the format of a module's matrix by the config."""
        if is_kept(module, self.kept) or any(fnmatch.fnmatchcase(module, name) for name in self.kept):
            return None
        if not self.algorithms:
            return NVFP4_FORM if in_layers(module) or module == "lm_head" else None
        parts = module.split(".")
        names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        found = next((self.algorithms[name] for name in names if name in self.algorithms), None)
        return None if found is None else FLOAT8_FORM if found in _FLOAT8 else NVFP4_FORM

    def join(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Tensor]:
        """Return the tensors with each quantized ``weight`` and its scales as one matrix; scales of activations are
        left out."""
        modules = {
            module: pieces
            for module, pieces in find_pieces(stored, "weight", _PIECES).items()
            if pieces.stored["weight"].dtype in (*FLOAT8, "U8") or "weight_scale" in pieces.stored
        }
        tensors = replace_pieces(stored, modules, [self._matrix(pieces) for pieces in modules.values()])
        for name, tensor in stored.items():
            if name in tensors and tensors[name] is tensor and tensor.dtype in (*FLOAT8, "U8"):
                raise tensor.fail("is quantized under another name than weight, as stacked experts are; not supported")
        return {name: tensor for name, tensor in tensors.items() if not name.endswith(_CACHE_SCALES)}

    def _matrix(self, pieces: Pieces) -> Tensor:
        weight = pieces.piece("weight", (*FLOAT8, "U8"))
        if is_kept(pieces.module, self.kept):
            raise weight.fail("is quantized, where the config says that its module is not")
        if "pre_quant_scale" in pieces.stored:
            raise pieces.stored["pre_quant_scale"].fail("scales of inputs (AWQ) are not supported")
        if weight.dtype == "U8":
            return nvfp4_matrix(pieces, "weight", "weight_scale_2", divides=False)
        return float8_matrix(pieces, weight, pieces.piece("weight_scale"), None)


def read_modelopt(options: Options) -> Float8 | ModelOpt:
    """Return the scheme of a ``quantization_config``, or of the file that older repositories have beside it."""
    options.refuse_unknown(_DECISIVE, _HARMLESS)
    inner = options
    if block := options.block("quantization"):
        inner = Options(block, f"{options.where}: quantization")
        inner.refuse_unknown(_DECISIVE, ())
    algorithm = inner.one_of("quant_algo", None, (*_FLOAT8, *_NVFP4, _MIXED))
    notes = ["the activations' own format is not used: products take them as the precision says"]
    if inner.values.get("kv_cache_quant_algo") or inner.values.get("kv_cache_scheme"):
        notes.append("the cache's own format is not used: keys and values are kept in the server's own precision")
    kept = (*inner.names("ignore"), *inner.names("exclude_modules"))
    layers = _read_layers(inner) if algorithm == _MIXED else {}
    if algorithm in _FLOAT8:
        if inner.values.get("group_size") is not None:
            raise ModelError(f"{inner.where}: group_size is not known for {algorithm}")
        return Float8("modelopt", None, kept, tuple(notes))
    inner.one_of("group_size", NVFP4_GROUP, (NVFP4_GROUP,) if algorithm in _NVFP4 else (None, NVFP4_GROUP))
    return ModelOpt(layers, kept, tuple(notes))


def _read_layers(options: Options) -> dict[str, str]:
    """Return the algorithms of a model that has several, by the names of modules."""
    layers = options.block("quantized_layers")
    if not layers:
        raise ModelError(f"{options.where}: quantized_layers is missing")
    found: dict[str, str] = {}
    for name, values in layers.items():
        if not isinstance(values, dict):
            raise ModelError(f"{options.where}: quantized_layers: {name[:80]!r} must be an object")
        own = Options(values, f"{options.where}: quantized_layers: {name[:80]}")
        own.refuse_unknown(frozenset({"quant_algo", "group_size"}), ())
        found[name] = str(own.one_of("quant_algo", None, (*_FLOAT8, *_NVFP4)))
        own.one_of("group_size", None, (None, NVFP4_GROUP) if found[name] in _NVFP4 else (None,))
    return found
