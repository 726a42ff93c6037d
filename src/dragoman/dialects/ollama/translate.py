"""Translation from wire to core, as pure functions: a checked body becomes one GenerationRequest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dragoman.core.constraint import Constraint, JsonObject, JsonSchema
from dragoman.core.entropy import random_bits
from dragoman.core.errors import BadRequest, TemplateMissing, UnsupportedFeature
from dragoman.core.image_sources import content_of, text_part
from dragoman.core.request import ChatPrompt, FillPrompt, GenerationRequest, Prompt, TextPrompt
from dragoman.core.serving import ModelCard
from dragoman.dialects import reasoning
from dragoman.dialects.field import CoreParams, Reading
from dragoman.dialects.field_types import Path, dotted
from dragoman.dialects.images import base64_parts
from dragoman.dialects.ollama.calls import OpenCalls, new_call_id
from dragoman.dialects.tools import PLAIN, WITHOUT_TOOLS, MessageShape, ToolPlan, calls_or, tool_choice, tool_plan

RAW_CONFLICT = "raw mode does not support template, system, or context"


class Translated(NamedTuple):
    """``shows_thinking``: reasoning blocks are part of the answer. ``reading``: with the fields that have no effect
    with this model."""

    request: GenerationRequest
    shape: MessageShape
    shows_thinking: bool
    reading: Reading


class Thinking(NamedTuple):
    """``variables`` of the template. ``shows``: the block is part of the answer. ``unused``: the field is reported."""

    variables: dict[str, Any]
    shows: bool
    unused: bool = False


def generate_request(
    reading: Reading, request_id: str, card: ModelCard, history: Sequence[Mapping[str, Any]] = ()
) -> Translated:
    """Return the request of ``POST /api/generate``. ``history``: checked messages before the prompt. Raises BadRequest,
    UnsupportedFeature."""
    values, core = reading.values, reading.core
    system, suffix, raw = core.get("prompt.system"), core.get("prompt.suffix"), values["raw"]
    if raw and (system or values["context"]):
        raise BadRequest(RAW_CONFLICT, param="raw")
    images = _images(values, card, ())
    if images and (suffix or values["context"]):
        other = "suffix" if suffix else "context"
        raise BadRequest(f"images do not go with {other}", param=other)
    if suffix:
        _check_fill(values, card, raw=raw)
        prompt: Prompt = FillPrompt(prefix=core.get("prompt"), suffix=suffix)
        return _translated(reading, request_id, card, prompt, WITHOUT_TOOLS, Thinking({}, shows=False))
    thinking = thinking_of(values["think"], card)
    if raw or not card.has_chat_template:
        if system:
            raise TemplateMissing(f'system: "{card.name}" has no chat template', param="system")
        thinking = Thinking({}, shows=False, unused=raw and bool(values["think"]))
        sources = tuple(part["source"] for part in images)
        text = TextPrompt(text=core.get("prompt"), image_places=(0,) * len(sources), images=sources)
        return _translated(reading, request_id, card, text, WITHOUT_TOOLS, thinking)
    plan = _plan((), card)
    messages = [{"role": "system", "content": system}] if system else []
    messages += [*template_messages(history, card), {"role": "user", "content": _seen(core.get("prompt"), images)}]
    prompt = ChatPrompt(messages=tuple(messages), template_kwargs=thinking.variables)
    return _translated(reading, request_id, card, prompt, plan, thinking)


def chat_request(
    reading: Reading, request_id: str, card: ModelCard, messages: Sequence[Mapping[str, Any]]
) -> Translated:
    """Return the request of ``POST /api/chat`` with these of its messages. Raises BadRequest, UnsupportedFeature."""
    values, core = reading.values, reading.core
    if not card.has_chat_template:
        raise TemplateMissing(f'"{card.name}" does not support chat', param="messages")
    tools = core.get("tools.functions") or ()
    if tools and card.tool_calls is None:
        raise UnsupportedFeature(f"{card.name} does not support tools", param="tools")
    thinking = thinking_of(values["think"], card)
    plan = _plan(tools, card, enforced=core.get("constraint") is not None)
    shown = template_messages(messages, card)
    continues = shown[-1]["role"] == "assistant" and not shown[-1].get("tool_calls")
    prompt = ChatPrompt(
        messages=shown,
        tools=plan.tools,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        template_kwargs=thinking.variables,
    )
    return _translated(reading, request_id, card, prompt, plan, thinking)


def thinking_of(think: bool | str | None, card: ModelCard) -> Thinking:
    """Return what a request's ``think`` does with a model. Raises BadRequest for a model that cannot think."""
    if card.reasoning is None:
        if think:
            raise BadRequest(f'"{card.name}" does not support thinking', param="think")
        return Thinking({}, shows=False)
    is_on = think is None or bool(think)
    variables: dict[str, Any] = reasoning.switch(is_on, card)
    unused = think is False and not variables
    if isinstance(think, str):
        given = reasoning.effort(think, card)
        variables, unused = variables | given, not given
    return Thinking(variables, is_on, unused)


def _images(values: Mapping[str, Any], card: ModelCard | None, path: Path) -> list[dict[str, Any]]:
    """Return the images of a request or a message as parts of a content. Raises UnsupportedFeature."""
    images = values.get("images") or ()
    if images and (card is None or card.images is None):
        name = "a derived model" if card is None else card.name
        raise UnsupportedFeature(f"{name} does not support vision", param=dotted((*path, "images")))
    return base64_parts(images, (*path, "images"))


def _seen(text: str, images: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of a message: its images come first."""
    return content_of([*images, text_part(text)]) if images else text


def template_messages(messages: Sequence[Mapping[str, Any]], card: ModelCard | None) -> tuple[dict[str, Any], ...]:
    """Return checked messages in the form for chat templates. ``card``: of the model; None: they may have no images.
    Raises BadRequest, UnsupportedFeature."""
    found: list[dict[str, Any]] = []
    unanswered = OpenCalls()
    for i, message in enumerate(messages):
        role = message["role"]
        images = _images(message, card, ("messages", i))
        if images and role not in ("user", "tool"):
            place = f"messages[{i}].images"
            raise BadRequest(f"'{place}': images are read in messages of the user and of tools only", param=place)
        shown: dict[str, Any] = {"role": role, "content": _seen(message["content"], images)}
        if role == "assistant":
            if message["thinking"]:
                shown["reasoning_content"] = message["thinking"]
            calls = [_template_call(call, i, j) for j, call in enumerate(message["tool_calls"] or ())]
            if calls:
                shown["tool_calls"] = calls
                for call in calls:
                    unanswered.add(call["function"]["name"], call["id"])
        elif role == "tool":
            name = message["tool_name"] or message["name"]
            answered = unanswered.answer(name, message["tool_call_id"])
            id = message["tool_call_id"] or (answered.id if answered else None)
            name = name or (answered.name if answered else None)
            shown |= {key: value for key, value in (("name", name), ("tool_call_id", id)) if value}
        elif message["name"]:
            shown["name"] = message["name"]
        found.append(shown)
    return tuple(found)


def _template_call(call: Mapping[str, Any], i: int, j: int) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            place = f"messages[{i}].tool_calls[{j}].function.arguments"
            raise BadRequest(f"'{place}': expected an object, or the JSON of one", param=place)
    function = {"name": call["function"]["name"], "arguments": arguments or {}}
    return {"id": call["id"] or new_call_id(), "type": "function", "function": function}


def droppable(messages: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """Return the places of messages that a chat that is too long can do without, oldest first: system messages and the
    last one stay, calls and their results go together."""
    groups: list[list[int]] = []
    for place, message in enumerate(messages):
        if message["role"] == "system":
            continue
        if message["role"] == "tool" and groups:
            groups[-1].append(place)
        else:
            groups.append([place])
    return [tuple(group) for group in groups[:-1]]


def _check_fill(values: Mapping[str, Any], card: ModelCard, *, raw: bool) -> None:
    if raw:
        raise UnsupportedFeature("raw mode does not support suffix", param="suffix")
    if values["context"]:
        raise UnsupportedFeature("suffix does not go with context", param="context")
    if not card.has_fill_tokens:
        raise UnsupportedFeature(f"{card.name} does not support insert", param="suffix")


def _plan(tools: Sequence[Mapping[str, Any]], card: ModelCard, *, enforced: bool = False) -> ToolPlan:
    functions = [dict(tool["function"]) for tool in tools]
    choice = tool_choice(None, [function["name"] for function in functions])
    return tool_plan(functions, choice, card, separate_reasoning=True, enforced=enforced)


def _translated(
    reading: Reading, request_id: str, card: ModelCard, prompt: Prompt, plan: ToolPlan, thinking: Thinking
) -> Translated:
    values, core = reading.values, reading.core
    is_chat = isinstance(prompt, ChatPrompt)
    constraint: Constraint | None = core.get("constraint")
    if plan.constraint is not None and isinstance(constraint, JsonObject | JsonSchema):
        constraint = calls_or(plan.constraint, constraint, card)
    ending = msgspec.structs.replace(core.ending(), clamp_to_context=True, stop_in_answer=is_chat)
    request = core.request(
        request_id,
        prompt,
        model=card.name,
        seeds=core.get("seeds") or (random_bits(63),),
        sampling=_sampling(core),
        ending=ending,
        constraint=constraint,
        constraint_param="format",
        constraint_behind_reasoning=is_chat and plan.behind_reasoning,
        shown_tokens=plan.shown_tokens,
    )
    context = (values["options"] or {}).get("num_ctx")
    unused = {
        "think": thinking.unused,
        "options.num_ctx": context is not None and context > card.context_tokens,
    }
    reported = (*reading.reported, *(name for name, is_unused in unused.items() if is_unused))
    shape = plan.shape if is_chat else PLAIN
    return Translated(request, shape, thinking.shows, msgspec.structs.replace(reading, reported=reported))


def _sampling(core: CoreParams) -> Any:
    """Return the sampling parameters: temperature last; mirostat in place of the dialect's default truncations."""
    sampling = msgspec.structs.replace(core.sampling(), temperature_last=True)
    if sampling.mirostat_mode:
        own = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
        sampling = msgspec.structs.replace(sampling, **own)
    return sampling
