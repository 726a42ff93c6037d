"""A caller without a key, or from a page that may not, is refused before the first byte of a body is read."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import msgspec
import pytest
from sockets import json_of, read_all, status_of, until
from stub_runtime import DIALECTS, QUICK, RunningServer, running_server

from dragoman.core.caller import CallerLimits
from dragoman.server.accounts import Accounts
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring

KEY, LIMITED = "a-key-that-nobody-guesses", "another-key-that-nobody-guesses"
BODY = json.dumps({"prompt": "Once upon a time", "max_tokens": 2, "ignore_eos": True}).encode()
# A body would have to arrive within 60 seconds: an answer that waits for it is too late for these tests.
PATIENT = msgspec.structs.replace(QUICK, linger_s=0.1)


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    keys = Keyring([hashed(KEY, "ann"), hashed(LIMITED, "bob", ("infer",))])
    with running_server(PATIENT, keys=keys) as server:
        yield server


@pytest.fixture(scope="module")
def open_to_all() -> Iterator[RunningServer]:
    with running_server(PATIENT) as server:
        yield server


def shared_paths() -> list[str]:
    """Where the body tells which dialect is asked, and all others that are asked by POST."""
    paths = {o.path for dialect in DIALECTS for o in dialect.operations if o.method == "POST" and not o.probe}
    return sorted(path.replace("{", "").replace("}", "").replace(":path", "") for path in paths)


def head_of(path: str, *lines: str, length: int = 10_000_000, host: str = "localhost") -> bytes:
    text = [f"POST {path} HTTP/1.1", f"host: {host}", "content-type: application/json", f"content-length: {length}"]
    return "\r\n".join([*text, *lines, "", ""]).encode()


def first_answer(server: RunningServer, data: bytes) -> bytes:
    """What is answered to a head alone."""
    with server.connect() as connection:
        connection.settimeout(30)
        connection.sendall(data)
        return connection.recv(65536)


@pytest.mark.parametrize("headers", [(), ("expect: 100-continue",), ("authorization: Bearer nobody-knows-this-one",)])
def test_who_has_no_key_is_refused_before_any_body(locked: RunningServer, headers: tuple[str, ...]) -> None:
    for path in shared_paths():
        answer = first_answer(locked, head_of(path, *headers))
        # An address that tries many unknown keys is told to wait.
        assert status_of(answer) in ((401, 429) if any("nobody-knows" in line for line in headers) else (401,)), path
        assert b"100 Continue" not in answer


@pytest.mark.parametrize("headers", [(), ("expect: 100-continue",)])
def test_a_page_that_may_not_is_refused_before_any_body(open_to_all: RunningServer, headers: tuple[str, ...]) -> None:
    for path in shared_paths():
        for host, origin in (("localhost", "https://evil.example"), ("evil.example", "http://evil.example")):
            answer = first_answer(open_to_all, head_of(path, f"origin: {origin}", *headers, host=host))
            assert status_of(answer) == 403, path
            assert b"100 Continue" not in answer


def test_who_has_a_key_is_told_to_go_on(locked: RunningServer) -> None:
    for path in ("/v1/completions", "/openai/v1/completions"):
        with locked.connect() as connection:
            connection.settimeout(30)
            lines = (f"authorization: Bearer {KEY}", "expect: 100-continue", "connection: close")
            connection.sendall(head_of(path, *lines, length=len(BODY)))
            assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(BODY)
            answer = read_all(connection)
        assert status_of(answer) == 200
        assert json_of(answer)["usage"]["completion_tokens"] == 2


def test_any_known_key_lets_the_body_be_read_and_its_scopes_count_behind_it(locked: RunningServer) -> None:
    answer = first_answer(locked, head_of("/v1/load_lora_adapter", f"authorization: Bearer {LIMITED}"))
    assert status_of(answer) == 403


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate", "/tgi/generate"])
@pytest.mark.parametrize("expecting", [(), ("expect: 100-continue",)])
def test_who_is_over_a_limit_is_refused_before_any_body(path: str, expecting: tuple[str, ...]) -> None:
    limits = CallerLimits(requests_per_minute=1)
    keys = Keyring([hashed(KEY, "ann"), hashed(LIMITED, "bob", limits={"requests_per_minute": 5})], defaults=limits)
    accounts = Accounts()
    with running_server(PATIENT, keys=keys, accounts=accounts) as server:
        mine = (f"authorization: Bearer {KEY}", *expecting)
        with server.connect() as connection:
            lines = (f"authorization: Bearer {KEY}", "connection: close")
            connection.sendall(head_of("/v1/completions", *lines, length=len(BODY)) + BODY)
            assert status_of(read_all(connection)) == 200
        refused = first_answer(server, head_of(path, *mine))
        assert status_of(refused) == 429
        head = refused.partition(b"\r\n\r\n")[0].lower()
        assert b"retry-after: " in head
        assert b"x-ratelimit-remaining-requests: 0" in head
        assert b"100 continue" not in head
        until(lambda: accounts._totals["ann"].refused == 1)
        assert accounts._totals["ann"].requests == 1
        # Another key's requests are read, and who is let in is counted once.
        for _ in range(5):
            with server.connect() as connection:
                lines = (f"authorization: Bearer {LIMITED}", "connection: close")
                connection.sendall(head_of("/v1/completions", *lines, length=len(BODY)) + BODY)
                assert status_of(read_all(connection)) == 200
        assert status_of(first_answer(server, head_of(path, f"authorization: Bearer {LIMITED}"))) == 429


def test_an_address_over_its_limit_is_refused_before_any_body() -> None:
    with running_server(PATIENT, keys=Keyring(defaults=CallerLimits(requests_per_minute=1))) as server:
        with server.connect() as connection:
            connection.sendall(head_of("/v1/completions", "connection: close", length=len(BODY)) + BODY)
            assert status_of(read_all(connection)) == 200
        for path in ("/v1/chat/completions", "/generate"):
            assert status_of(first_answer(server, head_of(path))) == 429


def test_bodies_of_strangers_take_no_memory(locked: RunningServer) -> None:
    """Each writes as much as the connection takes: what the kernel holds of it, and no more."""
    connections = [locked.connect() for _ in range(8)]
    try:
        for connection in connections:
            connection.sendall(head_of("/v1/chat/completions"))
            assert status_of(connection.recv(65536)) == 401
        held = sum(
            len(each.cycle.body)
            for each in list(locked.server.server_state.connections)
            if getattr(each, "cycle", None) is not None
        )
        assert held <= 8 * 65536
    finally:
        for connection in connections:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def test_who_leaves_with_a_refusal_in_place_of_sending_the_body_is_logged_as_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "dragoman.access")
    lingering = msgspec.structs.replace(PATIENT, linger_s=60.0)

    def statuses() -> list[int]:
        lines = [record.fields for record in caplog.records if record.name == "dragoman.access"]  # type: ignore[attr-defined]
        return [line["status"] for line in lines if line["id"] == "left"]

    with running_server(lingering, keys=Keyring([hashed(KEY, "ann")])) as server:
        assert status_of(first_answer(server, head_of("/v1/chat/completions", "x-request-id: left"))) == 401
        until(lambda: bool(statuses()))
    assert statuses() == [401]
