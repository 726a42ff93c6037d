"""Reading a request's body as TGI does: errors say where in the text they are, in the words of its decoder."""

from __future__ import annotations

import json
import re
from typing import Any

from dragoman.dialects.api import Exchange, NotJson, WrongMediaType
from dragoman.dialects.field import Reading, Table
from dragoman.dialects.field_types import FieldError, FieldRule, Path
from dragoman.dialects.tgi.errors import ShapeFault
from dragoman.dialects.tgi.serde_errors import reason

SEARCHED_BYTES = 64 * 1024
"""In a longer body the place of an error is not looked for: it would hold up every stream."""

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


async def read(exchange: Exchange, table: Table) -> tuple[Reading, Any]:
    """The body, checked by the table, and as it is. Raises WrongMediaType, PayloadTooLarge, NotJson, ShapeFault."""
    body = await read_json(exchange)
    return await checked(exchange, table, body), body


async def read_json(exchange: Exchange) -> Any:
    """The JSON of the body, which has to say that it is JSON."""
    media = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise WrongMediaType("The content type must be application/json.")
    try:
        return await exchange.read_json()
    except NotJson:
        raise NotJson(syntax_reason(await exchange.read_body())) from None


async def checked(exchange: Exchange, table: Table, body: Any) -> Reading:
    """The body checked by the table."""
    try:
        return await exchange.check(table, body)
    except FieldError as error:
        raise await shape_fault(exchange, error) from None


async def shape_fault(exchange: Exchange, error: FieldError) -> ShapeFault:
    """The whole text about a value that is of the wrong shape."""
    raw = await exchange.read_body()
    where, why = reason(error)
    missing = error.rule in (FieldRule.MISSING, FieldRule.UNKNOWN)
    line, column = place(raw, error.path[:-1] if missing else error.path)
    prefix = f"{where}: " if where else ""
    return ShapeFault(
        f"Failed to deserialize the JSON body into the target type: {prefix}{why} at line {line} column {column}"
    )


def syntax_reason(raw: bytes) -> str:
    """What is wrong with a text that is not JSON, and where."""
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
    """The line, and the column in bytes, of the last byte of the value at ``path`` in a JSON text."""
    end = len(raw.rstrip())
    return _line_and_column(raw, _end_of(raw, path) or end if end <= SEARCHED_BYTES else end)


def _end_of(raw: bytes, path: Path) -> int | None:
    """Where the value at ``path`` ends; None where it is not found. Walks over the text's tokens once."""
    wanted: list[Any] = []
    for part in path:  # a part may be dotted, where a field's name stood for all of them
        wanted += [part] if isinstance(part, int) else part.encode().split(b".")
    at: list[Any] = []  # for each open container the key or index of what is being read
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
