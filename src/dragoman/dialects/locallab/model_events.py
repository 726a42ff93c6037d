"""The WebSocket of the TypeScript client: it says nothing, and is told when a model is loaded or goes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec

from dragoman.core.catalog import ModelState
from dragoman.core.serving import Serving
from dragoman.dialects.api import Socket

_encode = msgspec.json.Encoder().encode

_KINDS = {
    ModelState.LOADED: "model_loaded",
    ModelState.LOADING: "model_loading",
    ModelState.AVAILABLE: "model_unloaded",
}


async def updates(serving: Serving, socket: Socket) -> None:
    """``/ws``: until the client leaves. What it says is not looked at."""
    telling = asyncio.create_task(_tell(serving, socket))
    try:
        while True:
            await socket.receive()
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(serving: Serving, socket: Socket) -> None:
    """One message for each change of state; progress within a load is none."""
    last: tuple[str, ModelState] | None = None
    async with aclosing(serving.catalog.watch()) as changes:
        async for entry in changes:
            if (entry.id, entry.state) != last:
                last = entry.id, entry.state
                message = {"event": "update", "type": _KINDS[entry.state], "model_id": entry.id}
                await socket.send(_encode(message).decode())
