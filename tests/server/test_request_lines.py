"""Every request has a line in the log and a count, also one that never became a request."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from sockets import until
from stub_runtime import HURRIED, QUICK, running_server

from dragoman.server.keys import Keyring, hashed


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.name == "dragoman.access"]


@pytest.mark.parametrize(
    ("sent", "status", "path"),
    [
        (b"NONSENSE\r\n\r\n", 400, "-"),
        (b"GET /a?secret HTTP/1.1\r\nx: \x00\r\n\r\n", 400, "/a"),
        (b"GET /b?secret HTTP/1.1\r\nx: " + b"a" * 100_000 + b"\r\n\r\n", 431, "/b"),
        (b"GET /c?secret HTTP/1.1\r\nx: y\r\n", 408, "/c"),
    ],
)
def test_what_is_refused_before_it_is_a_request(
    sent: bytes, status: int, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running_server(HURRIED if status == 408 else QUICK) as server:
        with server.connect() as client:
            client.sendall(sent)
            head = client.recv(10_000).decode()
        until(lambda: bool(lines_of(caplog)))
        metrics = httpx.get(f"{server.url}/metrics").text
    line = lines_of(caplog)[0]
    assert (line["status"], line["path"]) == (status, path)
    assert line["client"].startswith("127.0.0.1:")
    assert f"x-request-id: {line['id']}\r\n" in head
    assert f'dragoman_http_requests_total{{dialect="",route="",status="{status}"}} 1.0' in metrics
    assert "Invalid HTTP request received" not in caplog.text
    assert "secret" not in caplog.text


def test_http2_without_asking_is_told_to_come_again_with_http1(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running_server() as server, server.connect() as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        said = b""
        while piece := client.recv(10_000):
            said += piece
        until(lambda: bool(lines_of(caplog)))
    frames = []
    while said:
        size = int.from_bytes(said[:3], "big")
        frames.append((said[3], said[4], said[5:9], said[9 : 9 + size]))
        said = said[9 + size :]
    settings, goaway = frames
    assert settings == (4, 0, bytes(4), b"")
    assert goaway[:3] == (7, 0, bytes(4))
    assert goaway[3] == bytes(4) + b"\0\0\0\x0d" + b"This server speaks HTTP/1.1, and not HTTP/2 without TLS."
    assert [line["status"] for line in lines_of(caplog)] == [505]


def test_other_protocols_are_named_in_answer_and_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running_server() as server:
        for first, said in {
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500): b"This port speaks HTTP without TLS",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 5555 80\r\n" + get: b"does not read the PROXY protocol",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12) + get: b"does not read the PROXY protocol",
        }.items():
            with server.connect() as client:
                client.sendall(first)
                answer = b""
                while piece := client.recv(10_000):
                    answer += piece
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert said in answer
        until(lambda: len(lines_of(caplog)) == 3)
    assert [line["method"] for line in lines_of(caplog)] == ["TLS", "PROXY", "PROXY"]


def test_a_byte_order_mark_before_json_means_nothing() -> None:
    with running_server() as server:
        answer = httpx.post(f"{server.url}/v1/completions", content=b'\xef\xbb\xbf{"prompt": "a", "max_tokens": 1}')
    assert answer.status_code == 200, answer.text


def test_a_body_that_breaks_off_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    with running_server() as server, server.connect() as client:
        client.sendall(head + b"content-type: application/json\r\n\r\nnonsense\r\n")
        assert client.recv(10_000).startswith(b"HTTP/1.1 400")
        until(lambda: bool(lines_of(caplog)))
    [line] = lines_of(caplog)
    assert (line["status"], line["path"]) == (400, "/v1/completions")


def test_a_line_has_the_holder_of_the_key_and_of_no_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    keys = Keyring([hashed("ann-has-a-long-key", "ann")])
    with running_server(keys=keys) as server, server.connect() as client:
        known = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ann-has-a-long-key\r\n\r\n"
        client.sendall(known + known.replace(b"ann-has", b"bob-has"))
        until(lambda: len(lines_of(caplog)) == 2)
    assert [(line["status"], line.get("key")) for line in lines_of(caplog)] == [(200, "ann"), (401, None)]
    assert " key=ann" in caplog.text
    assert "long-key" not in caplog.text
