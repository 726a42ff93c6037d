"""The request body as TGI reads it: its types, and errors in the wording of its decoder (serde), with their position.

Clients and tests match this wording.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dragoman.core.errors import BadRequest
from dragoman.dialects.api import NotJson, RequestContext, WrongMediaType
from dragoman.dialects.field import Reading, Table
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

SEARCHED_BYTES = 64 * 1024
"""In a longer body the position of an error is not searched: it would delay every stream."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+')

_SYNTAX = {
    "Expecting value": "expected value",
    "Expecting property name enclosed in double quotes": "key must be a string",
    "Expecting ':' delimiter": "expected `:`",
    "Expecting ',' delimiter": "expected `,` or `}`",
    "Extra data": "trailing characters",
    "Unterminated string starting at": "EOF while parsing a string",
    "Invalid control character at": "control character (\\u0000-\\u001F) found while parsing a string",
    "Invalid \\escape": "invalid escape",
    "Illegal trailing comma before end of object": "trailing comma",
    "Illegal trailing comma before end of array": "trailing comma",
}


class ShapeFault(BadRequest):
    """JSON of the wrong shape: ``message`` is the whole plain text, ``logged`` the same without the client's words."""

    def __init__(self, message: str, *, logged: str) -> None:
        super().__init__(message)
        self.logged = logged


async def read(context: RequestContext, table: Table) -> tuple[Reading, Any]:
    """Return the body checked by the table, and unchanged. Raises WrongMediaType, PayloadTooLarge, NotJson,
    ShapeFault."""
    body = await read_json(context)
    return await checked(context, table, body), body


async def read_json(context: RequestContext) -> Any:
    """Return the JSON of the body, whose content type has to be JSON."""
    media = context.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise WrongMediaType("The content type must be application/json.")
    try:
        return await context.read_json()
    except NotJson:
        raise NotJson(syntax_reason(await context.read_body())) from None


async def checked(context: RequestContext, table: Table, body: Any) -> Reading:
    """Return the body checked by the table."""
    try:
        return await context.check(table, body)
    except FieldError as error:
        raise await shape_fault(context, error) from None


async def shape_fault(context: RequestContext, error: FieldError) -> ShapeFault:
    """Return the whole text about a value that is of the wrong shape."""
    raw = await context.read_body()
    missing = error.rule in (FieldRule.MISSING, FieldRule.UNKNOWN)
    line, column = place(raw, error.path[:-1] if missing else error.path)
    position = f"at line {line} column {column}"
    return ShapeFault(f"{misshapen(error)} {position}", logged=f"{misshapen(without_texts(error))} {position}")


def misshapen(error: FieldError) -> str:
    """Return the text about a value that is of the wrong shape."""
    where, why = reason(error)
    prefix = f"{where}: " if where else ""
    return f"Failed to deserialize the JSON body into the target type: {prefix}{why}"


def without_texts(error: FieldError) -> FieldError:
    """Return the error without texts that the client has written: a value, or the name of a member."""
    if isinstance(error, Custom):
        return error
    hidden = error.path[-1:] if error.rule is FieldRule.UNKNOWN else (error.value,)
    path = tuple("…" if isinstance(part, str) and part in hidden else part for part in error.path)
    is_shown = isinstance(error.value, str) and error.rule not in (FieldRule.SHORT, FieldRule.LONG)
    return FieldError(error.rule, path, "…" if is_shown else error.value, kind=error.kind, bound=error.bound)


def syntax_reason(raw: bytes) -> str:
    """Return why a text is not JSON, and where."""
    try:
        json.loads(raw[:SEARCHED_BYTES], parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        why = _SYNTAX.get(error.msg, error.msg)
        if error.pos >= len(error.doc.rstrip()) and error.msg != "Extra data":
            why = "EOF while parsing a value"
        return f"{why} at line {error.lineno} column {error.colno}"
    except UnicodeDecodeError as error:
        line, column = _line_and_column(raw, error.start)
        return f"invalid unicode code point at line {line} column {column}"
    except RecursionError:
        return "recursion limit exceeded at line 1 column 128"
    except ValueError:
        pass
    return "expected value at line 1 column 1"


def place(raw: bytes, path: Path) -> tuple[int, int]:
    """Return the line, and the column in bytes, of the last byte of the value at ``path`` in a JSON text."""
    end = len(raw.rstrip())
    return _line_and_column(raw, _end_of(raw, path) or end if end <= SEARCHED_BYTES else end)


def _end_of(raw: bytes, path: Path) -> int | None:
    """Return where the value at ``path`` ends; None where it is not found. Walks over the text's tokens once."""
    wanted: list[Any] = []
    for part in path:  # a part may be dotted, where a field's name stood for all of them
        wanted += [part] if isinstance(part, int) else part.encode().split(b".")
    at: list[Any] = []  # for each open container the key or index of the current value
    key: bytes | None = None
    for match in _TOKEN.finditer(raw):
        token = match.group()
        if token in (b"{", b"["):
            at.append(0 if token == b"[" else None)
            continue
        if token == b":":
            at[-1] = key
            continue
        if token == b",":
            at[-1] = at[-1] + 1 if isinstance(at[-1], int) else None
            continue
        if token in (b"}", b"]"):
            at.pop()
        elif at and at[-1] is None:
            key = _unquoted(token)
            continue
        if at == wanted:
            return match.end()
    return None


def _unquoted(token: bytes) -> bytes:
    try:
        return str(json.loads(token)).encode("utf-8", "replace") if b"\\" in token else token[1:-1]
    except ValueError:
        return token


def _line_and_column(raw: bytes, end: int) -> tuple[int, int]:
    before = raw[:end]
    return before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1)


def _no_constant(name: str) -> Any:
    raise ValueError(name)


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
    """A value that is wrong for a specific reason: ``why`` is the text for the client."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(FieldRule.TYPE, path)
        self.why = why


def reason(error: FieldError) -> tuple[str, str]:
    """Return location and reason: ``("parameters.seed", "invalid value: integer `-1`, expected u64")``.

    The path of a missing value is that of the object around it.
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
    """Return the kind by its name in the original's language."""
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
