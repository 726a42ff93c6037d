"""Batches, background responses and slow clients beside loads of models, in a real server."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from stub_runtime import FOLDER, QUICK, RunningServer, running_server

from dragoman.engine.messages import LoadModel
from dragoman.server import batch_runner
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.serving.memory_budget import MemoryBudget
from dragoman.serving.settings import BatchSettings, CatalogSettings

ANN, BOB = "key-of-ann-0123456789", "key-of-bob-0123456789"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model like the embedded one, and one whose weights are cut."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("second", "cut"):
        shutil.copytree(FOLDER, folder / name)
    with (folder / "cut" / "model.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
    return folder


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make memory hold one model."""
    short = lambda self, wanted, others: sum(each.serving_bytes for each in others)  # noqa: E731
    monkeypatch.setattr(MemoryBudget, "short_bytes", short)


@contextmanager
def serving(models: Path, state: Path, **fields: Any) -> Iterator[RunningServer]:
    """A server of ``first``, which offers the others. Ann may have them loaded, and Bob may not."""
    ring = Keyring((hashed(ANN, "ann"), hashed(BOB, "bob", ("infer",))))
    settings = msgspec.structs.replace(QUICK, name="first", alias=(), **fields)
    catalog = CatalogSettings(models_folder=str(models), offer_cached=False)
    batches = BatchSettings(batch_parallel=1)
    with running_server(
        settings, LoadModel(), FOLDER, catalog=catalog, keys=ring, batches=batches, state=state
    ) as server:
        yield server


def client_of(server: RunningServer, key: str = ANN) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=60)


def begin(client: openai.OpenAI, model: str, lines: int = 2) -> str:
    """Send a batch, and return its id."""
    bodies = [{"model": model, "prompt": f"Once {number}", "max_tokens": 3, "seed": 1} for number in range(lines)]
    text = "".join(
        json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}) + "\n"
        for number, body in enumerate(bodies)
    )
    file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h").id


def finished(client: openai.OpenAI, id: str) -> Any:
    for _ in range(3000):
        batch = client.batches.retrieve(id)
        if batch.status in ("completed", "failed"):
            return batch
        time.sleep(0.02)
    raise AssertionError(f"it stays {batch.status}")


def states(server: RunningServer) -> dict[str, str]:
    headers = {"authorization": f"Bearer {ANN}"}
    found = httpx.get(server.url + "/resident-models", headers=headers, timeout=60).json()["models"]
    return {each["id"]: each["state"] for each in found}


def test_a_batch_has_its_model_loaded_where_there_is_room(models: Path, tmp_path: Path) -> None:
    with serving(models, tmp_path) as server:
        ann = client_of(server)
        batch = finished(ann, begin(ann, "second"))
        assert (batch.status, batch.request_counts.completed) == ("completed", 2)
        assert states(server) == {"first": "loaded", "second": "loaded"}


@pytest.mark.usefixtures("one_at_a_time")
def test_a_batch_that_waits_for_its_model_holds_up_no_other(models: Path, tmp_path: Path) -> None:
    with serving(models, tmp_path) as server:
        ann, bob = client_of(server), client_of(server, BOB)
        waiting = [begin(ann, "second"), begin(bob, "second")]
        assert finished(bob, begin(bob, "first")).request_counts.completed == 2
        assert states(server) == {"first": "loaded"}, "somebody has used it a moment ago"
        for client, id in zip((ann, bob), waiting, strict=True):
            assert client.batches.retrieve(id).status == "in_progress"
        ann.completions.create(model="second", prompt="x", max_tokens=1)
        for client, id in zip((ann, bob), waiting, strict=True):
            assert finished(client, id).request_counts.completed == 2


@pytest.mark.usefixtures("one_at_a_time")
def test_a_batch_takes_the_place_of_a_model_that_nobody_uses(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_runner, "UNUSED_S", 0.2)
    with serving(models, tmp_path) as server:
        ann, bob = client_of(server), client_of(server, BOB)
        waiting = begin(bob, "second")
        assert finished(ann, begin(ann, "second")).request_counts.completed == 2
        assert finished(bob, waiting).request_counts.completed == 2, "it is there now"
        assert states(server) == {"second": "loaded"}
        assert finished(bob, begin(bob, "first")).request_counts.completed == 2, "anybody may wake the current one"


def test_a_batch_whose_model_cannot_be_loaded_fails_and_says_why(models: Path, tmp_path: Path) -> None:
    with serving(models, tmp_path) as server:
        ann = client_of(server)
        failed = begin(ann, "cut")
        assert finished(ann, begin(ann, "first")).request_counts.completed == 2
        batch = finished(ann, failed)
        assert batch.status == "failed"
        (fault,) = batch.errors.data
        assert fault.code == "model_not_loaded"
        assert "model.safetensors" in fault.message
        told = [json.loads(each) for each in ann.files.content(batch.error_file_id).text.splitlines()]
        assert {each["error"]["code"] for each in told} == {"model_not_loaded"}
        assert states(server) == {"first": "loaded"}


@pytest.mark.usefixtures("one_at_a_time")
def test_background_responses_wait_for_their_models_in_order(models: Path, tmp_path: Path) -> None:
    with serving(models, tmp_path) as server:
        ann = client_of(server)
        asked = [("second", "a"), ("first", "b"), ("second", "c")]
        begun = [
            ann.responses.create(model=model, input=text, background=True, max_output_tokens=3) for model, text in asked
        ]
        for (model, _), response in zip(asked, begun, strict=True):
            for _ in range(3000):
                found = ann.responses.retrieve(response.id)
                if found.status not in ("queued", "in_progress"):
                    break
                time.sleep(0.02)
            assert (found.status, found.model) == ("incomplete", model), found


SLOW_PATHS = ("/v1/completions", "/tgi/generate", "/locallab/generate", "/ollama/api/generate")


@pytest.mark.usefixtures("one_at_a_time")
def test_clients_that_send_their_bodies_slowly_keep_no_model_in_memory(models: Path, tmp_path: Path) -> None:
    body = json.dumps({"prompt": "x", "inputs": "x", "model": "first", "max_tokens": 1, "stream": False}).encode()
    with serving(models, tmp_path) as server, contextlib.ExitStack() as connections:
        slow = []
        for path in SLOW_PATHS:
            slow.append(connections.enter_context(socket.create_connection(("127.0.0.1", server.port))))
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ANN}\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            slow[-1].sendall(head.encode() + body[:10])
        time.sleep(0.2)  # they arrive before the other request
        ann = client_of(server)
        assert ann.completions.create(model="second", prompt="x", max_tokens=1).model == "second"
        assert "first" not in states(server)
        for connection in slow:
            connection.sendall(body[10:])
        for path, connection in zip(SLOW_PATHS, slow, strict=True):
            connection.settimeout(60)
            assert connection.recv(100).startswith(b"HTTP/1.1 200"), path
