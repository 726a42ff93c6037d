"""What clients send is parsed piece by piece, as far as it is needed: counted, not timed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from sockets import BODY, ENDLESS, Left, ask, json_of, read_all, request_of, serves, status_of, until
from stub_runtime import LONG, QUICK, RunningServer, running_server

from dragoman.server import framing
from dragoman.server.connection import Connection
from dragoman.server.parsing import PIECES_AT_ONCE, ParsingTurns
from dragoman.server.settings import NetworkSettings

HEAD = b"GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n"
BUDGET = 8 * 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    # What is refused here ends because the client closes it, not because the server has lingered long enough.
    settings = msgspec.structs.replace(QUICK, linger_s=600.0)
    with running_server(settings, LONG, network=NetworkSettings(max_buffered_bytes=BUDGET)) as running:
        yield running


@pytest.fixture
def left(server: RunningServer) -> Iterator[None]:
    with Left(server):
        yield


pytestmark = pytest.mark.usefixtures("left")


class Counted:
    """The most requests that one connection held, and how many there were in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.all = 0
        begin = Connection.on_headers_complete

        def counted(connection: Connection) -> None:
            begin(connection)
            self.all += 1
            self.most = max(self.most, len(connection._unanswered))

        monkeypatch.setattr(Connection, "on_headers_complete", counted)


def pour(connection: socket.socket, data: bytes) -> int:
    """Write what fits without reading; returns how much that was."""
    connection.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError, ConnectionError):
        while sent < len(data):
            sent += connection.send(data[sent : sent + 65536])
    return sent


def test_a_megabyte_of_pipelined_heads_is_read_a_few_requests_at_a_time(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    data = HEAD * (2**20 // len(HEAD))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect(receive_buffer=2048)) for _ in range(4)]
        for client in clients:
            assert pour(client, data)
        # Nobody reads the answers. A server that parsed what it gets would hold 37,000 requests for each of them.
        until(lambda: counted.all > 500)
        for _ in range(10):
            assert server.tasks() < 60
            assert server.server.server_state.connections
            alive = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            assert ask(server, alive).endswith(b'"ok"}')
        assert counted.most <= 8
        assert 0 < server.bodies.used <= BUDGET
    until(lambda: server.bodies.used == 0)


def test_pipelined_requests_beyond_the_limit_are_answered_in_their_turn(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    bodies = [json.dumps({**BODY, "max_tokens": 1 + i % 3}) for i in range(30)]
    requests = [request_of(body.encode(), close=i == 29) for i, body in enumerate(bodies)]
    answer = ask(server, b"".join(requests))
    tokens = [int(part.split(b",")[0].rstrip(b"}")) for part in answer.split(b'"completion_tokens":')[1:]]
    assert tokens == [1 + i % 3 for i in range(30)]
    assert counted.most <= 8
    assert counted.all == 30


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 26, 27, 28, 29, 31])
def test_however_heads_are_cut_each_is_one_request(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    counted = Counted(monkeypatch)
    data = HEAD * 20 + HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    loop = server.loop
    with server.connect() as connection:
        until(lambda: len(server.server.server_state.connections) == 1)
        (there,) = server.server.server_state.connections
        parts = [data[i : i + size] for i in range(0, len(data), size)]

        async def receive() -> None:
            for part in parts:
                there.data_received(part)
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(receive(), loop).result(60)
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 404") == 21
    assert counted.all == 21
    assert counted.most <= 8


def test_a_body_behind_a_slow_request_is_not_gathered(server: RunningServer) -> None:
    first, admission = request_of({**BODY, "max_tokens": 200, "n": 4}, close=False), server.runtime.serving.admission
    with server.engine_stopped(), server.connect() as connection:
        connection.sendall(first)
        until(lambda: admission.waiting + admission.running > 0)
        pour(connection, request_of(b" " * 2_000_000))
        (there,) = server.server.server_state.connections
        assert len(there.cycle.body) <= 2 * 65536
        assert len(there._unparsed) <= 2**18 + 2**16


# Chunks --------------------------------------------------------------------------------------------------------------


def chunked(content: bytes, size: int) -> bytes:
    parts = [content[i : i + size] for i in range(0, len(content), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return head + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 50, 5000, 100_000])
def test_a_body_may_come_in_chunks(server: RunningServer, size: int) -> None:
    content = json.dumps(BODY).encode() + b" " * (5000 if size < 50 else 300_000)
    assert status_of(ask(server, chunked(content, size))) == 200


def test_a_long_body_in_tiny_chunks_is_refused(server: RunningServer) -> None:
    with server.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(chunked(b" " * 100_000, 1))
        answer = read_all(connection)
        assert status_of(answer) == 400
        assert "framing" in json_of(answer)["error"]["message"]


@pytest.mark.parametrize("framing", [b"1;" + b"a" * 200_000 + b"\r\n", b"0\r\n" + b"x: y\r\n" * 40_000])
def test_extensions_and_trailers_of_chunks_are_bounded(server: RunningServer, framing: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with server.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head + framing)
        assert status_of(read_all(connection)) == 400


def test_the_rest_of_what_was_refused_is_read(server: RunningServer) -> None:
    """A client that sends all of it before it reads can do so, however much came at once when it was refused."""
    with server.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nx: " + b"y" * 200_000)
        answer = read_all(connection)
        assert status_of(answer) == 431
        connection.sendall(b"y" * 32_000_000)


def test_trailers_are_no_headers(server: RunningServer) -> None:
    request = chunked(json.dumps(BODY).encode(), 40)[:-2] + b"host: x\r\nx: y\r\n\r\n"
    assert status_of(ask(server, request)) == 200


def test_work_on_tiny_chunks_is_shared_out(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks at the other connections, only so many pieces of one are parsed."""
    pieces: list[int] = []
    parse, piece = Connection.parse, Connection._parse_piece

    def counted_parse(connection: Connection, most: int) -> None:
        pieces.append(0)
        parse(connection, most)

    def counted_piece(connection: Connection, data: bytes) -> None:
        pieces[-1] += 1
        assert len(data) <= framing.CHUNKED_PIECE_BYTES
        piece(connection, data)

    monkeypatch.setattr(Connection, "parse", counted_parse)
    monkeypatch.setattr(Connection, "_parse_piece", counted_piece)
    with server.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(chunked(b" " * 12_000, 1))
        assert read_all(connection)
    assert max(pieces) <= PIECES_AT_ONCE
    assert sum(pieces) > 12


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"\r\n" * 50_000 + HEAD, 404), (chunked(json.dumps(BODY).encode() + b"\r\n" * 50_000, 2000), 200)],
)
def test_empty_lines_are_little_work(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, data: bytes, status: int
) -> None:
    pieces = 0
    piece = Connection._parse_piece

    def counted(connection: Connection, part: bytes) -> None:
        nonlocal pieces
        pieces += 1
        piece(connection, part)

    monkeypatch.setattr(Connection, "_parse_piece", counted)
    with server.connect() as connection:
        connection.sendall(data)
        assert status_of(connection.recv(4096)) == status
    assert pieces < 3000


def test_a_body_of_tiny_segments_wakes_its_reader_once(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    data = request_of()
    head, _, body = data.partition(b"\r\n\r\n")
    with server.connect() as connection:
        connection.sendall(head + b"\r\n\r\n")
        until(lambda: any(c.cycle is not None for c in server.server.server_state.connections))
        (there,) = server.server.server_state.connections
        woken: list[bool] = []
        for byte in range(len(body) - 1):
            connection.sendall(body[byte : byte + 1])
            time.sleep(0.0005)
            woken.append(there.cycle.message_event.is_set())
        assert not any(woken)
        connection.sendall(body[-1:])
        assert status_of(read_all(connection)) == 200


async def turns_of_loop() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def test_turns_go_round() -> None:
    order: list[str] = []

    class Talker:
        transport: Any = None

        def __init__(self, name: str, pieces: int) -> None:
            self.name, self.pieces = name, pieces

        def parse(self, pieces: int) -> None:
            order.append(self.name)
            self.pieces -= 1
            if self.pieces:
                turns.add(self)

    loop = asyncio.new_event_loop()
    turns = ParsingTurns(loop)
    for talker in (Talker("a", 3), Talker("b", 1), Talker("c", 2)):
        turns.add(talker)
        turns.add(talker)
    loop.run_until_complete(turns_of_loop())
    loop.close()
    assert order == ["a", "b", "c", "a", "c", "a"]


def test_a_connection_that_cannot_be_parsed_costs_no_other_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    order: list[str] = []

    class Transport:
        def __init__(self, name: str) -> None:
            self.name = name

        def abort(self) -> None:
            order.append(f"{self.name} is closed")

    class Talker:
        def __init__(self, name: str) -> None:
            self.name = name
            self.transport: Any = Transport(name)

        def parse(self, pieces: int) -> None:
            if self.name == "bad":
                raise AssertionError("as asked")
            order.append(self.name)

    loop = asyncio.new_event_loop()
    turns = ParsingTurns(loop)
    for name in ("a", "bad", "b", "c"):
        turns.add(Talker(name))
    loop.run_until_complete(turns_of_loop())
    loop.close()
    assert order == ["a", "bad is closed", "b", "c"]
    assert caplog.text.count("cannot be parsed; the connection is closed") == 1
    assert "as asked" in caplog.text


# The budget ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/tgi/generate",
        "/friendli/v1/completions",
        "/octoai/v1/completions",
        "/locallab/generate",
        "/alexandria/api/generate-one",
    ],
)
def test_bodies_beyond_the_budget_of_all_are_answered_503(server: RunningServer, path: str) -> None:
    """Each is small enough; together they are not."""
    part = b" " * 1_600_000
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(5)]
        for client in clients:
            client.sendall(request_of(b"", "/v1/completions", length=3_000_000) + part)
        until(lambda: server.bodies.used >= 5 * 1_440_000)
        answer = ask(server, request_of(b" " * 1_600_000, path))
        assert status_of(answer) == 503
        assert b"retry-after: " in answer.lower()
        assert "room" in answer.decode() or path.startswith("/tgi/")
        serves(server)  # small ones are no matter
    assert server.bodies.refused
    until(lambda: server.bodies.used == 0)


def test_the_body_of_a_running_request_is_forgotten() -> None:
    request = request_of(json.dumps({**ENDLESS, "stream": True}).encode() + b" " * 1_000_000)
    with running_server(QUICK, msgspec.structs.replace(LONG, step_s=0.05)) as server, server.connect() as connection:
        connection.sendall(request)
        assert connection.recv(1)
        assert server.bodies.used == 0
        with server.connect() as whole:
            whole.sendall(request_of(json.dumps({**ENDLESS, "n": 4}).encode() + b" " * 1_000_000))
            until(lambda: server.runtime.serving.admission.running == 2)
            assert server.bodies.used == 0


# Heads ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET /livez HTTP/1.1\r\n\r\n", "no Host"),
        (b"GET /livez HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", "more than one Host"),
        (b"GET /livez HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", "more than one Host"),
        (b"GET /livez\r\n\r\n", "HTTP"),
        (b"GET /livez HTTP/2.0\r\nhost: localhost\r\n\r\n", "HTTP/2.0"),
        (b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked\r\n\r\n", "'chunked'"),
    ],
)
def test_a_head_says_what_can_be_read(server: RunningServer, data: bytes, reason: str) -> None:
    answer = ask(server, data)
    assert status_of(answer) == 400
    assert reason in json_of(answer)["error"]["message"]


def test_http_1_0_needs_no_host(server: RunningServer) -> None:
    assert status_of(ask(server, b"GET /livez HTTP/1.0\r\n\r\n")) == 200


def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_its_connection(server: RunningServer) -> None:
    body = b'{"prompt": "a", "max_tokens": 3, "stream": true}'
    head = b"POST /v1/completions HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body)
    head, _, events = ask(server, head + body).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert re.fullmatch(rb"(data: \{.*\}\n\n)+data: \[DONE\]\n\n", events)
