"""Friendli's chat messages: what each role must carry."""

from __future__ import annotations

from typing import Any

from dragoman.core.errors import BadRequest
from dragoman.dialects.chat_input import flattened, template_call
from dragoman.dialects.field_types import FieldError, FieldRule


def template_messages(messages: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """The checked messages of the table, as the core wants them. Raises BadRequest with the place of the fault."""
    return tuple(_message(message, i) for i, message in enumerate(messages))


def _message(message: dict[str, Any], i: int) -> dict[str, Any]:
    role, content, calls = message["role"], message["content"], message["tool_calls"]
    if calls and role != "assistant":
        place = f"messages[{i}].tool_calls"
        raise BadRequest(f"Invalid '{place}': only an assistant calls tools.", param=place)
    if content is None and not calls:
        raise FieldError(FieldRule.MISSING, ("messages", i, "content"), bound="content")
    if role == "tool" and message["tool_call_id"] is None:
        raise FieldError(FieldRule.MISSING, ("messages", i, "tool_call_id"), bound="tool_call_id")
    flat: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": flattened(content, i)}
    for name in ("name", "tool_call_id"):
        if message[name] is not None:
            flat[name] = message[name]
    reasoning = message["reasoning"] if message["reasoning_content"] is None else message["reasoning_content"]
    if reasoning is not None:
        flat["reasoning_content"] = reasoning
    if calls:
        flat["tool_calls"] = [template_call(call, i, j) for j, call in enumerate(calls)]
    return flat
