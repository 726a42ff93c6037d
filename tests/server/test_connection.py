"""Real sockets against a real server: rude and vanishing clients, and what is left when they are gone."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from sockets import BODY, ENDLESS, Left, ask, json_of, read_all, request_of, status_of, until
from stub_runtime import LONG, TOKENIZER, RunningServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(stub=LONG) as server:
        yield server


@pytest.fixture
def left(server: RunningServer) -> Iterator[None]:
    with Left(server):
        yield


pytestmark = pytest.mark.usefixtures("left")


# Disconnecting at every possible point -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_leaving_after_each_byte_of_the_request(server: RunningServer, stream: bool) -> None:
    data = request_of({**ENDLESS, "stream": stream})
    for end in range(len(data) + 1):
        with server.connect() as connection:
            connection.sendall(data[:end])


def test_leaving_after_each_event(server: RunningServer) -> None:
    data = request_of({**ENDLESS, "stream": True})
    for events in range(24):
        with server.connect() as connection:
            connection.sendall(data)
            seen = b""
            while seen.count(b"data: ") < events:
                seen += connection.recv(256) or pytest.fail("the stream ended early")


def test_leaving_by_reset_while_waiting(server: RunningServer) -> None:
    for stream in (False, True):
        for pause in (0.0, 0.002, 0.01, 0.03):
            connection = server.connect()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.sendall(request_of({**ENDLESS, "stream": stream}))
            time.sleep(pause)
            connection.close()


def test_leaving_while_a_model_is_loaded_gives_up_the_place(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads the body then, so it is not by reading that the server learns of it."""
    waiting = 0

    @asynccontextmanager
    async def lease(model: str | None = None) -> AsyncIterator[None]:
        nonlocal waiting
        waiting += 1
        try:
            await asyncio.Event().wait()
            yield
        finally:
            waiting -= 1

    with monkeypatch.context() as patch:
        patch.setattr(server.runtime.serving, "lease", lease)
        for data in (request_of(), request_of({**ENDLESS, "stream": True})):
            with server.connect() as connection:
                connection.sendall(data.replace(b"/v1/", b"/openai/v1/"))
                until(lambda: waiting == 1)
            until(lambda: waiting == 0)


def test_leaving_a_batch_cancels_all_its_prompts(server: RunningServer) -> None:
    for stream in (False, True):
        with server.connect() as connection:
            connection.sendall(request_of({**ENDLESS, "prompt": ["a", "b", "c"] * 5, "n": 2, "stream": stream}))
            until(lambda: server.runtime.serving.admission.running > 0)


def test_leaving_cancels_at_once(server: RunningServer) -> None:
    engine = server.runtime.engine
    before = engine.stats().generated_tokens
    for stream in (False, True):
        with server.connect() as connection:
            connection.sendall(request_of({**ENDLESS, "n": 4, "stream": stream}))
            until(lambda: server.runtime.serving.admission.running > 0)
        until(lambda: server.runtime.serving.admission.running == 0)
    # Far fewer than the 800,000 tokens that were asked for.
    assert engine.stats().generated_tokens - before < 400_000


def test_leaving_with_pipelined_requests_cancels_the_one_being_answered(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(request_of(ENDLESS, close=False) * 3)
        until(lambda: server.runtime.serving.admission.running > 0)
    until(lambda: server.runtime.serving.admission.running == 0)


# Large requests ------------------------------------------------------------------------------------------------------


def test_headers_are_bounded(server: RunningServer) -> None:
    with server.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        for i in range(400):
            connection.sendall(b"x-%d: " % i + b"y" * 1000 + b"\r\n")
            if select.select([connection], [], [], 0)[0]:
                break
        answer = read_all(connection)
        assert status_of(answer) == 431
        assert "headers" in json_of(answer)["error"]["message"]


@pytest.mark.parametrize(
    "head", ["GET /livez?" + "y" * 70_000 + " HTTP/1.1\r\n", "GET /livez HTTP/1.1\r\nx: " + "y" * 70_000 + "\r\n"]
)
def test_headers_that_come_all_at_once_are_bounded_too(server: RunningServer, head: str) -> None:
    answer = ask(server, head.encode() + b"host: localhost\r\nconnection: close\r\n\r\n")
    assert status_of(answer) == 431
    assert "headers" in json_of(answer)["error"]["message"]


def test_a_long_body_behind_the_end_of_the_headers_is_no_header(server: RunningServer) -> None:
    request = request_of(b'{"prompt": "a", "max_tokens": 1}' + b" " * 200_000)
    with server.connect() as connection:
        connection.sendall(request[:30])
        time.sleep(0.05)
        connection.sendall(request[30:])
        assert status_of(read_all(connection)) == 200


def test_a_body_of_100_megabytes_is_refused_and_still_answered(server: RunningServer) -> None:
    size = 100 * 1024 * 1024
    chunk = b" " * (1 << 20)
    with server.connect() as connection:
        connection.sendall(request_of(b"", length=size))
        sent = 0
        # The client writes all of it before it looks: it must be able to, and then find the answer.
        while sent < size:
            sent += connection.send(chunk[: size - sent])
        answer = read_all(connection)
    assert status_of(answer) == 413
    assert json_of(answer)["error"]["code"] == "request_too_large"


def test_a_chunked_body_without_end_is_refused(server: RunningServer) -> None:
    chunk = b"%x\r\n" % (1 << 20) + b" " * (1 << 20) + b"\r\n"
    with server.connect() as connection:
        connection.sendall(
            b"POST /tgi/generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(chunk)
                if select.select([connection], [], [], 0)[0]:
                    break
        assert status_of(connection.recv(4096)) == 413


# HTTP ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=lambda data: repr(data[:32]),
)
def test_what_is_not_http_is_refused(server: RunningServer, data: bytes) -> None:
    answer = ask(server, data)
    assert status_of(answer) in (400, 404)
    assert json_of(answer)["error"]["type"] == "invalid_request_error"


def test_connections_are_kept_for_the_next_request(server: RunningServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for path, status in (("/health", 200), ("/nothing", 404), ("/v1/models", 200)):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    connection.request("POST", "/v1/completions", json.dumps(BODY), {"content-type": "application/json"})
    assert json.loads(connection.getresponse().read())["usage"]["completion_tokens"] == 6
    assert len(server.server.server_state.connections) == 1
    connection.close()


def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    first, second = request_of({**BODY, "seed": 5}, close=False), request_of({**BODY, "seed": 6})
    answer = ask(server, first + second)
    one, two = (ask(server, request_of({**BODY, "seed": seed})) for seed in (5, 6))
    texts = [json.dumps(json_of(each)["choices"][0]["text"], ensure_ascii=False).encode() for each in (one, two)]
    places = [answer.index(text) for text in texts]
    assert places == sorted(places)


def test_expect_continue_is_answered(server: RunningServer) -> None:
    head, _, body = request_of().partition(b"\r\n\r\n")
    with server.connect() as connection:
        connection.sendall(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert status_of(read_all(connection)) == 200


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://localhost", "/"),
        ("http://localhost:8000?x=/y", "/"),
        ("http://localhost/", "/"),
        ("HTTP://localhost/v1/models?x", "/v1/models"),
        ("/v1/models?of=http://localhost", "/v1/models"),
    ],
)
def test_a_target_may_be_a_whole_address(server: RunningServer, target: str, path: str) -> None:
    """Its path is ``/`` where it has none (RFC 9112, section 3.2.2)."""
    whole, plain = (
        ask(server, f"GET {each} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        for each in (target, path)
    )
    assert (status_of(whole), json_of(whole)) == (200, json_of(plain))


@pytest.mark.parametrize("target", ["http://", "http:///v1/models", "http://?x", "localhost:80", "localhost"])
def test_a_target_that_is_neither_an_address_nor_a_path_is_refused(server: RunningServer, target: str) -> None:
    answer = ask(server, f"GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    assert (status_of(answer), json_of(answer)["error"]["message"]) == (400, "The request is not valid HTTP.")


def test_head_requests_have_no_body(server: RunningServer) -> None:
    answer = ask(server, b"HEAD /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert status_of(answer) == 200
    assert answer.endswith(b"\r\n\r\n")


def test_a_stream_has_the_headers_of_one(server: RunningServer) -> None:
    head = ask(server, request_of({**BODY, "stream": True})).partition(b"\r\n\r\n")[0].lower()
    assert b"content-type: text/event-stream" in head
    assert b"cache-control: no-cache" in head
    assert b"x-accel-buffering: no" in head


def test_many_at_once_are_all_served(server: RunningServer) -> None:
    answers: list[int] = []

    def play(i: int) -> None:
        answers.append(status_of(ask(server, request_of({**BODY, "seed": i, "stream": i % 2 == 0}))))

    threads = [threading.Thread(target=play, args=(i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 40


def test_one_connection_too_many_is_told_so_and_health_is_told_all_the_same(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = server.connections
    monkeypatch.setattr(connections, "max_connections", 2)
    with server.connect() as one, server.connect() as other:
        for busy in (one, other):
            busy.sendall(request_of({**ENDLESS, "stream": True}))
            assert busy.recv(1)
        answer = ask(server, request_of())
        assert status_of(answer) == 503
        assert json_of(answer)["error"]["code"] == "service_unavailable"
        assert b"connection: close" in answer
        for path in ("/livez", "/readyz", "/health", "/metrics", "/tgi/health"):
            answer = ask(server, f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert status_of(answer) == 200, path
    until(lambda: not len(connections))


def test_all_blocks_are_free_when_nothing_runs(server: RunningServer) -> None:
    assert server.runtime.engine.stats().free_blocks == LONG.num_blocks
    assert TOKENIZER.vocab_size == LONG.vocab_size


# Offers of another protocol ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0"])
@pytest.mark.parametrize("pieces", [1, 7])
def test_an_offer_of_another_protocol_is_not_taken_up(server: RunningServer, protocol: str, pieces: int) -> None:
    """Java's HTTP client offers HTTP/2 with its first request, and expects an ordinary answer from who declines."""
    offer = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    head, _, rest = request_of({**BODY, "max_tokens": 3}).partition(b"\r\n")
    data = head + b"\r\n" + offer.encode() + rest
    plain = json_of(ask(server, request_of({**BODY, "max_tokens": 3})))
    with server.connect() as connection:
        for start in range(0, len(data), -(-len(data) // pieces)):
            connection.sendall(data[start : start + -(-len(data) // pieces)])
            time.sleep(0.01)
        answer = read_all(connection)
    assert status_of(answer) == 200
    assert json_of(answer)["choices"] == plain["choices"]
