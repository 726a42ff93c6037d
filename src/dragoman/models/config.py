"""A checkpoint's ``config.json``, read with types checked and mistakes named."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.core.errors import ModelError

_LARGEST_FILE_BYTES = 8 << 20  # configs are a few kilobytes; a larger file is something else

# Sizes of which each unit is described by itself: far beyond any model, and still quickly listed.
_MOST = dict.fromkeys(("num_hidden_layers", "n_layer"), 512)
_MOST |= dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads"), 8192)
_MOST_OTHERWISE = 2**31 - 1


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a small file. Raises ModelError naming the file when it is not one."""
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise ModelError(f"{path}: too large for a configuration file")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    return value


@dataclass(frozen=True, slots=True)
class Asked:
    """What the reader of a config has looked for: fields whose values it read, and those that it refuses, each with the
    values that it lets pass."""

    read: set[str] = field(default_factory=set)
    refused: dict[str, tuple[object, ...]] = field(default_factory=dict)


class Config:
    """Typed reading of a config's fields; ``null`` counts as absent.

    Every method raises ModelError naming field and value when it cannot. ``where`` names the file, or a block in it;
    ``asked`` notes what was looked for.
    """

    def __init__(self, values: dict[str, Any], where: str = "config.json", asked: Asked | None = None) -> None:
        self.values = values
        self.where = where
        self.asked = Asked() if asked is None else asked

    def over(self, defaults: dict[str, Any]) -> Config:
        """The same config where a family's defaults stand in for what it does not mention."""
        return Config({**defaults, **self.values}, self.where, self.asked)

    def within(self, key: str) -> Config:
        """The config of a part, such as ``text_config``; what it does not mention is the whole's."""
        return Config({**self.values, **self.block(key)}, self.where, self.asked)

    def value(self, key: str, default: object = None) -> Any:
        """A field of any type, as it stands."""
        return self._value(key, default)

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._value(key, default)
        if value is None:
            raise ModelError(f"{self.where}: {key} is missing")
        most = _MOST.get(key, _MOST_OTHERWISE)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            at_most = f" up to {most:,}" if key in _MOST else ""
            raise ModelError(f"{self.where}: {key} must be a positive integer{at_most}, got {_short(value)}")
        return value

    def number(self, key: str, default: float) -> float:
        """A positive finite number."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise ModelError(f"{self.where}: {key} must be a positive number, got {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {key} must be true or false, got {value!r}")
        return value

    def choice(self, key: str, default: str, meanings: dict[str, Any]) -> Any:
        """The meaning of a named variant."""
        value = self._value(key, default)
        if not isinstance(value, str) or value not in meanings:
            raise ModelError(f"{self.where}: {key} {value!r} is not supported; known: {', '.join(meanings)}")
        return meanings[value]

    def choices(self, key: str, count: int, meanings: dict[str, Any]) -> tuple[Any, ...] | None:
        """The meanings of a list of named variants, one for each layer; None where there is none."""
        names = self._value(key, None)
        if names is None:
            return None
        listed = names if isinstance(names, list) else []
        if len(listed) != count or not all(isinstance(name, str) and name in meanings for name in listed):
            kinds = " or ".join(meanings)
            raise ModelError(f"{self.where}: {key} must name {count} layers, each {kinds}, got {_short(names)}")
        return tuple(meanings[name] for name in listed)

    def block(self, key: str) -> dict[str, Any]:
        """A nested object; absent or ``null`` is empty."""
        value = self._value(key, {}) or {}
        if not isinstance(value, dict):
            raise ModelError(f"{self.where}: {key} must be an object, got {value!r}")
        return value

    def refuse(self, key: str, *harmless: object) -> None:
        """Refuse by name a feature that would change the outputs, unless its value is one that turns it off."""
        self.asked.refused[key] = harmless
        value = self.values.get(key)
        if value is not None and value not in harmless:
            raise ModelError(f"{self.where}: {key} = {_short(value)} is not supported")

    def _value(self, key: str, default: object) -> Any:
        self.asked.read.add(key)
        value = self.values.get(key)
        return default if value is None else value


def token_ids(values: dict[str, Any], key: str) -> tuple[int, ...]:
    """An id, a list of ids, or nothing, as a tuple."""
    value = values.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ModelError(f"{key} must be a token id or a list of them, got {_short(value)}")
    return tuple(ids)


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
