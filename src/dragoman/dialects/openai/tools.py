"""Tools of a chat request: what the template is shown, what the text has to be, and how it becomes a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.core.constraint import Constraint
from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.serving import ModelCard, ReasoningBlocks, ToolCalls
from dragoman.text.call_grammar import CallableTool, call_grammar
from dragoman.text.message import MessageReader
from dragoman.text.reasoning import ReasoningMarks, ReasoningParser
from dragoman.text.tool_calls import CALL_FORMATS, CallFormat

MAX_SCHEMA_CHARS = 1 << 16
"""Of one tool's parameters, written as JSON."""

_NO_PARAMETERS = {"type": "object", "properties": {}}


class MessageShape(msgspec.Struct, frozen=True, kw_only=True):
    """How generated texts become messages.

    Attributes:
        format: in which calls are written; None: there are no tools to call.
        names: the tools that may be called.
        named: the request names the tool to call, and so knows that a call is what it gets.
        reasoning: the marks of the model's reasoning blocks, where it has such.
        separate: reasoning goes to a field of its own.
    """

    format: CallFormat | None = None
    names: tuple[str, ...] = ()
    named: bool = False
    reasoning: ReasoningMarks | None = None
    separate: bool = False

    def reader(self, *, reasoning_begun: bool) -> MessageReader:
        """A reader for one text. ``reasoning_begun``: the prompt ended inside a reasoning block."""
        return MessageReader(
            self.format.start(self.names) if self.format else None,
            ReasoningParser(self.reasoning, begun=reasoning_begun) if self.reasoning else None,
            separate=self.separate,
        )

    def finish_reason(self, reason: str | None, calls: int) -> str | None:
        """OpenAI's word for the end of a message with so many calls. A call that was asked for by name is a "stop"."""
        return "tool_calls" if reason == "stop" and calls and not self.named else reason


PLAIN = MessageShape()
"""All of the text is content."""


class ToolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat request asks beyond its messages. The defaults are those of one without tools."""

    tools: tuple[dict[str, Any], ...] = ()
    constraint: Constraint | None = None
    shown_tokens: tuple[str, ...] = ()
    shape: MessageShape = PLAIN


WITHOUT_TOOLS = ToolPlan()


def tool_plan(values: dict[str, Any], card: ModelCard) -> ToolPlan:
    """The plan for checked values. Raises BadRequest, UnsupportedFeature with the field's name."""
    tools = values["tools"] or ()
    _check_tools(tools)
    choice = _choice(values["tool_choice"], [tool["function"]["name"] for tool in tools])
    marks = _reasoning_marks(values, card)
    shape = MessageShape(reasoning=marks, separate=values["separate_reasoning"])
    shown = tuple(marks) if marks and shape.separate else ()
    if choice.mode == "none":
        return ToolPlan(shown_tokens=shown, shape=shape if shape.separate else PLAIN)
    if card.tool_calls is None:
        raise UnsupportedFeature(
            f"'tools' is not supported: the chat template of the model '{card.name}' knows no tools, "
            "or writes calls in a format that this server does not know.",
            param="tools",
        )
    parallel = values["parallel_tool_calls"]
    offered = [tool["function"] for tool in tools if tool["function"]["name"] in choice.names]
    enforced = any(tool["strict"] for tool in offered) or not parallel or len(offered) < len(tools)
    constraint = None
    if choice.required or enforced:
        constraint = _constraint(offered, choice, card.tool_calls, card.reasoning, parallel=parallel)
    format = CALL_FORMATS[card.tool_calls.format]
    return ToolPlan(
        tools=tuple(_shown(tool["function"]) for tool in tools),
        constraint=constraint,
        shown_tokens=(*format.marks, *shown),
        shape=msgspec.structs.replace(shape, format=format, names=choice.names, named=choice.mode == "named"),
    )


class _Choice(msgspec.Struct, frozen=True):
    """``mode`` is none, auto, required or named; ``names`` are the tools it leaves to be called."""

    mode: str
    names: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return self.mode in ("required", "named")


def _choice(choice: str | dict[str, Any] | None, names: Sequence[str]) -> _Choice:
    """Absent, the choice is the model's where there are tools."""
    if not names:
        if choice in (None, "none", "auto"):
            return _Choice("none")
        raise BadRequest("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    if choice is None or isinstance(choice, str):
        return _Choice(choice or "auto", tuple(names))
    if choice["type"] == "function":
        return _Choice("named", _known([_given(choice, "function")["name"]], names))
    allowed = _given(choice, "allowed_tools")
    return _Choice(allowed["mode"], _known([tool["function"]["name"] for tool in allowed["tools"]], names))


def _given(choice: dict[str, Any], member: str) -> dict[str, Any]:
    other = "allowed_tools" if member == "function" else "function"
    if choice[member] is None or choice[other] is not None:
        message = f"Invalid 'tool_choice': with type '{member}' it has the member '{member}', and not '{other}'."
        raise BadRequest(message, param="tool_choice")
    given: dict[str, Any] = choice[member]
    return given


def _known(chosen: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    for name in chosen:
        if name not in names:
            raise BadRequest(f"Invalid 'tool_choice': there is no tool '{name}' in 'tools'.", param="tool_choice")
    return tuple(dict.fromkeys(chosen))


def _check_tools(tools: Sequence[dict[str, Any]]) -> None:
    seen = set[str]()
    for i, tool in enumerate(tools):
        function, place = tool["function"], f"tools[{i}].function"
        name, schema = function["name"], function["parameters"]
        if name in seen:
            raise BadRequest(f"Invalid '{place}.name': '{name}' is the name of another tool.", param=f"{place}.name")
        seen.add(name)
        if schema is not None and (fault := _fault(schema)):
            raise BadRequest(f"Invalid schema for function '{name}': {fault}", param=f"{place}.parameters")


def _fault(schema: dict[str, Any]) -> str | None:
    """What is wrong with parameters whatever else they say: templates and grammars rely on this much."""
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
    """A call that is required follows its schema; one the model chooses to make does so where that is asked for."""
    schema = function["parameters"] or (_NO_PARAMETERS | {"additionalProperties": False})
    return CallableTool(name=function["name"], arguments=schema if required or function["strict"] else None)


def _constraint(
    offered: Sequence[dict[str, Any]],
    choice: _Choice,
    calls: ToolCalls,
    reasoning: ReasoningBlocks | None,
    *,
    parallel: bool,
) -> Constraint:
    tools = [_callable(tool, choice.required) for tool in offered]
    parallel = parallel and choice.mode != "named"
    try:
        return call_grammar(calls, tools, required=choice.required, parallel=parallel, reasoning=reasoning)
    except UnsupportedFeature as error:
        error.param = "tools"
        raise


def _shown(function: dict[str, Any]) -> dict[str, Any]:
    """The tool as the template is given it. ``strict`` is said to the server, not to the model."""
    shown = {"name": function["name"]}
    if function["description"] is not None:
        shown["description"] = function["description"]
    return {"type": "function", "function": shown | {"parameters": function["parameters"] or _NO_PARAMETERS}}


def _reasoning_marks(values: dict[str, Any], card: ModelCard) -> ReasoningMarks | None:
    if card.reasoning is not None:
        return ReasoningMarks(card.reasoning.opening, card.reasoning.closing)
    if values["separate_reasoning"]:
        message = f"'separate_reasoning' is not supported: the model '{card.name}' is not known to write its reasoning."
        raise UnsupportedFeature(message, param="separate_reasoning")
    return None
