"""Images as clients name them, before anything is fetched or decoded, and the parts of messages that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import msgspec

from dragoman.core.images import IMAGE_PART, Detail, ImageTiles

MAX_IMAGES = 32
"""Images of one request."""


class ImageSource(msgspec.Struct, kw_only=True, dict=True):
    """One image, as a dialect found it.

    Attributes:
        url: a ``data:`` URL, or an address to fetch it from.
        data: otherwise the file in base64. file: otherwise its bytes.
        detail: as in ``ImageInput``.
        param: its wire field, for errors.
    """

    url: str = ""
    data: str = ""
    file: bytes = b""
    detail: Detail = "auto"
    param: str = ""

    def tiles(self, model: str) -> ImageTiles | None:
        """Return what it became for a model; None: nothing yet. A prompt may be read several times."""
        found: ImageTiles | None = self.__dict__.get(model)
        return found

    def keep(self, model: str, tiles: ImageTiles) -> None:
        """Keep what it became for a model."""
        self.__dict__[model] = tiles


def image_part(source: ImageSource) -> dict[str, Any]:
    """Return the part of a message's content that stands for an image; serving takes the source out of it before a
    template sees the part."""
    return {**IMAGE_PART, "source": source}


def has_images(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether any message has an image."""
    return any(isinstance(message.get("content"), list) for message in messages)


def text_part(text: str) -> dict[str, Any]:
    """Return the part of a message's content that is text."""
    return {"type": "text", "text": text}


def content_of(parts: Iterable[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return a message's content of parts: one text where there is no image, and no two texts side by side."""
    found: list[dict[str, Any]] = []
    for is_text, run in groupby(parts, key=lambda part: part["type"] == "text"):
        if not is_text:
            found += run
        elif text := "".join([part["text"] for part in run]):
            found.append(text_part(text))
    if not found:
        return ""
    return str(found[0]["text"]) if len(found) == 1 and found[0]["type"] == "text" else found
