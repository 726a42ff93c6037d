"""The native endpoints ``POST /``, ``/generate`` and ``/generate_stream``, and several texts at once, for cloud
containers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from dragoman.core.errors import Cancelled, DragomanError
from dragoman.core.serving import Serving
from dragoman.dialects.api import Operation, RequestContext, RouteHint
from dragoman.dialects.field_types import FieldError
from dragoman.dialects.openai_stream import encoded
from dragoman.dialects.tgi import render
from dragoman.dialects.tgi.body import checked, read_json, shape_fault
from dragoman.dialects.tgi.errors import BatchIncomplete, Incomplete, IncompleteStream, logged
from dragoman.dialects.tgi.fields import COMPAT_GENERATE, GENERATE
from dragoman.dialects.tgi.generation import Generation, TgiState
from dragoman.dialects.tgi.images import inputs_prompt
from dragoman.dialects.tgi.render import EVENT_STREAM, stream_headers, whole_headers
from dragoman.dialects.tgi.translate import Parameters, check_choice, check_streamable, parameters_of, report_adapter


class Generate:
    """The handlers of the native endpoints and their shared state."""

    def __init__(self, state: TgiState) -> None:
        self._state = state

    async def compat_generate(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /``: an array of one answer, or a stream."""
        await self.answer_compat(serving, context, await read_json(context))

    async def generate(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /generate``: one answer."""
        inputs, asked, _ = await self._read(serving, context, await read_json(context), compat=False)
        await self._whole(serving, context, inputs, asked, in_array=False)

    async def generate_stream(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /generate_stream``."""
        inputs, asked, _ = await self._read(serving, context, await read_json(context), compat=False)
        await self._stream(serving, context, inputs, asked)

    async def answer_compat(self, serving: Serving, context: RequestContext, body: Any) -> None:
        """Handle ``POST /`` with a body that has been read."""
        inputs, asked, streamed = await self._read(serving, context, body, compat=True)
        if streamed:
            await self._stream(serving, context, inputs, asked)
        else:
            await self._whole(serving, context, inputs, asked, in_array=True)

    async def _read(
        self, serving: Serving, context: RequestContext, body: Any, *, compat: bool
    ) -> tuple[str, Parameters, bool]:
        """Return the inputs, the parameters, and whether a stream is requested."""
        reading = await checked(context, COMPAT_GENERATE if compat else GENERATE, body)
        report_adapter(context, reading, serving, self._state.quirks)
        values = reading.values
        fills = values["parameters"] is not None and "max_new_tokens" in body["parameters"]
        try:
            asked = parameters_of(values["parameters"], full_text=compat, fills=fills)
        except FieldError as error:
            raise await shape_fault(context, error) from None
        return reading.core.get("prompt"), asked, values.get("stream", False)

    async def _whole(
        self, serving: Serving, context: RequestContext, inputs: str, asked: Parameters, *, in_array: bool
    ) -> None:
        state = self._state
        asked = msgspec.structs.replace(asked, logprobs=asked.details)
        check_choice(asked, state.settings)
        with state.permit(context, asked.sequences):
            run = Generation(state, serving, context, asked, inputs_prompt(inputs, serving.model(None)))
            await context.unless_gone(run.whole())
            answer = render.whole(run.sequences, run.best, run.prefill, asked, inputs)
        # The permits are free before the client can know that it has its answer, and ask again.
        headers = whole_headers(state.settings.compute_type, run, context.elapsed_s)
        body = await encoded(context, lambda: [answer] if in_array else answer, in_thread=asked.details)
        await context.reply(body, headers=headers)

    async def _stream(self, serving: Serving, context: RequestContext, inputs: str, asked: Parameters) -> None:
        headers = stream_headers(self._state.settings.compute_type, len(inputs))
        events = self._events(serving, context, inputs, asked)
        await context.stream(events, content_type=EVENT_STREAM, headers=headers, at_once=True)

    async def _events(
        self, serving: Serving, context: RequestContext, inputs: str, asked: Parameters
    ) -> AsyncGenerator[bytes, None]:
        """Yield one event for each token. An error is the last event."""
        state = self._state
        try:
            check_streamable(asked)
            with state.permit(context):
                prompt = inputs_prompt(inputs, serving.model(None))
                run = Generation(state, serving, context, asked, prompt)
                async with aclosing(run.steps()) as steps:
                    index = 0
                    async for step in steps:
                        index += 1
                        if step.is_last:
                            last = (index, step.piece, step.sequence, run.input_tokens, asked, inputs)
                            yield render.sse(render.last_event(*last))
                        else:
                            yield render.sse(render.token_event(index, step.piece, asked))
        except DragomanError as error:
            context.fault = IncompleteStream() if isinstance(error, Incomplete) else error
            yield render.sse_error(context.fault)


def operations(state: TgiState) -> tuple[Operation, ...]:
    """Return the operations of the native endpoints."""
    routes = Generate(state)
    return (
        Operation(
            method="POST",
            path="/",
            summary="Continue a text, whole or streamed.",
            handler=routes.compat_generate,
            table=COMPAT_GENERATE,
            claims=_claims,
        ),
        Operation(
            method="POST",
            path="/generate",
            summary="Continue a text.",
            handler=routes.generate,
            table=GENERATE,
            claims=_claims,
        ),
        Operation(
            method="POST",
            path="/generate_stream",
            summary="Continue a text, token by token.",
            handler=routes.generate_stream,
            table=GENERATE,
            media=("text/event-stream",),
            claims=_claims,
        ),
    )


def _claims(call: RouteHint) -> bool:
    return call.has("inputs")


IN_FLIGHT = 32
"""Items of one request that run at the same time, so that a long batch leaves room for others."""

Item = TypeVar("Item")

log = logging.getLogger("dragoman.tgi")


async def texts_of(
    state: TgiState, context: RequestContext, items: Sequence[Item], text_of: Callable[[Item], Awaitable[str]]
) -> list[str]:
    """Return the text of each item, each with its own permit. Raises BatchIncomplete for any failure."""
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one(item: Item) -> str:
        async with slots:
            with state.permit(context):
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
        return await context.unless_gone(everything())
    except Cancelled:
        raise
    except DragomanError as error:
        log.error("one of a batch failed: %s", logged(error))
        raise BatchIncomplete from None


async def continued(state: TgiState, serving: Serving, context: RequestContext, inputs: str, asked: Parameters) -> str:
    """Return the text that continues ``inputs``."""
    run = Generation(state, serving, context, asked, inputs_prompt(inputs, serving.model(None)))
    await run.whole()
    return run.chosen.text
