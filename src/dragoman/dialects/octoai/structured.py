"""OctoAI's ``response_format``, with a schema in either of two places, alone and beside tools."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import Constraint, JsonObject, JsonSchema, Lark
from dragoman.core.errors import BadRequest
from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import Anything, String

PLACE = "response_format"

RESPONSE_FORMAT = Table(
    name="response_format",
    fields=(
        Field(
            name="type",
            kind=String(choices=("text", "json_object", "json_schema")),
            required=True,
            note="`text` asks for nothing; `json_object` for an object; `json_schema` for what it is given.",
        ),
        Field(
            name="schema",
            kind=Anything(object_only=True),
            note="With `json_object`: the JSON Schema of the object.",
        ),
        Field(
            name="json_schema",
            kind=Table(
                name="json_schema",
                fields=(
                    Field(name="name", kind=String(maximum=256), note="No effect."),
                    Field(name="description", kind=String(), note="No effect."),
                    Field(name="schema", kind=Anything(object_only=True), note="A JSON Schema. Absent: any object."),
                    Field(name="strict", kind=Anything(), note="No effect: schemas are always enforced."),
                ),
            ),
            note="Only, and always, with the type `json_schema`.",
        ),
    ),
)


def constraint_of(value: dict[str, Any]) -> JsonObject | JsonSchema | None:
    """What a checked ``response_format`` asks for. Raises BadRequest."""
    if value["type"] == "text":
        return None
    described = value["json_schema"]
    if value["type"] == "json_schema" and described is None:
        raise BadRequest(f"'{PLACE}' of type 'json_schema' needs 'json_schema'.", param=f"{PLACE}.json_schema")
    schema = value["schema"] if value["type"] == "json_object" else described["schema"]
    return JsonObject() if schema is None else JsonSchema(msgspec.json.encode(schema).decode())


def calls_or(calls: Constraint, text: JsonObject | JsonSchema) -> Lark:
    """Texts that call tools as the first grammar says, or else follow the second constraint."""
    assert isinstance(calls, Lark)
    schema = text.schema if isinstance(text, JsonSchema) else '{"type": "object"}'
    called = calls.grammar.replace("start:", "called:", 1)
    return Lark(f"start: called | formatted\nformatted: %json {schema}\n{called}")
