"""Models that are offered beside the one in memory: how lists show them, and damaged ones among them."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
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
from dragoman.serving.settings import CatalogSettings

DAMAGED = ("cut", "no-config", "no-tokenizer", "another-shape", "torn-header")
ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model like the embedded one, ``second``, and one for each way in which files are damaged."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("second", *DAMAGED):
        shutil.copytree(FOLDER, folder / name)
    with (folder / "cut" / "model.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
    (folder / "no-config" / "config.json").write_bytes(b'{"architectures": ["Llama')
    text = (folder / "no-tokenizer" / "tokenizer.json").read_bytes()
    (folder / "no-tokenizer" / "tokenizer.json").write_bytes(text[: len(text) // 2])
    config = json.loads((folder / "another-shape" / "config.json").read_text())
    (folder / "another-shape" / "config.json").write_text(json.dumps(config | {"hidden_size": 320}))
    with (folder / "torn-header" / "model.safetensors").open("r+b") as file:
        file.seek(20)
        file.write(b"\0" * 200)
    return folder


@pytest.fixture
def server(models: Path, tmp_path: Path) -> Iterator[RunningServer]:
    with serving(models, tmp_path) as running:
        yield running


def serving(models: Path, tmp_path: Path, keys: Keyring | None = None, **catalog: Any) -> Any:
    quiet = locallab.LocalLabSettings(locallab_rate_limit=0, locallab_burst=0, locallab_folder=str(tmp_path))
    settings = msgspec.structs.replace(QUICK, name="first", alias=())
    found = CatalogSettings(models_folder=str(models), offer_cached=False, **catalog)
    more = {} if keys is None else {"keys": keys}
    dialects = made_dialects({"locallab": quiet})
    return running_server(settings, LoadModel(), FOLDER, catalog=found, dialects=dialects, **more)


def listed(server: RunningServer, path: str = "/v1/models", **options: Any) -> dict[str, Any]:
    answer = httpx.get(server.url + path, timeout=60, **options)
    assert answer.status_code == 200, answer.text
    return {entry["id"]: entry for entry in answer.json()["data"]}


def completed(server: RunningServer, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 2, "seed": 1} | fields
    return httpx.post(server.url + "/v1/completions", json=body, timeout=60)


def test_lists_say_which_models_are_in_memory(server: RunningServer) -> None:
    found = listed(server)
    assert next(iter(found)) == "first"
    assert set(found) == {"first", "second", "embedded", *DAMAGED}
    assert (found["first"]["status"], found["first"]["max_model_len"]) == ({"value": "loaded"}, 2048)
    assert found["second"]["status"] == {"value": "unloaded"}
    assert "max_model_len" not in found["second"], "its limit is not known before it is loaded"
    one = httpx.get(server.url + "/v1/models/second").json()
    assert one == found["second"]
    assert httpx.get(server.url + "/v1/models/third").status_code == 404
    told = completed(server, "third").json()["error"]["message"]
    assert told.startswith("The model 'third' does not exist. This server has: first, ")
    assert "second" in told, "what would be loaded by its name"
    for path in ("/octoai/v1/models", "/llamacpp/models", "/friendli/v1/models"):
        other = listed(server, path)
        assert other["first"]["status"] == {"value": "loaded"}, path
        assert other.get("second", found["second"])["status"] == {"value": "unloaded"}, path
    theirs = listed(server, headers=ANTHROPIC, params={"limit": 1000})
    assert theirs["second"] | {"created_at": ""} == theirs["first"] | {
        "id": "second",
        "display_name": "second",
        "created_at": "",
        "max_input_tokens": None,
        "max_tokens": None,
        "capabilities": None,
        "status": {"value": "unloaded"},
    }

    begun = httpx.post(server.url + "/models/load/second").json()
    assert begun["status"] == "loading"
    seen = []
    while (status := listed(server)["second"]["status"])["value"] != "loaded":
        seen.append(status)
        time.sleep(0.01)
    assert {each["value"] for each in seen} == {"loading"}
    assert all(0 <= each["progress"] <= 1 for each in seen)
    assert listed(server)["second"]["max_model_len"] == 2048
    assert completed(server, "second").json()["model"] == "second"


@pytest.mark.parametrize(
    ("path", "named", "key"),
    [
        ("/openai/deployments/second/completions", "model", "api-key"),
        ("/v1beta/models/second:generateContent", "modelVersion", "x-goog-api-key"),
    ],
)
def test_a_model_that_a_path_names_is_loaded_as_that_of_a_body(
    models: Path, tmp_path: Path, path: str, named: str, key: str
) -> None:
    body = {"model": "first", "prompt": "Once upon a time", "max_tokens": 2, "seed": 1}
    body |= {"contents": [{"parts": [{"text": "Hi."}]}], "generationConfig": {"maxOutputTokens": 2}}
    ring = Keyring((hashed("key-of-the-admin", "ann"), hashed("key-of-somebody", "bob", ("infer",))))
    with serving(models, tmp_path, ring) as server:
        answer = httpx.post(server.url + path, json=body, headers={key: "key-of-somebody"})
        assert answer.status_code == 403, "it may not have models loaded"
        answer = httpx.post(server.url + path, json=body, headers={key: "key-of-the-admin"}, timeout=60)
        assert (answer.status_code, answer.json()[named]) == (200, "second")


def test_lists_show_no_models_that_the_caller_may_not_have_loaded(models: Path, tmp_path: Path) -> None:
    ring = Keyring((hashed("key-of-the-admin", "ann"), hashed("key-of-somebody", "bob", ("infer",))))
    with serving(models, tmp_path, ring) as server:
        assert "second" in listed(server, headers={"authorization": "Bearer key-of-the-admin"})
        somebody = {"authorization": "Bearer key-of-somebody"}
        assert list(listed(server, headers=somebody)) == ["first"]
        body = {"model": "third", "prompt": "a"}
        told = httpx.post(server.url + "/v1/completions", json=body, headers=somebody).json()["error"]["message"]
        assert told == "The model 'third' does not exist. This server has: first."
    with serving(models, tmp_path, request_loads="never") as server:
        assert list(listed(server)) == ["first"]
        assert httpx.get(server.url + "/v1/models/second").status_code == 404


def test_a_damaged_model_fails_alone_and_says_why(server: RunningServer, models: Path) -> None:
    expected = completed(server, "first", max_tokens=400, ignore_eos=True).json()["choices"]
    with ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(completed, server, "first", max_tokens=400, ignore_eos=True) for _ in range(2)]
        reasons = {name: completed(server, name) for name in DAMAGED}
        assert [stream.result().json()["choices"] for stream in streams] == [expected, expected]
    for name, answer in reasons.items():
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "load_failed"), (name, answer.text)
    told = {name: answer.json()["error"]["message"] for name, answer in reasons.items()}
    assert "model.safetensors" in told["cut"]
    assert "config.json" in told["no-config"]
    assert "tokenizer.json" in told["no-tokenizer"]
    assert "320" in told["another-shape"]
    assert "model.safetensors" in told["torn-header"]
    assert not [message for message in told.values() if str(models) in message]
    found = listed(server)
    assert {found[name]["status"].get("failed") for name in DAMAGED} == {True}
    assert completed(server, "second").status_code == 200
    resident = httpx.get(server.url + "/resident-models").json()["models"]
    assert {each["id"]: each["state"] for each in resident} == {"first": "loaded", "second": "loaded"}
