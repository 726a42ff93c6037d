"""The server's life: ready before it is reachable, drained before it ends, and an engine that may die in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from server_process import PROMPT, process
from sockets import until
from stub_runtime import FOLDER, QUICK, STUB, TOKENIZER, RunningServer, running_server

from dragoman.core.errors import DragomanError, ModelError
from dragoman.engine.messages import EngineInfo, LoadModel, WorkerSettings
from dragoman.engine_client.client import EngineClient
from dragoman.server import lifecycle
from dragoman.server.lifecycle import run_until_signal
from dragoman.serving.settings import AdapterSettings, BatchSettings, CatalogSettings
from tests.ports import free_port

SLOW = msgspec.structs.replace(STUB, step_s=0.01)


# The end -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(number: int) -> None:
    with process(drain_s=60) as server:
        reading = server.stream(60)

        def is_heard() -> bool:
            try:
                answer = httpx.get(f"{server.url}/health")
            except httpx.TransportError:
                assert number == signal.SIGINT
                return True
            return answer.status_code == 503

        with server.engine_stopped():
            server.signal(number)
            until(is_heard)
        reading.join()
        assert server.exit_code() == 0
        assert server.events[-1] == "[DONE]"
        assert json.loads(server.events[-2])["choices"][0]["finish_reason"] == "length"
        assert "Traceback" not in server.errors


def test_what_does_not_finish_in_time_is_told_so() -> None:
    with process(drain_s=0.3, step_s=0.05) as server:
        reading = server.stream(250)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
        reading.join()
        assert json.loads(server.events[-1])["error"]["type"] == "server_error"
        assert "Traceback" not in server.errors


def test_a_whole_answer_that_does_not_finish_in_time_may_be_asked_for_elsewhere() -> None:
    with process(drain_s=0.3, step_s=0.05) as server:
        answers: list[httpx.Response] = []
        body = {**PROMPT, "max_tokens": 250}

        def ask() -> None:
            answers.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=30))

        thread = threading.Thread(target=ask)
        thread.start()
        while "requests_running 1.0" not in httpx.get(f"{server.url}/metrics").text:
            assert thread.is_alive()
        server.signal(signal.SIGTERM)
        thread.join()
        assert server.exit_code() == 0
        assert answers[0].status_code == 503
        assert answers[0].json()["error"]["message"] == "The server is shutting down."


def test_a_second_signal_ends_at_once() -> None:
    with process(drain_s=60, step_s=0.05) as server:
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGTERM)
        assert server.exit_code(50) in (0, 128 + signal.SIGTERM), "two that come together may be one"


def test_an_idle_server_ends_at_once() -> None:
    with process(drain_s=60) as server, httpx.Client() as client:
        assert client.get(f"{server.url}/health").status_code == 200
        server.signal(signal.SIGTERM)
        assert server.exit_code(50) == 0


# The beginning -------------------------------------------------------------------------------------------------------


def test_the_port_opens_when_the_engine_can_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = msgspec.structs.replace(QUICK, port=port)
    started: list[bool] = []
    start = EngineClient.start

    async def slow_start(client: EngineClient) -> EngineInfo:
        info = await start(client)
        # Up, and still nobody is let in.
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        started.append(True)
        return info

    monkeypatch.setattr(EngineClient, "start", slow_start)

    async def play() -> int:
        opened = asyncio.Event()
        serving = lifecycle.serve(settings, WorkerSettings(model=STUB), FOLDER, opened=lambda *_: opened.set())
        task = asyncio.create_task(serving)
        await asyncio.wait((task, asyncio.create_task(opened.wait())), return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task.exception()
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"http://127.0.0.1:{port}/v1/completions", json={**PROMPT, "max_tokens": 1})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return answer.status_code

    assert asyncio.run(play()) == 200
    assert started


def test_a_taken_port_is_known_before_the_engine_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineClient, "start", lambda _: pytest.fail("the engine was started"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = rf"cannot listen on 127.0.0.1, port {port}: \S.* \(process {os.getpid()}\) listens there; --port 0 takes"
        with pytest.raises(DragomanError, match=told):
            run_until_signal(
                lifecycle.serve(msgspec.structs.replace(QUICK, port=port), WorkerSettings(model=STUB), FOLDER)
            )


def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(DragomanError, match="cannot listen on"):
        run_until_signal(
            lifecycle.serve(msgspec.structs.replace(QUICK, host="256.1.1.1"), WorkerSettings(model=STUB), FOLDER)
        )


def test_a_model_that_is_not_there_is_an_error(tmp_path: Any) -> None:
    worker = WorkerSettings(model=LoadModel(source=str(tmp_path / "nothing")))
    with pytest.raises(ModelError):
        run_until_signal(lifecycle.serve(QUICK, worker, FOLDER))
    with pytest.raises(ModelError):
        run_until_signal(lifecycle.serve(QUICK, WorkerSettings(model=STUB), tmp_path))


# A port for the metrics ----------------------------------------------------------------------------------------------


def test_a_state_folder_that_cannot_be_used_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("")
    with running_server(batches=BatchSettings(), state=tmp_path / "state"):
        assert "cannot be kept" in caplog.text
        assert f"{tmp_path}/state is not a folder; --state-dir names a folder" in caplog.text


def test_a_folder_of_models_or_adapters_that_is_not_there_is_told_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    folders = {
        "catalog": CatalogSettings(models_folder="/no/models"),
        "adapters": AdapterSettings(adapters_folder="/no"),
    }
    with running_server(**folders):
        for told in ("--models-folder /no/models: No such file", "--adapters-folder /no: No such file"):
            assert told in caplog.text


def test_metrics_may_have_a_port_of_their_own() -> None:
    port = free_port()
    with process(metrics_port=port) as server:
        url = f"http://127.0.0.1:{port}"
        httpx.post(f"{server.url}/v1/completions", json={**PROMPT, "max_tokens": 2}).raise_for_status()
        assert "dragoman_generated_tokens_total 2.0" in httpx.get(f"{url}/metrics").text
        for path in ("/v1/models", "/health", "/"):
            assert httpx.get(url + path).status_code == 404
        assert httpx.post(f"{url}/metrics").status_code == 405
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
        assert "Traceback" not in server.errors


def test_a_metrics_port_that_is_taken_does_not_keep_the_server_from_serving() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, process(metrics_port=taken.getsockname()[1]) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(f"{server.url}/metrics").status_code == 200


# The engine's death --------------------------------------------------------------------------------------------------


def events_of(server: RunningServer, body: dict[str, Any], kills: int = 0) -> tuple[list[str], int]:
    """The events of a stream, and how often the engine was killed meanwhile: ``kills`` times, unless this process stood
    still until the engine had computed everything."""
    events: list[str] = []
    killed, left = None, kills
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not line:
                continue
            events.append(line.removeprefix("data: "))
            if left and len(events) % 10 == 5:
                pid = server.runtime.engine.health().pid
                if pid and pid != killed:  # events of a dead engine may still come
                    os.kill(pid, signal.SIGKILL)
                    killed = pid
                    left -= 1
    assert events.pop() == "[DONE]"
    return [json.dumps(json.loads(event)["choices"]) for event in events], kills - left


def test_a_stream_goes_on_byte_for_byte_when_the_engine_is_killed() -> None:
    body = {**PROMPT, "max_tokens": 60, "logprobs": 2, "n": 2}
    with running_server(stub=SLOW) as server:
        whole, _ = events_of(server, body)
        kills = restarts = 0

        def has_restarted() -> bool:
            metrics = httpx.get(f"{server.url}/metrics").text
            is_ready = httpx.get(f"{server.url}/readyz").status_code == 200
            return is_ready and f"dragoman_engine_restarts_total {restarts}.0" in metrics

        while kills < 3:
            killed, kills = events_of(server, body, kills=3)
            assert sorted(killed) == sorted(whole)
            restarts += kills
            until(has_restarted)


def test_readiness_tells_of_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    may_start = threading.Event()
    spawn = EngineClient._spawn

    async def spawn_later(client: EngineClient) -> EngineInfo:
        while not may_start.is_set():
            await asyncio.sleep(0.01)
        return await spawn(client)

    with running_server(stub=SLOW) as server:
        monkeypatch.setattr(EngineClient, "_spawn", spawn_later)
        pid = server.runtime.engine.health().pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: httpx.get(f"{server.url}/readyz").status_code != 200)
        answer = httpx.get(f"{server.url}/readyz")
        assert answer.status_code == 503
        assert "died" in answer.json()["reason"]
        assert httpx.get(f"{server.url}/livez").status_code == 200
        may_start.set()
        until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)


def test_a_request_that_kills_the_engine_fails_alone() -> None:
    poison = TOKENIZER.encode(" poison")[0]
    stub = msgspec.structs.replace(STUB, crash_token=poison, step_s=0.002)
    with running_server(stub=stub) as server:
        results: dict[str, Any] = {}

        def good() -> None:
            results["good"], _ = events_of(server, {**PROMPT, "max_tokens": 200, "logit_bias": {str(poison): -100}})

        thread = threading.Thread(target=good)
        thread.start()
        bad = httpx.post(f"{server.url}/v1/completions", json={"prompt": [poison], "max_tokens": 4}, timeout=60)
        thread.join()
        assert bad.status_code == 500
        assert "died" in bad.json()["error"]["message"]
        assert results["good"] == events_of(server, {**PROMPT, "max_tokens": 200, "logit_bias": {str(poison): -100}})[0]
