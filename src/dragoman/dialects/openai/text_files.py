"""Files that clients send in the content of messages: those of text, as documents."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from dragoman.core.batches import BatchStore, UnknownFile
from dragoman.dialects.field_types import Anything, Path, String, dotted, member_of
from dragoman.dialects.openai.errors import InvalidRequest, ObjectNotFound
from dragoman.dialects.turns import document

MAX_FILE_BYTES = 16 * 1024 * 1024
"""Of all stored files that one request names."""
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
    """Return the content of a chat's message with documents in place of its files of text. Raises FieldError."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    parts = []
    for j, part in enumerate(content):
        shown = None
        if part.get("type") == "file":
            at = (*path, j)
            shown = shown_file(member_of(part, "file", OBJECT, at) or {}, (*at, "file"))
        parts.append(part if shown is None else {"type": "text", "text": shown})
    return tuple(parts)


class FileReader:
    """Reads the stored files of text that one request names."""

    def __init__(self, store: BatchStore, tenant: str) -> None:
        self._store, self._tenant = store, tenant
        self._left = MAX_FILE_BYTES

    async def read(self, part: dict[str, Any], path: Path) -> dict[str, Any]:
        """Return a part ``input_file`` that names a file by ``file_id`` with its ``file_data``; others as they are.

        Raises ObjectNotFound, BadRequest for a file that is not text.
        """
        id = member_of(part, "file_id", TEXT, path)
        if id is None or part.get("file_data") is not None:
            return part
        param = dotted((*path, "file_id"))
        if not self._store.is_on:
            raise ObjectNotFound(f"No such File object: {id[:128]}", param=param)
        try:
            file = await self._store.file(self._tenant, id)
        except UnknownFile:
            raise ObjectNotFound(f"No such File object: {id[:128]}", param=param) from None
        self._left -= file.bytes
        if self._left < 0:
            message = f"The files that 'input' names have more than {MAX_FILE_BYTES} bytes."
            raise InvalidRequest(message, param=param)
        raw = b"".join([piece async for piece in self._store.content(file)])
        try:
            raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            message = f"Invalid value: 'input_file'. The file {id} is not text in UTF-8."
            raise InvalidRequest(message, param=param) from None
        data = "data:text/plain;base64," + base64.b64encode(raw).decode()
        return {"filename": file.filename, **part, "file_data": data}
