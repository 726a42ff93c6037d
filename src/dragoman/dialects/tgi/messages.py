"""The messages of a chat request: their fields, and how the chat template is given them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dragoman.core.serving import ModelCard
from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import Anything, FieldError, FieldRule, Integer, ListOf, OneOf, Path, String
from dragoman.dialects.tgi.errors import InvalidInput
from dragoman.dialects.tgi.serde_errors import Custom

_TEXT = String()
_CALL_ID = OneOf((Integer(), String()))

_URL = Table(name="Url", fields=(Field(name="url", kind=_TEXT, required=True, note="Of an image."),))


class _Chunk(Table, frozen=True, kw_only=True):
    """A part of a content. Clients send the member of the other type as ``null``."""

    def check(self, value: Any, path: Path) -> dict[str, Any]:
        given = super().check(value, path)
        if given[given["type"]] is None:
            raise FieldError(FieldRule.MISSING, (*path, given["type"]), bound=given["type"])
        return given


MESSAGE_CHUNK = _Chunk(
    name="MessageChunk",
    fields=(
        Field(name="type", kind=String(choices=("text", "image_url")), required=True, note="Which of the two follows."),
        Field(name="text", kind=_TEXT, note="Joined with its neighbours as it is."),
        Field(name="image_url", kind=_URL, note="Refused: the model sees nothing."),
    ),
)

TOOL_CALL = Table(
    name="ToolCall",
    fields=(
        Field(name="id", kind=_CALL_ID, required=True, note="Given to the chat template as a string."),
        Field(name="type", kind=_TEXT, note="`function`."),
        Field(
            name="function",
            kind=Table(
                name="CalledFunction",
                fields=(
                    Field(name="name", kind=_TEXT, required=True, note="The tool."),
                    Field(name="arguments", kind=Anything(depth=32), note="An object, or its JSON text."),
                    Field(name="description", kind=_TEXT, note="Given to the chat template."),
                ),
            ),
            required=True,
            note="What was called.",
        ),
    ),
)


class _Message(Table, frozen=True, kw_only=True):
    """A message, which has content or calls. The original tries both in turn, and says no more than that none fits."""

    def check(self, value: Any, path: Path) -> dict[str, Any]:
        try:
            given = super().check(value, path)
        except FieldError as error:
            if len(error.path) > len(path) and error.path[len(path)] in ("content", "tool_calls"):
                raise _neither(path) from None
            raise
        if given["content"] is None and not given["tool_calls"]:
            raise _neither(path) if "content" in value else FieldError(FieldRule.MISSING, (*path, "content"))
        return given


def _neither(path: Path) -> Custom:
    return Custom(path, "data did not match any variant of untagged enum MessageBody")


CONTENT = OneOf((_TEXT, ListOf(MESSAGE_CHUNK, maximum=4096)))

MESSAGE = _Message(
    name="Message",
    fields=(
        Field(name="role", kind=_TEXT, required=True, note="Given to the chat template, which decides about it."),
        Field(
            name="content",
            kind=CONTENT,
            note="Text, or parts of it. Only messages with `tool_calls` may do without.",
        ),
        Field(name="name", kind=_TEXT, note="Given to the chat template."),
        Field(
            name="tool_calls",
            kind=ListOf(TOOL_CALL, maximum=256),
            note="Earlier calls: given to the chat template with their arguments as objects or, where it has no use "
            "for them, as JSON behind the content.",
        ),
        Field(name="tool_call_id", kind=_TEXT, note="The call that a `tool` message answers, for the chat template."),
    ),
)

MESSAGES = ListOf(MESSAGE, maximum=8192)


def template_messages(messages: Iterable[Mapping[str, Any]], card: ModelCard) -> tuple[dict[str, Any], ...]:
    """Checked messages as the chat template of this model takes them. Raises InvalidInput for images."""
    return tuple(_message(message, "tool_calls" in card.template_members) for message in messages)


def _message(message: Mapping[str, Any], template_calls: bool) -> dict[str, Any]:
    content, calls = _text(message["content"]), message["tool_calls"]
    made: dict[str, Any] = {"role": message["role"], "content": content}
    if calls and template_calls:
        made["tool_calls"] = [_call(call) for call in calls]
    elif calls:
        made["content"] = (content or "") + msgspec.json.encode([_call(call) for call in calls]).decode()
    return made | {name: message[name] for name in ("name", "tool_call_id") if message[name] is not None}


def _text(content: str | tuple[dict[str, Any], ...] | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if any(part["type"] == "image_url" for part in content):
        raise InvalidInput("image modality is not supported")
    return "".join(part["text"] for part in content)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    described = {} if function["description"] is None else {"description": function["description"]}
    called = {"name": function["name"], "arguments": _arguments(function["arguments"]), **described}
    return {"id": str(call["id"]), "type": call["type"] or "function", "function": called}


def _arguments(given: Any) -> Any:
    """An object, where the text is one: templates write it out as JSON."""
    if not isinstance(given, str):
        return {} if given is None else given
    try:
        value = json.loads(given) if given.strip() else {}
    except (ValueError, RecursionError):
        return given
    return value if isinstance(value, dict) else given
