"""WebSockets: opened where a dialect has one, bounded, drained at the end, and handed to whose they are."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator
from time import perf_counter

import httpx
import msgspec
import pytest
from sockets import Left, ask, read_all, status_of, until
from stub_runtime import HURRIED, QUICK, STUB, RunningServer, running_server
from toy_dialect import toy
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from dragoman.dialects import DIALECTS as REAL_DIALECTS
from dragoman.dialects.api import Dialect
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.server.settings import BrowserSettings

DIALECTS = (toy("north"), toy("south", field="words"))
AUTO = msgspec.structs.replace(QUICK, dialect="auto")
KEY = "a-key-of-enough-characters"
IN_PAGE = f"openai-insecure-api-key.{KEY}"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    settings = msgspec.structs.replace(AUTO, max_message_bytes=10_000)
    with running_server(settings, dialects=DIALECTS) as server:
        yield server


def opened(server: RunningServer, path: str, **more: object) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{server.port}{path}", open_timeout=60, close_timeout=1, **more)


def answer_to(socket: ClientConnection, message: str | bytes) -> list[str | bytes]:
    socket.send(message)
    pieces = []
    while (piece := socket.recv(timeout=60)) != "":
        pieces.append(piece)
    return pieces


@pytest.mark.parametrize("path", ["/north-talk", "/north/north-talk"])
def test_messages_are_answered_in_pieces_of_their_kind(server: RunningServer, path: str) -> None:
    with opened(server, path) as socket:
        text = "".join(answer_to(socket, "Once upon a time"))
        assert text
        assert b"".join(answer_to(socket, b"Once upon a time")).decode() == text
        assert socket.response.headers["x-request-id"].startswith("req-")


def test_other_paths_answer_as_if_nobody_had_offered(server: RunningServer) -> None:
    with pytest.raises(InvalidStatus) as refused:
        opened(server, "/who")
    assert refused.value.response.status_code == 200
    with pytest.raises(InvalidStatus) as missing:
        opened(server, "/nowhere")
    assert missing.value.response.status_code == 404


def test_a_message_that_is_too_large_closes_the_socket(server: RunningServer) -> None:
    with opened(server, "/north-talk") as socket:
        socket.send("x" * 10_001)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_a_text_that_is_not_utf8_closes_the_socket_and_is_no_error_of_the_server(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(server, "/north-talk") as socket:
        socket.send(b"\xc3(", text=True)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=30)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_leaving_ends_the_generation(server: RunningServer) -> None:
    with opened(server, "/north-talk") as socket:
        socket.send("Once upon a time")
        socket.recv(timeout=60)
    until(lambda: server.runtime.serving.admission.running == 0)
    until(lambda: not server.server.server_state.tasks)


@pytest.fixture(scope="module")
def impatient() -> Iterator[RunningServer]:
    """A server that closes idle sockets soon, and whose answers take longer than that."""
    settings = msgspec.structs.replace(AUTO, websocket_idle_s=0.4)
    slow = msgspec.structs.replace(STUB, step_s=0.03)
    with running_server(settings, slow, dialects=DIALECTS) as server:
        yield server


def closing_code(socket: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


@pytest.mark.parametrize("path", ["/north-talk", "/south-talk", "/shared"])
def test_an_idle_socket_is_closed_though_its_client_answers_pings(impatient: RunningServer, path: str) -> None:
    began = perf_counter()
    with opened(impatient, path, ping_interval=0.1) as socket:
        if path == "/shared":
            assert socket.recv(timeout=60) == "south listens"
        assert closing_code(socket) == 1001
        assert socket.close_reason == "nothing was sent for 0.4 seconds"
    assert 0.35 < perf_counter() - began < 50
    until(lambda: not impatient.server.server_state.tasks)


def test_a_socket_is_not_idle_while_it_is_answered(impatient: RunningServer) -> None:
    """The answer takes three times as long as a socket may be idle, and its pieces arrive all the time."""

    def is_answered() -> bool:
        """False where this process stood still, and the socket was idle, before it sent its message."""
        with opened(impatient, "/north-talk") as socket:
            for text in ("Once upon a time", "Twice upon a time"):  # an answer that came before is drafted, and faster
                began = perf_counter()
                try:
                    socket.send(text)
                    socket.recv(timeout=60)
                except ConnectionClosed:
                    return False
                while socket.recv(timeout=60) != "":
                    pass
                assert perf_counter() - began > 0.8
            assert closing_code(socket) == 1001
        return True

    until(is_answered)


def test_a_socket_is_not_idle_while_the_server_sends_nothing_yet() -> None:
    """Alexandria reads the next message while it computes an answer that goes out as a whole."""
    message = {"prompts": [{"request_id": "a", "prompt": "Once"}], "stream_response": False}
    config = {"max_new_tokens": 40}
    settings = msgspec.structs.replace(AUTO, websocket_idle_s=0.4)
    slow = msgspec.structs.replace(STUB, step_s=0.03)

    def is_answered() -> bool:
        """False where this process stood still, and the socket was idle, before it sent its message."""
        with opened(server, "/alexandria/api/ws") as socket:
            try:
                socket.send(json.dumps(message | {"generation_config": config}))
                kinds = [json.loads(socket.recv(timeout=60))[0]["type"]]
            except ConnectionClosed:
                return False
            while kinds[-1] != "COMPLETE":
                kinds.append(json.loads(socket.recv(timeout=60))[0]["type"])
            assert kinds == ["ACCEPTED", "STARTED", "COMPLETE"]
            assert closing_code(socket) == 1001
        return True

    with running_server(settings, slow, dialects=REAL_DIALECTS) as server:
        until(is_answered)


def test_a_fault_closes_this_socket_alone(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with opened(server, "/north-talk") as other, opened(server, "/north-talk") as socket:
        socket.send("fail")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011
        assert answer_to(other, "Once")
    assert "as asked" in caplog.text


def test_a_shared_path_is_the_quiet_ones_until_another_claims_it(server: RunningServer) -> None:
    with opened(server, "/shared") as socket:
        assert socket.recv(timeout=60) == "south listens"
        socket.send("anything")
        assert socket.recv(timeout=60) == "south heard 1"
        socket.send('{"text": "too late"}')
        assert socket.recv(timeout=60) == "south heard 2"
    with opened(server, "/shared") as socket:
        assert socket.recv(timeout=60) == "south listens"
        assert answer_to(socket, '{"text": "Once upon a time"}')
        assert answer_to(socket, "and then")


def test_leaving_before_anything_is_said_ends_a_shared_socket(server: RunningServer) -> None:
    with opened(server, "/shared") as socket:
        assert socket.recv(timeout=60) == "south listens"
    until(lambda: not server.server.server_state.tasks)


def test_sockets_are_counted_and_logged(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dragoman.access")
    with opened(server, "/south/south-talk?key=secret"):
        pass
    until(lambda: "/south/south-talk" in caplog.text)
    assert "GET /south/south-talk 101 " in caplog.text
    assert "secret" not in caplog.text
    figures = httpx.get(f"{server.url}/metrics").text
    assert 'dragoman_http_requests_total{dialect="south",route="/south-talk",status="101"} 1.0' in figures


def test_nothing_is_left_of_many(server: RunningServer) -> None:
    def visit() -> None:
        with opened(server, "/north-talk") as socket:
            answer_to(socket, "Once")

    with Left(server, serves=None):
        crowd = [threading.Thread(target=visit) for _ in range(12)]
        for each in crowd:
            each.start()
        for each in crowd:
            each.join()


def test_what_runs_is_answered_before_the_server_ends() -> None:
    settings = msgspec.structs.replace(AUTO, drain_s=60.0)
    slow = msgspec.structs.replace(STUB, step_s=0.01)
    with (
        running_server(settings, slow, dialects=DIALECTS) as server,
        opened(server, "/north-talk") as socket,
        opened(server, "/north-talk") as idle,
    ):
        whole = "".join(answer_to(socket, "Once upon a time"))
        socket.send("Once upon a time")
        begun = socket.recv(timeout=60)
        server.server.should_exit = True
        rest = begun
        while (piece := socket.recv(timeout=60)) != "":
            rest += piece
        assert rest == whole
        for each in (socket, idle):
            with pytest.raises(ConnectionClosed) as closed:
                each.recv(timeout=60)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    with running_server(AUTO, dialects=DIALECTS, keys=Keyring([hashed(KEY, "ann")])) as server:
        yield server


def test_a_key_is_asked_for_before_the_socket_opens(locked: RunningServer) -> None:
    with pytest.raises(InvalidStatus) as refused:
        opened(locked, "/north-talk")
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body or b"") == {"north": "Unauthorized"}
    with opened(locked, "/north-talk", additional_headers={"authorization": f"Bearer {KEY}"}) as socket:
        assert answer_to(socket, "Once")


def test_a_pages_key_is_a_subprotocol_that_is_not_sent_back(
    locked: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "dragoman")
    for offered in (["page", IN_PAGE], [IN_PAGE, "page", "more"]):
        with opened(locked, "/north-talk", subprotocols=offered) as socket:
            assert socket.subprotocol == "page"
            assert KEY not in str(socket.response.headers)
            assert answer_to(socket, "Once")
    with opened(locked, "/north-talk", subprotocols=[IN_PAGE]) as socket:
        assert socket.subprotocol is None
    assert KEY not in caplog.text


@pytest.mark.parametrize("offered", ["page", KEY, "openai-insecure-api-key.", IN_PAGE + "x"])
def test_other_subprotocols_let_nobody_in(locked: RunningServer, offered: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        opened(locked, "/north-talk", subprotocols=["page", offered])
    assert refused.value.response.status_code == 401


def test_a_page_with_a_key_reaches_a_server_that_asks_for_none(server: RunningServer) -> None:
    with opened(server, "/north-talk", subprotocols=["page", IN_PAGE]) as socket:
        assert socket.subprotocol == "page"
    with opened(server, "/north-talk", subprotocols=["page"]) as socket:
        assert socket.subprotocol is None


# Pages ---------------------------------------------------------------------------------------------------------------


FOREIGN = (
    {"origin": "https://evil.example"},
    {"origin": "http://localhost:1"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"host": "evil.example", "origin": "http://evil.example"},
)


def status_for(server: RunningServer, path: str, headers: dict[str, str], **more: object) -> int:
    """Of the answer to a handshake with these headers; by hand, for a client has its own Host."""
    protocols = [*more.get("subprotocols", ())]  # type: ignore[misc]
    lines = {
        "host": f"127.0.0.1:{server.port}",
        "upgrade": "websocket",
        "connection": "upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        **({"sec-websocket-protocol": ", ".join(protocols)} if protocols else {}),
        **headers,
    }
    with server.connect() as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        connection.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        return int(connection.recv(4096).split(b" ", 2)[1])


HANDSHAKE = (
    b"GET /north-talk HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize("length", [b"content-length: 5", b"transfer-encoding: chunked"])
def test_a_handshake_with_a_body_is_refused(server: RunningServer, length: bytes) -> None:
    answer = ask(server, HANDSHAKE + length + b"\r\n\r\n5\r\nhello")
    assert status_of(answer) == 400
    until(lambda: not server.server.server_state.connections)


@pytest.mark.parametrize(
    "frames", [b"\xff" * 40, b"\x81\x02{}", b"\x81\xff\x7f" + b"\xff" * 12], ids=["junk", "bare", "huge"]
)
def test_bad_frames_behind_a_handshake_end_it_without_an_error_of_the_server(
    server: RunningServer, frames: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with server.connect() as connection:
            connection.sendall(HANDSHAKE + b"\r\n" + frames)
            with contextlib.suppress(ConnectionError):
                read_all(connection)
    until(lambda: not server.server.server_state.connections)
    assert "Traceback" not in caplog.text
    assert "Fatal" not in caplog.text


def test_a_handshake_that_is_refused_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dragoman.access")
    settings = msgspec.structs.replace(HURRIED, dialect="auto")
    with running_server(settings, dialects=(toy("west"),)) as server:
        assert status_for(server, "/west-talk", {"sec-websocket-key": "short"}) == 400
        time.sleep(HURRIED.header_timeout_s + 0.2)
        until(lambda: not len(server.connections))
    # The sockets that other tests opened on servers of theirs may write their lines meanwhile.
    lines = [record.fields for record in caplog.records if record.name == "dragoman.access"]
    assert [line["status"] for line in lines if line["path"] == "/west-talk"] == [400]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_foreign_page_opens_no_socket_where_no_key_is_asked_for(
    server: RunningServer, headers: dict[str, str]
) -> None:
    for path in ("/north-talk", "/north/north-talk", "/shared"):
        assert status_for(server, path, headers) == 403


def test_a_page_of_the_servers_own_opens_sockets(server: RunningServer) -> None:
    for host in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
        own = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert status_for(server, "/north-talk", own) == 101


@pytest.mark.parametrize("dialect", REAL_DIALECTS, ids=lambda dialect: dialect.name)
def test_no_socket_of_any_dialect_opens_for_a_foreign_page(served: RunningServer, dialect: Dialect) -> None:
    for operation in dialect.sockets:
        for path in (operation.path, f"/{dialect.name}{operation.path}"):
            for headers in ({**FOREIGN[0], "origin": "https://evil.test"}, *FOREIGN[1:]):
                assert status_for(served, path, headers) == 403, (path, headers)
            assert status_for(served, path, {"origin": "https://friend.example"}) == 101
            assert status_for(served, path, {}) == 101


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with running_server(AUTO, browsers=BrowserSettings(cors_origin=("https://*.example",))) as server:
        yield server


def test_a_page_elsewhere_opens_sockets_with_its_key(locked: RunningServer) -> None:
    page = {"origin": "https://page.example"}
    assert status_for(locked, "/north-talk", page, subprotocols=("page", IN_PAGE)) == 101
    assert status_for(locked, "/north-talk", page, subprotocols=("page",)) == 401


@pytest.mark.parametrize("name", ["api_key", "key", "token", "access_token", "authorization"])
def test_a_key_in_the_query_opens_no_socket(locked: RunningServer, name: str) -> None:
    assert status_for(locked, f"/north-talk?{name}={KEY}", {}) == 401
