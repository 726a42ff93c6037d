"""The operations of the OpenAI dialect: read, translate, generate, render."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from dragoman.core.errors import BadRequest, DragomanError
from dragoman.core.events import GenerationDone, PromptReady, TextDelta, Usage
from dragoman.core.request import GenerationRequest
from dragoman.core.serving import Serving
from dragoman.dialects.batch import Generating, generate_all, stream_all
from dragoman.dialects.field import Reading
from dragoman.dialects.openai import render
from dragoman.dialects.openai.continuing import Continuation, continuation
from dragoman.dialects.openai.fields import CHAT, COMPLETIONS
from dragoman.dialects.openai.tools import openai_plan
from dragoman.dialects.openai.translate import chat_request, completion_requests
from dragoman.dialects.wire import Exchange, Operation

SSE = "text/event-stream; charset=utf-8"


async def completions(serving: Serving, exchange: Exchange) -> None:
    """``POST /v1/completions``."""
    async with continuation(serving, exchange, COMPLETIONS) as (reading, call):
        values = reading.values
        seed = _seed(reading, call)
        head = _head(serving, reading, "cmpl-")
        requests = completion_requests(reading, head.id, seed, resumable=call is not None)
        if call is not None and len(requests) > 1:
            raise BadRequest("'X-Request-Continue' goes with one prompt.", param="prompt")
        headers = {"x-dragoman-seed": str(seed)} | (call.headers if call else {})
        logprobs = values["logprobs"] is not None
        if values["stream"]:
            streams = [
                render.CompletionStream(head, j * request.n, request.n, logprobs=logprobs)
                for j, request in enumerate(requests)
            ]
            await _stream(call or serving, exchange, head, "text_completion", requests, streams, headers)
        else:
            results = await exchange.unless_gone(generate_all(call or serving, requests))
            answer = await _encoded(lambda: render.completion(head, results, logprobs=logprobs), logprobs)
            await exchange.reply(answer, headers=headers)


async def chat_completions(serving: Serving, exchange: Exchange) -> None:
    """``POST /v1/chat/completions``."""
    async with continuation(serving, exchange, CHAT) as (reading, call):
        seed = _seed(reading, call)
        head = _head(serving, reading, "chatcmpl-")
        plan = openai_plan(reading.values, serving.model(reading.values["model"]))
        if call is not None and plan.shape.format is not None:
            raise BadRequest("'X-Request-Continue' goes with no tools that may be called.", param="tools")
        request = chat_request(reading, head.id, seed, plan, resumable=call is not None)
        headers = {"x-dragoman-seed": str(seed)} | (call.headers if call else {})
        logprobs = reading.values["logprobs"]
        if reading.values["stream"]:
            streams = [
                render.ChatStream(head, request.n, logprobs=logprobs, shape=plan.shape, resumable=call is not None)
            ]
            await _stream(call or serving, exchange, head, render.ChatStream.KIND, [request], streams, headers)
        else:
            result = await exchange.unless_gone((call or serving).generate(request))
            answer = await _encoded(
                lambda: render.chat_completion(
                    head, result, logprobs=logprobs, shape=plan.shape, resumable=call is not None
                ),
                logprobs or plan.shape.format is not None,
            )
            await exchange.reply(answer, headers=headers)


async def models(serving: Serving, exchange: Exchange) -> None:
    """``GET /v1/models``."""
    await exchange.reply({"object": "list", "data": [render.model(card) for card in serving.models()]})


async def model(serving: Serving, exchange: Exchange) -> None:
    """``GET /v1/models/{id}``; ids may hold slashes."""
    await exchange.reply(render.model(serving.model(exchange.path_params["id"])))


async def _stream(
    serving: Generating,
    exchange: Exchange,
    head: render.Head,
    kind: str,
    requests: Sequence[GenerationRequest],
    streams: Sequence[render.CompletionStream | render.ChatStream],
    headers: dict[str, str],
) -> None:
    """Answer with events. What fails before the first one is an ordinary error with its own status."""
    events = stream_all(serving, requests)
    async with aclosing(events):
        first = await exchange.unless_gone(anext(events))

        async def chunks() -> AsyncGenerator[bytes, None]:
            counts: list[Usage] = []
            try:
                for chunk in rendered(*first, counts):
                    yield chunk
                async for j, event in events:
                    for chunk in rendered(j, event, counts):
                        yield chunk
            except DragomanError as error:
                yield render.sse_error(error)
                return
            if head.counted:
                yield head.usage_chunk(kind, counts)
            yield render.DONE

        def rendered(j: int, event: object, counts: list[Usage]) -> Iterable[bytes]:
            match event:
                case TextDelta():
                    return streams[j].delta(event)
                case PromptReady():
                    return streams[j].prompt(event)
                case GenerationDone():
                    counts.append(event.usage)
            return ()

        await exchange.stream(chunks(), content_type=SSE, headers=headers)


async def _encoded(make: Callable[[], render.Body], in_thread: bool) -> bytes:
    """The answer in JSON. With log-probabilities it can be megabytes, and tool calls are read character by character:
    either would hold up every stream."""
    return await asyncio.to_thread(lambda: render.encode(make())) if in_thread else render.encode(make())


def _head(serving: Serving, reading: Reading, prefix: str) -> render.Head:
    name = reading.values["model"]
    card = serving.model(name)
    options = reading.values["stream_options"]
    counted = bool(options and options["include_usage"])
    return render.Head(prefix + secrets.token_hex(12), int(time.time()), name or card.name, card.fingerprint, counted)


def _seed(reading: Reading, call: Continuation | None) -> int:
    """The given seed, or one from the operating system that a client can send back in ``seed``."""
    given = reading.values["seed"]
    if given is not None:
        return int(given)
    return secrets.randbits(63) if call is None or call.seed is None else call.seed


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/completions",
        summary="Continue one prompt or several.",
        handler=completions,
        table=COMPLETIONS,
    ),
    Operation(
        method="POST",
        path="/v1/chat/completions",
        summary="Answer a conversation.",
        handler=chat_completions,
        table=CHAT,
    ),
    Operation(method="GET", path="/v1/models", summary="List the served models.", handler=models),
    Operation(method="GET", path="/v1/models/{id:path}", summary="Describe a served model.", handler=model),
)
