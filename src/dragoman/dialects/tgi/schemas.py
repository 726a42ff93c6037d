"""Tables of requests and structs of answers as schemas of OpenAPI 3.0, under the names that TGI's document has."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, FieldType, Integer, ListOf, MapOf, Number, OneOf, String

Schema = dict[str, Any]
Bounds = Mapping[str, Schema]
"""What the rules of requests say of fields, by the fields' names."""


class Schemas:
    """Gathers ``components`` while it states kinds and types.

    ``names``: kinds and structs that have another name than their own, or one although they are no table.
    """

    def __init__(self, names: tuple[tuple[object, str], ...]) -> None:
        self.components: dict[str, Schema] = {}
        self._names = names

    def table(self, table: Table, bounds: Bounds) -> Schema:
        """A reference to the component of a table of fields; the bounds are those of its own fields."""
        return self._component(self._name(table) or table.name, lambda: self._fields(table, bounds))

    def kind(self, kind: FieldType, bounds: Bounds) -> Schema:
        """Values that a request may have."""
        name = self._name(kind)
        if isinstance(kind, Table):
            return self.table(kind, bounds)
        return self._component(name, lambda: self._kind(kind, bounds)) if name else self._kind(kind, bounds)

    def hint(self, hint: Any) -> Schema:
        """Values that an answer has: a struct, or what its fields are annotated with."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union([each for each in arguments if each is not msgspec.UnsetType])
        if origin is typing.Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin is list:
            return {"type": "array", "items": self.hint(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.hint(arguments[1])}
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return self._component(self._name(hint) or hint.__name__, lambda: self._struct(hint))
        return {
            str: {"type": "string"},
            int: {"type": "integer"},
            float: {"type": "number", "format": "float"},
            bool: {"type": "boolean"},
        }[hint].copy()

    def _component(self, name: str, make: Callable[[], Schema]) -> Schema:
        if name not in self.components:
            self.components[name] = {}
            self.components[name] = make()
        return {"$ref": f"#/components/schemas/{name}"}

    def _name(self, thing: object) -> str:
        return next((name for known, name in self._names if known is thing), "")

    def _fields(self, table: Table, bounds: Bounds) -> Schema:
        schema: Schema = {"type": "object", "properties": {}}
        required = [field.name for field in table.fields if field.required]
        if required:
            schema["required"] = required
        for field in table.fields:
            schema["properties"][field.name] = self._field(field, bounds)
        return schema

    def _field(self, field: Field, bounds: Bounds) -> Schema:
        # What a table that is a field of another is bounded by has names of its own, and the same meaning.
        schema = {} if field.treatment is Treatment.REPORTED else _bounded(self.kind(field.kind, bounds), bounds, field)
        if not field.required and schema:
            schema = _nullable(schema)
        if field.default is not None:
            schema["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
        if "$ref" in schema:
            return schema
        return schema | {"description": field.note} if field.note else schema

    def _kind(self, kind: FieldType, bounds: Bounds) -> Schema:
        match kind:
            case Integer():
                return {"type": "integer"} | _present(minimum=kind.minimum, maximum=kind.maximum)
            case Number():
                return {"type": "number", "format": "float"} | _present(minimum=kind.minimum, maximum=kind.maximum)
            case Boolean():
                return {"type": "boolean"}
            case String():
                size = _present(minLength=kind.minimum or None, maxLength=kind.maximum)
                return {"type": "string"} | size | _present(enum=list(kind.choices) or None)
            case ListOf():
                size = _present(minItems=kind.minimum or None, maxItems=kind.maximum)
                return {"type": "array", "items": self.kind(kind.item, bounds)} | size
            case MapOf():
                value = self.kind(kind.value, bounds)
                return {"type": "object", "additionalProperties": value, "maxProperties": kind.maximum}
            case OneOf():
                return {"anyOf": [self.kind(each, bounds) for each in kind.alternatives]}
            case Anything():
                return {"type": "object"} if kind.object_only else {}
        raise TypeError(f"no schema for {type(kind).__name__}")

    def _struct(self, struct: type[msgspec.Struct]) -> Schema:
        hints = typing.get_type_hints(struct)
        optional = {name for name in hints if msgspec.UnsetType in typing.get_args(hints[name])}
        return {
            "type": "object",
            "required": [name for name in struct.__struct_fields__ if name not in optional],
            "properties": {name: self.hint(hints[name]) for name in struct.__struct_fields__},
        }

    def _union(self, arguments: list[Any]) -> Schema:
        schemas = [self.hint(each) for each in arguments if each is not type(None)]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        return _nullable(schema) if type(None) in arguments else schema


def _nullable(schema: Schema) -> Schema:
    """OpenAPI 3.0 has no type ``null``, and allows nothing beside a reference."""
    return {"nullable": True, **({"allOf": [schema]} if "$ref" in schema else schema)}


def _bounded(schema: Schema, bounds: Bounds, field: Field) -> Schema:
    """With what the rules say of the field, which concerns the alternatives that are of its type."""
    bound = bounds.get(field.name)
    if bound is None:
        return schema
    if "anyOf" in schema:
        concerned = "array" if "maxItems" in bound else "number"
        alternatives = [each | bound if each.get("type") == concerned else each for each in schema["anyOf"]]
        return schema | {"anyOf": alternatives}
    return schema | bound


def _present(**keywords: Any) -> Schema:
    return {key: value for key, value in keywords.items() if value is not None}
