"""Prompts and conversations of Python programs, checked and converted to the core's types."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.request import ChatPrompt, FillPrompt, TextPrompt, TokenPrompt
from dragoman.core.serving import ModelCard
from dragoman.dialects.field import Table
from dragoman.dialects.openai.fields import CHAT
from dragoman.dialects.openai.messages import template_messages
from dragoman.dialects.tools import ToolPlan, tool_choice, tool_plan
from dragoman.llm.images import with_urls
from dragoman.llm.sampling_params import InvalidParams, SamplingParams, check_fields, check_unicode

Prompt = str | Sequence[int] | TextPrompt | TokenPrompt | FillPrompt
"""A text, token ids, or one of the core's prompts, which have more options."""

Message = Mapping[str, Any]
"""In OpenAI's form: ``{"role": "user", "content": "…"}``."""


class ChatOptions(TypedDict, total=False):
    """Options of a conversation in addition to its messages. Each has the meaning that it has in a request to the
    server."""

    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    separate_reasoning: bool
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, Any]


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A checked conversation. ``plan``: how tools and reasoning affect the request and its texts."""

    prompt: ChatPrompt
    plan: ToolPlan


def listed_prompts(given: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """Return one prompt, or a batch of them, as a list. Raises InvalidParams for any other value."""
    if isinstance(given, str | TextPrompt | TokenPrompt | FillPrompt):
        return [given]
    items = _listed(given, "prompts", "a text, token ids, or a list of such prompts")
    return [items] if items and all(_is_token_id(item) for item in items) else items


def listed_conversations(given: Sequence[Message] | Iterable[Sequence[Message]]) -> list[Sequence[Message]]:
    """Return one conversation, or a batch of them, as a list. Raises InvalidParams."""
    items = _listed(given, "messages", "a list of messages, or a list of such conversations")
    return [items] if items and all(isinstance(item, Mapping) for item in items) else items


def is_conversation(given: Any) -> bool:
    """Return whether the argument is a list of messages, not a prompt."""
    return isinstance(given, Sequence) and bool(given) and isinstance(given[0], Mapping)


def listed_params(given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    """Return the parameters of each of ``count`` prompts. Raises InvalidParams."""
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    params = _listed(given, "sampling_params", "SamplingParams, or a list with one for each prompt")
    for each in params:
        if not isinstance(each, SamplingParams):
            message = f"'sampling_params' has an item that is no SamplingParams: {_shown(each)}."
            raise InvalidParams(message, param="sampling_params")
    if len(params) != count:
        message = f"'sampling_params' are {len(params)} for {count} prompts: give one for all, or one for each."
        raise InvalidParams(message, param="sampling_params")
    return params


def core_prompt(given: Prompt) -> TextPrompt | TokenPrompt | FillPrompt:
    """Return the prompt as the core's type. Raises InvalidParams."""
    if isinstance(given, TokenPrompt):
        return TokenPrompt(token_ids=token_ids(given.token_ids, "prompts"))
    if isinstance(given, TextPrompt | FillPrompt):
        check_fields(given)
        return given
    return TextPrompt(text=given) if isinstance(given, str) else TokenPrompt(token_ids=token_ids(given, "prompts"))


def checked_text(given: object, param: str) -> str:
    """Return the text. Raises InvalidParams for what is none, or has half a character."""
    if not isinstance(given, str):
        raise InvalidParams(f"'{param}' is {_shown(given)}: expected a text.", param=param)
    check_unicode(given, param)
    return given


def check_adapter(adapter: object) -> None:
    """Raise InvalidParams for what cannot be an adapter's name."""
    if adapter is not None:
        checked_text(adapter, "adapter")


def token_ids(given: Iterable[int], param: str) -> tuple[int, ...]:
    """Return token ids as Python's integers; NumPy's are accepted too. Raises InvalidParams.

    ``param``: "prompts", whose items may be texts too, or the name of what is token ids alone."""
    try:
        if isinstance(given, bytes | bytearray):  # their items are integers, but no token ids
            raise TypeError
        return tuple(map(operator.index, given))
    except TypeError:
        message = f"'{param}' is {_shown(given)}: expected a list of token ids."
        if param == "prompts":
            message = f"'prompts' has an item that is neither a text nor a list of token ids: {_shown(given)}."
        raise InvalidParams(message, param=param) from None


def checked_chat(messages: Sequence[Message], options: ChatOptions, params: SamplingParams, card: ModelCard) -> Chat:
    """Return the conversation, checked by the table of the server's OpenAI dialect.

    Raises BadRequest, and TypeError for options that there are not.
    """
    for name in options.keys() - ChatOptions.__annotations__.keys():
        raise TypeError(f"{name!r} is no option of a chat; there are {', '.join(ChatOptions.__annotations__)}")
    try:
        given = {"messages": with_urls(messages), **options}
        body = msgspec.json.decode(msgspec.json.encode(given, enc_hook=_json_value))
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidParams(f"Messages and tools are made of what JSON knows: {error}.", param="messages") from None
    reading = _chat_table().read(body, strict=True)
    if reading.reported:
        raise InvalidParams(f"'{reading.reported[0]}' has no effect: leave it out.", param=reading.reported[0])
    values = reading.values
    plan = _plan(values, card)
    if plan.tools and params.structured_outputs is not None:
        message = "'structured_outputs' and 'tools' exclude each other, unless 'tool_choice' is 'none'."
        raise InvalidParams(message, param="structured_outputs")
    if plan.constraint is not None and params.forced_output_tokens:
        raise InvalidParams("'forced_output_tokens' and 'tools' exclude each other.", param="forced_output_tokens")
    continuing, opening = values["continue_final_message"], values["add_generation_prompt"]
    if continuing and opening:
        message = "'continue_final_message' and 'add_generation_prompt' exclude each other."
        raise InvalidParams(message, param="continue_final_message")
    prompt = ChatPrompt(
        messages=template_messages(values["messages"], card),
        tools=plan.tools,
        add_generation_prompt=not continuing if opening is None else opening,
        continue_final_message=continuing,
        template_kwargs=values["chat_template_kwargs"] or {},
    )
    return Chat(prompt=prompt, plan=plan)


def _json_value(value: Any) -> Any:
    """Return texts and numbers of other kinds, as NumPy has them, as Python's. Raises TypeError for anything else."""
    if isinstance(value, str):
        return str.__str__(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"there is {_shown(value)}")


@functools.cache
def _chat_table() -> Table:
    names = {"messages", *ChatOptions.__annotations__}
    return Table(name="chat", fields=tuple(field for field in CHAT.fields if field.name in names))


def _plan(values: Mapping[str, Any], card: ModelCard) -> ToolPlan:
    tools = values["tools"] or ()
    if any(tool.get("function") is None for tool in tools):
        raise BadRequest("Each of 'tools' has a 'function' with its name and parameters.", param="tools")
    functions = [tool["function"] for tool in tools]
    separate = values["separate_reasoning"]
    if separate and card.reasoning is None:
        message = f"'separate_reasoning' is not supported: the model '{card.name}' is not known to write its reasoning."
        raise UnsupportedFeature(message, param="separate_reasoning")
    choice = tool_choice(_named(values["tool_choice"]), [function["name"] for function in functions])
    plan = tool_plan(functions, choice, card, parallel=values["parallel_tool_calls"], separate_reasoning=separate)
    return msgspec.structs.replace(plan, shape=msgspec.structs.replace(plan.shape, named=choice.mode == "named"))


def _named(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict) and choice.get("function") is None:
        raise BadRequest("'tool_choice' names one function, or is 'none', 'auto' or 'required'.", param="tool_choice")
    return choice


def _listed(given: Any, param: str, expected: str) -> list[Any]:
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise InvalidParams(f"'{param}' is {_shown(given)}: expected {expected}.", param=param)
    return list(given)


def _is_token_id(item: Any) -> bool:
    """Return whether the value is an integer, not a bool. NumPy's arrays have ``__index__`` too, but it raises."""
    try:
        operator.index(item)
    except TypeError:
        return False
    return not isinstance(item, bool)


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."
