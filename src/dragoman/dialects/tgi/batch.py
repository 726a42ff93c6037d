"""Several texts in one request of a cloud's own form: generated at the same time, answered in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from dragoman.core.errors import Cancelled, DragomanError
from dragoman.core.request import TextPrompt
from dragoman.core.serving import Serving
from dragoman.dialects.api import Exchange
from dragoman.dialects.tgi.errors import BatchIncomplete
from dragoman.dialects.tgi.generation import Generation
from dragoman.dialects.tgi.parameters import Parameters
from dragoman.dialects.tgi.state import TgiState

IN_FLIGHT = 32
"""Of one request, so that a long batch leaves room for others."""

Item = TypeVar("Item")

log = logging.getLogger("dragoman.tgi")


async def texts_of(
    service: TgiState, exchange: Exchange, items: Sequence[Item], text_of: Callable[[Item], Awaitable[str]]
) -> list[str]:
    """The text of each item, each with a permit of its own. Raises BatchIncomplete, whatever goes wrong inside."""
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one(item: Item) -> str:
        async with slots:
            with service.permits.take():
                return await text_of(item)

    async def everything() -> list[str]:
        tasks = [asyncio.create_task(one(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    try:
        return await exchange.unless_gone(everything())
    except Cancelled:
        raise
    except DragomanError as error:
        log.error("one of a batch failed: %s", error.message)
        raise BatchIncomplete from None


async def continued(service: TgiState, serving: Serving, exchange: Exchange, inputs: str, asked: Parameters) -> str:
    """The text that continues ``inputs``."""
    run = Generation(service, serving, exchange, asked, TextPrompt(text=inputs))
    await run.whole()
    return run.chosen.text
