"""Several prompts in one HTTP request: independent generations, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from dragoman.core.events import GenerationEvent, GenerationResult
from dragoman.core.request import GenerationRequest
from dragoman.core.serving import Serving


async def generate_all(serving: Serving, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
    """All results in the order of the requests. When one fails the others are cancelled, and its error is raised."""
    if len(requests) == 1:
        return [await serving.generate(requests[0])]
    tasks = [asyncio.create_task(serving.generate(request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _end(tasks)


async def stream_all(
    serving: Serving, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
    """The events of all requests as they come, each with the number of its request. The first error ends it all."""
    if len(requests) == 1:
        async with aclosing(serving.stream(requests[0])) as events:
            async for event in events:
                yield 0, event
        return
    # One place for each request: a reader that waits holds every producer at its next event.
    ready: asyncio.Queue[tuple[int, GenerationEvent | BaseException | None]] = asyncio.Queue(len(requests))

    async def produce(j: int, request: GenerationRequest) -> None:
        try:
            async with aclosing(serving.stream(request)) as events:
                async for event in events:
                    await ready.put((j, event))
        except Exception as error:
            await ready.put((j, error))
        else:
            await ready.put((j, None))

    tasks = [asyncio.create_task(produce(j, request)) for j, request in enumerate(requests)]
    running = len(tasks)
    try:
        while running:
            j, item = await ready.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield j, item
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
