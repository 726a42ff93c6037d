"""Answers as OpenAI's API shapes them, and those that follow it: ends, counts, and streams of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from dragoman.core.errors import DragomanError, GenerationFailed, GenerationTimeout
from dragoman.core.events import FinishReason, GenerationDone, GenerationEvent, PromptReady, TextDelta, Usage
from dragoman.core.request import GenerationRequest
from dragoman.dialects.batch import Generating, stream_all
from dragoman.dialects.wire import Exchange

SSE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"

encode = msgspec.json.Encoder().encode


def sse(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


def finish_reason(finish: FinishReason | None, message: str = "") -> str | None:
    """``stop``, ``length``, or None while there is no end. Raises GenerationFailed where the end is a failure."""
    match finish:
        case None:
            return None
        case FinishReason.EOS | FinishReason.STOP_TOKEN | FinishReason.STOP_STRING:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.TIMEOUT:
            raise GenerationTimeout(message or "The generation did not finish in the time it was given.")
        case FinishReason.CANCELLED:
            raise GenerationFailed(message or "The generation was cancelled.")
        case FinishReason.ERROR:
            raise GenerationFailed(message or "The generation failed.")


def usage(counts: Iterable[Usage]) -> dict[str, Any]:
    """The token counts of all prompts of an answer."""
    listed = list(counts)
    prompt = sum(one.prompt_tokens for one in listed)
    completion = sum(one.completion_tokens for one in listed)
    cached = sum(one.cached_tokens for one in listed)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


async def encoded(make: Callable[[], Any], *, in_thread: bool) -> bytes:
    """A whole answer in JSON. With log-probabilities it can be megabytes, and tool calls are read character by
    character: ``in_thread``, as either would hold up every stream."""
    return await asyncio.to_thread(lambda: encode(make())) if in_thread else encode(make())


class Chunks(Protocol):
    """The chunks of one prompt's generations."""

    def prompt(self, event: PromptReady) -> Iterable[bytes]:
        """What precedes the first text."""

    def delta(self, event: TextDelta) -> Iterable[bytes]:
        """What is new. Raises GenerationFailed where it is a failure."""


async def stream_answer(
    serving: Generating,
    exchange: Exchange,
    requests: Sequence[GenerationRequest],
    streams: Sequence[Chunks],
    *,
    end: Callable[[Sequence[Usage]], Iterable[bytes]],
    fault: Callable[[DragomanError], Iterable[bytes]],
    headers: Mapping[str, str] | None = None,
) -> None:
    """Answer with the chunks of all requests as they come, and with ``end`` of their counts behind them.

    What fails before the first event is an ordinary error with its own status; what fails later ends the stream with
    ``fault`` of it, which may raise ``wire.Abort`` at its end.
    """
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
                ends = end(counts)
            except DragomanError as error:
                exchange.fault = error
                ends = fault(error)
            for chunk in ends:
                yield chunk

        def rendered(j: int, event: GenerationEvent, counts: list[Usage]) -> Iterable[bytes]:
            match event:
                case TextDelta():
                    return streams[j].delta(event)
                case PromptReady():
                    return streams[j].prompt(event)
                case GenerationDone():
                    counts.append(event.usage)
            return ()

        await exchange.stream(chunks(), content_type=SSE, headers=headers or {})
