"""Tools of Anthropic's API: those that the model is shown, those that it may call, and the plan for its calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from dragoman.core.errors import BadRequest
from dragoman.core.serving import ModelCard
from dragoman.dialects.field import CoreParams
from dragoman.dialects.tools import ToolChoice, ToolPlan, tool_plan

_MODES = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}


def anthropic_plan(core: CoreParams, card: ModelCard, referenced: Collection[str]) -> ToolPlan:
    """Return the plan for a checked body. ``referenced``: deferred tools that a result has named.

    Raises BadRequest, UnsupportedFeature.
    """
    tools: Sequence[dict[str, Any]] = core.get("tools.functions") or ()
    choice, parallel = core.get("tools.choice"), core.get("tools.parallel")
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise BadRequest("tools: Tool names must be unique.", param="tools")
    shown = [tool for tool in tools if not tool["defer_loading"]]
    if tools and not shown:
        raise BadRequest("tools: at least one tool must not have `defer_loading`", param="tools")
    called = [i for i, tool in enumerate(tools) if not tool["defer_loading"] or tool["name"] in referenced]
    callable_tools = [tools[i] for i in called]
    wanted = _choice(choice, [tool["name"] for tool in callable_tools])
    plan = tool_plan(
        [_function(tool) for tool in callable_tools],
        wanted,
        card,
        parallel=parallel is not False,
        separate_reasoning=True,
        enforced=True,
        places=[f"tools.{i}" for i in called],
    )
    # A tool that appears later would change the head of the prompt, which is computed.
    visible = {tool["name"] for tool in shown}
    return msgspec.structs.replace(
        plan, tools=tuple(tool for tool in plan.tools if tool["function"]["name"] in visible)
    )


def _choice(choice: dict[str, Any] | None, names: Sequence[str]) -> ToolChoice:
    mode = "auto" if choice is None else _MODES[choice["type"]]
    if not names:
        if mode in ("required", "named"):
            raise BadRequest("tool_choice: only allowed when `tools` are specified", param="tool_choice")
        return ToolChoice("none")
    if mode != "named":
        return ToolChoice(mode, () if mode == "none" else tuple(names))
    assert choice is not None
    name = choice["name"]
    if name is None:
        raise BadRequest("tool_choice.name: Field required", param="tool_choice.name")
    if name not in names:
        raise BadRequest(f"tool_choice.name: Tool '{name[:64]}' not found in `tools`.", param="tool_choice.name")
    return ToolChoice("named", (name,))


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["input_schema"],
        "strict": tool["strict"],
        "schema_name": "input_schema",
    }
