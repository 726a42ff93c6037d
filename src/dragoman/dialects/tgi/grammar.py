"""``grammar`` and ``response_format``: TGI's own forms, and those of OpenAI beside them."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import Constraint, JsonObject, JsonSchema, Regex
from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import Anything, Boolean, FieldError, FieldRule, String
from dragoman.dialects.tgi.errors import InvalidInput

PARAM = "grammar"
"""What constraints of this dialect are called in requests of the core."""

_CONFIG = Table(
    name="JsonSchemaConfig",
    fields=(
        Field(name="name", kind=String(maximum=256), note="No effect."),
        Field(name="description", kind=String(), note="No effect: it is not shown to the model."),
        Field(name="schema", kind=Anything(), note="A JSON Schema. Absent: any object."),
        Field(name="strict", kind=Boolean(), note="No effect: schemas are always enforced."),
    ),
)

GRAMMAR = Table(
    name="GrammarType",
    fields=(
        Field(
            name="type",
            kind=String(choices=("json", "json_object", "regex", "json_schema", "text")),
            required=True,
            note="`json` and `json_object`: one JSON document; `regex`: all of the text matches; `json_schema`: as "
            "`json`, with the schema inside an object; `text`: anything.",
        ),
        Field(
            name="value",
            kind=Anything(),
            note="With `json` a JSON Schema, as an object or as text; `json_object` may do without, for any object. "
            'With `regex` the pattern. With `json_schema` `{"name", "schema", "strict"}`.',
        ),
        Field(name="json_schema", kind=_CONFIG, note="With type `json_schema`, in place of `value`, as OpenAI has it."),
    ),
)


def constraint_of(values: dict[str, Any], field: str) -> Constraint | None:
    """What checked values ask for. ``field``: their name on the wire.

    Raises Violation for a value of the wrong type, InvalidInput for a JSON grammar that is neither text nor object.
    """
    if values["type"] == "text":
        return None
    value = values["value"]
    match values["type"]:
        case "json_object" if value is None:
            return JsonObject(one_line=True)
        case "json_schema":
            return _described(values, field)
    if value is None:
        raise FieldError(FieldRule.MISSING, (field, "value"))
    if values["type"] == "regex":
        return Regex(String().check(value, (field, "value")))
    return _schema(value)


def _described(values: dict[str, Any], field: str) -> Constraint:
    described = values["json_schema"]
    if described is None:
        if values["value"] is None:
            raise FieldError(FieldRule.MISSING, (field, "value"))
        described = _CONFIG.check(values["value"], (field, "value"))
    return JsonObject(one_line=True) if described["schema"] is None else _schema(described["schema"])


def _schema(value: Any) -> JsonSchema:
    if not isinstance(value, str | dict):
        raise InvalidInput("grammar is not supported")
    return JsonSchema(value if isinstance(value, str) else msgspec.json.encode(value).decode(), one_line=True)
