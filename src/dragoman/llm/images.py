"""Images in the messages of a program: files, bytes and images of Pillow as the URLs that a request would have."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.core.errors import BadRequest
from dragoman.core.regular_file import irregular
from dragoman.serving.image_header import MAX_FILE_BYTES

IMAGE = "image"


def with_urls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages with parts ``{"type": "image_url", …}`` in place of ``{"type": "image", "image": …}``.

    Raises BadRequest for what is no image.
    """
    return [_message(message, i) if isinstance(message, Mapping) else message for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], i: int) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return message
    return {**message, "content": [_part(part, f"messages[{i}].content[{j}]") for j, part in enumerate(content)]}


def _part(part: Any, place: str) -> Any:
    if not isinstance(part, Mapping) or part.get("type") != IMAGE:
        return part
    detail = {"detail": part["detail"]} if "detail" in part else {}
    return {"type": "image_url", "image_url": {"url": _url(part.get(IMAGE), place), **detail}}


def _url(image: Any, place: str) -> str:
    """Return the URL of a text that is one, a file's path, its bytes, or an image of Pillow."""
    if isinstance(image, str):
        return image
    if isinstance(image, bytes | bytearray):
        data = bytes(image)
    elif isinstance(image, Path):
        return url_of_file(image, place)
    elif hasattr(image, "save") and hasattr(image, "mode"):
        file = io.BytesIO()
        (image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else image.convert("RGB")).save(file, "PNG")
        data = file.getvalue()
    else:
        message = f"'{place}': an image is a pathlib.Path, bytes, an image of Pillow or a data URL, and not a "
        raise BadRequest(f"{message}{type(image).__name__}.", param=place)
    return _data_url(data)


def url_of_file(file: Path, place: str = "") -> str:
    """Return the ``data:`` URL of an image file. ``place``: where the caller named it, for errors.

    Raises BadRequest for a file that cannot be read, or is larger than any image that is accepted.
    """
    named = f"'{place}': {file}" if place else str(file)
    if irregular(file):
        raise BadRequest(f"{named} is not a regular file.", param=place or None)
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadRequest(f"{named} cannot be read: {error.strerror}.", param=place or None) from None
    if len(data) > MAX_FILE_BYTES:
        raise BadRequest(f"{named} has more than {MAX_FILE_BYTES // 1024**2} MiB.", param=place or None)
    return _data_url(data)


def _data_url(data: bytes) -> str:
    return f"data:;base64,{base64.b64encode(data).decode()}"
