"""The ways to the server: many connections at once, few descriptors, TLS and Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import resource
import select
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvloop
from certificates import certificate, needs_openssl, shown_certificate
from sockets import ENDLESS, ask, read_all, request_of, serves, status_of, until
from stub_runtime import LONG, QUICK, RunningServer, running_server
from toy_dialect import toy
from websockets.asyncio.client import connect

from dragoman.core.errors import DragomanError
from dragoman.server import connections
from dragoman.server.address import bound, bound_unix, listen, remove_unix
from dragoman.server.connections import GRACE_S, Connections
from dragoman.server.lifecycle import certificates_of
from dragoman.server.listener import BATCH, Listener
from dragoman.server.open_files import LEAST_FILES, OTHER_DESCRIPTORS, OWN_LEAST, allow_connections
from dragoman.server.settings import NetworkSettings

LIVE = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"

# Many connections ----------------------------------------------------------------------------------------------------


class Counting(asyncio.Protocol):
    """As much of a connection as a listener knows."""

    slot: Any = None
    made = 0

    def connection_made(self, transport: Any) -> None:
        Counting.made += 1
        self.slot.drop = transport.abort


def listening_turns(waiting: int, table: Connections) -> tuple[int, int]:
    """How many turns of the loop it took until connections that waited were all there, or no more came; and how many
    there are then."""

    async def play() -> tuple[int, int]:
        with bound("127.0.0.1", 0) as listening:
            listening.listen(4096)
            with contextlib.ExitStack() as stack:
                for _ in range(waiting):
                    client = stack.enter_context(socket.socket())
                    client.setblocking(False)
                    client.connect_ex(listening.getsockname())
                await asyncio.sleep(0.05)
                Counting.made = turns = idle = 0
                listener = Listener(listening, Counting, table)  # type: ignore[arg-type,return-value]
                while Counting.made < waiting and idle < 200:
                    before = Counting.made
                    await asyncio.sleep(0)
                    idle = 0 if Counting.made > before else idle + 1
                    turns += 1
                made = Counting.made
                listener.close()
            await asyncio.sleep(0.01)
            return turns, made

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(play())


def test_connections_that_wait_are_accepted_in_batches() -> None:
    """uvloop's own server takes one in each turn."""
    turns, made = listening_turns(300, Connections(1000, 10))
    assert made == 300
    assert turns < 300 // BATCH + 20


def test_no_more_are_accepted_than_there_is_room_for() -> None:
    _, made = listening_turns(100, Connections(20, 5))
    assert made == 25


def is_closed(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        return bool(select.select([connection], [], [], 0)[0]) and connection.recv(1) == b""
    return True


def test_silent_connections_make_room_and_health_is_told() -> None:
    """More than all places are taken by clients that say nothing."""
    limits = msgspec.structs.replace(QUICK, max_connections=8, header_timeout_s=120.0)
    network = NetworkSettings(reserved_connections=4)
    with running_server(limits, network=network) as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(server.connect()) for _ in range(30)]
        began = time.monotonic()
        for path in ("/livez", "/readyz", "/health", "/metrics"):
            answer = ask(server, f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            assert status_of(answer) == 200
        serves(server)
        assert time.monotonic() - began < 60
        assert server.connections.dropped >= 18
        with server.connect() as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            figures = dict(line.rsplit(" ", 1) for line in read_all(connection).decode().splitlines() if " " in line)
        assert float(figures["dragoman_connections"]) >= 1
        assert float(figures["dragoman_connections_dropped_total"]) == server.connections.dropped
        assert len(server.connections) <= 12
        assert sum(is_closed(connection) for connection in silent) >= 18


def test_an_upload_behind_another_request_makes_room() -> None:
    """It is one like any other as soon as the request before it is answered."""
    limits = msgspec.structs.replace(QUICK, max_connections=4, body_timeout_s=120.0)
    alive = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with running_server(limits, network=NetworkSettings(reserved_connections=2)) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                connection = stack.enter_context(server.connect())
                connection.sendall(alive + request_of(length=1000, close=False))
                assert status_of(connection.recv(1000)) == 200
            until(lambda: status_of(ask(server, request_of())) == 200 and server.connections.dropped > 0)
        until(lambda: not len(server.connections))


def test_answers_that_nobody_reads_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without a key asks for more than its connections take, and reads nothing."""
    monkeypatch.setattr(connections, "UNREAD_S", 60.0)
    limits = msgspec.structs.replace(QUICK, max_connections=4, write_timeout_s=120.0)
    ask_much = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100
    with running_server(limits, network=NetworkSettings(reserved_connections=2)) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(server.connect(4096)).sendall(ask_much)
            until(lambda: status_of(ask(server, request_of())) == 503)
            monkeypatch.setattr(connections, "UNREAD_S", 1.0)
            until(lambda: status_of(ask(server, request_of())) == 200)
            assert server.connections.dropped
        until(lambda: not len(server.connections))


def test_health_is_told_while_every_place_is_busy() -> None:
    limits = msgspec.structs.replace(QUICK, max_connections=4)
    slow = msgspec.structs.replace(LONG, step_s=0.02)
    with running_server(limits, slow, network=NetworkSettings(reserved_connections=2)) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                busy = stack.enter_context(server.connect())
                busy.sendall(request_of({**ENDLESS, "stream": True}))
                assert busy.recv(1)
            for _ in range(3):
                assert status_of(ask(server, LIVE)) == 200
            refused = ask(server, request_of())
            assert status_of(refused) == 503
            assert b"retry-after" in refused.lower()
        until(lambda: not len(server.connections))
        serves(server)


def test_an_address_has_as_many_connections_as_it_may() -> None:
    network = NetworkSettings(max_connections_per_client=2)
    with running_server(stub=LONG, network=network) as server:
        with server.connect() as one, server.connect() as other:
            for busy in (one, other):
                busy.sendall(request_of({**ENDLESS, "stream": True}))
                assert busy.recv(1)
            refused = ask(server, request_of())
            assert status_of(refused) == 429
            assert b"retry-after" in refused.lower()
            assert status_of(ask(server, LIVE)) == 200
        until(lambda: not len(server.connections))
        serves(server)


# Descriptors ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("limit")
def test_the_limit_of_open_files_is_raised_to_what_connections_need(caplog: pytest.LogCaptureFixture) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert allow_connections(1024, 64) == (1024, 64)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1024 + 64 + OTHER_DESCRIPTORS
    assert not caplog.records


def test_where_the_hard_limit_is_too_low_fewer_connections_are_allowed_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert allow_connections(1024, 64) == (512 - 64 - OTHER_DESCRIPTORS, 64)
    assert asked == [(512, 512)]
    assert "--max-connections" in caplog.text
    assert "LimitNOFILE" in caplog.text


@pytest.mark.parametrize("files", [256, 512, 1024])
def test_connections_that_another_server_answers_have_two_descriptors(
    files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    connections, reserve = allow_connections(1024, 64, descriptors=2)
    assert 2 * connections + reserve <= files - OWN_LEAST
    assert 2 * connections + reserve >= files - OTHER_DESCRIPTORS - 1


@pytest.mark.parametrize("files", [LEAST_FILES, 100, 128, 256, 300])
@pytest.mark.parametrize("wanted", [4, 1024])
def test_however_few_files_there_are_clients_leave_the_server_its_own(
    files: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    connections, reserve = allow_connections(wanted, 64)
    assert 1 <= reserve <= 64
    assert 4 <= connections <= wanted
    assert connections + reserve <= files - OWN_LEAST


def test_without_descriptors_nothing_spins_or_is_thrown_into_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0
    accept = socket.socket.accept

    def short(listening: socket.socket) -> Any:
        nonlocal tries
        tries += 1
        if tries < 6:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listening)

    with running_server() as server:
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", short)
            assert status_of(ask(server, LIVE)) == 200
        assert 6 <= tries < 20
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in lines] == ["dragoman.server"]
    assert "Too many open files" in lines[0].getMessage()


# TLS -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls") / "first")


@pytest.fixture(scope="module")
def tls_server(tls_files: tuple[Path, Path]) -> Iterator[RunningServer]:
    cert, key = tls_files
    network = NetworkSettings(tls_cert=str(cert), tls_key=str(key))
    settings = msgspec.structs.replace(QUICK, dialect="auto", header_timeout_s=2.0)
    with running_server(settings, network=network, dialects=(toy("north"),)) as server:
        yield server


@needs_openssl
def test_requests_streams_and_websockets_over_tls(tls_server: RunningServer, tls_files: tuple[Path, Path]) -> None:
    trusted = ssl.create_default_context(cafile=str(tls_files[0]))
    with httpx.Client(verify=trusted, base_url=f"https://127.0.0.1:{tls_server.port}") as client:
        assert client.get("/livez").json() == {"status": "ok"}
        assert client.post("/echo", json={"text": "a" * 300_000}).status_code in (200, 400)
        assert client.get("/nothing").status_code == 404
    url = f"wss://127.0.0.1:{tls_server.port}/north-talk"

    # One thread: two in one TLS connection are not safe before Python 3.13. No limit of messages that wait: where it is
    # reached, the client reads no more, and waits ten seconds for the end of the connection.
    async def talk() -> None:
        async with connect(url, ssl=trusted, max_queue=None) as opened:
            await opened.send("Once upon a time")
            assert await opened.recv()

    asyncio.run(asyncio.wait_for(talk(), 60))
    until(lambda: not len(tls_server.connections))


@needs_openssl
def test_what_is_refused_over_tls_is_told_and_closed(tls_server: RunningServer, tls_files: tuple[Path, Path]) -> None:
    trusted = ssl.create_default_context(cafile=str(tls_files[0]))
    with trusted.wrap_socket(tls_server.connect(), server_hostname="localhost") as client:
        client.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
        assert status_of(read_all(client)) == 400


@needs_openssl
def test_old_tls_and_no_tls_are_not_spoken(tls_server: RunningServer) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with tls_server.connect() as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(plain)
    with tls_server.connect() as plain:
        plain.sendall(LIVE)
        assert b"HTTP" not in read_all(plain)
    until(lambda: not len(tls_server.connections))


@needs_openssl
def test_handshakes_that_never_end_make_room(tls_files: tuple[Path, Path]) -> None:
    cert, key = tls_files
    network = NetworkSettings(tls_cert=str(cert), tls_key=str(key), reserved_connections=2)
    limits = msgspec.structs.replace(QUICK, max_connections=4, header_timeout_s=120.0)
    with running_server(limits, network=network) as server, contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(server.connect())
        trusted = ssl.create_default_context(cafile=str(cert))
        with trusted.wrap_socket(server.connect(), server_hostname="localhost") as client:
            client.sendall(LIVE)
            assert status_of(read_all(client)) == 200
        assert len(server.connections) <= 6


@needs_openssl
def test_idle_clients_of_tls_are_not_waited_for(tls_files: tuple[Path, Path]) -> None:
    """They do not read, and so do not answer the server that says that it closes: neither when places are short nor at
    the end."""
    cert, key = tls_files
    network = NetworkSettings(tls_cert=str(cert), tls_key=str(key), reserved_connections=2)
    limits = msgspec.structs.replace(QUICK, max_connections=4, write_timeout_s=120.0, drain_s=60.0, linger_s=0.5)
    trusted = ssl.create_default_context(cafile=str(cert))
    with contextlib.ExitStack() as stack:
        with running_server(limits, network=network) as server:
            for _ in range(8):
                client = trusted.wrap_socket(server.connect(), server_hostname="localhost")
                stack.enter_context(client).sendall(LIVE.replace(b"connection: close\r\n", b""))
                assert status_of(client.recv(1000)) == 200
                time.sleep(GRACE_S / 4)
            time.sleep(GRACE_S)
            for _ in range(4):
                client = trusted.wrap_socket(server.connect(), server_hostname="localhost")
                stack.enter_context(client)
            open_ones = server.server.server_state.connections
            until(lambda: len(open_ones) <= 6)
            began = time.monotonic()
        assert time.monotonic() - began < 50


@needs_openssl
def test_certificates_are_replaced_while_connections_stay(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path / "used")
    network = NetworkSettings(tls_cert=str(cert), tls_key=str(key))
    with running_server(network=network) as server:
        before = shown_certificate(server.port)
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(verify=trusted, base_url=f"https://127.0.0.1:{server.port}") as client:
            assert client.get("/livez").status_code == 200
            certificates = server.server.certificates
            assert certificates is not None
            newer = certificate(tmp_path / "newer")
            cert.write_bytes(newer[0].read_bytes())
            # Half written: what is there does not belong together, so nothing changes.
            with pytest.raises(DragomanError, match="the key does not belong to the certificate"):
                certificates.reload()
            assert shown_certificate(server.port) == before
            key.write_bytes(newer[1].read_bytes())
            certificates.reload()
            assert shown_certificate(server.port) == newer[0].read_text()
            assert client.get("/livez").status_code == 200


@needs_openssl
def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path / "locked", password="open sesame")
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    names = {"tls_cert": str(cert), "tls_key": str(key)}
    assert certificates_of(NetworkSettings(**names, tls_key_password_file=str(password))) is not None
    with pytest.raises(DragomanError, match="--tls-key-password-file"):
        certificates_of(NetworkSettings(**names))
    password.write_text("wrong")
    with pytest.raises(DragomanError, match=f"the key cannot be decrypted with the password in {password}"):
        certificates_of(NetworkSettings(**names, tls_key_password_file=str(password)))


def test_files_that_are_no_certificate_are_named(tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("not a certificate")
    with pytest.raises(DragomanError, match=r"nonsense\.pem cannot be used"):
        certificates_of(NetworkSettings(tls_cert=str(nonsense)))
    with pytest.raises(DragomanError, match=r"cannot be used: .* --tls-key names it"):
        certificates_of(NetworkSettings(tls_cert=str(nonsense)))
    missing = tmp_path / "missing.pem"
    with pytest.raises(DragomanError, match=f"there is no file {missing}$"):
        certificates_of(NetworkSettings(tls_cert=str(nonsense), tls_key=str(missing)))
    with pytest.raises(DragomanError, match=r"x cannot be read: File name too long$"):
        certificates_of(NetworkSettings(tls_cert="x" * 300))
    with pytest.raises(DragomanError, match="--tls-cert"):
        certificates_of(NetworkSettings(tls_key=str(nonsense)))


def test_of_two_servers_that_start_together_the_second_is_told_of_the_first() -> None:
    first = bound("127.0.0.1", 0)
    second = bound("127.0.0.1", first.getsockname()[1])
    with contextlib.closing(first), contextlib.closing(second):
        listen(first, 5)
        with pytest.raises(DragomanError, match=rf"cannot listen on 127\.0\.0\.1, port \d+: .*\b{os.getpid()}\b"):
            listen(second, 5)


# Unix sockets --------------------------------------------------------------------------------------------------------


def test_a_unix_socket_is_there_for_its_owner_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    network = NetworkSettings(uds=str(path), trusted_proxy=("unix",))
    with running_server(network=network) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
            assert client.get("/livez").status_code == 200
            body = {"prompt": "a", "max_tokens": 4, "stream": True, "ignore_eos": True}
            with client.stream("POST", "/v1/completions", json=body) as answer:
                events = [line for line in answer.iter_lines() if line]
            assert events[-1] == "data: [DONE]"
            assert len(json.loads(events[0].removeprefix("data: "))["choices"]) == 1
        with pytest.raises(DragomanError, match="another server does"):
            bound_unix(str(path), 0o600)
        assert path.exists()
        assert server.url
    assert not path.exists()


def test_what_a_dead_server_left_is_replaced_and_other_files_are_not(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with bound_unix(str(path), 0o660) as left:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        made = path.stat()
        left.close()
    with bound_unix(str(path), 0o600):
        remove_unix(str(path), made)
        assert path.exists()  # it is another one's now
    path.unlink()
    path.write_text("mine")
    with pytest.raises(DragomanError, match="something else is there"):
        bound_unix(str(path), 0o600)
    assert path.read_text() == "mine"
    with pytest.raises(DragomanError, match="cannot listen"):
        bound_unix(str(tmp_path / ("long" * 50)), 0o600)
