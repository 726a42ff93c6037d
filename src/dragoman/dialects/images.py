"""Images in requests, for every dialect: from the wire's value to the part of a message that serving reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dragoman.core.errors import UnsupportedFeature
from dragoman.core.image_sources import ImageSource, image_part, text_part
from dragoman.core.images import Detail
from dragoman.core.serving import ModelCard
from dragoman.dialects.field_types import Anything, Path, String, dotted, member_of

OBJECT, URL = Anything(object_only=True, depth=4), String(minimum=1)
DETAILS: Mapping[str, Detail] = {"auto": "auto", "low": "low", "high": "high", "original": "high"}


def url_part(part: Mapping[str, Any], path: Path, card: ModelCard) -> dict[str, Any]:
    """Return OpenAI's part ``{"type": "image_url", "image_url": {"url", "detail"}}`` as serving reads it.

    Raises FieldError, and UnsupportedFeature for a model that sees no images.
    """
    if card.images is None:
        place = dotted(path)
        raise UnsupportedFeature(
            f"'{place}': parts of type 'image_url' are not supported: the model '{card.name}' reads text only.",
            param=place,
        )
    given = member_of(part, "image_url", OBJECT, path, required=True)
    at = (*path, "image_url")
    url = member_of(given, "url", URL, at, required=True)
    detail = member_of(given, "detail", String(choices=tuple(DETAILS)), at)
    return image_part(ImageSource(url=url, detail=DETAILS[detail or "auto"], param=dotted((*at, "url"))))


def unused_details(messages: Iterable[Mapping[str, Any]], card: ModelCard) -> tuple[str, ...]:
    """Return the places of details in OpenAI's messages that have no effect: the model makes the same of every image
    whatever its detail."""
    if card.images is None or card.images.has_detail:
        return ()
    return tuple(
        f"messages[{i}].content[{j}].image_url.detail"
        for i, message in enumerate(messages)
        if isinstance(message["content"], tuple)
        for j, part in enumerate(message["content"])
        if isinstance(part.get("image_url"), dict) and part["image_url"].get("detail") not in (None, "auto")
    )


def base64_parts(images: Sequence[str], path: Path) -> list[dict[str, Any]]:
    """Return the parts of images that are given as a list of files in base64."""
    return [image_part(ImageSource(data=each, param=dotted((*path, i)))) for i, each in enumerate(images)]


def joined_parts(first: Any, separator: str, second: Any) -> Any:
    """Return two contents as one, with the separator between them where neither is empty."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{separator}{second}"
    return [*_parts(first), text_part(separator), *_parts(second)]


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [text_part(content)] if isinstance(content, str) else content
