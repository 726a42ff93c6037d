"""What is set outside the command line: the configuration file (one flat TOML table) and the environment."""

from __future__ import annotations

import difflib
import os
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dragoman.core.errors import DragomanError


class Configurable(Protocol):
    """What may be set: a name's plain type, and its environment variable."""

    @property
    def annotation(self) -> Any: ...

    @property
    def variable(self) -> str: ...


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


def from_environment(known: Mapping[str, Configurable]) -> dict[str, Any]:
    """The values of the options' variables; an empty variable counts as none.

    Several values are separated by spaces. Raises DragomanError naming the variable whose value is of another type.
    """
    found = {name: os.environ.get(option.variable, "") for name, option in known.items()}
    return from_texts({name: text for name, text in found.items() if text}, known, by_variable=True)


def from_texts(
    texts: Mapping[str, str], known: Mapping[str, Configurable], *, by_variable: bool = False
) -> dict[str, Any]:
    """The values that texts stand for, by option. Raises DragomanError as ``from_environment`` does."""
    values: dict[str, Any] = {}
    for name, text in texts.items():
        option = known[name]
        several = typing.get_origin(option.annotation) is tuple
        try:
            values[name] = msgspec.convert(text.split() if several else text, option.annotation, strict=False)
        except msgspec.ValidationError as error:
            variable = option.variable if by_variable else name.upper()
            raise DragomanError(f"{variable}: {error}, got {text!r}") from None
    return values


def usual_places() -> tuple[Path, ...]:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return (Path("dragoman.toml"), Path(home) / "dragoman" / "config.toml")
