"""Tools in TGI's format: one JSON document that names the function, whatever format the model was trained on.

The document is ``{"function": {"_name": "<tool>", …its arguments…}}``. A grammar holds the text to it, so that a call
is valid unless the token budget cuts it. Where the model may also decline, a tool that means "no call" is among
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from dragoman.core.constraint import JsonSchema
from dragoman.core.entropy import token_hex
from dragoman.dialects.field import CoreParams, Field, Table
from dragoman.dialects.field_types import Anything, ListOf, OneOf, String
from dragoman.dialects.tgi.errors import CallFault, InvalidInput, ToolFault
from dragoman.text.call_parser import CallArguments, CallStart, Part

NO_TOOL = "no_tool"
"""The name of the tool that means "no call"."""

TOOL_PROMPT = (
    "\nGiven the functions available, please respond with a JSON for a function call with its proper arguments that "
    "best answers the given prompt. Respond in the format {name: function name, parameters: dictionary of argument "
    "name and its value}.Do not use variables.\n"
)

MAX_TOOLS = 128
MAX_REFERENCES = 8
"""The longest chain of references to the schema of a tool's parameters that is followed."""

FUNCTION = Table(
    name="FunctionDefinition",
    fields=(
        Field(name="name", kind=String(minimum=1, maximum=256), required=True, note="What the tool is called by."),
        Field(name="description", kind=String(), note="Shown to the model."),
        Field(
            name="parameters",
            kind=Anything(object_only=True, depth=32),
            note="The JSON Schema of an object: shown to the model, and enforced. Absent: the function takes none.",
        ),
        Field(name="arguments", kind=Anything(object_only=True, depth=32), note="Another name of `parameters`."),
    ),
)

TOOL = Table(
    name="Tool",
    fields=(
        Field(name="type", kind=String(), required=True, note="`function`."),
        Field(name="function", kind=FUNCTION, required=True, note="What may be called."),
    ),
)

_NAMED = Table(
    name="FunctionName",
    fields=(Field(name="name", kind=String(), required=True, note="The name of one of the tools."),),
)

TOOL_TYPE = Table(
    name="ToolType",
    fields=(
        Field(name="type", kind=String(), note="`function`."),
        Field(name="function", kind=_NAMED, required=True, note="The tool that is called."),
    ),
)

TOOL_CHOICE = OneOf((String(), TOOL_TYPE))

TOOLS: tuple[Field, ...] = (
    Field(
        name="tools",
        kind=ListOf(TOOL, maximum=MAX_TOOLS),
        becomes="tools.functions",
        note="Functions to call, one for each answer. Not together with `response_format`.",
    ),
    Field(
        name="tool_choice",
        kind=TOOL_CHOICE,
        default="auto",
        becomes="tools.choice",
        note="`auto`: the model calls one of the tools or answers freely; `none`: it is not shown them; `required`: it "
        "calls one; or the name of the tool that it calls, as a string or in an object.",
    ),
    Field(
        name="tool_prompt",
        kind=String(),
        becomes="tools.prompt",
        note="What the model is told about calling, behind the last message. Absent or empty: TGI's own words.",
    ),
)


class ToolSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that the model gets to choose from.

    Attributes:
        tools: as the chat template is shown them.
        constraint: the document of one call.
        prompt: the text after the last message.
        declinable: the model may choose to call none.
    """

    tools: tuple[dict[str, Any], ...]
    constraint: JsonSchema
    prompt: str = TOOL_PROMPT
    declinable: bool = False


def tool_setup(values: Mapping[str, Any], core: CoreParams) -> ToolSetup | None:
    """Return the tools of a checked chat request; None: there is nothing to call. Raises ToolFault, InvalidInput."""
    given = core.get("tools.functions")
    if given is not None and values["response_format"] is not None:
        raise ToolFault("Grammar and tools are mutually exclusive")
    choice = core.get("tools.choice")
    if not given or choice == "none":
        return None
    functions = [tool["function"] for tool in given]
    if choice not in ("auto", "required"):
        name = choice if isinstance(choice, str) else choice["function"]["name"]
        functions = [function for function in functions if function["name"] == name][:1]
        if not functions:
            raise ToolFault(f"Tool with name {name[:256]} not found", logged="Tool not found")
    declinable = choice == "auto"
    tools = [_shown(function) for function in functions] + [_DECLINE] * declinable
    return ToolSetup(
        tools=tuple(tools),
        constraint=_document([tool["function"] for tool in tools]),
        prompt=core.get("tools.prompt") or TOOL_PROMPT,
        declinable=declinable,
    )


def with_tools(
    messages: Sequence[dict[str, Any]], setup: ToolSetup, *, template_shows: bool
) -> tuple[dict[str, Any], ...]:
    """Return the messages with the tool prompt appended to the text of the last one, if it has text.

    ``template_shows``: the chat template writes out the tools itself.
    """
    *before, last = messages
    content = last.get("content")
    if content is None:
        return tuple(messages)
    tools = "" if template_shows else msgspec.json.encode(setup.tools).decode() + "\n"
    added = f"\n---\n{tools}{setup.prompt}"
    shown = f"{content}{added}" if isinstance(content, str) else [*content, {"type": "text", "text": added}]
    return (*before, {**last, "content": shown})


_DECLINE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NO_TOOL,
        "description": "Open ended response with no specific tool selected",
        "parameters": {"type": "object"},
    },
}


def _shown(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool for the template, with the caller's schema: TGI shows it as a string, under the name
    ``arguments``."""
    shown = {"name": function["name"]}
    if function["description"] is not None:
        shown["description"] = function["description"]
    parameters = function["parameters"] or function["arguments"] or {"type": "object", "properties": {}}
    return {"type": "function", "function": shown | {"parameters": parameters}}


def _document(functions: Sequence[Mapping[str, Any]]) -> JsonSchema:
    """Return the schema of the call document. ``function`` is required, unlike in TGI: ``{}`` is no call. A schema with
    references is also included whole, so that they resolve."""
    calls, whole = list[dict[str, Any]](), list[dict[str, Any]]()
    for i, function in enumerate(functions):
        place = f"#/$functions/{i}"
        moved = _moved(function["parameters"], place)
        calls.append(_call(function, place))
        whole.append(moved if place in json.dumps(moved) else {})
    document = {
        "type": "object",
        "properties": {"function": {"anyOf": calls}},
        "required": ["function"],
        "additionalProperties": False,
        "$functions": whole,
    }
    return JsonSchema(json.dumps(document), one_line=True)


def _call(function: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the schema of a call: the tool's own, with the constant ``_name`` before its properties and no other
    properties."""
    name, given = function["name"], _moved(_resolved(function["parameters"]), place)
    properties, required = given.get("properties", {}), given.get("required", [])
    fault = None
    if given.get("type", "object") not in ("object", ["object"]):
        fault = "they are no object"
    elif not isinstance(properties, dict):
        fault = "their 'properties' are no object"
    elif not isinstance(required, list):
        fault = "their 'required' is no array"
    elif not all(isinstance(key, str) and key in properties for key in required):
        fault = "what is required is not among their 'properties'"
    elif "_name" in properties:
        fault = "'_name' is not for a tool to use"
    elif composed := [word for word in _COMPOSING if word in given]:
        # With ``additionalProperties`` they allow no value, and the other tools hide that from the grammar's check.
        fault = f"'{composed[0]}' is supported inside of them only"
    if fault:
        raise InvalidInput(f"grammar is not valid: the parameters of the tool '{name}': {fault}")
    # The name is one property more.
    counts = {word: given[word] + 1 for word in ("minProperties", "maxProperties") if type(given.get(word)) is int}
    return {
        **given,
        **counts,
        "type": "object",
        "properties": {"_name": {"const": name}, **properties},
        "required": ["_name", *required],
        "additionalProperties": False,
    }


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema, replaced by its own definition where it is only a reference to one."""
    found = schema
    for _ in range(MAX_REFERENCES):
        reference = found.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: Any = schema
        for part in reference.split("/")[1:]:
            target = target.get(part) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            break
        found = target
    return found


_COMPOSING = ("$ref", "allOf", "anyOf", "oneOf")
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_PLAIN_VALUES = frozenset({"const", "enum"})
_WORDS = frozenset({"title", "description", "default", "examples", "example", "$comment"})


def _moved(schema: Any, place: str) -> Any:
    """Return the schema with references to its root changed to this place, and without annotations for readers."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _WORDS:
            continue
        if word == "$ref" and isinstance(value, str) and value.startswith("#"):
            made[word] = place + value[1:]
        elif word in _NAMED_SCHEMAS and isinstance(value, dict):
            made[word] = {name: _moved(each, place) for name, each in value.items()}
        else:
            made[word] = value if word in _PLAIN_VALUES else _moved(value, place)
    return made


_HEAD = re.compile(r'\s*\{\s*"function"\s*:\s*\{\s*"_name"\s*:\s*("(?:[^"\\]|\\.)*")')
MAX_SHOWN_CHARS = 4096
"""The longest excerpt of a text that an error repeats."""


class CallText:
    """Takes ``{"function": {"_name": "<tool>", <arguments>}}`` apart while it arrives.

    Attributes:
        name: of the tool, as soon as it is complete.
        arguments: the object of the arguments as far as it has come, with the model's own spacing.
        complete: the object is closed.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.complete = False
        self._pending = ""
        self._given: list[str] = []
        self._before_arguments = True
        self._depth = 1
        self._quoted = self._escaped = False

    @property
    def arguments(self) -> str:
        return "".join(self._given)

    def push(self, text: str) -> str:
        """Add more of the text and return the new arguments; the opening brace is sent with the name."""
        if self.name is not None:
            return self._take(text)
        self._pending += text
        head = _HEAD.match(self._pending)
        if head is None:
            return ""
        self.name = str(json.loads(head[1]))
        self._given.append("{")
        return "{" + self._take(self._pending[head.end() :])

    def compact(self) -> str:
        """Return the arguments in their order, without blanks. Raises ToolFault where they are not complete."""
        if not self.complete:
            raise unparsable("EOF while parsing an object, the token budget ended", self._pending + self.arguments)
        return json.dumps(json.loads(self.arguments), ensure_ascii=False, separators=(",", ":"))

    def _take(self, text: str) -> str:
        if self._before_arguments:
            text = text.lstrip()
            if not text:
                return ""
            # A comma sets the name apart from the first argument; where there is none, a brace follows.
            self._before_arguments = False
            text = text.removeprefix(",")
        taken = text[: self._length(text)]
        self._given.append(taken)
        return taken

    def _length(self, text: str) -> int:
        """Return how much of the text belongs to the arguments; text after their closing brace does not."""
        if self.complete:
            return 0
        for i, char in enumerate(text):
            if self._quoted:
                self._quoted = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    self.complete = True
                    return i + 1
        return len(text)


class CallReader:
    """The parts of a streamed message that is one call with this id.

    The brace that opens the arguments is in none of them: it comes with the name.
    """

    def __init__(self, id: str) -> None:
        self.call = CallText()
        self.has_begun = False
        self._id = id

    def push(self, text: str) -> list[Part]:
        """Return the parts that are final after this text."""
        added, parts = self.call.push(text), list[Part]()
        if added and not self.has_begun:
            self.has_begun = True
            parts.append(CallStart(0, self._id, self.call.name or ""))
            added = added.removeprefix("{")
        return [*parts, CallArguments(0, added)] if added else parts

    def flush(self) -> list[Part]:
        """Return nothing: no text is held back."""
        return []


def unparsable(reason: str, text: str) -> CallFault:
    """Return the error for a text that is no call."""
    shown = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
    return CallFault(f'Failed to parse generated text: {reason} "{shown}"')


def next_call_id(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the id of a streamed call: one more than the largest of the earlier calls, or unique where these are no
    numbers.

    ``messages`` are those of a checked request.
    """
    largest = -1
    for message in messages:
        for call in message.get("tool_calls") or ():
            given = str(call.get("id", ""))
            # 19 digits are fewer than 64 bits hold.
            if not (given.isascii() and given.isdigit() and len(given) < 20):
                return str(UUID(hex=token_hex(16), version=4))
            largest = max(largest, int(given))
    return str(largest + 1)
