"""What else happens to streams: silence, failures, clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from chat_house import ChatHouse, WatchedEvents, chat_house
from native import events_of
from stub_house import TOKENIZER

from dragoman.core.events import EngineEvent, FinishEvent, FinishReason, PromptEvent, TokenEvent
from dragoman.core.request import EngineRequest
from dragoman.dialects.tgi.events import COMMENT, kept_alive
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

(THERE,) = TOKENIZER.encode(" there", add_special_tokens=False)


@pytest.fixture
async def house(anyio_backend: str, template: ChatTemplate) -> AsyncIterator[ChatHouse]:
    async with chat_house(template) as house:
        yield house


def play(house: ChatHouse, *rest: EngineEvent) -> None:
    """The engine says one token, and then these."""

    def submit(request: EngineRequest) -> WatchedEvents:
        name = request.request_id
        first = [PromptEvent(name), TokenEvent(name, 0, 0, THERE, None, -0.5)]
        return WatchedEvents([*first, *rest])

    house.engine.submit = submit  # type: ignore[method-assign]


BODY = {"inputs": "Hi", "parameters": {"max_new_tokens": 9}}


async def test_a_failure_is_the_last_event(house: ChatHouse) -> None:
    play(house, FinishEvent("", 0, FinishReason.ERROR, "the engine died"))
    answer = await house.post("/generate_stream", BODY)
    assert answer.status_code == 200
    first, last = events_of(answer.text)
    assert first["token"]["text"] == " there"
    said = "Request failed during generation: Server error: the engine died"
    assert last == {"error": said, "error_type": "generation"}
    whole = await house.post("/generate", BODY)
    assert (whole.status_code, whole.json()) == (424, last)
    lines = (await house.client.get("/metrics")).text.splitlines()
    assert 'tgi_request_failure{err="generation"} 2' in lines


async def test_an_end_without_a_last_token_is_an_incomplete_generation(house: ChatHouse) -> None:
    play(house)
    *_, last = events_of((await house.post("/generate_stream", BODY)).text)
    assert last == {"error": "Incomplete generation stream", "error_type": "incomplete_generation_stream"}
    whole = await house.post("/", BODY)
    assert whole.status_code == 500
    assert whole.json() == {"error": "Incomplete generation", "error_type": "incomplete_generation"}


async def test_silence_is_filled_with_comments() -> None:
    gate = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"one"
        await gate.wait()
        yield b"two"

    stream = kept_alive(chunks(), silence_s=0.01)
    assert await anext(stream) == b"one"
    assert [await anext(stream), await anext(stream)] == [COMMENT, COMMENT]
    gate.set()
    rest = [chunk async for chunk in stream]
    assert rest[-1] == b"two"
    assert set(rest[:-1]) <= {COMMENT}


async def test_closing_a_silent_stream_ends_what_is_behind_it() -> None:
    closed = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            await asyncio.Event().wait()
        finally:
            closed.set()

    before = asyncio.all_tasks()
    stream = kept_alive(chunks(), silence_s=0.01)
    assert [await anext(stream), await anext(stream)] == [b"one", COMMENT]
    await stream.aclose()
    assert closed.is_set()
    assert asyncio.all_tasks() == before


async def test_a_cancelled_reader_ends_what_is_behind_it() -> None:
    closed = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            await asyncio.Event().wait()
            yield b"never"
        finally:
            closed.set()

    async def read() -> None:
        async for _ in kept_alive(chunks(), silence_s=60):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert closed.is_set()


async def test_errors_pass_through() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise ValueError("behind")

    stream = kept_alive(chunks())
    assert await anext(stream) == b"one"
    with pytest.raises(ValueError, match="behind"):
        await anext(stream)
