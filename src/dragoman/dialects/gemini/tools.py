"""Functions of Google's API: those that the model is shown, those that it may call, and the plan for its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.core.constraint import Constraint, JsonObject, JsonSchema
from dragoman.core.errors import BadRequest
from dragoman.core.serving import ModelCard
from dragoman.dialects.field import CoreParams
from dragoman.dialects.gemini.fields import MAX_FUNCTIONS
from dragoman.dialects.tools import ToolChoice, ToolPlan, calls_or, tool_plan

MODES = {"MODE_UNSPECIFIED": "auto", "AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto"}
CHOICE = "toolConfig.functionCallingConfig"
ALLOWED = f"{CHOICE}.allowedFunctionNames"


def gemini_plan(core: CoreParams, card: ModelCard, format: Constraint | None, format_param: str) -> ToolPlan:
    """Return the plan for a checked body. ``format``: the form of an answer that calls nothing.

    Raises BadRequest, UnsupportedFeature with the field's name.
    """
    functions, places = _functions(core.get("tools.functions") or ())
    config = core.get("tools.choice") or {"mode": "AUTO", "allowedFunctionNames": ()}
    choice = _choice(config, [function["name"] for function in functions])
    if config["mode"] == "VALIDATED":
        functions = [{**function, "strict": True} for function in functions]
    plan = tool_plan(functions, choice, card, separate_reasoning=True, enforced=True, places=places)
    if format is None or not plan.tools:
        return plan
    if not isinstance(format, JsonObject | JsonSchema):
        raise BadRequest(f"'{format_param}' is not possible together with 'tools'.", param=format_param)
    if choice.required:
        return plan
    required = ToolChoice("required", choice.names)
    calls = tool_plan(functions, required, card, separate_reasoning=True, places=places).constraint
    assert calls is not None
    return msgspec.structs.replace(plan, constraint=calls_or(calls, format, card), behind_reasoning=True)


def _functions(tools: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the functions of all tools, and their places. Raises BadRequest."""
    if sum(len(tool["functionDeclarations"]) for tool in tools) > MAX_FUNCTIONS:
        message = f"Invalid value at 'tools': there can be {MAX_FUNCTIONS} functions at most."
        raise BadRequest(message, param="tools")
    functions, places = list[dict[str, Any]](), list[str]()
    for i, tool in enumerate(tools):
        for j, declared in enumerate(tool["functionDeclarations"]):
            place = f"tools[{i}].functionDeclarations[{j}]"
            schema, other = declared["parameters"], declared["parametersJsonSchema"]
            if schema is not None and other is not None:
                message = f"'{place}': 'parameters' and 'parametersJsonSchema' exclude each other."
                raise BadRequest(message, param=f"{place}.parametersJsonSchema")
            functions.append(
                {
                    "name": declared["name"],
                    "description": declared["description"],
                    "parameters": other if schema is None else schema,
                    "schema_name": "parameters" if other is None else "parametersJsonSchema",
                }
            )
            places.append(place)
    return functions, places


def _choice(config: dict[str, Any], names: Sequence[str]) -> ToolChoice:
    mode, allowed = MODES[config["mode"]], config["allowedFunctionNames"]
    if allowed and config["mode"] not in ("ANY", "VALIDATED"):
        raise BadRequest(f"'{ALLOWED}' goes with the modes ANY and VALIDATED.", param=ALLOWED)
    for i, name in enumerate(allowed):
        if name not in names:
            place = f"{ALLOWED}[{i}]"
            raise BadRequest(f"'{place}': no function '{name[:64]}' is declared in 'tools'.", param=place)
    if not names:
        if mode == "required":
            raise BadRequest(f"'{CHOICE}': the mode ANY needs functions in 'tools'.", param=CHOICE)
        return ToolChoice("none")
    return ToolChoice(mode, () if mode == "none" else tuple(dict.fromkeys(allowed or names)))
