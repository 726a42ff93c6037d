"""Images that messages name by the ids of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dragoman.core.batches import UnknownFile
from dragoman.core.errors import NotFound, PayloadTooLarge
from dragoman.core.serving import ModelCard
from dragoman.dialects.anthropic.errors import numbered
from dragoman.dialects.field_types import Path
from dragoman.dialects.stored_files import StoredFiles


async def read_images(messages: Sequence[dict[str, Any]], card: ModelCard, files: StoredFiles) -> Mapping[str, bytes]:
    """Return the files of all images with a source ``file``, by their ids; none for a model that sees no images.

    Raises NotFound, PayloadTooLarge, EngineUnavailable.
    """
    found: dict[str, bytes] = {}
    for id, place in _named(messages) if card.images is not None else ():
        try:
            _, found[id] = await files.read(id)
        except UnknownFile:
            raise NotFound(f"{numbered(place)}: File not found: {id[:128]}", param=numbered(place)) from None
        except PayloadTooLarge as error:
            raise PayloadTooLarge(f"{numbered(place)}: {error.message}", param=numbered(place)) from None
    return found


def _named(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Path]]:
    for i, message in enumerate(messages):
        yield from _within(message["content"], ("messages", i, "content"))


def _within(content: Any, path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the ids in a content, and their places; what is no image of a file is left to the reader of blocks."""
    for j, block in enumerate(content if isinstance(content, list | tuple) else ()):
        kind, source = (block.get("type"), block.get("source")) if isinstance(block, dict) else (None, None)
        if kind == "tool_result":
            yield from _within(block.get("content"), (*path, j, "content"))
        elif kind == "image" and isinstance(source, dict) and source.get("type") == "file":
            id = source.get("file_id")
            if isinstance(id, str) and id:
                yield id, (*path, j, "image", "source", "file_id")
