"""The client of a running server, against answers of every kind that a server may give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from dragoman.cli.address import Address, address_of
from dragoman.cli.remote import fetch_json, stream_json
from dragoman.cli.session import find_remote
from dragoman.core.errors import DragomanError, EngineUnavailable, GenerationFailed


def ask(answer: bytes, work: Callable[[Address], Any], received: list[bytes] | None = None) -> Any:
    """Run ``work`` against a server that gives this one answer and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        if received is not None:
            received.extend([head, body])
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def both() -> Any:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.wait_for(work(Address.parse(f"http://127.0.0.1:{port}/api/v1/")), 60)

    return asyncio.run(both())


async def collect(address: Address) -> list[Any]:
    async with aclosing(stream_json(address, "/v1/x", {"a": 1})) as events:
        return [event async for event in events]


def whole(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def chunked(*parts: bytes) -> bytes:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


EVENTS = b': a comment\n\ndata: {"n": 1}\n\ndata: {"n": 2, "text": "\xc3\xa4"}\r\n\r\ndata: [DONE]\n\n'
READ = [{"n": 1}, {"n": 2, "text": "ä"}]


def test_events_with_a_length_chunked_or_up_to_the_end() -> None:
    assert ask(whole(EVENTS), collect) == READ
    assert ask(chunked(EVENTS), collect) == READ
    assert ask(b"HTTP/1.1 200 OK\r\n\r\n" + EVENTS, collect) == READ


@pytest.mark.parametrize("cut", range(1, len(EVENTS)))
def test_a_chunk_may_end_anywhere(cut: int) -> None:
    assert ask(chunked(EVENTS[:cut], EVENTS[cut:]), collect) == READ


def test_what_is_sent() -> None:
    received: list[bytes] = []
    ask(whole(EVENTS), collect, received)
    assert received[0].startswith(b"POST /api/v1/x HTTP/1.1\r\n")
    assert json.loads(received[1]) == {"a": 1}


def test_json_answers() -> None:
    assert ask(whole(b'{"data": []}'), lambda address: fetch_json(address, "/v1/models")) == {"data": []}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model"}}', "no such model"),
        (b'{"error": "too long"}', "too long"),
        (b"<html>sorry</html>", "sorry"),
        (b"", "an empty answer"),
    ],
)
def test_error_status_becomes_the_servers_own_words(body: bytes, message: str) -> None:
    with pytest.raises(GenerationFailed, match=f"400.*{message}"):
        ask(whole(body, "400 Bad Request"), collect)


def test_error_inside_a_stream() -> None:
    with pytest.raises(GenerationFailed, match="engine died"):
        ask(whole(b'data: {"n": 1}\n\ndata: {"error": {"message": "engine died"}}\n\n'), collect)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\ndata: {}\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n{}",
        "HTTP/1.1 2ä OK\r\n\r\n".encode("latin-1"),
    ],
)
def test_broken_answers_are_errors(answer: bytes) -> None:
    with pytest.raises(GenerationFailed):
        ask(answer, collect)


@pytest.mark.parametrize("body", [b"[]", b"null", b"{}", b'{"data": [1]}', b'{"data": [{"id": null}]}'])
def test_a_server_that_lists_no_models_is_another_kind_of_server(body: bytes) -> None:
    with pytest.raises(GenerationFailed, match="/v1/models answered something that is no list"):
        ask(whole(body), lambda address: find_remote(str(address), None))


def test_an_answer_that_is_no_json() -> None:
    with pytest.raises(GenerationFailed, match="not JSON"):
        ask(whole(b"hello"), lambda address: fetch_json(address, "/v1/models"))


def test_nobody_there() -> None:
    said = (
        r"nobody answers at http://127.0.0.1:1(/v1)?: Connection refused; `dragoman serve` starts a server, --url names"
    )
    with pytest.raises(EngineUnavailable, match=said):
        asyncio.run(fetch_json(Address.parse("127.0.0.1:1"), "/v1/models"))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("localhost", Address("localhost", 80, "", False)),
        ("http://localhost:8000/", Address("localhost", 8000, "", False)),
        ("https://host/openai/v1", Address("host", 443, "/openai", True)),
        ("http://[::1]:8000/v1", Address("::1", 8000, "", False)),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert Address.parse(url) == address


def test_an_address_of_version_6_is_written_in_brackets() -> None:
    assert str(Address.parse("http://[::1]:8000/v1")) == "http://[::1]:8000"


@pytest.mark.parametrize(
    "url", ["", " ", "ftp://host", "http://host:99999", "http://host:0", "http://", "http://host:port"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(DragomanError):
        Address.parse(url)


def test_an_empty_address_is_not_that_of_this_machine() -> None:
    """``stop --url "$UNSET"`` would stop the server here."""
    with pytest.raises(DragomanError, match="--url is empty"):
        address_of("", ())
    assert address_of(None, ()) == Address("127.0.0.1", 8000, "", False)
