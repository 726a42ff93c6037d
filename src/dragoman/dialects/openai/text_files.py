"""Files that clients send in the content of messages: those of text, as documents; and stored ones."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from dragoman.core.batches import UnknownFile
from dragoman.core.errors import BadImage, PayloadTooLarge, UnsupportedFeature
from dragoman.dialects.field_types import Anything, Path, String, dotted, member_of
from dragoman.dialects.openai.errors import InvalidRequest, ObjectNotFound
from dragoman.dialects.stored_files import MAX_FILE_BYTES, StoredFiles
from dragoman.dialects.turns import document

TEXT, OBJECT = String(), Anything(object_only=True, depth=32)


def text_of(data: str) -> str | None:
    """Return the text of a data URL of a text type or JSON; None for others."""
    head, comma, rest = data.partition(",")
    if not comma or not head.startswith("data:"):
        return None
    kind, *parameters = head.removeprefix("data:").lower().split(";")
    if not (kind.startswith("text/") or kind == "application/json" or kind.endswith("+json")):
        return None
    try:
        raw = base64.b64decode(rest, validate=True) if "base64" in parameters else unquote_to_bytes(rest)
        return raw.decode("utf-8-sig")
    except (binascii.Error, UnicodeDecodeError):
        return None


def shown_file(file: Mapping[str, Any], path: Path) -> str | None:
    """Return a file of text with its ``file_data`` as the model is shown it; None for what is none. Raises
    FieldError."""
    data = member_of(file, "file_data", TEXT, path)
    text = None if data is None else text_of(data)
    return None if text is None else document(member_of(file, "filename", TEXT, path), None, text)


def with_documents(content: Any, path: Path) -> Any:
    """Return the content of a chat's message with documents in place of its files. Raises FieldError,
    UnsupportedFeature for a file that is not sent as text."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    parts = []
    for j, part in enumerate(content):
        if part.get("type") == "file":
            at = (*path, j)
            shown = shown_file(member_of(part, "file", OBJECT, at) or {}, (*at, "file"))
            if shown is None:
                message = f"'{dotted(at)}': files are read where 'file_data' is a data URL of text or JSON."
                raise UnsupportedFeature(message, param=dotted(at))
            part = {"type": "text", "text": shown}
        parts.append(part)
    return tuple(parts)


class FileReader:
    """Puts the contents of stored files in the place of their ids."""

    def __init__(self, files: StoredFiles, *, sees_images: bool) -> None:
        self._files, self._sees_images = files, sees_images

    async def read(self, part: Any, path: Path) -> Any:
        """Return a part ``input_file`` that names a file by ``file_id`` with its ``file_data``, and a part
        ``input_image`` with its ``image_url``, for a model that sees; others as they are.

        Raises ObjectNotFound, BadRequest for a file that is not text, BadImage, EngineUnavailable.
        """
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "input_file" and part.get("file_data") is None:
            return await self._text(part, path)
        if kind == "input_image" and part.get("image_url") is None and self._sees_images:
            return await self._image(part, path)
        return part

    async def _text(self, part: dict[str, Any], path: Path) -> dict[str, Any]:
        id = member_of(part, "file_id", TEXT, path)
        if id is None:
            return part
        param = dotted((*path, "file_id"))
        try:
            file, raw = await self._files.read(id)
        except UnknownFile:
            raise ObjectNotFound(f"No such File object: {id[:128]}", param=param) from None
        except PayloadTooLarge:
            message = f"The files that 'input' names have more than {MAX_FILE_BYTES} bytes."
            raise InvalidRequest(message, param=param) from None
        try:
            raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            message = f"Invalid value: 'input_file'. The file {id} is not text in UTF-8."
            raise InvalidRequest(message, param=param) from None
        return {"filename": file.filename, **part, "file_data": _data_url("text/plain", raw)}

    async def _image(self, part: dict[str, Any], path: Path) -> dict[str, Any]:
        id = member_of(part, "file_id", TEXT, path)
        if id is None:
            return part
        param = dotted((*path, "file_id"))
        try:
            file, raw = await self._files.read(id)
        except UnknownFile:
            raise BadImage("image_file_not_found", f"there is no such File object: {id[:128]}", param=param) from None
        except PayloadTooLarge:
            reason = f"the files that 'input' names have more than {MAX_FILE_BYTES} bytes"
            raise BadImage("image_too_large", reason, param=param) from None
        kind = mimetypes.guess_type(file.filename)[0] or ""
        return {**part, "image_url": _data_url(kind if kind.startswith("image/") else "application/octet-stream", raw)}


def _data_url(kind: str, raw: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(raw).decode()}"
