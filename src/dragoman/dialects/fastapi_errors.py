"""Request errors in FastAPI's format: a list of ``{"loc", "msg", "type"}``, with pydantic's messages."""

from __future__ import annotations

import re
from typing import Any

from dragoman.core.errors import BadRequest
from dragoman.dialects.api import NotJson
from dragoman.dialects.field_types import (
    Boolean,
    FieldError,
    FieldRule,
    FieldType,
    Integer,
    ListOf,
    Number,
    String,
    dotted,
)

_TYPES: tuple[tuple[type, str, str], ...] = (
    (Integer, "integer", "int_type"),
    (Number, "number", "float_type"),
    (Boolean, "boolean", "bool_type"),
    (String, "string", "string_type"),
    (ListOf, "list", "list_type"),
)


def detail(error: BadRequest) -> list[dict[str, Any]]:
    """Return the entry of the error, as a list of one."""
    if isinstance(error, NotJson):
        return [{"loc": ["body"], "msg": error.message, "type": "json_invalid"}]
    if isinstance(error, FieldError):
        msg, kind = _worded(error)
        return [{"loc": ["body", *error.path], "msg": msg, "type": kind}]
    return [{"loc": ["body", *_path(error.param or "")], "msg": error.message, "type": "value_error"}]


def _path(param: str) -> list[str | int]:
    """Return the members and indices of a field's place, ``tools[0].function``."""
    return [int(part[1:]) if part.startswith("[") else part for part in re.findall(r"\[\d+(?=\])|[^.\[\]]+", param)]


def sentence(error: BadRequest) -> str:
    """Return the error in one line, after its location."""
    if not isinstance(error, FieldError):
        return error.message
    name = dotted(error.path)
    return f"{name}: {_worded(error)[0]}" if name else _worded(error)[0]


def _worded(error: FieldError) -> tuple[str, str]:
    """Return message and type for a value that the table does not allow."""
    kind, bound = error.kind, error.bound
    match error.rule:
        case FieldRule.MISSING:
            return "Field required", "missing"
        case FieldRule.UNKNOWN:
            return f"Extra inputs are not permitted: {', '.join(bound)}", "extra_forbidden"
        case FieldRule.CHOICE:
            return f"Input should be {_either([repr(choice) for choice in bound])}", "enum"
        case FieldRule.BELOW if isinstance(kind, Number) and kind.above == bound:
            return f"Input should be greater than {bound:g}", "greater_than"
        case FieldRule.BELOW:
            return f"Input should be greater than or equal to {bound:g}", "greater_than_equal"
        case FieldRule.ABOVE:
            return f"Input should be less than or equal to {bound:g}", "less_than_equal"
        case FieldRule.SHORT | FieldRule.LONG:
            side, word = ("least", "short") if error.rule is FieldRule.SHORT else ("most", "long")
            what = "characters" if isinstance(kind, String) else "items"
            return f"Input should have at {side} {bound} {what}", f"too_{word}"
        case FieldRule.PATTERN:
            return f"String should match pattern '{bound}'", "string_pattern_mismatch"
        case FieldRule.DEEP:
            return f"Input is nested more than {bound} levels deep", "recursion_loop"
        case _:
            return _type_words(kind)


def _type_words(kind: FieldType | None) -> tuple[str, str]:
    for cls, noun, name in _TYPES:
        if isinstance(kind, cls):
            return f"Input should be a valid {noun}", name
    wanted = kind.words() if kind is not None else "of another type"
    return f"Input should be {wanted}", "type_error"


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
