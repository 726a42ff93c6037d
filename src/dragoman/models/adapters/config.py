"""``adapter_config.json`` of the PEFT library; every field is applied or refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dragoman.core.errors import ModelError
from dragoman.models.config import Config, read_json

CONFIG_NAME = "adapter_config.json"
MOST_RANK = 4096
ALL_LINEAR = "all-linear"

# Fields about how the adapter was made and trained, without effect on its computation.
_INERT = frozenset(
    {"auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "lora_dropout", "peft_version",
     "runtime_config", "task_type", "peft_type", "megatron_core", "qalora_group_size", "ensure_weight_tying",
     "eva_config", "init_lora_weights"}
)  # fmt: skip
_APPLIED = frozenset(
    {"r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out", "target_modules",
     "exclude_modules", "layers_to_transform", "layers_pattern", "bias"}
)  # fmt: skip
# Initializations that leave the model's own weights unchanged. The others (PiSSA, OLoRA, LoftQ, CorDA …) subtract the
# adapter's start from them, so that it fits the changed weights only.
_HARMLESS_INIT = (True, False, "gaussian", "eva", "orthogonal", "mica")
_MERGE = "merge it into the model with merge_and_unload() of peft"
_HINTS = {
    "modules_to_save": f"whole modules trained with the adapter; {_MERGE}",
    "init_lora_weights": "such an adapter fits changed weights of the model only; convert it with "
    "path_initial_model_for_weight_conversion of peft",
    "lora_bias": f"biases trained with the adapter; {_MERGE}",
    "bias": f"biases trained with the adapter; {_MERGE}",
    "trainable_token_indices": f"rows of the embedding trained with the adapter; {_MERGE}",
    "target_parameters": f"parameters that are no layers of their own; {_MERGE}",
}


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an adapter's config that decide its arithmetic.

    Attributes:
        rank, alpha: defaults of all modules; the product's factor is alpha / rank, or, with ``rank_stabilized``
            (Kalajdzievski 2023, https://arxiv.org/abs/2312.03732), alpha / sqrt(rank).
        rank_pattern, alpha_pattern: those of modules whose names end in a match of a key; the first key wins.
        dora: the columns of the changed matrices are scaled to learned lengths (https://arxiv.org/abs/2402.09353).
        targets: ends of names, or one pattern for whole names. excluded: the same, for modules to leave out.
        layers: only these, with ``targets`` as ends; None: all. layer_patterns: what precedes the layer numbers.
        base_model: the model it was made for, as the config names it.
    """

    file: Path
    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    rank_stabilized: bool
    dora: bool
    targets: tuple[str, ...] | str
    excluded: tuple[str, ...] | str
    layers: frozenset[int] | None
    layer_patterns: tuple[str, ...]
    base_model: str

    def factor(self, rank: int, alpha: float) -> float:
        """Return the factor of a product of this rank."""
        return alpha / math.sqrt(rank) if self.rank_stabilized else alpha / rank


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read ``adapter_config.json``. Raises ModelError naming file and field."""
    file = folder / CONFIG_NAME
    values = read_json(file)
    try:
        return _read(file, values)
    except ModelError as error:
        raise ModelError(error.message.replace("config.json", str(file), 1)) from None


def _read(file: Path, values: dict[str, Any]) -> AdapterConfig:
    config = Config(values)
    if values.get("peft_type") != "LORA":
        raise ModelError(f"config.json: peft_type {values.get('peft_type')!r} is not supported; known: LORA")
    config.refuse("task_type", "CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION")
    for key, value in values.items():
        is_off = value is None or value is False or value in ({}, [], "")
        if key in _APPLIED or key in _INERT or is_off:
            continue
        raise ModelError(f"config.json: {key} is not supported{_hint(key)}")
    start = values.get("init_lora_weights")
    if start is not None and start not in _HARMLESS_INIT:
        raise ModelError(
            f"config.json: init_lora_weights = {str(start)[:80]!r} is not supported{_hint('init_lora_weights')}"
        )
    if (values.get("bias") or "none") != "none":
        raise ModelError(f"config.json: bias = {str(values['bias'])[:80]!r} is not supported{_hint('bias')}")
    config.flag("fan_in_fan_out", False)  # how the model stores its matrices, which its family defines
    layers = values.get("layers_to_transform")
    return AdapterConfig(
        file=file,
        rank=_rank("r", values.get("r", 8)),
        alpha=_number("lora_alpha", values.get("lora_alpha", 8)),
        rank_pattern={key: _rank("rank_pattern", value) for key, value in config.block("rank_pattern").items()},
        alpha_pattern={key: _number("alpha_pattern", value) for key, value in config.block("alpha_pattern").items()},
        rank_stabilized=config.flag("use_rslora", False),
        dora=config.flag("use_dora", False),
        targets=_names("target_modules", values.get("target_modules")),
        excluded=_names("exclude_modules", values.get("exclude_modules")),
        layers=None if layers is None or layers == [] else _layers(layers),
        layer_patterns=_patterns(values.get("layers_pattern")),
        base_model=str(values.get("base_model_name_or_path") or ""),
    )


def _hint(key: str) -> str:
    return f" ({_HINTS[key]})" if key in _HINTS else ""


def _rank(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST_RANK:
        raise ModelError(f"config.json: {key} must be a rank from 1 to {MOST_RANK}, got {str(value)[:80]!r}")
    return value


def _number(key: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= 1e6:
        raise ModelError(f"config.json: {key} must be a number within a million, got {str(value)[:80]!r}")
    return float(value)


def _names(key: str, value: object) -> tuple[str, ...] | str:
    if value is None:
        return ()
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ModelError(f"config.json: {key} must be a list of names or a pattern")


def _patterns(value: object) -> tuple[str, ...]:
    names = _names("layers_pattern", value)
    return ((names,) if names else ()) if isinstance(names, str) else names


def _layers(value: object) -> frozenset[int]:
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise ModelError("config.json: layers_to_transform must be a layer or a list of layers")
    return frozenset(numbers)
