"""Images in TGI's texts, as Markdown: ``![](URL)``. A model that sees none is given it as text."""

from __future__ import annotations

import re
from typing import Any

from dragoman.core.image_sources import ImageSource, image_part, text_part
from dragoman.core.images import Detail
from dragoman.core.request import TextPrompt
from dragoman.core.serving import ModelCard
from dragoman.dialects.tgi.errors import InvalidInput

_IMAGE = re.compile(r"!\[\]\(([^)]+)\)")
_SCHEMES = ("http://", "https://", "data:")


def inputs_prompt(inputs: str, card: ModelCard) -> TextPrompt:
    """Return the inputs as a prompt. Raises InvalidInput for an image of no known scheme."""
    if card.images is None or "![](" not in inputs:
        return TextPrompt(text=inputs)
    text, places, sources = "", [], []
    for part in text_parts(inputs, "inputs"):
        if part["type"] == "text":
            text += part["text"]
        else:
            places.append(len(text))
            sources.append(part["source"])
    return TextPrompt(text=text, image_places=tuple(places), images=tuple(sources))


def text_parts(text: str, param: str) -> list[dict[str, Any]]:
    """Return a text as the parts of a content. Raises InvalidInput."""
    found, end = [], 0
    for match in _IMAGE.finditer(text):
        found.append(text_part(text[end : match.start()]))
        found.append(url_part(match[1], param))
        end = match.end()
    return [*found, text_part(text[end:])]


def url_part(url: str, param: str, detail: Detail = "auto") -> dict[str, Any]:
    """Return an image as the part of a content. Raises InvalidInput."""
    if not url.startswith(_SCHEMES):
        raise InvalidInput(f"invalid image content: {url[:256]}", logged="invalid image content")
    return image_part(ImageSource(url=url, detail=detail, param=param))
