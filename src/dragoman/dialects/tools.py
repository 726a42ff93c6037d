"""Tools of a chat request: the tools for the template, the constraint on the text, and how it becomes a message.

A dialect hands over the functions of its ``tools`` as objects with ``name``, ``description``, ``parameters`` (both may
be None) and, where it has such, ``strict``. ``enforced`` says whether calls follow the schema, whatever else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.core.constraint import Constraint, JsonObject, JsonSchema, Lark
from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.serving import ModelCard, ToolCalls
from dragoman.text.call_grammar import CallableTool, call_grammar, final_opening
from dragoman.text.chat_parser import MessageReader
from dragoman.text.reasoning import ReasoningMarks, ReasoningParser
from dragoman.text.tool_calls import CALL_FORMATS, CallFormat

MAX_SCHEMA_CHARS = 1 << 16
"""The largest schema of one tool's parameters, in characters of JSON."""

_NO_PARAMETERS = {"type": "object", "properties": {}}


class MessageShape(msgspec.Struct, frozen=True, kw_only=True):
    """How generated texts become messages.

    Attributes:
        format: the format of calls; None: there are no tools to call.
        names: the tools that may be called. schemas: of their arguments, where the format does not tell the types.
        named: the request names the tool to call, so the answer is always a call.
        reasoning: the marks of the model's reasoning blocks, where it has such.
        separate: reasoning goes to a separate field.
        custom: of the tools, those that a client calls with one text, not with arguments.
    """

    format: CallFormat | None = None
    names: tuple[str, ...] = ()
    schemas: dict[str, dict[str, Any]] = {}
    named: bool = False
    reasoning: ReasoningMarks | None = None
    separate: bool = False
    custom: frozenset[str] = frozenset()

    def reader(self, *, reasoning_begun: bool) -> MessageReader:
        """Return a reader for one text. ``reasoning_begun``: the prompt ended inside a reasoning block."""
        return MessageReader(
            self.format.start(self.names, self.schemas) if self.format else None,
            ReasoningParser(self.reasoning, begun=reasoning_begun) if self.reasoning else None,
            separate=self.separate,
            framed=self.is_framed,
        )

    @property
    def is_framed(self) -> bool:
        """Whether the text of an answer is between marks, too, and its reasoning never part of the content."""
        return self.format is not None and self.format.is_framed

    def finish_reason(self, reason: str | None, calls: int) -> str | None:
        """Return OpenAI's finish reason of a message with so many calls. A call to a tool that was named in the request
        is a "stop"."""
        return "tool_calls" if reason == "stop" and calls and not self.named else reason


PLAIN = MessageShape()
"""All of the text is content."""


class ToolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a chat request other than its messages. The defaults are those of a request without tools.

    ``behind_reasoning``: the constraint, or a format of the request, applies to the text after
    the model's reasoning block. Calls are read there only; a format is that of the content, so of the text after the
    block where the content is without it. ``reported``: places of what has no effect.
    """

    tools: tuple[dict[str, Any], ...] = ()
    constraint: Constraint | None = None
    behind_reasoning: bool = False
    shown_tokens: tuple[str, ...] = ()
    shape: MessageShape = PLAIN
    reported: tuple[str, ...] = ()


WITHOUT_TOOLS = ToolPlan()


class ToolChoice(msgspec.Struct, frozen=True):
    """``mode`` is none, auto, required or named; ``names`` are the tools it leaves to be called."""

    mode: str
    names: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return self.mode in ("required", "named")


def tool_choice(choice: str | dict[str, Any] | None, names: Sequence[str]) -> ToolChoice:
    """Return the choice among these tools: a mode, or ``{"type": "function", "function": {"name"}}``. Absent, it is the
    model's where there are tools. Raises BadRequest."""
    if not names:
        if choice in (None, "none", "auto"):
            return ToolChoice("none")
        raise BadRequest("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    if choice is None or isinstance(choice, str):
        return ToolChoice(choice or "auto", tuple(names))
    return ToolChoice("named", known_tools([choice["function"]["name"]], names))


def known_tools(chosen: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the chosen names, each once. Raises BadRequest for one that is no tool's."""
    for name in chosen:
        if name not in names:
            raise BadRequest(f"Invalid 'tool_choice': there is no tool '{name}' in 'tools'.", param="tool_choice")
    return tuple(dict.fromkeys(chosen))


def tool_plan(
    functions: Sequence[dict[str, Any]],
    choice: ToolChoice,
    card: ModelCard,
    *,
    parallel: bool = True,
    separate_reasoning: bool = False,
    enforced: bool = False,
    places: Sequence[str] | None = None,
) -> ToolPlan:
    """Return the plan for checked values.

    ``parallel``: several calls may be made at once. ``separate_reasoning``: a reasoning block is no content.
    ``enforced``: calls follow a grammar though no tool is strict. ``places``: of the functions in the body, where their
    schemas are the ``parameters``, or have the name that ``schema_name`` says. Raises BadRequest, UnsupportedFeature
    with the field's name.
    """
    places = places or [f"tools[{i}].function" for i in range(len(functions))]
    _check_functions(functions, places)
    marks = ReasoningMarks(card.reasoning.opening, card.reasoning.closing) if card.reasoning else None
    shape = MessageShape(reasoning=marks, separate=separate_reasoning and marks is not None)
    shown = tuple(marks) if marks and shape.separate else ()
    if shown and card.reasoning:
        shown = tuple(dict.fromkeys((*shown, *card.reasoning.special_ids)))
    format = CALL_FORMATS[card.tool_calls.format] if card.tool_calls else None
    if choice.mode == "none":
        if format is not None and format.is_framed:
            shape = msgspec.structs.replace(shape, format=format)
            return ToolPlan(behind_reasoning=True, shown_tokens=(*format.marks, *shown), shape=shape)
        shape = shape if shape.separate else PLAIN
        return ToolPlan(behind_reasoning=shape.separate, shown_tokens=shown, shape=shape)
    if card.tool_calls is None or format is None:
        raise UnsupportedFeature(
            f"'tools' is not supported: the chat template of the model '{card.name}' knows no tools, "
            "or writes calls in a format that this server does not know.",
            param="tools",
        )
    offered = [function for function in functions if function["name"] in choice.names]
    schema_places = [
        _schema_place(function, place)
        for function, place in zip(functions, places, strict=True)
        if function["name"] in choice.names
    ]
    enforced = enforced or any(map(_is_strict, offered)) or not parallel or len(offered) < len(functions)
    constraint = None
    if choice.required or enforced:
        constraint = _constraint(offered, schema_places, choice, card.tool_calls, marks, parallel=parallel)
    schemas = {} if format.is_typed else {function["name"]: function["parameters"] or {} for function in offered}
    return ToolPlan(
        tools=tuple(map(_shown, functions)),
        constraint=constraint,
        behind_reasoning=True,
        shown_tokens=(*format.marks, *shown),
        shape=msgspec.structs.replace(shape, format=format, names=choice.names, schemas=schemas),
    )


def calls_or(calls: Constraint, text: JsonObject | JsonSchema, card: ModelCard | None = None) -> Lark:
    """Return a constraint for texts that call tools by the first grammar, or otherwise match the second constraint.

    ``card``: of a model whose answers may be between marks.
    """
    assert isinstance(calls, Lark)
    lead = ""
    if card is not None and card.tool_calls and CALL_FORMATS[card.tool_calls.format].is_framed:
        lead = final_opening(card.tool_calls)
    schema = text.schema if isinstance(text, JsonSchema) else '{"type": "object"}'
    called = calls.grammar.replace("start:", "called:", 1)
    return Lark(f"start: called | {lead} formatted\nformatted: %json {schema}\n{called}", parts=calls.parts)


def _check_functions(functions: Sequence[dict[str, Any]], places: Sequence[str]) -> None:
    seen = set[str]()
    for function, place in zip(functions, places, strict=True):
        name, schema = function["name"], function["parameters"]
        if name in seen:
            raise BadRequest(f"Invalid '{place}.name': '{name}' is the name of another tool.", param=f"{place}.name")
        seen.add(name)
        if schema is not None and (fault := _fault(schema)):
            raise BadRequest(f"Invalid schema for function '{name}': {fault}", param=_schema_place(function, place))


def _schema_place(function: dict[str, Any], place: str) -> str:
    return f"{place}.{function.get('schema_name', 'parameters')}"


def _fault(schema: dict[str, Any]) -> str | None:
    """Return the error in the parts of a schema that templates and grammars rely on; None where they are valid."""
    if schema.get("type", "object") != "object":
        return "it has to be of type 'object'."
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA_CHARS:
        return f"it is longer than {MAX_SCHEMA_CHARS} characters."
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(value, dict | bool) for value in properties.values()):
        return "its 'properties' have to be an object of schemas."
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        return "its 'required' has to be an array of strings."
    return None


def _callable(function: dict[str, Any], required: bool) -> CallableTool:
    """Return the tool for the grammar. A required call follows its schema; an optional call does so where it is
    strict."""
    schema = function["parameters"] or (_NO_PARAMETERS | {"additionalProperties": False})
    follows = function.get("enforced", required or _is_strict(function))
    return CallableTool(name=function["name"], arguments=schema if follows else None)


def _is_strict(function: dict[str, Any]) -> bool:
    return bool(function.get("strict"))


def _constraint(
    offered: Sequence[dict[str, Any]],
    places: Sequence[str],
    choice: ToolChoice,
    calls: ToolCalls,
    marks: ReasoningMarks | None,
    *,
    parallel: bool,
) -> Constraint:
    tools = [_callable(tool, choice.required) for tool in offered]
    parallel = parallel and choice.mode != "named"
    opening = marks.opening if marks else None
    parts = [
        (place, msgspec.json.encode(tool.arguments).decode())
        for place, tool in zip(places, tools, strict=True)
        if tool.arguments is not None
    ]
    try:
        grammar = call_grammar(calls, tools, required=choice.required, parallel=parallel, not_opening=opening)
        return msgspec.structs.replace(grammar, parts=tuple(parts))
    except UnsupportedFeature as error:
        error.param = "tools"
        raise


def _shown(function: dict[str, Any]) -> dict[str, Any]:
    """Return the tool in the form for the template. ``strict`` is for the server, not for the model."""
    shown = {"name": function["name"]}
    if function["description"] is not None:
        shown["description"] = function["description"]
    return {"type": "function", "function": shown | {"parameters": function["parameters"] or _NO_PARAMETERS}}
