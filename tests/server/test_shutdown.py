"""The end in order: not ready first, then no port, then no streams; and whoever is cut off is told so."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from server_process import PROMPT, process
from sockets import ENDLESS, request_of, until
from stub_runtime import DIALECTS, LONG, QUICK, STUB, running_server

from dragoman.core.errors import EngineUnavailable, Overloaded, ShuttingDown
from dragoman.dialects.api import Dialect
from dragoman.server.exchange import error_answer
from dragoman.server.lifecycle import DELAY_IN_KUBERNETES_S, shutdown_delay_s
from dragoman.server.signals import Reloads, notify

SHUT = "The server is shutting down."
HEALTH = (
    "/readyz",
    "/health",
    "/healthcheck",
    "/tgi/health",
    "/tgi/v2/health/ready",
    "/octoai/healthcheck",
    "/locallab/health",
    "/alexandria/api/ready",
)


def ended(client: httpx.Client) -> None:
    """Wait until the port is closed."""

    def is_closed() -> bool:
        try:
            client.get("/livez")
        except httpx.TransportError:
            return True
        return False

    until(is_closed)


def test_from_the_first_sigterm_readiness_is_503_and_requests_are_served() -> None:
    with process(shutdown_delay_s=120) as server, httpx.Client(base_url=server.url) as client:
        for path in HEALTH:
            assert client.get(path).status_code == 200, path
        server.signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{server.url}/readyz").status_code == 503)
        # A connection that was kept alive learns with its next answer that it is the last.
        answer = client.post("/v1/completions", json={**PROMPT, "max_tokens": 2})
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        for path in HEALTH:
            answer = client.get(path)
            assert (answer.status_code, path) == (503, path)
            assert int(answer.headers["retry-after"]) >= 1, path
        assert client.get("/livez").status_code == 200


def test_the_port_closes_after_the_delay_and_streams_finish() -> None:
    with process(drain_s=60, shutdown_delay_s=1) as server, httpx.Client(base_url=server.url) as client:
        reading = server.stream(30)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        ended(client)
        assert time.monotonic() - began > 0.9
        reading.join()
        assert server.events[-1] == "[DONE]"
        assert server.exit_code() == 0
        assert "requests are still served for 1 s" in server.errors


def test_after_sigterm_health_is_503_while_streams_finish_and_then_the_port_closes() -> None:
    with process(drain_s=60, shutdown_delay_s=0) as server, httpx.Client(base_url=server.url) as client:
        reading = server.stream(120)
        with contextlib.ExitStack() as stack:
            with server.engine_stopped():
                server.signal(signal.SIGTERM)
                until(lambda: client.get("/health").status_code == 503)
                # One that sends nothing holds nothing up.
                stack.enter_context(socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)))
                time.sleep(0.3)
                for path in HEALTH:
                    answer = client.get(path)
                    assert (answer.status_code, answer.headers["connection"], path) == (503, "close", path)
                answer = client.post("/v1/completions", json={**PROMPT, "max_tokens": 2})
                assert (answer.status_code, SHUT in answer.text) == (503, True)
                assert client.get("/metrics").status_code == 200
                assert reading.is_alive()
            reading.join()
            assert server.events[-1] == "[DONE]"
            ended(client)
            assert server.exit_code() == 0


def test_sigint_skips_the_delay_and_the_log_says_what_is_finished() -> None:
    with process(drain_s=60, shutdown_delay_s=120) as server:
        reading = server.stream(60)
        with server.engine_stopped(), httpx.Client(base_url=server.url) as client:
            server.signal(signal.SIGINT)
            ended(client)
        reading.join()
        assert server.exit_code() == 0
        assert server.events[-1] == "[DONE]"
        assert "finishing 1 answer, up to 60 s; Ctrl-C again stops now\n" in server.errors


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_delay_and_everything(second: signal.Signals) -> None:
    """The exit code is the one that shells have for a command that the signal ended."""
    with process(shutdown_delay_s=120) as server:
        server.signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{server.url}/readyz").status_code == 503)
        began = time.monotonic()
        server.signal(second)
        assert server.exit_code() == 128 + second
        assert time.monotonic() - began < 60


def test_a_second_ctrl_c_cuts_off_what_runs() -> None:
    with process(drain_s=120) as server:
        reading = server.stream(60)
        server.engine.suspend()
        server.signal(signal.SIGINT)
        with httpx.Client(base_url=server.url) as client:
            ended(client)
        server.signal(signal.SIGINT)
        assert server.exit_code() == 128 + signal.SIGINT
        reading.join()
        assert server.events[-1] != "[DONE]"


def test_by_default_there_is_a_delay_in_kubernetes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert shutdown_delay_s(QUICK) == 0
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert shutdown_delay_s(QUICK) == DELAY_IN_KUBERNETES_S
    assert shutdown_delay_s(msgspec.structs.replace(QUICK, shutdown_delay_s=0)) == 0


def test_the_service_manager_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        with process(variables={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            assert manager.recv(100) == b"READY=1"
            server.signal(signal.SIGHUP)
            assert manager.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert manager.recv(100) == b"READY=1"
            server.signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert server.exit_code() == 0


def test_no_service_manager_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for address in ("", "@nobody", "relative", str(tmp_path / "nothing")):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")


# What is cut off -----------------------------------------------------------------------------------------------------

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "stream": True, "seed": 1}
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/openai/v1/completions", {**PROMPT, "max_tokens": 200, "stream": True}),
    "openai chat": ("/openai/v1/chat/completions", CHAT),
    "tgi": ("/tgi/generate_stream", {"inputs": "Once", "parameters": {"max_new_tokens": 200, "seed": 1}}),
    "tgi chat": ("/tgi/v1/chat/completions", CHAT),
    "friendli": ("/friendli/v1/completions", {"prompt": "Once", "max_tokens": 200, "stream": True, "seed": [1]}),
    "friendli chat": ("/friendli/v1/chat/completions", {**CHAT, "seed": [1]}),
    "octoai": ("/octoai/v1/completions", {"model": "stub", "prompt": "Once", "max_tokens": 200, "stream": True}),
    "octoai chat": ("/octoai/v1/chat/completions", {**CHAT, "model": "stub"}),
    "locallab": ("/locallab/generate", {"prompt": "Once", "max_tokens": 200, "stream": True}),
    "alexandria": (
        "/alexandria/api/generate-one",
        {"request_id": "a", "prompt": "Once", "generation_config": {"max_new_tokens": 200}},
    ),
}


def test_streams_that_are_cut_off_say_so_in_all_dialects() -> None:
    said: dict[str, str] = {}
    stub = msgspec.structs.replace(STUB, step_s=0.1)
    settings = msgspec.structs.replace(QUICK, drain_s=0.2)
    with running_server(settings, stub) as server:

        def read(name: str, path: str, body: dict[str, Any]) -> None:
            with httpx.stream("POST", server.url + path, json=body, timeout=30) as answer:
                said[name] = f"{answer.status_code} {answer.headers['content-type']}\n" if answer.is_error else ""
                with contextlib.suppress(httpx.RemoteProtocolError):  # clients of OctoAI notice nothing else
                    for text in answer.iter_text():
                        said[name] += text

        threads = [threading.Thread(target=read, args=(name, *asked)) for name, asked in STREAMS.items()]
        for thread in threads:
            thread.start()
        admission = server.runtime.serving.admission
        until(lambda: admission.running == len(STREAMS))
        server.server.should_exit = True
        for thread in threads:
            thread.join(60)
    for name in STREAMS:
        last = [line for line in said[name].splitlines() if line.strip() and line != "data: [DONE]"][-1]
        assert SHUT in last, (name, last)
        assert "engine" not in last
    error = json.loads(said["openai"].split("data: ")[-1])["error"]
    assert (error["type"], error["code"]) == ("server_error", "service_unavailable")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_503_says_when_to_ask_again(dialect: Dialect) -> None:
    for error in (ShuttingDown(), EngineUnavailable("no engine"), Overloaded("full", retry_after_s=7)):
        answer = error_answer(dialect, error)
        if answer.status == 503 or isinstance(error, Overloaded):
            assert int(answer.headers["retry-after"]) >= 1
        if isinstance(error, ShuttingDown):
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            body = answer.body if isinstance(answer.body, bytes) else msgspec.json.encode(answer.body)
            assert SHUT in body.decode()


def test_one_connection_too_many_is_told_when_to_come_back() -> None:
    one = msgspec.structs.replace(QUICK, max_connections=1)
    with running_server(one, LONG) as server, server.connect() as first:
        first.sendall(request_of({**ENDLESS, "stream": True}))
        assert first.recv(1000).startswith(b"HTTP/1.1 200")
        with server.connect() as second:
            second.sendall(request_of())
            head = second.recv(10_000).lower()
            assert head.startswith(b"http/1.1 503")
            assert b"\r\nretry-after: " in head


# SIGHUP --------------------------------------------------------------------------------------------------------------


def test_sighup_drops_nothing() -> None:
    with process() as server:
        reading = server.stream(60)
        for _ in range(3):
            server.signal(signal.SIGHUP)
            time.sleep(0.05)
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        reading.join()
        assert server.events[-1] == "[DONE]"
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
        assert "SIGHUP: there is nothing to read again" in server.errors


def test_a_reload_that_fails_keeps_no_other_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    reloads = Reloads()
    reloads.add("certificates", lambda: seen.append(Path("/nowhere/at/all").read_text()))
    reloads.add("API keys", lambda: seen.append("keys"))
    with caplog.at_level(logging.INFO):
        reloads.run()
    assert seen == ["keys"]
    assert "certificates cannot be read again" in caplog.text
    assert "SIGHUP: the API keys are read again" in caplog.text
