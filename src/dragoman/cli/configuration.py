"""The configuration file: one flat TOML table whose keys are the options' names."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dragoman.core.errors import DragomanError


class Configurable(Protocol):
    """What the file may set: a name's plain type."""

    @property
    def annotation(self) -> Any: ...


def load(path: Path | None, known: Mapping[str, Configurable]) -> dict[str, Any]:
    """The values of the file, checked: those of ``path``, or of the first of the usual places that exists.

    Raises DragomanError that names the file, and the key at fault, when the file cannot be read, is no TOML, has a key
    that is no option, or a value of another type than the option's.
    """
    if path is None:
        path = next((place for place in usual_places() if place.is_file()), None)
        if path is None:
            return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DragomanError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DragomanError(f"{path}: {error}") from None
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; is {near[0]} meant?" if near else ""
            raise DragomanError(f"{path}: {name} is not an option{hint}")
        try:
            msgspec.convert(value, known[name].annotation)
        except msgspec.ValidationError as error:
            raise DragomanError(f"{path}: {name}: {error}") from None
    return values


def usual_places() -> tuple[Path, ...]:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return (Path("dragoman.toml"), Path(home) / "dragoman" / "config.toml")
