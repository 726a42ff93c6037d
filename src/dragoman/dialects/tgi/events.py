"""Server-sent events that do not fall silent: comments in between, for proxies that give up on quiet connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

EVENT_STREAM = "text/event-stream"
SILENCE_S = 15.0
COMMENT = b":\n\n"


async def kept_alive(chunks: AsyncGenerator[bytes, None], silence_s: float = SILENCE_S) -> AsyncGenerator[bytes, None]:
    """The chunks, and a comment whenever none has come for so long. Closing it closes the chunks, in every case."""
    coming: asyncio.Task[bytes] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.ensure_future(anext(chunks))
            await asyncio.wait((coming,), timeout=silence_s)
            if not coming.done():
                yield COMMENT
                continue
            done, coming = coming, None
            try:
                chunk = done.result()
            except StopAsyncIteration:
                return
            yield chunk
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await chunks.aclose()
