"""Translation from wire to core, as pure functions: a checked body becomes one GenerationRequest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dragoman.core.errors import BadRequest, TemplateMissing
from dragoman.core.request import ChatPrompt, GenerationRequest
from dragoman.core.serving import ModelCard
from dragoman.dialects import reasoning
from dragoman.dialects.anthropic import thinking
from dragoman.dialects.anthropic.content import conversation
from dragoman.dialects.anthropic.fields import CLEAR_THINKING
from dragoman.dialects.anthropic.tools import anthropic_plan
from dragoman.dialects.field import CoreParams, Reading
from dragoman.dialects.tools import MessageShape


class Translated(NamedTuple):
    """``reading``: with the fields that have no effect with this model and conversation."""

    request: GenerationRequest
    shape: MessageShape
    reading: Reading


def messages_request(
    reading: Reading, request_id: str, seed: int | None, card: ModelCard, files: Mapping[str, bytes]
) -> Translated:
    """Return the request of ``POST /v1/messages``, or with no ``seed`` what ``count_tokens`` counts.

    ``files``: those of images, by their ids. Raises BadRequest, UnsupportedFeature.
    """
    values, core = reading.values, reading.core
    budget = thinking.budget(values, core.get("reasoning_budget"))
    if not card.has_chat_template:
        raise TemplateMissing(f"messages: the model '{card.name}' has no chat template", param="messages")
    tools = core.get("tools.functions") or ()
    kept, other_edits = _edits(values["context_management"])
    system, messages = core.get("prompt.system"), core.get("prompt.messages")
    talk = conversation(system, messages, card, tools, kept_turns=kept, files=files)
    plan = anthropic_plan(core, card, talk.referenced)
    constraint, constraint_param = _format(core)
    if constraint is not None and plan.tools:
        raise BadRequest(f"{constraint_param}: not together with `tools` that may be called", param=constraint_param)
    if constraint is not None and talk.continues:
        message = f"{constraint_param}: not together with a final assistant message, which is continued"
        raise BadRequest(message, param=constraint_param)
    on, may_reason = thinking.is_on(values["thinking"]), card.reasoning is not None and not talk.continues
    prompt = ChatPrompt(
        messages=talk.messages,
        tools=plan.tools,
        add_generation_prompt=not talk.continues,
        continue_final_message=talk.continues,
        template_kwargs=_variables(reading, card),
    )
    ending = msgspec.structs.replace(core.ending(), clamp_to_context=True, stop_in_answer=True)
    request = core.request(
        request_id,
        prompt,
        model=card.name,
        seeds=None if seed is None else (seed,),
        ending=ending,
        constraint=plan.constraint or constraint,
        constraint_param="tools" if plan.constraint else constraint_param,
        constraint_behind_reasoning=plan.behind_reasoning,
        shown_tokens=plan.shown_tokens,
        reasoning_budget=None if talk.continues else budget,
    )
    unused = {
        "thinking": on and not may_reason,
        "thinking.display": on and may_reason and values["thinking"]["display"] == "updates",
        "output_config.effort": _effort(reading) is not None and reasoning.EFFORT not in card.template_variables,
        "messages.citations": talk.cited,
        "system.x-anthropic-billing-header": talk.billed,
        **dict.fromkeys(other_edits, True),
    }
    reported = (*reading.reported, *(name for name, is_unused in unused.items() if is_unused))
    return Translated(request, plan.shape, msgspec.structs.replace(reading, reported=reported))


def _format(core: CoreParams) -> tuple[Any, str]:
    found = list(core.given("constraint"))
    if len(found) > 1:
        raise BadRequest("output_format: not together with `output_config.format`", param="output_format")
    for name, constraint in found:
        return constraint, f"{name}.schema"
    return None, "constraint"


def _variables(reading: Reading, card: ModelCard) -> dict[str, Any]:
    """Return the template's variables: those of the client before those that follow from other fields."""
    variables: dict[str, Any] = dict(thinking.switch(reading.values["thinking"], card))
    variables |= reasoning.effort(_effort(reading), card)
    return variables | (reading.core.get("prompt.template_kwargs") or {})


def _effort(reading: Reading) -> str | None:
    config = reading.values["output_config"]
    return config["effort"] if config else None


def _edits(management: dict[str, Any] | None) -> tuple[int | None, tuple[str, ...]]:
    """Return how many assistant turns keep their reasoning (None: all), and the names of edits without effect.

    Raises BadRequest.
    """
    kept, others = None, []
    for i, edit in enumerate((management or {}).get("edits") or ()):
        if edit.get("type") != CLEAR_THINKING:
            others.append(f"context_management.edits[{i}]")
            continue
        keep = edit.get("keep", {"type": "thinking_turns", "value": 1})
        if keep == "all":
            kept = None
        elif isinstance(keep, dict) and type(keep.get("value")) is int and keep["value"] >= 1:
            kept = keep["value"]
        else:
            message = f"context_management.edits.{i}.keep: Input should be 'all' or a number of thinking turns"
            raise BadRequest(message, param="context_management.edits")
    return kept, tuple(others)
