"""Translation of chats and completions to TGI's parameters, and of messages to the prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dragoman.core.image_sources import content_of, has_images, text_part
from dragoman.core.request import ChatPrompt
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.field import CoreParams, Reading
from dragoman.dialects.images import joined_parts
from dragoman.dialects.tgi.body import Custom
from dragoman.dialects.tgi.chat_fields import CHAT, COMPLETIONS
from dragoman.dialects.tgi.errors import InvalidInput, MissingVariable
from dragoman.dialects.tgi.images import text_parts, url_part
from dragoman.dialects.tgi.settings import Quirks
from dragoman.dialects.tgi.tools import ToolSetup, with_tools
from dragoman.dialects.tgi.translate import Parameters, with_constraint


def chat_parameters(values: Mapping[str, Any], setup: ToolSetup | None, quirks: Quirks) -> Parameters:
    """Return the parameters of a checked chat request. Raises FieldError."""
    core, fault = with_constraint(CoreParams(CHAT, values))
    _check_lengths(values)
    if setup is not None:
        core = core.deciding({"constraint": setup.constraint})
    return _parameters(values, core, quirks, fault)


def completion_parameters(values: Mapping[str, Any], quirks: Quirks) -> Parameters:
    """Return the parameters of each generation of a checked completion request."""
    return _parameters(values, CoreParams(COMPLETIONS, values), quirks)


def report_idle(context: RequestContext, reading: Reading, card: ModelCard) -> None:
    """Name in the answer the fields of a chat or completion without effect, given the other fields and this model's
    template."""
    idle = _idle_fields(reading.values, card)
    context.report(msgspec.structs.replace(reading, reported=(*reading.reported, *idle)))


async def chat_text(
    serving: Serving, values: Mapping[str, Any], setup: ToolSetup | None
) -> tuple[str, ChatPrompt | None]:
    """Return the prompt of a checked chat request; with images also as what serving reads. Raises InvalidInput,
    MissingVariable and the template's errors."""
    card, core = serving.model(None), CoreParams(CHAT, values)
    variables = core.get("prompt.template_kwargs") or {}
    if not variables and "guideline" in card.template_variables:
        raise MissingVariable("guideline")
    messages = template_messages(core.get("prompt.messages"), card)
    shows = "tools" in card.template_variables
    if setup is not None:
        messages = with_tools(messages, setup, template_shows=shows)
    prompt = ChatPrompt(
        messages=messages,
        tools=setup.tools if setup and shows else (),
        template_kwargs=variables,
    )
    text = await serving.render(prompt)
    continues = core.get("prompt.continue_final_message")
    if continues or (continues is None and messages[-1]["role"] == "assistant"):
        if has_images(messages):
            return text, msgspec.structs.replace(prompt, add_generation_prompt=False, continue_final_message=True)
        return _cut_behind(text, messages[-1]["content"]), None
    return text, prompt if has_images(messages) else None


def _parameters(values: Mapping[str, Any], core: CoreParams, quirks: Quirks, grammar_fault: str = "") -> Parameters:
    presence = core.get("sampling.presence_penalty")
    if quirks.presence_as_repetition and presence is not None:
        core = core.deciding({"sampling.presence_penalty": None, "sampling.repetition_penalty": presence + 2})
    return Parameters(
        core=core,
        # 0 is the most likely token here, and an error in TGI's own requests.
        sampling=values["temperature"] != 0,
        logprobs=core.get("logprobs") is not None,
        details=True,
        any_adapter=True,
        grammar_fault=grammar_fault,
    )


def _check_lengths(values: Mapping[str, Any]) -> None:
    old, new = values["max_tokens"], values["max_completion_tokens"]
    if old is not None and new is not None and old != new:
        raise Custom((), "duplicate field `max_tokens`")


def _cut_behind(text: str, last: str | None) -> str:
    """Return the text up to the end of the last message, for the model to continue; all of it where that is not
    found."""
    for written in (last or "", (last or "").strip()):
        place = text.rfind(written)
        if written and place >= 0:
            return text[: place + len(written)].rstrip()
    return text


def _idle_fields(values: Mapping[str, Any], card: ModelCard) -> tuple[str, ...]:
    bias, options = values["logit_bias"], values["stream_options"]
    calls = bool(values.get("tools")) and values["tool_choice"] != "none"
    idle = {
        "logit_bias": isinstance(bias, tuple) and any(bias),
        "stream_options": not values["stream"] and options is not None and options["include_usage"],
        "tool_choice": not values.get("tools") and values.get("tool_choice") not in (None, "auto", "none"),
        "tool_prompt": not calls and bool(values.get("tool_prompt")),
        "guideline": values.get("guideline") is not None and "guideline" not in card.template_variables,
    }
    return tuple(name for name, is_idle in idle.items() if is_idle)


def template_messages(messages: Iterable[Mapping[str, Any]], card: ModelCard) -> tuple[dict[str, Any], ...]:
    """Return the checked messages in the form that this model's template takes. Raises InvalidInput for images."""
    return tuple(_message(message, i, card) for i, message in enumerate(messages))


def _message(message: Mapping[str, Any], i: int, card: ModelCard) -> dict[str, Any]:
    template_calls = "tool_calls" in card.template_members
    sees = card.images is not None and message["role"] in ("user", "tool")
    content, calls = _content(message["content"], i, sees=sees), message["tool_calls"]
    made: dict[str, Any] = {"role": message["role"], "content": content}
    if calls and template_calls:
        made["tool_calls"] = [_call(call) for call in calls]
    elif calls:
        made["content"] = joined_parts(content or "", "", _json(calls))
    return made | {name: message[name] for name in ("name", "tool_call_id") if message[name] is not None}


def _json(calls: Iterable[Mapping[str, Any]]) -> str:
    return msgspec.json.encode([_call(call) for call in calls]).decode()


def _content(
    content: str | tuple[dict[str, Any], ...] | None, i: int, *, sees: bool
) -> str | list[dict[str, Any]] | None:
    if content is None or (isinstance(content, str) and not sees):
        return content
    parts: list[dict[str, Any]] = []
    for part in (text_part(content),) if isinstance(content, str) else content:
        if part["type"] == "text":
            parts += text_parts(part["text"], f"messages[{i}].content") if sees else [part]
        elif sees:
            parts.append(url_part(part["image_url"]["url"], f"messages[{i}].content"))
        else:
            raise InvalidInput("image modality is not supported")
    return content_of(parts)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    described = {} if function["description"] is None else {"description": function["description"]}
    called = {"name": function["name"], "arguments": _arguments(function["arguments"]), **described}
    return {"id": str(call["id"]), "type": call["type"] or "function", "function": called}


def _arguments(given: Any) -> Any:
    """Return the arguments as an object where the text is one: templates write it as JSON."""
    if not isinstance(given, str):
        return {} if given is None else given
    try:
        value = json.loads(given) if given.strip() else {}
    except (ValueError, RecursionError):
        return given
    return value if isinstance(value, dict) else given
