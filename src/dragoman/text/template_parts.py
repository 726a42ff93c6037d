"""The forms of a message's content that a chat template reads, found by rendering short conversations.

Templates of models that see read a list of parts, some of them nothing else; others read strings alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dragoman.core.errors import DragomanError
from dragoman.core.images import IMAGE_PART

_TEXT = "What does the gauge say?"

Messages = Sequence[dict[str, Any]]


class ContentForms(NamedTuple):
    """Whether a template renders contents that are strings, lists of texts, and lists with images."""

    strings: bool = True
    parts: bool = False
    images: bool = False


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
