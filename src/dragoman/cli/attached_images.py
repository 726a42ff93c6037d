"""Images of messages in the terminal: files and addresses, as parts of OpenAI's messages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.core.image_sources import ImageSource, image_part
from dragoman.core.user_folders import expand_user
from dragoman.llm.images import url_of_file

_ADDRESSES = ("http://", "https://", "data:")
_SHOWN = "[image]"


def read_image(name: str) -> str:
    """Return the URL of an image: of a file its ``data:`` URL, an address as it is. The name may be written as shells
    write names with blanks. Raises BadRequest where the file cannot be read."""
    if name.startswith(_ADDRESSES):
        return name
    path = expand_user(name)
    if not path.exists():
        try:
            words = shlex.split(name)
        except ValueError:  # a quotation mark without its other
            words = []
        path = expand_user(words[0]) if len(words) == 1 else path
    return url_of_file(path)


def with_images(text: str, urls: Sequence[str]) -> str | list[dict[str, Any]]:
    """Return the content of a message: its images come first."""
    if not urls:
        return text
    return [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": text}]


def text_of(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Return a content as it is shown: a mark in place of each image."""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] if part["type"] == "text" else _SHOWN for part in content)


def core_content(content: str | Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """Return a content as serving reads it."""
    if isinstance(content, str):
        return content
    return [
        dict(part) if part["type"] == "text" else image_part(ImageSource(url=part["image_url"]["url"], param="image"))
        for part in content
    ]


def is_content(found: object) -> bool:
    """Return whether something that was read from a file is a content of a message."""
    return isinstance(found, str) or (isinstance(found, list) and bool(found) and all(map(_is_part, found)))


def _is_part(found: object) -> bool:
    match found:
        case {"type": "text", "text": str()} | {"type": "image_url", "image_url": {"url": str()}}:
            return True
    return False
