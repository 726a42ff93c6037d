"""The operations ``/v1/completions``, where each prompt is a choice and a stream shows them in turn, and
``/v1/models``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import Any

from dragoman.core.errors import DragomanError
from dragoman.core.serving import Serving
from dragoman.dialects.api import Operation, RequestContext
from dragoman.dialects.completion_stream import CompletionStream
from dragoman.dialects.openai_stream import encoded
from dragoman.dialects.shared_fields import show_asked_progress
from dragoman.dialects.tgi import chat_render as render
from dragoman.dialects.tgi.body import checked, read_json
from dragoman.dialects.tgi.chat import READY, answer_head, claims, send
from dragoman.dialects.tgi.chat_fields import COMPLETIONS
from dragoman.dialects.tgi.chat_render import CompletionComplete, CompletionFinal, ModelInfo, ModelsInfo
from dragoman.dialects.tgi.chat_translate import completion_parameters, report_idle
from dragoman.dialects.tgi.errors import BatchFault, Incomplete, SuffixFault
from dragoman.dialects.tgi.generation import Generation, Step, TgiState
from dragoman.dialects.tgi.images import inputs_prompt
from dragoman.dialects.tgi.render import batch_headers, stream_headers

AHEAD = 16
"""Tokens that a prompt may be ahead of the slowest one; then it waits for its turn."""


class Completions:
    """The completion handlers and their shared state."""

    def __init__(self, state: TgiState) -> None:
        self._state = state

    async def completions(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/completions``."""
        await self.answer(serving, context, await read_json(context))

    async def answer(self, serving: Serving, context: RequestContext, body: Any) -> None:
        """Answer a completion whose body has been read."""
        state = self._state
        reading = await checked(context, COMPLETIONS, body)
        report_idle(context, reading, serving.model(None))
        values = reading.values
        prompt = reading.core.get("prompt")
        prompts = (prompt,) if isinstance(prompt, str) else prompt
        if values["suffix"] is not None:
            raise SuffixFault
        if len(prompts) > state.settings.max_client_batch_size:
            raise BatchFault(state.settings.max_client_batch_size)
        asked = completion_parameters(values, state.quirks)
        card = serving.model(None)
        runs = [Generation(state, serving, context, asked, inputs_prompt(text, card)) for text in prompts]
        batch = CompletionBatch(state, context, runs, card.name, logprobs=values["logprobs"] is not None)
        if values["stream"]:
            show_asked_progress(context, values["stream_options"])
            characters = sum(len(text) for text in prompts)
            await send(
                context,
                self._chunks(context, batch),
                lambda: stream_headers(state.settings.compute_type, characters),
                in_band=state.quirks.stream_errors_in_band,
            )
            return
        with state.permit(context, len(runs)):
            answer = await context.unless_gone(batch.whole())
        # The permits are free before the client can know that it has its answer, and ask again.
        body = await encoded(context, lambda: answer, in_thread=values["logprobs"] is not None)
        await context.reply(body, headers=batch_headers(state.settings.compute_type, runs))

    async def openai_get_model_info(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1/models``."""
        own = serving.model(None)
        names = [own.name, *(card.name for card in serving.models() if card.base is not None)]
        await context.reply(ModelsInfo("list", [ModelInfo(name, "model", 0, own.name) for name in names]))

    async def _chunks(self, context: RequestContext, batch: CompletionBatch) -> AsyncGenerator[bytes, None]:
        yield READY
        with self._state.permit(context, len(batch.runs)):
            async with aclosing(batch.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk


class CompletionBatch:
    """The prompts of one request, and their answer. Await ``whole``, or iterate ``chunks``, once."""

    def __init__(
        self, state: TgiState, context: RequestContext, runs: Sequence[Generation], model: str, *, logprobs: bool
    ) -> None:
        self.runs = runs
        self._context = context
        self._quirks = state.quirks
        self._head = answer_head(state, "cmpl-", model)
        self._logprobs = logprobs
        self._streams = [
            CompletionStream(render.CompletionChunks(self._head, self._quirks, run, logprobs=logprobs), first_index=i)
            for i, run in enumerate(runs)
        ]

    async def whole(self) -> CompletionFinal:
        """Return every prompt's choice, in the order of the prompts. The first error ends them all."""
        tasks = [asyncio.create_task(run.whole()) for run in self.runs]
        try:
            await asyncio.gather(*tasks)
        finally:
            await _end(tasks)
        choices = []
        for i, run in enumerate(self.runs):
            sequence = run.chosen
            logprobs = None
            if self._logprobs:
                offsets = accumulate((len(piece.shown) for piece in sequence.pieces), initial=0)
                logprobs = render.completion_logprobs((piece.token for piece in sequence.pieces), offsets)
            finish = render.finish_reason(sequence.finish, self._quirks)
            choices.append(CompletionComplete(i, sequence.text, logprobs, finish))
        used = render.usage(sum(run.input_tokens for run in self.runs), sum(run.generated_tokens for run in self.runs))
        return render.completion(self._head, choices, used)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the events of all prompts, one of each that is not finished in turn.

        A prompt that fails has an error event, and the others continue; raises when all fail before any event.
        """
        coming: list[asyncio.Queue[Step | Exception]] = [asyncio.Queue(AHEAD) for _ in self.runs]
        tasks = [asyncio.create_task(_advance(*each)) for each in zip(self.runs, coming, strict=True)]
        running, faults, begun = list(range(len(self.runs))), list[DragomanError](), False
        try:
            while running:
                for i in tuple(running):
                    found = await coming[i].get()
                    match found:
                        case Step():
                            begun = True
                        case DragomanError():
                            faults.append(found)
                        case _:
                            raise found
                    if begun:
                        for fault in faults:
                            self._context.fault = fault
                            yield render.sse_fault(fault)
                        faults.clear()
                    if isinstance(found, Step):
                        yield self._chunk(i, found)
                    if not isinstance(found, Step) or found.is_last:
                        running.remove(i)
            if faults:
                raise faults[0]
            await asyncio.gather(*tasks)
        finally:
            await _end(tasks)

    def _chunk(self, i: int, step: Step) -> bytes:
        text = step.piece.text if self._quirks.special_text else step.piece.shown
        return b"".join(self._streams[i].delta(step.delta(text)))


async def _advance(run: Generation, coming: asyncio.Queue[Step | Exception]) -> None:
    """Put every step of one prompt into the queue, the last one or an error at the end."""
    is_last = False
    try:
        async with aclosing(run.steps()) as steps:
            async for step in steps:
                is_last = step.is_last
                await coming.put(step)
        if not is_last:
            raise Incomplete
    except Exception as error:
        await coming.put(error)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def operations(state: TgiState) -> tuple[Operation, ...]:
    """Return the operations: completions, and the list of models."""
    routes = Completions(state)
    return (
        Operation(
            method="POST",
            path="/v1/completions",
            summary="Continue one text or several.",
            handler=routes.completions,
            table=COMPLETIONS,
            claims=claims,
            extends_limit=False,
        ),
        Operation(
            method="GET",
            path="/v1/models",
            summary="The model.",
            handler=routes.openai_get_model_info,
            open=True,
        ),
    )
