"""Chat messages as input, for every chat dialect: contents as the strings, or parts with images, that a chat template
takes, and earlier tool calls in the form that it takes."""

from __future__ import annotations

import json
from typing import Any

from dragoman.core.errors import UnsupportedFeature
from dragoman.core.image_sources import content_of, text_part
from dragoman.core.serving import ModelCard
from dragoman.dialects.field_types import Anything, FieldError, FieldRule, Path, String
from dragoman.dialects.images import url_part

TEXT = String()
CALL = Anything(object_only=True, depth=32)


def flattened(
    content: str | tuple[dict[str, Any], ...] | None, i: int, card: ModelCard
) -> str | list[dict[str, Any]] | None:
    """Return the content of message ``i`` as one text, or with images as parts. Texts are joined as they are: the
    client decides about blanks and lines between them. Raises BadRequest with the location of the error."""
    if content is None or isinstance(content, str):
        return content
    parts = []
    for j, part in enumerate(content):
        path = ("messages", i, "content", j)
        kind = part.get("type")
        if kind is None:
            raise FieldError(FieldRule.MISSING, (*path, "type"))
        if kind == "refusal":
            parts.append(text_part(TEXT.check(part.get("refusal"), (*path, "refusal"))))
            continue
        if kind == "image_url":
            parts.append(url_part(part, path, card))
            continue
        if kind != "text":
            if kind in ("audio_url", "video_url", "input_audio", "file"):
                place = f"messages[{i}].content[{j}]"
                raise UnsupportedFeature(
                    f"'{place}': parts of type '{kind}' are not supported: text only.", param=place
                )
            raise FieldError(FieldRule.CHOICE, (*path, "type"), kind, bound=("text", "image_url"))
        if "text" not in part:
            raise FieldError(FieldRule.MISSING, (*path, "text"))
        parts.append(text_part(TEXT.check(part["text"], (*path, "text"))))
    return content_of(parts)


def template_call(call: dict[str, Any], i: int, j: int) -> dict[str, Any]:
    """Return one earlier tool call: ``{"id", "type": "function", "function": {"name", "arguments"}}``."""
    path = ("messages", i, "tool_calls", j)
    CALL.check(call, path)
    function = call.get("function")
    if function is None:
        raise FieldError(FieldRule.MISSING, (*path, "function"))
    if not isinstance(function, dict):
        raise FieldError(FieldRule.TYPE, (*path, "function"), function, kind=CALL)
    for name in ("name", "arguments"):
        if name not in function:
            raise FieldError(FieldRule.MISSING, (*path, "function", name))
        TEXT.check(function[name], (*path, "function", name))
    arguments = _arguments(function["arguments"], path)
    # Some templates write the function out as it comes: in the order in which models were taught it.
    return {"type": "function", **call, "function": {"name": None, **function, "arguments": arguments}}


def _arguments(text: str, path: Path) -> dict[str, Any] | str:
    """Return the arguments as templates take them: an object where the text is a JSON object, otherwise the text
    unchanged."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return CALL.check(value, (*path, "function", "arguments")) if isinstance(value, dict) else text
