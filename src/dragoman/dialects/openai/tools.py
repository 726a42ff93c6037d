"""OpenAI's fields about tools and reasoning, as the plan that every chat dialect makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.serving import ModelCard
from dragoman.dialects.field import Reading
from dragoman.dialects.tools import ToolChoice, ToolPlan, known_tools, tool_choice, tool_plan


def openai_plan(reading: Reading, card: ModelCard) -> ToolPlan:
    """The plan for a checked body. Raises BadRequest, UnsupportedFeature with the field's name."""
    core = reading.core
    functions = [tool["function"] for tool in core.get("tools.functions") or ()]
    choice = _choice(core.get("tools.choice"), [function["name"] for function in functions])
    separate = reading.values["separate_reasoning"]
    if separate and card.reasoning is None:
        message = f"'separate_reasoning' is not supported: the model '{card.name}' is not known to write its reasoning."
        raise UnsupportedFeature(message, param="separate_reasoning")
    plan = tool_plan(functions, choice, card, parallel=core.get("tools.parallel"), separate_reasoning=separate)
    return msgspec.structs.replace(plan, shape=msgspec.structs.replace(plan.shape, named=choice.mode == "named"))


def _choice(choice: str | dict[str, Any] | None, names: Sequence[str]) -> ToolChoice:
    """Also one tool, or some of them, as an object."""
    if not names or not isinstance(choice, dict):
        return tool_choice(choice, names)
    if choice["type"] == "function":
        return tool_choice({"function": _given(choice, "function")}, names)
    allowed = _given(choice, "allowed_tools")
    return ToolChoice(allowed["mode"], known_tools([tool["function"]["name"] for tool in allowed["tools"]], names))


def _given(choice: dict[str, Any], member: str) -> dict[str, Any]:
    other = "allowed_tools" if member == "function" else "function"
    if choice[member] is None or choice[other] is not None:
        message = f"Invalid 'tool_choice': with type '{member}' it has the member '{member}', and not '{other}'."
        raise BadRequest(message, param="tool_choice")
    given: dict[str, Any] = choice[member]
    return given
