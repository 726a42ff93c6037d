"""Files that a request names by the ids under which they were uploaded."""

from __future__ import annotations

from dragoman.core.batches import BatchStore, StoredFile, UnknownFile
from dragoman.core.errors import PayloadTooLarge
from dragoman.dialects.api import RequestContext

MAX_FILE_BYTES = 32 << 20
"""Of all stored files that one request names."""


class StoredFiles:
    """Reads the files that one request names: those of the caller's own key, each once."""

    def __init__(self, store: BatchStore, context: RequestContext) -> None:
        self._store, self._context = store, context
        self._read: dict[str, tuple[StoredFile, bytes]] = {}
        self._left = MAX_FILE_BYTES

    async def read(self, id: str) -> tuple[StoredFile, bytes]:
        """Return a file and its bytes, which count as the request's until it ends.

        Raises UnknownFile; PayloadTooLarge where the request names more than ``MAX_FILE_BYTES``; EngineUnavailable
        where all requests together keep too much.
        """
        if (known := self._read.get(id)) is not None:
            return known
        if not self._store.is_on:
            raise UnknownFile(f"No such File object: {id[:128]}")
        file = await self._store.file(self._context.tenant, id)
        if file.bytes > self._left:
            raise PayloadTooLarge(f"The files that the request names have more than {MAX_FILE_BYTES} bytes.")
        self._left -= file.bytes
        self._context.keep_bytes(file.bytes)
        found = self._read[id] = file, b"".join([piece async for piece in self._store.content(file)])
        return found
