"""Custom tools: the model is shown a function with one text, and a call of it becomes that text again."""

from __future__ import annotations

import json
import re
from typing import Any

from dragoman.dialects.field_types import Anything, FieldError, FieldRule, Path, String, dotted, member_of

INPUT = "input"
"""The one argument of a custom tool, as the model is shown it."""

OBJECT, TEXT = Anything(object_only=True, depth=32), String(maximum=65_536)


def input_schema(text: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a custom tool's arguments. ``text``: the schema of its input."""
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def custom_format(tool: dict[str, Any], path: Path) -> tuple[dict[str, Any], str, list[str]]:
    """Return the schema of a custom tool's input, what is added to its description, and the places of what has no
    effect. Raises FieldError."""
    at: Path = (*path, "format")
    given = member_of(tool, "format", OBJECT, path)
    kind = "text" if given is None else member_of(given, "type", String(), at, required=True)
    if kind == "text" or given is None:
        return {"type": "string"}, "", []
    if kind != "grammar":
        raise FieldError(FieldRule.CHOICE, (*at, "type"), kind, bound=("text", "grammar"))
    nested = given.get("grammar")  # as chat completions have it
    grammar, place = (nested, (*at, "grammar")) if isinstance(nested, dict) else (given, at)
    syntax = member_of(grammar, "syntax", String(choices=("lark", "regex")), place, required=True)
    definition = member_of(grammar, "definition", TEXT, place, required=True)
    if syntax == "regex":
        return {"type": "string", "pattern": f"^(?:{definition})$"}, "", []
    return {"type": "string"}, f"The input follows this grammar:\n{definition}", [dotted(at)]


def as_function(tool: dict[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return a custom tool as a function whose calls follow its format, and the places of what has no effect.

    ``path``: of the object with its name. Raises FieldError.
    """
    text, more, reported = custom_format(tool, path)
    description = "\n\n".join(filter(None, (tool.get("description"), more))) or None
    parameters = input_schema(text)
    function = {"name": tool["name"], "description": description, "parameters": parameters, "strict": True}
    return {**function, "schema_name": "format"}, reported


_OPENING = re.compile(r'\s*\{\s*"' + INPUT + r'"\s*:\s*"')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class CustomInput:
    """Takes the one string out of ``{"input": "…"}`` as it comes. A character is passed on when it is complete."""

    def __init__(self) -> None:
        self._pending = ""
        self._begun = self._ended = False

    def push(self, text: str) -> str:
        """Return the part of the string that is certain after more of the JSON."""
        self._pending += text
        if not self._begun:
            found = _OPENING.match(self._pending)
            if found is None:
                return ""
            self._begun, self._pending = True, self._pending[found.end() :]
        return "" if self._ended else self._unescaped()

    def _unescaped(self) -> str:
        out: list[str] = []
        rest, at = self._pending, 0
        while at < len(rest):
            char = rest[at]
            if char == '"':
                self._ended = True
                break
            if char != "\\":
                out.append(char)
                at += 1
                continue
            size = _escape_size(rest, at)
            if size == 0:
                break
            escape = rest[at : at + size]
            out.append(_ESCAPES[escape[1]] if escape[1] != "u" else _character(escape))
            at += size
        self._pending = rest[at:]
        return "".join(out)


def _escape_size(text: str, at: int) -> int:
    """Return the length of the escape that begins there; 0: it is not complete."""
    left = len(text) - at
    if left < 2:
        return 0
    if text[at + 1] != "u":
        return 2
    if left < 6:
        return 0
    is_high = text[at + 2 : at + 4].lower() in ("d8", "d9", "da", "db")
    if not is_high:
        return 6
    following = text[at + 6 : at + 8]
    if not "\\u".startswith(following):
        return 6  # a lone surrogate
    return 12 if left >= 12 else 0


def _character(escape: str) -> str:
    """Return the characters of one escape or a pair; a lone surrogate is U+FFFD."""
    try:
        value: str = json.loads(f'"{escape}"')
    except ValueError:
        return "\ufffd"
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
