"""The fields of a chat request that offer tools and say which are called."""

from __future__ import annotations

from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import Boolean, ListOf, OneOf, String
from dragoman.dialects.tool_tables import MAX_TOOLS, NAMED_FUNCTION, tool_table

TOOL = tool_table(
    Field(name="type", kind=String(choices=("function",)), required=True, note="Tools are functions."),
    "The JSON Schema of an object, at most 65536 characters. Given to the chat template; "
    "absent, the function takes none.",
    Field(
        name="strict",
        kind=Boolean(),
        default=False,
        becomes="constraint",
        note="Calls follow the schema; one that cannot be enforced is refused.",
    ),
)

ALLOWED_TOOL = Table(
    name="allowed tool",
    fields=(
        Field(name="type", kind=String(choices=("function",)), required=True, note="Tools are functions."),
        Field(name="function", kind=NAMED_FUNCTION, required=True, note="One of the tools."),
    ),
)

TOOL_CHOICE = Table(
    name="tool choice",
    fields=(
        Field(
            name="type",
            kind=String(choices=("function", "allowed_tools")),
            required=True,
            note="One tool that is called, or some of those that may be.",
        ),
        Field(name="function", kind=NAMED_FUNCTION, note="With type `function`: the tool that is called, once."),
        Field(
            name="allowed_tools",
            kind=Table(
                name="allowed tools",
                fields=(
                    Field(
                        name="mode",
                        kind=String(choices=("auto", "required")),
                        required=True,
                        note="Whether the model chooses to call one.",
                    ),
                    Field(
                        name="tools",
                        kind=ListOf(ALLOWED_TOOL, minimum=1, maximum=MAX_TOOLS),
                        required=True,
                        note="Only these are called.",
                    ),
                ),
            ),
            note="With type `allowed_tools`.",
        ),
    ),
)

TOOLS: tuple[Field, ...] = (
    Field(
        name="tools",
        kind=ListOf(TOOL, maximum=MAX_TOOLS),
        becomes="tools.functions",
        note="Functions that the model may call, if its chat template knows tools: see [tools.md](tools.md).",
    ),
    Field(
        name="tool_choice",
        kind=OneOf((String(choices=("none", "auto", "required")), TOOL_CHOICE)),
        becomes="tools.choice",
        note="`none`: the model is not shown the tools. `auto`, the default where there are tools: it may call "
        "them. `required`: it calls at least one. Or one tool, or some, by name.",
    ),
    Field(
        name="parallel_tool_calls",
        kind=Boolean(),
        default=True,
        becomes="tools.parallel",
        note="The model may call several tools at once.",
    ),
)
