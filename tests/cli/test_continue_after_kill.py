"""A generation that was cut goes on after the server was killed, by whichever dialect it was begun."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
from command_server import start_server

TEXT = "Once upon a time there was"


def started(state: Path) -> tuple[subprocess.Popen[str], str]:
    return start_server("--state-dir", str(state), "--max-context", "512")


def alexandria(url: str, id: str, tokens: int) -> tuple[str, str]:
    config = {"max_new_tokens": tokens, "temperature": 0.9}
    body = {"request_id": id, "prompt": TEXT, "generation_config": config}
    answer = httpx.post(url + "/api/generate-one", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text, answer.headers["x-generation-state"]


def openai(url: str, key: str, tokens: int, **fields: Any) -> tuple[str, str]:
    body = {"prompt": TEXT, "max_tokens": tokens, "seed": 5, "ignore_eos": True} | fields
    answer = httpx.post(url + "/v1/completions", json=body, headers={"x-request-continue": key}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"], answer.headers["x-dragoman-continued"]


def test_the_next_call_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    server, url = started(tmp_path)
    try:
        first, state = alexandria(url, "story", 8)
        assert state == "new"
        begun, before = openai(url, "key", 8)
        assert before == "0"
    finally:
        server.send_signal(signal.SIGKILL)
        server.communicate(timeout=60)
    server, url = started(tmp_path)
    try:
        second, state = alexandria(url, "story", 8)
        assert state == "continued"
        went_on, before = openai(url, "key", 8)
        assert before == "8"
        whole = httpx.post(
            url + "/v1/completions",
            json={"prompt": TEXT, "max_tokens": 16, "seed": 5, "ignore_eos": True},
            timeout=60,
        ).json()["choices"][0]["text"]
        assert begun + went_on == whole
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    fresh = tmp_path / "fresh"
    server, url = started(fresh)
    try:
        assert alexandria(url, "story", 16)[0] == first + second, "the same ids draw the same text"
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
