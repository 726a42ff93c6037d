"""Schemas as Google writes them, after OpenAPI 3.0, as JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.errors import BadRequest
from dragoman.dialects.field_types import Anything, Path, Wrapped, dotted
from dragoman.dialects.gemini.names import camel_case

MAX_DEPTH = 32

TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
ONE = ("items", "additionalProperties", "not")
MAPS = ("properties", "$defs", "patternProperties")
COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
WIDTHS = ("int32", "int64", "float", "double", "enum")
"""Formats that say how a number is stored, or that a string has an ``enum``: nothing about the JSON."""
RENAMED = {"defs": "$defs", "ref": "$ref"}


class OpenApiSchema(Wrapped, frozen=True):
    """A schema; ``check`` returns it as a JSON Schema. Keywords of JSON Schema that Google's form lacks stay."""

    def check(self, value: Any, path: Path) -> dict[str, Any]:
        return json_schema(self.inner.check(value, path), path)


SCHEMA = OpenApiSchema(Anything(object_only=True, depth=MAX_DEPTH))
JSON_SCHEMA = Anything(object_only=True, depth=MAX_DEPTH)


def json_schema(schema: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the JSON Schema. Raises BadRequest with the place of what is wrong."""
    found: dict[str, Any] = {}
    nullable, order = False, None
    for given, value in schema.items():
        name = camel_case(given)
        name = RENAMED.get(name, name)
        at = (*path, given)
        if value is None:
            continue
        if name == "nullable":
            nullable = _is(value, bool, "a boolean", at)
        elif name == "propertyOrdering":
            order = _is(value, list, "an array of names", at)
        elif name == "type":
            found |= _type(value, at)
        elif name == "example":
            found["examples"] = [value]
        elif name == "$ref":
            found[name] = str(value).replace("#/defs/", "#/$defs/")
        elif name in COUNTS:
            found[name] = _count(value, at)
        elif name in LISTS:
            items = _is(value, list, "an array of schemas", at)
            found[name] = [_inner(each, (*at, i)) for i, each in enumerate(items)]
        elif name in ONE:
            found[name] = value if isinstance(value, bool) else _inner(value, at)
        elif name in MAPS:
            inner = _is(value, dict, "an object of schemas", at)
            found[name] = {key: _inner(each, (*at, key)) for key, each in inner.items()}
        elif name == "format" and value in WIDTHS:
            continue
        else:
            found[name] = value
    if order is not None:
        found = _ordered(found, order, (*path, "propertyOrdering"))
    return _or_null(found) if nullable else found


def _inner(value: Any, path: Path) -> Any:
    return value if isinstance(value, bool) else json_schema(_is(value, dict, "a schema", path), path)


def _is(value: Any, kind: type, words: str, path: Path) -> Any:
    if not isinstance(value, kind):
        raise BadRequest(f"Invalid value at '{dotted(path)}': expected {words}.", param=dotted(path))
    return value


def _type(value: Any, path: Path) -> dict[str, Any]:
    if isinstance(value, list):
        return {"type": [_type(each, path).get("type") for each in value]}
    name = _is(value, str, "the name of a type", path).lower()
    if name == "type_unspecified":
        return {}
    if name not in TYPES:
        known = ", ".join(each.upper() for each in TYPES)
        message = f"Invalid value at '{dotted(path)}': expected one of {known}."
        raise BadRequest(message, param=dotted(path))
    return {"type": name}


def _count(value: Any, path: Path) -> int:
    """Return a number that 64-bit integers of protocol buffers may write as a string."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not int:
        raise BadRequest(f"Invalid value at '{dotted(path)}': expected an integer.", param=dotted(path))
    return value


def _ordered(schema: dict[str, Any], order: list[Any], path: Path) -> dict[str, Any]:
    """Return the schema with its properties in this order, in which they are then generated; others follow."""
    properties = schema.get("properties", {})
    unknown = [name for name in order if not isinstance(name, str) or name not in properties]
    if unknown:
        message = f"Invalid value at '{dotted(path)}': '{str(unknown[0])[:64]}' is no property."
        raise BadRequest(message, param=dotted(path))
    named = {name: properties[name] for name in order}
    return {**schema, "properties": {**named, **properties}}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    changed = dict(schema)
    if isinstance(schema.get("type"), str):
        changed["type"] = [schema["type"], "null"]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        changed["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("anyOf"), list):
        changed["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    elif "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return changed
