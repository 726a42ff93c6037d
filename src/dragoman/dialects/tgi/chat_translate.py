"""Chats and completions in TGI's own parameters, and messages as the prompt that they come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.core.constraint import Constraint
from dragoman.core.request import ChatPrompt
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.field import Reading
from dragoman.dialects.tgi.errors import InvalidInput, MissingVariable
from dragoman.dialects.tgi.grammar import constraint_of
from dragoman.dialects.tgi.messages import template_messages
from dragoman.dialects.tgi.parameters import Parameters
from dragoman.dialects.tgi.settings import Quirks
from dragoman.dialects.tgi.shape import Custom
from dragoman.dialects.tgi.tools import Offer, with_tools
from dragoman.dialects.wire import Exchange

_SAME = ("top_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed")


def chat_parameters(values: Mapping[str, Any], offer: Offer | None, quirks: Quirks) -> Parameters:
    """What a checked chat request asks of its generation. Raises Violation."""
    constraint, fault = _grammar(values["response_format"])
    return _parameters(
        values,
        quirks,
        max_new_tokens=_most_tokens(values),
        top_n_tokens=values["top_logprobs"],
        constraint=offer.constraint if offer else constraint,
        grammar_fault=fault,
    )


def completion_parameters(values: Mapping[str, Any], quirks: Quirks) -> Parameters:
    """What a checked completion request asks of each generation."""
    return _parameters(values, quirks, max_new_tokens=values["max_tokens"], top_n_tokens=values["logprobs"])


def report_idle(exchange: Exchange, reading: Reading, card: ModelCard) -> None:
    """Name in the answer the fields of a chat or completion that have no effect beside the others, or with this model's
    template."""
    idle = _idle_fields(reading.values, card)
    exchange.report(msgspec.structs.replace(reading, reported=(*reading.reported, *idle)))


async def chat_text(serving: Serving, values: Mapping[str, Any], offer: Offer | None) -> str:
    """The prompt of a checked chat request. Raises InvalidInput, MissingVariable and what the template says."""
    card = serving.model(None)
    if values["guideline"] is None and "guideline" in card.template_variables:
        raise MissingVariable("guideline")
    messages = template_messages(values["messages"], card)
    shows = "tools" in card.template_variables
    if offer is not None:
        messages = with_tools(messages, offer, template_shows=shows)
    prompt = ChatPrompt(
        messages=messages,
        tools=offer.tools if offer and shows else (),
        template_kwargs={} if values["guideline"] is None else {"guideline": values["guideline"]},
    )
    text = await serving.render(prompt)
    continues = values["continue_final_message"]
    if continues or (continues is None and messages[-1]["role"] == "assistant"):
        return _cut_behind(text, messages[-1]["content"])
    return text


def _parameters(
    values: Mapping[str, Any],
    quirks: Quirks,
    *,
    max_new_tokens: int | None,
    top_n_tokens: int | None,
    constraint: Constraint | None = None,
    grammar_fault: str = "",
) -> Parameters:
    temperature, stop, bias = values["temperature"], values["stop"], values["logit_bias"]
    same = {name: values[name] for name in _SAME}
    presence = values["presence_penalty"]
    if quirks.presence_as_repetition and presence is not None:
        same |= {"presence_penalty": None, "repetition_penalty": presence + 2}
    return Parameters(
        **same,
        sampling=temperature != 0,
        # 0 is the most likely token here, and an error in TGI's own requests.
        temperature=temperature or None,
        stop=(stop,) if isinstance(stop, str) else stop or (),
        logit_bias=bias if isinstance(bias, dict) else {},
        max_new_tokens=max_new_tokens,
        top_n_tokens=top_n_tokens,
        # A switch in chats, a count in completions, where 0 asks for them too.
        logprobs=not (values["logprobs"] is None or values["logprobs"] is False),
        details=True,
        adapter_id=None if values["model"] == "tgi" else values["model"],
        any_adapter=True,
        constraint=constraint,
        grammar_fault=grammar_fault,
    )


def _most_tokens(values: Mapping[str, Any]) -> int | None:
    old, new = values["max_tokens"], values["max_completion_tokens"]
    if old is not None and new is not None and old != new:
        raise Custom((), "duplicate field `max_tokens`")
    most: int | None = old if new is None else new
    return most


def _grammar(values: dict[str, Any] | None) -> tuple[Constraint | None, str]:
    try:
        return constraint_of(values, "response_format"), ""
    except InvalidInput as error:
        return None, error.rule


def _cut_behind(text: str, last: str | None) -> str:
    """The text up to the end of the last message, for the model to go on with; all of it where that is not found."""
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
