"""OctoAI's fields about tools and formats, as one plan."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.serving import ModelCard
from dragoman.dialects.field import CoreParams
from dragoman.dialects.octoai.structured import calls_or
from dragoman.dialects.tools import ToolChoice, ToolPlan, tool_choice, tool_plan

# What Llama 3.1 knows of by name.
_BUILT_IN = {"brave_search": "query", "wolfram_alpha": "query", "code_interpreter": "code"}
_ANY_OBJECT = {"type": "object", "properties": {}, "additionalProperties": True}


def octoai_plan(core: CoreParams, card: ModelCard) -> ToolPlan:
    """The plan for a checked body, the constraint of ``response_format`` included.

    Which tool is called is decided first; an answer that calls none has the format. Raises BadRequest,
    UnsupportedFeature with the field's name.
    """
    functions = [_complete(tool["function"]) for tool in core.get("tools.functions") or ()]
    choice = tool_choice(core.get("tools.choice"), [function["name"] for function in functions])
    plan = tool_plan(functions, choice, card)
    format = core.get("constraint")
    if format is None or choice.required:
        return plan
    if choice.mode == "none":
        return msgspec.structs.replace(plan, constraint=format)
    # A block before the format would be part of the content, which then had another form: it is left out, as it has no
    # field of its own.
    plan = tool_plan(functions, choice, card, separate_reasoning=True)
    required = tool_plan(functions, ToolChoice("required", choice.names), card).constraint
    assert required is not None
    return msgspec.structs.replace(plan, constraint=calls_or(required, format))


def _complete(function: dict[str, Any]) -> dict[str, Any]:
    """With parameters, where the client left them out."""
    if function["parameters"] is not None:
        return function
    argument = _BUILT_IN.get(function["name"])
    if argument is None:
        return function | {"parameters": _ANY_OBJECT}
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return function | {"parameters": parameters}
