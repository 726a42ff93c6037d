"""Pooling of a model: which one its files name, and the layers that a pooled vector passes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.core.pooling import POOLING_KINDS, PoolingInfo, PoolingKind
from dragoman.models.config import read_json, read_value
from dragoman.models.safetensors_file import read_safetensors
from dragoman.models.tensors import TensorFiles, to_float32

if TYPE_CHECKING:
    from dragoman.models.positions import Float32

FILES = ("modules.json", "[0-9]_Pooling/config.json", "[0-9]_Dense/config.json", "[0-9]_Dense/model.safetensors")
"""Files of a repository that describe its pooling, as sentence-transformers writes them."""

HeadActivation = Literal["identity", "tanh", "gelu", "relu"]
_ACTIVATIONS: dict[str, HeadActivation] = {"Identity": "identity", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu"}

_MODES: dict[str, PoolingKind] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
_BEFORE = {
    "Transformer": ("",),
    "Pooling": ("Transformer",),
    "Dense": ("Pooling", "Dense"),
    "Normalize": ("Pooling", "Dense"),
}
"""What each module comes after: the layers are those of one vector, which is normed last."""
_OTHER_MODES = ("pooling_mode_mean_sqrt_len_tokens",)
_NAMES: dict[str, PoolingKind] = {"lasttoken": "last", "weightedmean": "weighted_mean"}

POOLED_LAYERS = "pooled_layers"
"""Field of the config of a GGUF file's model: matrices that a pooled vector passes, and the widths of their results."""

RERANKER = "answers_yes_or_no"
"""Field of the config of a GGUF file's model: it is such a decoder as ``RERANKERS`` names."""

CLS_MODELS = re.compile(r"(^|[/_-])(bge|gte|arctic|snowflake)([-_]|$)", re.IGNORECASE)
"""Names of encoders that are trained to have a text's vector at its first token."""

RERANKERS = re.compile(r"qwen3[-_]reranker", re.IGNORECASE)
"""Names of decoders that answer with yes or no whether a document fits a query."""


class HeadLayer(msgspec.Struct, frozen=True):
    """One layer that a pooled vector passes: activation(norm(weight · x + bias)).

    Attributes:
        weight, bias, norm: names of its tensors; None: it has none. eps: of the norm.
    """

    weight: str | None
    bias: str | None = None
    activation: HeadActivation = "identity"
    norm: str | None = None
    eps: float = 1e-5


class PooledHead(msgspec.Struct, frozen=True):
    """What a classifier has after the pooling: the layers before its logits are of the checkpoint's own tensors.

    ``kind_field``: of the config, which may name another kind.
    """

    kind: PoolingKind
    layers: tuple[HeadLayer, ...]
    kind_field: str = ""


class Dense(msgspec.Struct, frozen=True):
    """A layer of sentence-transformers after the pooling, in a folder of its own."""

    folder: Path
    width: int
    activation: HeadActivation


class PoolingFiles(msgspec.Struct, frozen=True):
    """What a folder says of its pooling. ``kind`` None: nothing."""

    kind: PoolingKind | None = None
    dense: tuple[Dense, ...] = ()


class PoolingPlan(msgspec.Struct, frozen=True):
    """A model's pooling before its weights are read: ``head`` is of the checkpoint's tensors, ``dense`` follows it."""

    info: PoolingInfo
    head: tuple[HeadLayer, ...] = ()
    dense: tuple[Dense, ...] = ()


def plan_pooling(
    folder: Path, name: str, config: Mapping[str, object], *, width: int, causal: bool, head: PooledHead | None
) -> PoolingPlan | None:
    """Return a model's pooling: a classifier's own, else that of the folder's files, else its kind of model's.

    None: a decoder whose files ask for what is not supported: it generates only. ``name``: of the source. ``width``: of
    the hidden states. Raises ModelError for an encoder whose files ask for that.
    """
    if head is not None:
        labels = _labels(config)
        pairs: Literal["segments"] | None = "segments" if labels == 1 else None
        kind = config.get(head.kind_field) or head.kind
        if kind not in ("cls", "mean"):
            raise ModelError(f"config.json: {head.kind_field} {kind!r} is not supported; known: cls, mean")
        return PoolingPlan(PoolingInfo(kind=kind, width=labels, scores=True, pairs=pairs), head.layers)
    if causal and (config.get(RERANKER) is True or RERANKERS.search(name)):
        return PoolingPlan(PoolingInfo(kind="last", width=width, pairs="template"))
    try:
        files = read_pooling(folder)
    except ModelError:
        if causal:
            return None
        raise
    head_layers, head_width = _pooled_layers(config)
    default: PoolingKind = "last" if causal else "cls" if CLS_MODELS.search(name) else "mean"
    dense_width = files.dense[-1].width if files.dense else head_width or width
    return PoolingPlan(PoolingInfo(kind=files.kind or default, width=dense_width), head_layers, files.dense)


def _pooled_layers(config: Mapping[str, object]) -> tuple[tuple[HeadLayer, ...], int]:
    """Return the layers of the checkpoint that a pooled vector passes, and the width of the last one's result."""
    named = config.get(POOLED_LAYERS)
    if not isinstance(named, dict) or not all(isinstance(width, int) for width in named.values()):
        return (), 0
    return tuple(HeadLayer(str(name)) for name in named), next(reversed(named.values()), 0)


def _labels(config: Mapping[str, object]) -> int:
    named = config.get("id2label")
    labels = len(named) if isinstance(named, dict) else config.get("num_labels", 2)
    if not isinstance(labels, int) or not 0 < labels <= 1 << 16:
        raise ModelError(f"config.json: num_labels must be a positive integer, got {labels!r}")
    return labels


def read_pooling(folder: Path) -> PoolingFiles:
    """Return what ``modules.json`` and the folders that it names say. Raises ModelError for what is not supported."""
    if not (folder / "modules.json").is_file():
        return PoolingFiles()
    kind: PoolingKind | None = None
    dense: list[Dense] = []
    before = ""
    for module in _modules(folder):
        name, path = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        if before not in _BEFORE.get(name, (before,)):
            raise ModelError(f"{folder}/modules.json: {name} after {before or 'nothing'} is not supported")
        before = name
        if name in ("Transformer", "Normalize"):
            continue
        if not re.fullmatch(r"\w{1,64}", path):
            raise ModelError(f"{folder}/modules.json: the module {name!r} has no folder of its own")
        values = read_json(folder / path / "config.json")
        if name == "Pooling":
            kind = _pooling_kind(folder / path, values)
        elif name == "Dense":
            dense.append(_dense(folder / path, values))
        else:
            raise ModelError(f"{folder}/modules.json: modules of type {name!r} are not supported")
    return PoolingFiles(kind, tuple(dense))


def _modules(folder: Path) -> list[dict[str, Any]]:
    found = read_value(folder / "modules.json")
    if not isinstance(found, list) or not all(isinstance(module, dict) for module in found):
        raise ModelError(f"{folder}/modules.json must be a list of modules")
    return found


def _pooling_kind(folder: Path, values: Mapping[str, object]) -> PoolingKind:
    named = values.get("pooling_mode")
    if isinstance(named, str):
        kind = _NAMES.get(named, named)
        if kind not in POOLING_KINDS:
            raise ModelError(f"{folder}: the pooling {named!r} is not supported; known: {', '.join(POOLING_KINDS)}")
        return kind
    modes = [key for key in (*_MODES, *_OTHER_MODES) if values.get(key) is True]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise ModelError(f"{folder}: one of {', '.join(_MODES)} must be true, and these are: {', '.join(modes) or '-'}")
    return _MODES[modes[0]]


def _dense(folder: Path, values: Mapping[str, object]) -> Dense:
    width, name = values.get("out_features"), str(values.get("activation_function", "")).rpartition(".")[2]
    if not isinstance(width, int) or width < 1 or name not in _ACTIVATIONS:
        raise ModelError(f"{folder}: a dense layer of {width!r} numbers with the activation {name!r} is not supported")
    return Dense(folder, width, _ACTIVATIONS[name])


class ModelPooling:
    """The layers that a pooled vector of one model passes, in float32.

    ``width``: of the hidden states; ``tensors``: of the checkpoint. Raises ModelError where a tensor is missing, or
    does not fit.
    """

    def __init__(self, plan: PoolingPlan, width: int, tensors: TensorFiles) -> None:
        found = [(layer, tensors) for layer in plan.head]
        for dense in plan.dense:
            files = read_safetensors(dense.folder, ["model.safetensors"])
            bias = "linear.bias" if "linear.bias" in files.tensors else None
            found.append((HeadLayer("linear.weight", bias, dense.activation), files))
        self._layers: list[_Layer] = []
        for layer, files in found:
            self._layers.append(_Layer(layer, files, width))
            width = self._layers[-1].width
        if width != plan.info.width:
            message = f"its vectors have {width} numbers, where the config asks for {plan.info.width}"
            raise ModelError(f"{tensors.where}: {message}")

    def project(self, vector: Float32) -> Float32:
        """Return the vector after all layers. Sums are of one fixed order."""
        for layer in self._layers:
            vector = layer(vector)
        return vector


class _Layer:
    """A layer with its tensors. ``width``: numbers in its result."""

    def __init__(self, layer: HeadLayer, tensors: TensorFiles, width: int) -> None:
        def read(name: str | None) -> Float32 | None:
            if name is None:
                return None
            if name not in tensors.tensors:
                raise ModelError(f"{tensors.where}: tensor {name} is missing")
            return to_float32(tensors.tensors[name].read())

        self._layer = layer
        self._weight, self._bias, self._norm = read(layer.weight), read(layer.bias), read(layer.norm)
        if self._weight is not None and (self._weight.ndim != 2 or width != self._weight.shape[1]):
            raise ModelError(f"{tensors.where}: {layer.weight} does not fit a vector of {width} numbers")
        self.width = len(self._weight) if self._weight is not None else width
        for name, vector in ((layer.bias, self._bias), (layer.norm, self._norm)):
            if vector is not None and vector.shape != (self.width,):
                raise ModelError(f"{tensors.where}: {name} does not fit a vector of {self.width} numbers")

    def __call__(self, x: Float32) -> Float32:
        if self._weight is not None:
            x = (self._weight * x).sum(axis=1, dtype=np.float32)
        if self._bias is not None:
            x = x + self._bias
        x = _activate(x, self._layer.activation)
        if self._norm is not None:
            centred = x - x.mean(dtype=np.float64)
            deviation = np.sqrt(np.square(centred).mean(dtype=np.float64) + self._layer.eps)
            x = (centred / deviation * self._norm).astype(np.float32)
        return x


def _activate(x: Float32, activation: HeadActivation) -> Float32:
    match activation:
        case "tanh":
            return np.tanh(x)
        case "relu":
            return np.maximum(x, np.float32(0))
        case "gelu":
            erf = np.array([math.erf(value / math.sqrt(2)) for value in x.tolist()])
            value: Float32 = (x * (1 + erf) / 2).astype(np.float32)
            return value
        case _:
            return x
