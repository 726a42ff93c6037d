"""Swapping real models in a real server: what runs is finished, what comes waits, and a failure changes nothing."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from stub_runtime import FOLDER, QUICK, RunningServer, running_server

from dragoman.dialects import made_dialects
from dragoman.dialects.locallab import dialect as locallab
from dragoman.engine.messages import LoadModel
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.serving.memory_budget import MemoryBudget
from dragoman.serving.settings import CatalogSettings

STREAMS = 16
NO_MODEL = "No model is currently loaded"
BODY: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 200, "seed": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models like the embedded one, and one that is damaged."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("second", "damaged"):
        shutil.copytree(FOLDER, folder / name)
    with (folder / "damaged" / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    return folder


@pytest.fixture
def server(models: Path, tmp_path: Path) -> Iterator[RunningServer]:
    catalog = CatalogSettings(models_folder=str(models), offer_cached=False)
    settings = msgspec.structs.replace(QUICK, name="first", alias=())
    quiet = locallab.LocalLabSettings(locallab_rate_limit=0, locallab_burst=0, locallab_folder=str(tmp_path))
    dialects = made_dialects({"locallab": quiet})
    with running_server(settings, LoadModel(), FOLDER, catalog=catalog, dialects=dialects) as running:
        yield running


def post(server: RunningServer, path: str, body: Any = None) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def answered(server: RunningServer, **fields: Any) -> dict[str, Any]:
    answer = post(server, "/v1/completions", BODY | fields)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def shown(server: RunningServer) -> dict[str, str]:
    """Return the models that are listed, and their states."""
    listed = httpx.get(server.url + "/v1/models").json()["data"]
    return {each["id"]: each["status"]["value"] for each in listed}


def streamed(server: RunningServer, number: int, begun: Callable[[], None]) -> tuple[str, str]:
    """Model and text of one stream, read to its end."""
    text, model = "", ""
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=BODY | {"stream": True, "seed": number}, timeout=60
    ) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk
                model, text = chunk["model"], text + chunk["choices"][0]["text"]
                begun()
        assert line == "data: [DONE]" or line == ""
    return model, text


@pytest.mark.parametrize("beside", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_a_swap_under_sixteen_streams_loses_none(
    server: RunningServer, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBudget, "short_bytes", lambda self, wanted, others: 0 if beside else len(list(others)))
    expected = [answered(server, seed=number)["choices"][0]["text"] for number in range(STREAMS)]
    running: set[int] = set()
    with ThreadPoolExecutor(STREAMS + 4) as pool:
        streams = [
            pool.submit(streamed, server, number, lambda number=number: running.add(number))
            for number in range(STREAMS)
        ]
        while len(running) < STREAMS and not any(stream.done() and stream.exception() for stream in streams):
            time.sleep(0.001)
        swap = pool.submit(post, server, "/models/load", {"model_id": "second"})
        while (status := httpx.get(server.url + "/startup-status").json())["current_model"] == "first":
            if beside and status["model_loading"]:
                break
            time.sleep(0.001)
        late = [pool.submit(answered, server, max_tokens=4) for _ in range(3)]
        assert swap.result().json()["status"] == "success"
        results = [stream.result() for stream in streams]
    assert [text for _, text in results] == expected
    assert {model for model, _ in results} == {"first"}
    assert {one.result()["model"] for one in late} <= ({"first", "second"} if beside else {"second"})
    assert answered(server)["model"] == "second"
    metrics = httpx.get(server.url + "/metrics").text
    assert "dragoman_engine_steps_total" in metrics
    current = httpx.get(server.url + "/models/current").json()
    assert (current["id"], current["is_loaded"], current["architecture"]) == ("second", True, "LlamaForCausalLM")


def test_a_damaged_model_leaves_the_old_one_serving(server: RunningServer) -> None:
    before = answered(server)["choices"]
    failed = post(server, "/models/load", {"model_id": "damaged"})
    assert failed.status_code == 500
    assert "model.safetensors" in failed.json()["detail"]
    assert answered(server)["choices"] == before
    status = httpx.get(server.url + "/models/status/damaged").json()
    assert (status["is_loaded"], status["loading_progress"]) == (False, 0.0)


def test_models_come_and_go(server: RunningServer) -> None:
    listed = httpx.get(server.url + "/models/available").json()
    assert [entry["id"] for entry in listed["models"]] == ["first", "damaged", "second", "embedded"]
    begun = post(server, "/models/load/second")
    assert begun.json()["status"] == "loading"
    while httpx.get(server.url + "/startup-status").json()["current_model"] != "second":
        time.sleep(0.01)
    unloaded = post(server, "/models/unload")
    assert unloaded.json()["status"] == "Model unloaded successfully"
    assert httpx.get(server.url + "/models/current").status_code == 404
    assert httpx.get(server.url + "/readyz").status_code == 503
    refused = post(server, "/generate", {"prompt": "x"})
    assert (refused.status_code, refused.json()["detail"]) == (
        400,
        "No model is currently loaded. Please load a model first using POST /models/load.",
    )
    assert post(server, "/chat", {"messages": [{"role": "user", "content": "x"}]}).json()["detail"] == NO_MODEL
    assert post(server, "/generate/batch", {"prompts": ["x"]}).json()["detail"] == NO_MODEL
    assert post(server, "/v1/completions", BODY).status_code == 503
    assert shown(server)["first"] == "loaded", "memory has it"
    assert answered(server, model="first", max_tokens=2)["model"] == "first"
    assert post(server, "/resident-models/unload", {"model": "first"}).json()["models"] == []
    assert set(shown(server).values()) == {"unloaded"}
    assert post(server, "/models/unload").json()["message"] == "No model is currently loaded"
    asked = post(server, "/generate", {"prompt": "x", "model_id": "first", "max_tokens": 2})
    assert (asked.status_code, asked.json()["model"]) == (200, "first")
    assert httpx.get(server.url + "/readyz").status_code == 200


def test_only_an_administrator_changes_the_model(models: Path, tmp_path: Path) -> None:
    quiet = locallab.LocalLabSettings(locallab_rate_limit=0, locallab_burst=0, locallab_folder=str(tmp_path))
    ring = Keyring((hashed("key-of-the-admin", "ann"), hashed("key-of-somebody", "bob", ("infer",))))
    catalog = CatalogSettings(models_folder=str(models), offer_cached=False)
    settings = msgspec.structs.replace(QUICK, name="first", alias=())
    dialects = made_dialects({"locallab": quiet})
    with running_server(settings, LoadModel(), FOLDER, catalog=catalog, dialects=dialects, keys=ring) as server:

        def asked(key: str, path: str, body: Any) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.post(server.url + path, json=body, headers=headers, timeout=60).status_code

        other = {"prompt": "x", "max_tokens": 2, "model_id": "second"}
        assert asked("key-of-nobody", "/generate", other) == 401
        assert asked("key-of-somebody", "/models/load", {"model_id": "second"}) == 403
        assert asked("key-of-somebody", "/generate", other) == 403
        assert asked("key-of-somebody", "/generate", other | {"model_id": "first"}) == 200
        assert asked("key-of-the-admin", "/generate", other) == 200
        assert asked("key-of-somebody", "/generate", other) == 200, "it is the current one now"
