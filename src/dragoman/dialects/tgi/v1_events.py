"""Streams of the endpoints under ``/v1``: what fails before the first event has a status, what fails later an event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from dragoman.core.errors import DragomanError
from dragoman.dialects.api import Exchange
from dragoman.dialects.tgi.chat_render import DONE, sse_fault
from dragoman.dialects.tgi.errors import Incomplete, IncompleteStream
from dragoman.dialects.tgi.render import EVENT_STREAM

READY = b""
"""What chunks begin with when all is prepared, and nothing generated."""


async def send(
    exchange: Exchange,
    chunks: AsyncGenerator[bytes, None],
    headers: Callable[[], Mapping[str, str]],
    *,
    in_band: bool,
) -> None:
    """Answer with ``READY`` and the chunks behind it. ``in_band``: once it is ready, every error is an event."""
    async with aclosing(chunks):
        first = await exchange.unless_gone(anext(chunks))
        events = _to_the_end(exchange, first, chunks, in_band=in_band)
        await exchange.stream(events, content_type=EVENT_STREAM, headers=headers, at_once=in_band)


async def _to_the_end(
    exchange: Exchange, first: bytes, chunks: AsyncGenerator[bytes, None], *, in_band: bool
) -> AsyncGenerator[bytes, None]:
    try:
        if first:
            yield first
        async for chunk in chunks:
            yield chunk
    except DragomanError as error:
        if not exchange.started and not in_band:
            raise
        exchange.fault = IncompleteStream() if isinstance(error, Incomplete) else error
        yield sse_fault(exchange.fault)
    yield DONE
