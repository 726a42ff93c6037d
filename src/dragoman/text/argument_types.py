"""Types of arguments that a call writes as bare text: which JSON a text is, by the schema of its tool."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.text.call_parser import NotACall, Steps
from dragoman.text.literals import read_literal

ToolSchemas = Mapping[str, Mapping[str, Any]]
"""Schemas of the arguments of tools, by the tools' names."""

ANY_TYPE = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_MAX_DEPTH = 16
_MAX_VISITS = 256
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)(\.0+)?")
_WORDS = {"true": "boolean", "false": "boolean", "null": "null"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


class ArgumentTypes:
    """Types of the arguments of one tool. An argument that the schema does not name may be of any type."""

    def __init__(self, schema: Mapping[str, Any] | None = None) -> None:
        self._root: Mapping[str, Any] = schema or {}
        properties = self._root.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._known: dict[str, tuple[frozenset[str], tuple[Any, ...]]] = {}

    def is_string(self, key: str) -> bool:
        """Return whether every text of this argument is a string."""
        types, values = self._allowed(key)
        return types == {"string"} and all(isinstance(value, str) for value in values)

    def as_json(self, key: str, text: str) -> str:
        """Return the JSON of an argument: of a type that its schema allows, where the text is one, else a string."""
        types, values = self._allowed(key)
        bare = _PYTHON_WORDS.get(text.strip(), text.strip())
        for value in values:
            if value == text if isinstance(value, str) else json.dumps(value) == bare:
                return json.dumps(value, ensure_ascii=False)
        if types & _json_types(bare):
            return bare
        if types & {"array", "object"} and bare[:1] in ("[", "{") and (written := _python_literal(bare)):
            return written
        return json.dumps(text, ensure_ascii=False)

    def _allowed(self, key: str) -> tuple[frozenset[str], tuple[Any, ...]]:
        """Return the types of an argument, and the values that its schema lists."""
        if key not in self._properties:
            return ANY_TYPE, ()
        if key not in self._known:
            found = tuple(alternatives(self._properties[key], self._root))
            types = frozenset(kind for each in found for kind in types_of(each, self._root))
            self._known[key] = types, tuple(value for each in found for value in values_of(each) or ())
        return self._known[key]


def alternatives(schema: Any, root: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas of which a value has to satisfy one: references are followed, lists of types are taken apart.

    A schema that cannot be taken apart is yielded unchanged. ``root``: what references are relative to.
    """
    return _alternatives(schema, root, 0, [_MAX_VISITS])


def _alternatives(schema: Any, root: Mapping[str, Any], depth: int, left: list[int]) -> Iterator[Any]:
    """As ``alternatives``. ``left``: how many schemas may still be looked at, shared by the whole search."""
    left[0] -= 1
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or left[0] < 0:
        yield schema
        return
    inner = schema.get("anyOf", schema.get("oneOf"))
    if (target := referred(schema.get("$ref"), root)) is not None:
        yield from _alternatives(target, root, depth + 1, left)
    elif isinstance(inner, list) and inner:
        for each in inner:
            yield from _alternatives(each, root, depth + 1, left)
    elif isinstance(schema.get("type"), list) and values_of(schema) is None:
        for kind in schema["type"]:
            yield {**schema, "type": kind}
    else:
        yield schema


def referred(reference: object, root: Mapping[str, Any]) -> Any:
    """Return the schema that a reference within ``root`` names; None where there is none."""
    if not isinstance(reference, str) or not (reference + "/").startswith("#/"):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or step not in found:
            return None
        found = found[step]
    return found


def values_of(schema: Any) -> list[Any] | None:
    """Return the values that a schema lists; None where it lists none."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the types of the values that one of ``alternatives`` allows."""
    return _types(schema, root, 0, [_MAX_VISITS])


def _types(schema: Any, root: Mapping[str, Any], depth: int, left: list[int]) -> frozenset[str]:
    """As ``types_of``. ``left``: as in ``_alternatives``."""
    left[0] -= 1
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or left[0] < 0:
        return ANY_TYPE
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset({stated})
    if (values := values_of(schema)) is not None:
        kinds = (("string",) if isinstance(value, str) else _json_types(json.dumps(value)) for value in values)
        return frozenset(kind for each in kinds for kind in each)
    if isinstance(schema.get("allOf"), list):
        types = ANY_TYPE
        for part in schema["allOf"]:
            found = _alternatives(part, root, depth + 1, left)
            types &= {kind for each in found for kind in _types(each, root, depth + 1, left)}
        return types
    return frozenset({"object"} if "properties" in schema else {"array"} if "items" in schema else ANY_TYPE)


def _json_types(text: str) -> frozenset[str]:
    """Return the types of a JSON text; none for another text."""
    if text in _WORDS:
        return frozenset({_WORDS[text]})
    if _NUMBER.fullmatch(text):
        return frozenset({"number", "integer"} if _INTEGER.fullmatch(text) else {"number"})
    kind = {"{": "object", "[": "array"}.get(text[:1])
    return frozenset({kind} if kind and _is_json(text) else ())


def _is_json(text: str) -> bool:
    try:
        # Numbers are not computed: their length is not limited.
        json.loads(text, parse_int=len, parse_float=len, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _python_literal(text: str) -> str:
    """Return a whole Python literal as JSON; empty where the text is none."""
    chars = list(reversed(text))

    def read() -> Steps[str]:
        return chars.pop() if chars else ""
        yield

    def unread(char: str) -> None:
        if char:
            chars.append(char)

    reading = read_literal(read, unread)
    try:
        next(reading)
    except StopIteration as end:
        return "" if chars else str(end.value)
    except NotACall:
        pass
    return ""
