"""``Idempotency-Key`` over sockets: connections that break, an engine that is killed, and OpenAI's own client."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import httpx
import msgspec
import openai
import pytest
from idempotent_requests import CHAT, ORIGINAL, REPLAYED
from sockets import until
from stub_runtime import LONG as ENDLESS
from stub_runtime import QUICK, STUB, RunningServer, running_server
from websockets.sync.client import connect

from dragoman.server.idempotency import HEADER, KeptAnswers
from dragoman.server.settings import IdempotencySettings

LONG = CHAT | {"max_tokens": 60, "temperature": 1.0, "logprobs": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    kept = KeptAnswers(IdempotencySettings(idempotency_grace_s=60.0))
    with running_server(QUICK, msgspec.structs.replace(STUB, step_s=0.01), kept_answers=kept) as server:
        yield server


class CuttingProxy:
    """Passes connections on to a server. Each is broken off after so many bytes of its answer; after a negative number
    never."""

    def __init__(self, server: RunningServer, *cuts: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._server, self._cuts = server, list(cuts)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            cut = self._cuts.pop(0) if self._cuts else -1
            threading.Thread(target=self._pass_on, args=(client, cut), daemon=True).start()

    def _pass_on(self, client: socket.socket, cut: int) -> None:
        before = begun(self._server)
        with client, socket.create_connection(("127.0.0.1", self._server.port)) as upstream:
            threading.Thread(target=self._pump, args=(client, upstream), daemon=True).start()
            try:
                if not cut:  # when the request has arrived, and has no answer yet
                    until(lambda: begun(self._server) > before)
                while cut and (data := upstream.recv(65536)):
                    client.sendall(data if cut < 0 else data[:cut])
                    cut = cut if cut < 0 else max(0, cut - len(data))
            finally:
                with suppress(OSError):  # one of them may have ended it
                    client.shutdown(socket.SHUT_RDWR)
                    upstream.shutdown(socket.SHUT_RDWR)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)

    def close(self) -> None:
        self._listener.close()


def generated(server: RunningServer) -> int:
    return int(server.runtime.engine.stats().generated_tokens)


def begun(server: RunningServer) -> int:
    return server.server.kept_answers.counts["begun"]


def read_some(server: RunningServer, body: dict[str, Any], key: str, size: int) -> bytes:
    """So many bytes of an answer's body, whose connection is then broken."""
    found = b""
    url, headers = f"{server.url}/v1/chat/completions", {HEADER: key}
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
        for data in answer.iter_raw():
            found += data
            if len(found) >= size:
                break
    return found


@pytest.mark.parametrize("kills", [False, True])
def test_streams_that_break_at_any_moment_are_one_stream(server: RunningServer, kills: bool) -> None:
    rng = random.Random(f"wire {kills}")
    for turn in range(3):
        key, body = f"{kills}-{turn}", LONG | {"stream": True}
        before = begun(server)
        parts = [read_some(server, body, key, rng.randint(1, 8000))]
        if kills:
            os.kill(server.runtime.engine.health().pid, signal.SIGKILL)
        parts += [read_some(server, body, key, rng.randint(1, 12000)) for _ in range(rng.randint(0, 3))]
        whole = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers={HEADER: key}, timeout=60)
        kept = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers={HEADER: key}, timeout=60)
        assert all(whole.content.startswith(part) for part in parts)
        assert whole.content == kept.content
        assert whole.content.endswith(b"data: [DONE]\n\n")
        assert whole.content.count(b'"delta"') > 30
        assert whole.headers[REPLAYED] == kept.headers[REPLAYED] == "true"
        assert whole.headers[ORIGINAL] == kept.headers[ORIGINAL] != whole.headers["x-request-id"]
        assert begun(server) == before + 1


def test_the_openai_client_sends_a_lost_request_again(server: RunningServer) -> None:
    """Its own retry, after a connection that broke before there was an answer."""
    before, tokens = begun(server), generated(server)
    with closing(CuttingProxy(server, 0)) as proxy, openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none") as client:
        answer = client.chat.completions.with_raw_response.create(
            model="stub", messages=CHAT["messages"], max_tokens=60, extra_headers={HEADER: "lost"}
        )
        assert answer.retries_taken == 1
        assert answer.headers[REPLAYED] == "true"
        found = answer.parse()
        again = client.chat.completions.create(
            model="stub", messages=CHAT["messages"], max_tokens=60, extra_headers={HEADER: "lost"}
        )
        assert again == found
        assert found.usage is not None
        assert generated(server) - tokens == found.usage.completion_tokens
        with pytest.raises(openai.UnprocessableEntityError, match="Idempotency-Key"):
            client.chat.completions.create(
                model="stub", messages=CHAT["messages"], max_tokens=61, extra_headers={HEADER: "lost"}
            )
    assert begun(server) == before + 1


def test_the_openai_client_reads_a_cut_stream_from_its_beginning(server: RunningServer) -> None:
    before = begun(server)
    with (
        closing(CuttingProxy(server, 4000)) as proxy,
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none") as client,
    ):
        found: list[list[Any]] = [[], []]
        for attempt in found:
            try:
                for chunk in client.chat.completions.create(
                    model="stub",
                    messages=CHAT["messages"],
                    max_tokens=60,
                    seed=1,
                    stream=True,
                    extra_headers={HEADER: "cut"},
                ):
                    attempt.append(chunk)
            except (openai.APIConnectionError, httpx.HTTPError):
                assert attempt is found[0]
    assert 0 < len(found[0]) < len(found[1])
    assert found[1][: len(found[0])] == found[0]
    assert found[1][-1].choices[0].finish_reason in ("length", "stop")
    assert begun(server) == before + 1


def test_a_lost_client_does_not_hold_up_the_end(server: RunningServer) -> None:
    """An answer that nobody reads ends with the server, which does not wait for it."""
    settings = msgspec.structs.replace(QUICK, drain_s=120.0)
    with running_server(settings, msgspec.structs.replace(ENDLESS, step_s=0.2)) as ending:
        read_some(ending, LONG | {"stream": True, "max_tokens": 100_000}, "left", 1)
        until(lambda: not len(ending.connections))
        assert not ending.server.kept_answers.answers[0].readers
        began = time.monotonic()
    assert time.monotonic() - began < 50


def test_a_websocket_reports_the_header(server: RunningServer) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/alexandria/ws", additional_headers={HEADER: "k"}) as socket:
        assert socket.response is not None
        assert socket.response.headers["x-dragoman-warnings"] == "ignored: Idempotency-Key"
    with connect(f"ws://127.0.0.1:{server.port}/alexandria/ws") as socket:
        assert socket.response is not None
        assert "x-dragoman-warnings" not in socket.response.headers
