"""Typed reading of a checkpoint's ``config.json``, with errors that name field and value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dragoman.core.errors import ModelError
from dragoman.core.regular_file import require_regular
from dragoman.core.stand_ins import stand_in_problem

_LARGEST_FILE_BYTES = 8 << 20  # configs are a few kilobytes; a larger file is something else

# Upper limits of counts whose units each get a description: far above any model, and still quick to list.
MOST = dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 512)
MOST |= dict.fromkeys(
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads", "kv_n_heads"), 8192
)
_MOST_OTHERWISE = 2**31 - 1

DECODER_PARTS = ("thinker_config", "text_config", "llm_config")
"""Blocks that have the config of a decoder within that of a whole model; the first may have the second."""

LARGEST_HEAD = 1024
"""Numbers in a head: the limit of the kernels."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small file. Raises ModelError naming the file when it is not one."""
    value = read_value(path)
    if not isinstance(value, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    return value


def read_value(path: Path) -> object:
    """Return the JSON value in a small file. Raises ModelError naming the file where it holds none."""
    require_regular(path, ModelError)
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise ModelError(f"{path}: too large for a configuration file")
        content = path.read_bytes()
        if problem := stand_in_problem(path, content):
            raise ModelError(problem)
        value: object = json.loads(content)
        return value
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not valid JSON: {error}") from None


class AccessedFields(msgspec.Struct, frozen=True):
    """Fields that the reader of a config accessed: those whose values it read, and those that it refuses, each with the
    values that it accepts."""

    read: set[str] = msgspec.field(default_factory=set)
    refused: dict[str, tuple[object, ...]] = msgspec.field(default_factory=dict)


class Config:
    """Typed reading of a config's fields; ``null`` counts as absent.

    Every method raises ModelError naming field and value on a wrong one. ``where`` names the file, or a block in it;
    ``accessed`` collects the fields that were accessed.
    """

    def __init__(
        self, values: dict[str, Any], where: str = "config.json", accessed: AccessedFields | None = None
    ) -> None:
        self.values = values
        self.where = where
        self.accessed = AccessedFields() if accessed is None else accessed

    def over(self, defaults: dict[str, Any]) -> Config:
        """Return the config with a family's defaults for the fields that are absent."""
        return Config({**defaults, **self.values}, self.where, self.accessed)

    def having(self, values: dict[str, Any]) -> Config:
        """Return the config with other values of some fields."""
        return Config({**self.values, **values}, self.where, self.accessed)

    def within(self, key: str) -> Config:
        """Return the config of a part, such as ``text_config``; absent fields are taken from the whole."""
        return Config({**self.values, **self.block(key)}, self.where, self.accessed)

    def value(self, key: str, default: object = None) -> Any:
        """Return a field of any type, unchecked."""
        return self._value(key, default)

    def size(self, key: str, default: int | None = None) -> int:
        """Return a positive integer."""
        value = self._value(key, default)
        if value is None:
            raise ModelError(f"{self.where}: {key} is missing")
        most = MOST.get(key, _MOST_OTHERWISE)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            at_most = f" up to {most:,}" if key in MOST else ""
            raise ModelError(f"{self.where}: {key} must be a positive integer{at_most}, got {_short(value)}")
        return value

    def count(self, key: str, default: int) -> int:
        """Return an integer that may be 0."""
        return 0 if self._value(key, default) == 0 else self.size(key, default)

    def window(self) -> int:
        """Return the window of attention; 0 for ``null`` or an absent field."""
        return 0 if self.value("sliding_window") is None else self.size("sliding_window")

    def number(self, key: str, default: float) -> float:
        """Return a positive finite number."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise ModelError(f"{self.where}: {key} must be a positive number, got {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {key} must be true or false, got {value!r}")
        return value

    def choice(self, key: str, default: str, meanings: Mapping[str, Any]) -> Any:
        """Return the meaning of a named variant."""
        value = self._value(key, default)
        if not isinstance(value, str) or value not in meanings:
            raise ModelError(f"{self.where}: {key} {value!r} is not supported; known: {', '.join(meanings)}")
        return meanings[value]

    def choices(self, key: str, count: int, meanings: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the meanings of a list of named variants, one for each layer; None where the field is absent."""
        names = self._value(key, None)
        if names is None:
            return None
        listed = names if isinstance(names, list) else []
        if len(listed) != count or not all(isinstance(name, str) and name in meanings for name in listed):
            kinds = " or ".join(meanings)
            raise ModelError(f"{self.where}: {key} must name {count} layers, each {kinds}, got {_short(names)}")
        return tuple(meanings[name] for name in listed)

    def switches(self, key: str, count: int) -> tuple[bool, ...] | None:
        """Return a list of 0 and 1, one for each layer; None where the field is absent."""
        value = self._value(key, None)
        if value is None:
            return None
        listed = value if isinstance(value, list) else []
        if len(listed) != count or not all(type(each) is int and each in (0, 1) for each in listed):
            raise ModelError(f"{self.where}: {key} must have {count} numbers, each 0 or 1")
        return tuple(map(bool, listed))

    def block(self, key: str) -> dict[str, Any]:
        """Return a nested object; empty where it is absent or ``null``."""
        value = self._value(key, {}) or {}
        if not isinstance(value, dict):
            raise ModelError(f"{self.where}: {key} must be an object, got {value!r}")
        return value

    def refuse(self, key: str, *harmless: object) -> None:
        """Raise ModelError for a feature that would change the outputs, unless its value is one that turns it off."""
        self.accessed.refused[key] = harmless
        value = self.values.get(key)
        if value is not None and value not in harmless:
            raise ModelError(f"{self.where}: {key} = {_short(value)} is not supported")

    def _value(self, key: str, default: object) -> Any:
        self.accessed.read.add(key)
        value = self.values.get(key)
        return default if value is None else value


def decoder_config(values: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a model's decoder, which may be a part of the whole's."""
    for part in DECODER_PARTS:
        if isinstance(inner := values.get(part), dict):
            return decoder_config(inner)
    return values


def token_ids(values: dict[str, Any], key: str) -> tuple[int, ...]:
    """Return an id, a list of ids, or nothing, as a tuple."""
    value = values.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ModelError(f"{key} must be a token id or a list of them, got {_short(value)}")
    return tuple(ids)


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
