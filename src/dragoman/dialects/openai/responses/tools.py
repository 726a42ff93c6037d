"""Tools of the Responses API: functions, custom tools and namespaces of them, and which of them may be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dragoman.core.constraint import Constraint, JsonObject, JsonSchema
from dragoman.core.errors import BadRequest
from dragoman.core.serving import ModelCard
from dragoman.dialects.field_types import (
    Boolean,
    FieldError,
    FieldRule,
    ListOf,
    Path,
    String,
    dotted,
    member_of,
)
from dragoman.dialects.openai.custom_tools import OBJECT, TEXT, custom_format, input_schema
from dragoman.dialects.openai.errors import InvalidRequest
from dragoman.dialects.openai.responses.fields import MAX_TOOLS
from dragoman.dialects.shared_fields import FUNCTION_NAME
from dragoman.dialects.tools import ToolChoice, ToolPlan, calls_or, tool_plan

FLAG = Boolean()
MEMBERS = ListOf(OBJECT, maximum=MAX_TOOLS)

WITHOUT_EFFECT = ("defer_loading", "allowed_callers", "output_schema", "async")
KNOWN = "Supported values are: 'function', 'custom', and 'namespace'."


class CalledTool(NamedTuple):
    """A tool as answers name it. ``namespace``: empty without one."""

    name: str
    namespace: str = ""
    is_custom: bool = False


class ToolSet(msgspec.Struct, kw_only=True):
    """The tools of a request that the model can be shown.

    Attributes:
        functions: as ``dialects.tools`` takes them, under the names that the model is shown. ``strict`` None: where the
            schema can be enforced.
        places: where each is in the body.
        called: each by the name that the model is shown.
        echoed: the tools for the answer; ``of``: by function, its object in there.
        reported: places of what has no effect.
        dropped: places and types of tools of OpenAI's servers.
    """

    functions: list[dict[str, Any]] = []
    places: list[str] = []
    called: dict[str, CalledTool] = {}
    echoed: list[dict[str, Any]] = []
    of: list[dict[str, Any]] = []
    reported: list[str] = []
    dropped: list[tuple[str, str]] = []

    def decided(self, is_strict: Callable[[int], bool]) -> None:
        """Decide about functions that leave it open whether calls follow their schemas."""
        for i, function in enumerate(self.functions):
            if function["strict"] is None:
                function["strict"] = function["enforced"] = is_strict(i)
            if not self.called[function["name"]].is_custom:
                self.of[i]["strict"] = function["strict"]

    @property
    def open_ones(self) -> list[int]:
        """The functions that leave it open whether calls follow their schemas."""
        return [i for i, function in enumerate(self.functions) if function["strict"] is None]

    def name_of(self, name: str, namespace: str) -> str | None:
        """Return the name that the model is shown for a tool; None where there is none."""
        shown = f"{namespace}.{name}" if namespace else name
        return shown if shown in self.called else None


def tool_set(
    tools: Sequence[dict[str, Any]], places: Sequence[Path], *, is_strict: bool = False, repeats: bool = False
) -> ToolSet:
    """Return the tools of a request. ``is_strict``: those of OpenAI's servers are errors. ``repeats``: some were found
    by a search, so that one may come twice; its first place counts. Raises BadRequest."""
    found = ToolSet()
    for tool, path in zip(tools, places, strict=True):
        _add(found, tool, path, is_strict=is_strict, repeats=repeats)
    if len(found.functions) > MAX_TOOLS:
        raise InvalidRequest(
            f"Invalid 'tools': at most {MAX_TOOLS} tools.", param="tools", code="array_above_max_length"
        )
    return found


def _add(found: ToolSet, tool: dict[str, Any], path: Path, *, is_strict: bool, repeats: bool) -> None:
    kind = member_of(tool, "type", String(minimum=1), path, required=True)
    place = dotted(path)
    if kind == "namespace":
        name = member_of(tool, "name", FUNCTION_NAME, path, required=True)
        member_of(tool, "description", TEXT, path)
        echoed = {**tool, "tools": []}
        for j, member in enumerate(member_of(tool, "tools", MEMBERS, path, required=True)):
            inner = (*path, "tools", j)
            if member.get("type") not in ("function", "custom"):
                raise FieldError(FieldRule.CHOICE, (*inner, "type"), member.get("type"), bound=("function", "custom"))
            _add_callable(found, member, inner, name, echoed["tools"], repeats=repeats)
        if echoed["tools"] or not repeats:
            found.echoed.append(echoed)
    elif kind in ("function", "custom"):
        _add_callable(found, tool, path, "", found.echoed, repeats=repeats)
    elif is_strict:
        raise InvalidRequest(f"Invalid value: '{kind[:64]}'. {KNOWN}", param=f"{place}.type")
    else:
        found.dropped.append((place, kind))
        found.reported.append(place)


def _add_callable(
    found: ToolSet, tool: dict[str, Any], path: Path, namespace: str, echoed: list[dict[str, Any]], *, repeats: bool
) -> None:
    place, is_custom = dotted(path), tool["type"] == "custom"
    name = member_of(tool, "name", FUNCTION_NAME, path, required=True)
    description = member_of(tool, "description", TEXT, path)
    shown = f"{namespace}.{name}" if namespace else name
    if shown in found.called and repeats:
        return
    if shown in found.called:
        message = f"Invalid '{place}.name': '{shown}' is the name of another tool."
        raise InvalidRequest(message, param=f"{place}.name")
    if is_custom:
        schema, more, reported = custom_format(tool, path)
        parameters: dict[str, Any] | None = input_schema(schema)
        description = "\n\n".join(filter(None, (description, more))) or None
        found.reported += reported
        strict: bool | None = True
        kept = dict(tool)
    else:
        parameters = member_of(tool, "parameters", OBJECT, path)
        strict = member_of(tool, "strict", FLAG, path)
        kept = {**tool, "description": description, "parameters": parameters, "strict": strict}
    found.reported += [f"{place}.{member}" for member in WITHOUT_EFFECT if tool.get(member)]
    function = {"name": shown, "description": description, "parameters": parameters, "strict": strict}
    found.functions.append(function | ({"schema_name": "format"} if is_custom else {}))
    found.places.append(place)
    found.called[shown] = CalledTool(name, namespace, is_custom)
    found.of.append(kept)
    echoed.append(kept)


def planned(
    tools: ToolSet,
    choice: ToolChoice,
    card: ModelCard,
    constraint: Constraint | None,
    constraint_param: str,
    *,
    parallel: bool,
) -> ToolPlan:
    """Return the plan for the tools. With a form besides tools, an answer is calls, or has the form.

    Raises BadRequest, UnsupportedFeature with the field's name.
    """
    plan = tool_plan(
        tools.functions,
        choice,
        card,
        parallel=parallel,
        separate_reasoning=True,
        enforced=True,
        places=tools.places,
    )
    if constraint is None:
        return plan
    if not plan.tools:
        return msgspec.structs.replace(plan, constraint=constraint, behind_reasoning=True)
    if not isinstance(constraint, JsonObject | JsonSchema):
        message = f"'{constraint_param}' and 'tools' exclude each other, unless 'tool_choice' is 'none'."
        raise BadRequest(message, param=constraint_param)
    if choice.required:
        return plan
    calls = tool_plan(
        tools.functions, ToolChoice("required", choice.names), card, parallel=parallel, places=tools.places
    ).constraint
    assert calls is not None
    return msgspec.structs.replace(plan, constraint=calls_or(calls, constraint, card), behind_reasoning=True)


def chosen(choice: str | Mapping[str, Any] | None, tools: ToolSet) -> ToolChoice:
    """Return which tools may be called. Raises BadRequest."""
    names = tuple(tools.called)
    if isinstance(choice, Mapping):
        kind = choice.get("type")
        if kind == "allowed_tools":
            return _allowed(choice, tools)
        if kind in ("function", "custom"):
            return ToolChoice("named", (_named(choice, tools),))
        raise InvalidRequest(
            f"Invalid value: {kind!r:.64}. Supported values are: 'function', 'custom', and 'allowed_tools'.",
            param="tool_choice.type",
        )
    if choice == "required" and not names:
        raise InvalidRequest("'tool_choice' is 'required', and there is no tool to call.", param="tool_choice")
    if choice == "none" or not names:
        return ToolChoice("none")
    return ToolChoice(choice or "auto", names)


def _allowed(choice: Mapping[str, Any], tools: ToolSet) -> ToolChoice:
    inner = choice.get("allowed_tools")  # as chat completions have it
    given = dict(inner) if isinstance(inner, dict) else dict(choice)
    at: Path = ("tool_choice",)
    mode = member_of(given, "mode", String(choices=("auto", "required")), at, required=True)
    names: list[str] = []
    for each in member_of(given, "tools", ListOf(OBJECT, minimum=1, maximum=MAX_TOOLS), at, required=True):
        if each.get("type") in ("function", "custom"):
            names.append(_named(each, tools))
    if not names:
        if mode == "required":
            raise InvalidRequest("'tool_choice' is 'required', and there is no tool to call.", param="tool_choice")
        return ToolChoice("none")
    return ToolChoice(mode, tuple(dict.fromkeys(names)))


def _named(choice: Mapping[str, Any], tools: ToolSet) -> str:
    nested = choice.get("function")
    given = dict(nested) if isinstance(nested, dict) else dict(choice)
    name = member_of(given, "name", String(minimum=1), ("tool_choice",), required=True)
    namespace = given.get("namespace")
    found = tools.name_of(name, namespace if isinstance(namespace, str) else "")
    if found is None:
        raise InvalidRequest(f"Invalid 'tool_choice': there is no tool '{name[:64]}' in 'tools'.", param="tool_choice")
    return found
