"""LocalLab's operations on models, the machine and stored instructions."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import httpx
import pytest
from locallab_server import BODY, CHAT, HERE, prompt_text
from stub_runtime import LocalServer, local_server

from dragoman.dialects.locallab import dialect as locallab
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio


async def test_models(client: httpx.AsyncClient) -> None:
    for path in ("/models/available", "/models/list"):
        listed = (await client.get(path)).json()
        assert listed["current_model"] == "stub"
        assert [(one["id"], one["is_loaded"], one["can_load"]) for one in listed["models"]] == [("stub", True, True)]
    union = (await client.get("/models")).json()
    assert union["object"] == "list"
    assert union["data"][0]["id"] == "stub"
    assert union["stub"]["maxLength"] == 256
    current = (await client.get("/models/current")).json()
    assert (current["id"], current["model_id"], current["name"], current["is_loaded"]) == ("stub", "stub", "stub", True)
    status = (await client.get("/models/status/org/name")).json()
    assert (status["id"], status["is_loaded"], status["loading_progress"]) == ("stub", True, 1.0)
    status = (await client.get("/models/status/no/body")).json()
    assert (status["id"], status["is_loaded"], status["loading_progress"]) == ("no/body", False, 0.0)


async def test_loading_and_unloading_where_one_model_is_served_always(client: httpx.AsyncClient) -> None:
    loaded = await client.post("/models/load", json={"model_id": "stub"})
    assert loaded.json() == {"status": "success", "message": "Model stub is already loaded"}
    unknown = await client.post("/models/load", json={"model_id": "nobody/knows"})
    assert unknown.status_code == 404
    assert "model not found" in unknown.json()["detail"]
    assert (await client.post("/models/load", json={})).status_code == 400
    begun = await client.post("/models/load/org/name")
    assert begun.json()["status"] == "loading"
    refused = await client.post("/models/unload")
    assert refused.status_code == 403
    assert refused.json()["detail"]


async def test_system(client: httpx.AsyncClient) -> None:
    info = (await client.get("/system/info")).json()
    assert info["active_model"] == info["activeModel"] == "stub"
    assert info["gpu_info"] is None
    assert 0 <= info["memory_usage"] <= 100
    assert info["cpu"]["threads"] >= 1
    assert info["memory"]["total"] > info["memory"]["available"] > 0
    resources = (await client.get("/resources")).json()
    assert resources.keys() == (await client.get("/system/resources")).json().keys()
    assert resources["disk"]["total"] > 0
    root = (await client.get("/locallab/")).json()
    assert (root["name"], root["status"], root["model"]) == ("LocalLab", "running", "stub")
    started = (await client.get("/startup-status")).json()
    assert started | {"uptime": 0} == {
        "server_ready": True,
        "model_loading": False,
        "current_model": "stub",
        "uptime": 0,
    }
    health = await client.get("/locallab/health")
    assert (health.status_code, health.json()) == (200, {"status": "healthy"})


async def test_the_network_is_shown_to_nobody_elsewhere(client: httpx.AsyncClient) -> None:
    near = (await client.get("/network")).json()
    assert near["public_ip"] == "Unknown"
    assert "127.0.0.1" in [entry["ip"] for entry in near["interfaces"].values()]


async def test_instructions_are_stored_used_and_forgotten(runtime: LocalServer, tmp_path: Path) -> None:
    client = runtime.client
    assert (await client.get("/system/instructions")).json() == {"instructions": "", "model_id": "global"}
    stored = await client.post("/system/instructions", json={"instructions": "Speak like a pirate."})
    assert stored.json() == {"message": "Updated global system instructions"}
    await client.post("/generate", json=BODY)
    assert "Speak like a pirate." in prompt_text(runtime)
    one = {"instructions": "Speak like a king.", "model_id": "stub"}
    assert (await client.post("/system/instructions", json=one)).json() == {
        "message": "Updated system instructions for model stub"
    }
    await client.post("/chat", json=CHAT)
    assert "Speak like a king." in prompt_text(runtime)
    await client.post("/chat", json=CHAT | {"messages": [{"role": "system", "content": "Quiet."}, *CHAT["messages"]]})
    assert "Quiet." in prompt_text(runtime)
    assert "king" not in prompt_text(runtime)
    kept = json.loads((tmp_path / "system_instructions.json").read_text())
    assert kept == {"global": "Speak like a pirate.", "models": {"stub": "Speak like a king."}}
    reset = await client.post("/system/instructions/reset?model_id=stub")
    assert reset.json() == {"message": "Reset system instructions for model stub"}
    assert (await client.get("/system/instructions?model_id=stub")).json()["instructions"] == "Speak like a pirate."
    await client.post("/system/instructions/reset")
    assert (await client.get("/system/instructions")).json()["instructions"] == ""


@pytest.mark.parametrize("content", [b"[", b'{"global": "\xff"}'], ids=["json", "utf-8"])
async def test_instructions_that_cannot_be_read_are_kept_under_another_name(
    runtime: LocalServer, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "system_instructions.json"
    file.write_bytes(content)
    assert (await runtime.client.get("/system/instructions")).json()["instructions"] == ""
    assert file.read_bytes() == content
    for text in ("Be short.", "Be long."):
        await runtime.client.post("/system/instructions", json={"instructions": text})
        assert json.loads(file.read_text())["global"] == text
    (aside,) = tmp_path.glob("system_instructions.json.*")
    assert aside.read_bytes() == content
    assert str(aside) in caplog.text


async def test_instructions_that_the_disk_does_not_take_are_refused_and_the_old_ones_stay(
    runtime: LocalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = runtime.client
    await client.post("/system/instructions", json={"instructions": "Be short."})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        refused = await client.post("/system/instructions", json={"instructions": "Be long. " * 20})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.status_code == 500
    assert refused.json()["detail"] == "the instructions cannot be stored: File too large"
    assert (await client.get("/system/instructions")).json()["instructions"] == "Be short."
    assert [file.name for file in tmp_path.iterdir()] == ["system_instructions.json"]
    assert "Traceback" not in caplog.text
    again = await client.post("/system/instructions", json={"instructions": "Be long."})
    assert again.status_code == 200


async def test_a_page_of_a_named_origin_may_call(template: ChatTemplate, tmp_path: Path) -> None:
    named = locallab.LocalLabSettings(locallab_cors_origins=("http://page",), locallab_folder=str(tmp_path))
    async with local_server(template, HERE, dialects=(locallab.make(named),)) as runtime:
        await _check_page_of_named_origin(runtime.client)


async def _check_page_of_named_origin(client: httpx.AsyncClient) -> None:
    asked = {"origin": "http://page", "access-control-request-method": "POST", "access-control-request-headers": "x"}
    preflight = await client.options("/chat", headers=asked)
    assert (preflight.status_code, preflight.text) == (200, "OK")
    assert preflight.headers["access-control-allow-origin"] == "http://page"
    assert preflight.headers["access-control-allow-credentials"] == "true"
    assert preflight.headers["access-control-max-age"] == "600"
    answer = await client.post("/chat", json=CHAT, headers={"origin": "http://page"})
    assert answer.headers["access-control-allow-origin"] == "http://page"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/chat", 405), ("POST", "/chats", 404)])
async def test_other_paths_and_methods(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await client.request(method, "/locallab" + path)
    assert answer.status_code == status
    assert answer.json() == {"detail": "Method Not Allowed" if status == 405 else "Not Found"}
