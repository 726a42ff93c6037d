"""JSON of the wrong shape, in the words of TGI's decoder (serde): clients and tests look for them."""

from __future__ import annotations

from typing import Any

from dragoman.dialects.field import Table
from dragoman.dialects.field_types import (
    Boolean,
    FieldError,
    FieldRule,
    FieldType,
    Integer,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Path,
    String,
)

SMALLEST_F32 = 2.0**-149


class Sized(Integer, frozen=True):
    """An integer of one of the original's types."""

    name: str = ""


class Float32(Number, frozen=True):
    """A number as the original's type holds it: one too small for it is 0."""

    def check(self, value: Any, path: Path) -> float:
        number = super().check(value, path)
        return number if abs(number) > SMALLEST_F32 / 2 else 0.0


U32 = Sized(0, 2**32 - 1, name="u32")
U64 = Sized(0, 2**64 - 1, name="u64")
USIZE = Sized(0, 2**64 - 1, name="usize")
I32 = Sized(-(2**31), 2**31 - 1, name="i32")
F32 = Float32(-3.4028234663852886e38, 3.4028234663852886e38)


class Untagged(OneOf, frozen=True):
    """``OneOf`` with the name that the original gives to the choice."""

    name: str = ""


class Custom(FieldError):
    """A value that is wrong for a reason of its own: ``why`` is what the client reads."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(FieldRule.TYPE, path)
        self.why = why


def reason(error: FieldError) -> tuple[str, str]:
    """Where, and why: ``("parameters.seed", "invalid value: integer `-1`, expected u64")``.

    What is missing is missing from the object around it, so the path is that object's.
    """
    path = error.path[:-1] if error.rule in (FieldRule.MISSING, FieldRule.UNKNOWN) else error.path
    return _dotted(path), _why(error)


def _why(error: FieldError) -> str:
    name, value, bound = str(error.path[-1]) if error.path else "", error.value, error.bound
    match error.rule:
        case _ if isinstance(error, Custom):
            return error.why
        case FieldRule.MISSING:
            return f"missing field `{name}`"
        case FieldRule.UNKNOWN:
            return f"unknown field `{name[:64]}`"
        case FieldRule.CHOICE:
            return f"unknown variant `{str(value)[:64]}`, expected {_either(bound)}"
        case FieldRule.SHORT | FieldRule.LONG:
            side = "least" if error.rule is FieldRule.SHORT else "most"
            return f"invalid length {len(value)}, expected at {side} {bound}"
        case FieldRule.DEEP:
            return "recursion limit exceeded"
        case FieldRule.BELOW | FieldRule.ABOVE:
            return f"invalid value: {_given(value)}, expected {expected(error.kind)}"
    if isinstance(error.kind, Untagged):
        return f"data did not match any variant of untagged enum {error.kind.name}"
    return f"invalid type: {_given(value)}, expected {expected(error.kind)}"


def expected(kind: FieldType | None) -> str:
    """The kind by its name in the original's language."""
    match kind:
        case Sized():
            return kind.name
        case Integer():
            return "an integer"
        case Number():
            return "f32"
        case Boolean():
            return "a boolean"
        case String():
            return "a string"
        case ListOf():
            return "a sequence"
        case MapOf():
            return "a map"
        case OneOf():
            return expected(kind.alternatives[-1])
        case Table():
            return f"struct {kind.name}"
    return "another type"


def _given(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean `{'true' if value else 'false'}`"
        case int():
            # Python refuses to print integers of thousands of digits.
            return f"integer `{value}`" if value.bit_length() <= 128 else "number"
        case float():
            return f"floating point `{value}`"
        case str():
            quoted = value if len(value) <= 64 else value[:61] + "..."
            return f'string "{quoted}"'
        case list() | tuple():
            return "sequence"
    return "map"


def _either(choices: tuple[str, ...]) -> str:
    quoted = [f"`{choice}`" for choice in choices]
    if len(quoted) < 3:
        return " or ".join(quoted)
    return f"one of {', '.join(quoted)}"


def _dotted(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:256]
