"""What OpenAI's tools look like in every wire format that took them over."""

from __future__ import annotations

from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import Anything, String

MAX_TOOLS = 128
FUNCTION_NAME = String(minimum=1, maximum=64, pattern="[a-zA-Z0-9_-]+")

NAMED_FUNCTION = Table(
    name="named function",
    fields=(Field(name="name", kind=FUNCTION_NAME, required=True, note="The name of one of the tools."),),
)


def tool_table(type_field: Field, parameters: str, *more: Field) -> Table:
    """A tool: its type, and its function with ``more`` fields than name, description and parameters.

    ``parameters``: the note of that field.
    """
    function = Table(
        name="function",
        fields=(
            Field(
                name="name",
                kind=FUNCTION_NAME,
                required=True,
                note="Given to the chat template, and unique among the tools.",
            ),
            Field(name="description", kind=String(maximum=16384), note="Given to the chat template."),
            Field(name="parameters", kind=Anything(object_only=True, depth=32), note=parameters),
            *more,
        ),
    )
    field = Field(name="function", kind=function, required=True, note="What may be called.")
    return Table(name="tool", fields=(type_field, field))


def tool_choice_table(type_field: Field) -> Table:
    """The choice of one tool by its name."""
    function = Field(name="function", kind=NAMED_FUNCTION, required=True, note="The tool.")
    return Table(name="tool choice", fields=(type_field, function))
