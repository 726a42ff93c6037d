"""What is made of answers that are not as vLLM sends them: of proxies before it, of damaged or busy servers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_vllm import FakeVllm
from vllm_clients import VOCAB, greedy, in_loop, read, request, started

from dragoman.core.errors import DragomanError
from dragoman.core.sampling import LogprobParams
from dragoman.engine_client.vllm import upstream
from dragoman.engine_client.vllm.client import VllmClient
from dragoman.engine_client.vllm.http import MAX_HEAD_BYTES, HttpClient, HttpFailure
from dragoman.engine_client.vllm.protocol import EventReader
from dragoman.engine_client.vllm.settings import RemoteEngineSettings, addresses_of
from dragoman.engine_client.vllm.upstream import Figures


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_have_any_line_end(line_end: bytes, size: int) -> None:
    events = b"".join(b'data: {"choices":[{"token_ids":[%d]}]}\n\n' % number for number in range(3))
    sent = (b": a comment\n\n" + events + b"data: [DONE]\n\n").replace(b"\n", line_end)
    reader = EventReader()
    pieces = [sent[start : start + size] for start in range(0, len(sent), size)]
    found = [event.choices[0].token_ids for piece in pieces for event in reader.feed(piece)]
    assert found == [(0,), (1,), (2,)]
    assert reader.is_done


async def _message(client: VllmClient, **changes: Any) -> str:
    """Return the message of the error that a request ends with."""
    async with asyncio.timeout(60):
        events = [event async for event in client.submit(request(**changes))]
    return getattr(events[-1], "message", "")


@pytest.mark.parametrize("token_id", [-1, VOCAB, 10**30])
@in_loop
async def test_a_token_outside_of_the_vocabulary_fails_its_request(token_id: int) -> None:
    fake = FakeVllm()
    async with started(fake) as client:
        setattr(fake, "_token", lambda *asked: token_id)  # noqa: B010
        assert f"its vocabulary has {VOCAB}" in await _message(client)


@pytest.mark.parametrize("logprobs", [None, {"content": None}, {"content": []}])
@in_loop
async def test_a_token_without_its_log_probability_fails_its_request(logprobs: Any) -> None:
    fake = FakeVllm()
    async with started(fake) as client:
        setattr(fake, "_logprobs", lambda *asked: logprobs)  # noqa: B010
        assert "it tells no log-probability of token 0" in await _message(client, logprobs=LogprobParams(top=1))


@pytest.mark.parametrize("status", [429, 503])
@in_loop
async def test_a_busy_server_is_asked_again(status: int) -> None:
    """Three losses would fail the request."""
    fake = FakeVllm()
    async with started(fake) as client:
        fake.fails_with = (status, "busy")
        running = asyncio.create_task(read(client, request()))
        while len(fake.requests) < 6:
            await asyncio.sleep(0.005)
        fake.fails_with = None
        assert (await running).ids() == greedy(8)
        assert client.stats().restarts == 0


@in_loop
async def test_a_server_that_stays_busy_fails_the_request() -> None:
    fake = FakeVllm()
    async with started(fake, hang_s=0.1) as client:
        fake.fails_with = (429, "busy")
        message = "vLLM has taken no request for 0.1 s (it answers with status 429: busy)"
        assert await _message(client) == message


@in_loop
async def test_a_busy_server_says_when_it_is_asked_again() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n")

    async with served_by(answer) as http, http.send("GET", "/", timeout_s=60) as found:
        assert found.retry_after_s == 7.0


def test_figures_that_are_none_count_as_nothing() -> None:
    page = (
        b"vllm:num_preemptions_total{} 1e999\nvllm:num_preemptions_total{} 1.2.3\nvllm:num_preemptions_total{} 2\n"
        b'vllm:kv_cache_usage_perc{} 1e999\nvllm:cache_config_info{num_gpu_blocks="' + b"9" * 5000 + b'"} 1\n'
    )
    figures = Figures(page)
    assert figures.values["num_preemptions_total"] == 2
    assert all(map(math.isfinite, figures.values.values()))
    assert (figures.blocks, figures.used_blocks) == (0, 0)


# Raw answers ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def served_by(answer: Callable[[asyncio.StreamWriter], Any]) -> AsyncIterator[HttpClient]:
    """Yield a client of a server that answers every request as ``answer`` writes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        http = HttpClient(addresses_of(RemoteEngineSettings(engine=(f"vllm=http://127.0.0.1:{port}",)))[0])
        yield http
        http.close()


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nx: " + b"a" * 4096, b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 700])
@in_loop
async def test_a_head_without_end_is_not_read_for_ever(head: bytes) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(head[-6:] * 1000)
            await writer.drain()

    async with asyncio.timeout(60), served_by(answer) as http:
        with pytest.raises(HttpFailure, match="the head of its answer is too long"):
            async with http.send("GET", "/health"):
                raise AssertionError
    assert len(head) < MAX_HEAD_BYTES


@in_loop
async def test_a_body_that_comes_byte_by_byte_is_given_up() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with asyncio.timeout(60), served_by(answer) as http, http.send("GET", "/health", timeout_s=60) as found:
        with pytest.raises(HttpFailure, match=r"it has not answered within 0\.2 s") as failure:
            await found.read(0.2)
        assert failure.value.is_silence


@in_loop
async def test_interim_and_surplus_answers_are_left_out() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 404 No\r\ncontent-length: 3\r\n\r\nbad")

    async with asyncio.timeout(60), served_by(answer) as http:
        for _ in range(2):
            async with http.send("GET", "/health", timeout_s=60) as found:
                assert (found.status, await found.read(60)) == (200, b"hi")
        assert not http._idle


@in_loop
async def test_a_server_that_answers_byte_by_byte_is_lost() -> None:
    """Its health would be awaited for ever."""
    fake = FakeVllm()
    async with started(fake) as client:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upstream, "CHECK_TIMEOUT_S", 0.05)
            fake.drips = True
            async with asyncio.timeout(60):
                while client._upstreams[0].is_ready:
                    await asyncio.sleep(0.01)
        fake.drips = False
        assert (await read(client, request())).ids() == greedy(8)


@pytest.mark.parametrize(
    "engine",
    [
        "http://a..b:1",
        f"http://{'a' * 70}.b:1",
        "http://h:0",
        "http://h:1/\u20ac",
        "http://h:1/a b",
        "http://h:1/a\x7f",
    ],
)
def test_an_address_that_cannot_be_asked_is_refused(engine: str) -> None:
    with pytest.raises(DragomanError, match=r"expected vllm=http://HOST:PORT"):
        addresses_of(RemoteEngineSettings(engine=(f"vllm={engine}",)))


@pytest.mark.parametrize("key", ["", "key\n", "a\r\nx: y", "\u20ac"])
def test_a_key_that_no_header_can_have_is_refused(key: str) -> None:
    with pytest.raises(DragomanError, match="--engine-api-key"):
        addresses_of(RemoteEngineSettings(engine=("vllm=http://h:1",), engine_api_key=key))
