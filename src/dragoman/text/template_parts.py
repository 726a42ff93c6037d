"""The forms of a message's content and of its calls that a chat template reads, found by rendering short conversations.

Templates of models that see read a list of parts, some of them nothing else; others read strings alone. Those of
DeepSeek join arguments of calls to other texts, and tell a turn of calls alone by a content that is null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from dragoman.core.errors import BadRequest, DragomanError
from dragoman.core.images import IMAGE_PART

_TEXT = "What does the gauge say?"

_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "gauge", "arguments": {"at": "noon"}}}

Messages = Sequence[dict[str, Any]]


class ContentForms(NamedTuple):
    """Whether a template renders contents that are strings, lists of texts, and lists with images."""

    strings: bool = True
    parts: bool = False
    images: bool = False


class CallForm(NamedTuple):
    """How a template takes a turn of the assistant with calls.

    Attributes:
        text: arguments are JSON texts, not objects.
        content: what a turn without content has: none (``absent``), ``null``, or an ``empty`` text.
    """

    text: bool = False
    content: Literal["absent", "null", "empty"] = "absent"


_CALL_FORMS = [
    *(CallForm(False, "absent"), CallForm(False, "null"), CallForm(False, "empty")),
    *(CallForm(True, "absent"), CallForm(True, "null"), CallForm(True, "empty")),
]


def call_form(render: Callable[[Messages], str]) -> CallForm:
    """Return the first form of which a template renders the call; the usual one where there is none."""
    before, after = {"role": "user", "content": _TEXT}, {"role": "tool", "tool_call_id": _CALL["id"], "content": "4"}
    calls = {"role": "assistant", "tool_calls": [_CALL]}
    for form in _CALL_FORMS:
        try:
            shown = render([before, *with_call_form([calls], form), {**after, "name": "gauge"}])
        except BadRequest:
            continue
        if "noon" in shown:
            return form
    return CallForm()


def with_call_form(messages: Messages, form: CallForm) -> list[dict[str, Any]]:
    """Return the messages with the assistant's calls in a form that the template renders."""
    return [_with_calls(message, form) if message.get("tool_calls") else message for message in messages]


def _with_calls(message: dict[str, Any], form: CallForm) -> dict[str, Any]:
    if form.content != "absent":
        message = {"content": None if form.content == "null" else "", **message}
    if not form.text:
        return message
    return {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def content_forms(render: Callable[[Messages], str], placeholder: str) -> ContentForms:
    """Return what a template renders. ``placeholder``: what it writes for an image; empty: the model sees none."""

    def has(content: Any, *wanted: str) -> bool:
        try:
            text = render([{"role": "user", "content": content}])
        except DragomanError:
            return False
        return all(text.count(each) == 1 for each in wanted) and "'type'" not in text

    text = {"type": "text", "text": _TEXT}
    return ContentForms(
        strings=has(_TEXT, _TEXT),
        parts=has([text], _TEXT),
        images=bool(placeholder) and has([IMAGE_PART, text], _TEXT, placeholder),
    )


def with_forms(messages: Messages, forms: ContentForms, placeholder: str) -> list[dict[str, Any]]:
    """Return the messages with their contents in a form that the template renders: an image that it has no form for is
    the placeholder in the text, on a line of its own."""
    return [_fitted(message, forms, placeholder) for message in messages]


def _fitted(message: dict[str, Any], forms: ContentForms, placeholder: str) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str) and not forms.strings and forms.parts:
        return {**message, "content": [{"type": "text", "text": content}] if content else []}
    if isinstance(content, list | tuple):
        has_images = any(isinstance(part, dict) and part.get("type") == "image" for part in content)
        if not (forms.images if has_images else forms.parts):
            return {**message, "content": "".join(_texts(content, placeholder))}
    return message


def _texts(content: Sequence[Any], placeholder: str) -> list[str]:
    """Return the texts of parts, and what stands for images, each on a line of its own."""
    texts: list[str] = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "image":
            before = "".join(texts)
            texts.append(("" if not before or before.endswith("\n") else "\n") + placeholder + "\n")
        elif isinstance(part, dict):
            texts.append(str(part.get("text", "")))
    return texts
