"""From a text of the command line to a value, without waiting for a library.

Typer converts with pydantic, which takes 80 ms to be imported. Here is what plain values of plain types become; what
is not plain, and so all that may be wrong, is left to typer, in whose words a user is then told.
"""

from __future__ import annotations

import os
import re
import typing
from pathlib import Path
from typing import Any

_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{1,18})?", re.ASCII)


def hasten(parameter: Any) -> None:
    """Let a parameter of typer's convert what is plain by itself. A typer that converts otherwise is left alone."""
    if hasattr(parameter, "get_runtime_param") and getattr(parameter, "_runtime_param", "") is None:
        parameter._runtime_param = _Conversion()


class _Conversion:
    """In the place of typer's conversion of one parameter, until there is something for that to do."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """As typer's."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        try:
            return plain(value, param.type_descriptor.annotation)
        except ValueError:
            param._runtime_param = None
            return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def plain(value: Any, annotation: Any) -> Any:
    """What typer makes of the value, too. Raises ValueError for all that would have to be looked at closely."""
    if typing.get_origin(annotation) is list and isinstance(value, tuple | list):
        return [plain(each, typing.get_args(annotation)[0]) for each in value]
    if typing.get_origin(annotation) is typing.Literal:
        if isinstance(value, str) and value in typing.get_args(annotation):
            return value
    elif annotation in (str, int, float, bool) and type(value) is annotation:
        return value
    elif annotation is int and isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    elif annotation is float and isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    elif annotation is Path and isinstance(value, str | Path) and (os.access(value, os.R_OK) or not _is_there(value)):
        return Path(value)
    raise ValueError(value)


def _is_there(path: str | Path) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True
