"""Translation from wire to core, as pure functions: a checked body becomes one GenerationRequest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dragoman.core.constraint import Choice, Constraint, JsonSchema
from dragoman.core.errors import BadRequest, TemplateMissing
from dragoman.core.request import ChatPrompt, GenerationRequest
from dragoman.core.serving import ModelCard
from dragoman.dialects import reasoning
from dragoman.dialects.field import CoreParams, Reading
from dragoman.dialects.gemini.config_fields import ENUM, JSON, PLAIN, UNSPECIFIED
from dragoman.dialects.gemini.content import Conversation, conversation
from dragoman.dialects.gemini.tools import gemini_plan
from dragoman.dialects.tools import MessageShape, ToolPlan

CONFIG = "generationConfig"
MIME_TYPE = f"{CONFIG}.responseMimeType"
THINKING = f"{CONFIG}.thinkingConfig"


class Translated(NamedTuple):
    """``reading``: with the fields that have no effect with this model and conversation."""

    request: GenerationRequest
    shape: MessageShape
    reading: Reading


class Thinking(NamedTuple):
    """What a request says about the model's reasoning. ``budget``: as it was asked for."""

    shown: bool = False
    budget: int | None = None
    level: str | None = None

    @property
    def asks(self) -> bool:
        """Whether it asks for reasoning."""
        return self.shown or self.budget not in (None, 0) or self.level is not None


def content_request(
    reading: Reading, request_id: str, seed: int, card: ModelCard, timeout_s: float | None = None
) -> Translated:
    """Return the request of ``generateContent``. Raises BadRequest, UnsupportedFeature."""
    core, config = reading.core, reading.values[CONFIG] or {}
    if config.get("logprobs") is not None and not config["responseLogprobs"]:
        raise BadRequest(f"'{CONFIG}.logprobs' goes with 'responseLogprobs'.", param=f"{CONFIG}.logprobs")
    thinking = thinking_of(config)
    format, format_param = _format(core, config)
    prompt, plan, talk = _prompt(core, card, config, thinking, format, format_param)
    if format is not None and talk.continues:
        message = f"'{format_param}' is not possible together with a last content of the model, which is continued."
        raise BadRequest(message, param=format_param)
    may_reason = card.reasoning is not None and not talk.continues
    off_by_budget = thinking.budget == 0 and may_reason and not reasoning.switch(False, card)
    budget = 1 if off_by_budget else core.get("reasoning_budget")
    request = core.request(
        request_id,
        prompt,
        model=card.name,
        seeds=(seed,),
        ending=msgspec.structs.replace(core.ending(), clamp_to_context=True, stop_in_answer=True),
        constraint=plan.constraint or format,
        constraint_param="tools" if plan.constraint else format_param or "constraint",
        constraint_behind_reasoning=plan.behind_reasoning,
        shown_tokens=plan.shown_tokens,
        reasoning_budget=None if talk.continues else budget,
        images_param="contents",
        timeout_s=timeout_s,
    )
    sees_detail = card.images is not None and card.images.has_detail
    has_resolution = config.get("mediaResolution") not in (None, "MEDIA_RESOLUTION_UNSPECIFIED")
    unused = {
        THINKING: thinking.asks and not may_reason,
        f"{THINKING}.thinkingBudget": off_by_budget,
        f"{THINKING}.thinkingLevel": thinking.level is not None and may_reason and not reasoning.reads_effort(card),
        f"{CONFIG}.mediaResolution": has_resolution and not sees_detail,
        **dict.fromkeys(talk.detailed, not sees_detail),
    }
    reported = (*reading.reported, *(name for name, is_unused in unused.items() if is_unused))
    return Translated(request, plan.shape, msgspec.structs.replace(reading, reported=reported))


SHOWN = ("contents", "systemInstruction", "tools", "toolConfig")
"""What of a request the model is shown."""


def without_beside(reading: Reading) -> Reading:
    """Return the reading of ``countTokens`` without what counts for nothing beside a whole request.

    Raises BadRequest where neither that nor contents are given.
    """
    if reading.values["generateContentRequest"] is None:
        if reading.values["contents"] is None:
            raise BadRequest("'contents' or 'generateContentRequest' is missing.", param="contents")
        return reading
    beside = tuple(name for name in SHOWN if reading.values[name] is not None)
    values = {**reading.values, **dict.fromkeys(beside)}
    return msgspec.structs.replace(reading, values=values, reported=(*reading.reported, *beside))


def counted_prompt(reading: Reading, card: ModelCard) -> ChatPrompt:
    """Return the prompt whose tokens ``countTokens`` counts. Raises BadRequest, UnsupportedFeature."""
    return _prompt(reading.core, card, {}, Thinking(), None, "")[0]


def thinking_of(config: Mapping[str, Any]) -> Thinking:
    """Return what a checked ``generationConfig`` says about reasoning. Raises BadRequest."""
    given = config.get("thinkingConfig")
    if given is None:
        return Thinking()
    level = None if given["thinkingLevel"] == UNSPECIFIED else given["thinkingLevel"]
    if level is not None and given["thinkingBudget"] is not None:
        message = f"'{THINKING}': 'thinkingBudget' and 'thinkingLevel' exclude each other."
        raise BadRequest(message, param=f"{THINKING}.thinkingLevel")
    return Thinking(given["includeThoughts"], given["thinkingBudget"], level)


def _prompt(
    core: CoreParams,
    card: ModelCard,
    config: Mapping[str, Any],
    thinking: Thinking,
    format: Constraint | None,
    format_param: str,
) -> tuple[ChatPrompt, ToolPlan, Conversation]:
    if not card.has_chat_template:
        message = f"'contents' is not supported: the model '{card.name}' has no chat template."
        raise TemplateMissing(message, param="contents")
    contents = core.get("prompt.messages")
    talk = conversation(core.get("prompt.system"), contents, card, config.get("mediaResolution"))
    plan = gemini_plan(core, card, format, format_param)
    prompt = ChatPrompt(
        messages=talk.messages,
        tools=plan.tools,
        add_generation_prompt=not talk.continues,
        continue_final_message=talk.continues,
        template_kwargs=_variables(thinking, card),
    )
    return prompt, plan, talk


def _variables(thinking: Thinking, card: ModelCard) -> dict[str, Any]:
    """Return the template's variables for its reasoning; none where the request says nothing of it."""
    if thinking.level is not None:
        return reasoning.effort_variables(thinking.level.lower(), card)
    if thinking.budget is None:
        return dict(reasoning.switch(True, card)) if thinking.shown else {}
    return dict(reasoning.switch(thinking.budget != 0, card))


def _format(core: CoreParams, config: Mapping[str, Any]) -> tuple[Constraint | None, str]:
    """Return the form of the answer, and the field that asks for it. Raises BadRequest."""
    kind = config.get("responseMimeType")
    found = list(core.given("constraint"))
    schemas = [(name, constraint) for name, constraint in found if name != MIME_TYPE]
    if len(schemas) > 1:
        raise BadRequest(f"'{schemas[0][0]}' and '{schemas[1][0]}' exclude each other.", param=schemas[1][0])
    if schemas and kind == PLAIN:
        raise BadRequest(f"'{schemas[0][0]}' goes with '{MIME_TYPE}' {JSON}, not {PLAIN}.", param=MIME_TYPE)
    if kind == ENUM:
        return _one_of(schemas[0] if schemas else None), schemas[0][0] if schemas else MIME_TYPE
    return (found[0][1], found[0][0]) if found else (None, "")


def _one_of(given: tuple[str, Any] | None) -> Choice:
    """Return the texts of a schema's ``enum``. Raises BadRequest where there is none of texts."""
    name, schema = given or (MIME_TYPE, None)
    texts = msgspec.json.decode(schema.schema).get("enum") if isinstance(schema, JsonSchema) else None
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise BadRequest(f"'{name}': '{MIME_TYPE}' {ENUM} goes with a schema that has an 'enum' of texts.", param=name)
    return Choice(tuple(dict.fromkeys(texts)))
