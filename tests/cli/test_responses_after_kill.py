"""A response in the background is finished after the server or its engine was killed, with the same events."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_server import start_server

THOROUGH = bool(os.environ.get("DRAGOMAN_THOROUGH"))
KILLS = 6 if THOROUGH else 1
"""How often the server is killed while one response runs."""

SIZES = (400, 1000, 1900)
"""Tokens of the response; more where one was finished before it was interrupted."""

ASK: dict[str, Any] = {"input": "Tell me about the sea.", "seed": 7, "temperature": 1.0, "ignore_eos": True}


def started(state: Path) -> tuple[subprocess.Popen[str], str]:
    return start_server("--state-dir", str(state), "--max-context", "2048")


def killed(server: subprocess.Popen[str]) -> None:
    server.send_signal(signal.SIGKILL)
    server.communicate(timeout=60)


def read(lines: Iterator[str], count: int | None) -> list[str]:
    """So many events of a stream, as they were sent; None: all."""
    found = []
    for line in lines:
        if line.startswith("data: "):
            found.append(line.removeprefix("data: "))
            if len(found) == count:
                break
    return found


def followed(url: str, id: str, after: int, count: int | None) -> list[str]:
    asked = {"stream": "true", "starting_after": after}
    with httpx.stream("GET", f"{url}/v1/responses/{id}", params=asked, timeout=60) as answer:
        assert answer.status_code == 200
        return read(answer.iter_lines(), count)


def text_of(response: dict[str, Any]) -> str:
    (message,) = response["output"]
    text: str = message["content"][0]["text"]
    return text


def engines_of(server: subprocess.Popen[str]) -> list[int]:
    """The processes of engines that the server has started."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"dragoman.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_running(state: Path, id: str) -> bool:
    """Return whether the stored response has no end."""
    with contextlib.closing(sqlite3.connect(state / "responses.sqlite3")) as database:
        ((running,),) = database.execute("SELECT running FROM responses WHERE id = ?", (id,)).fetchall()
    return bool(running)


def new_conversation(url: str) -> str:
    """The id of a conversation with one message."""
    items = [{"role": "user", "content": "I live near a lighthouse."}]
    id: str = httpx.post(url + "/v1/conversations", json={"items": items}, timeout=60).json()["id"]
    return id


def said_in(url: str, conversation: str) -> list[tuple[str, str]]:
    """Roles and texts of a conversation's messages."""
    path = f"{url}/v1/conversations/{conversation}/items"
    listed = httpx.get(path, params={"order": "asc"}, timeout=60).json()["data"]
    return [(item["role"], item["content"][0]["text"]) for item in listed]


def begun(url: str, size: int, conversation: str) -> tuple[str, list[str]]:
    """The id of a response in the background, and its first events."""
    body = ASK | {"max_output_tokens": size, "background": True, "stream": True, "conversation": conversation}
    with httpx.stream("POST", url + "/v1/responses", json=body, timeout=60) as answer:
        events = read(answer.iter_lines(), 20)
    return json.loads(events[0])["response"]["id"], events


def check_whole(url: str, id: str, events: list[str], size: int, conversation: str) -> None:
    """Check that the events are those of one undisturbed response, and that its conversation has it once."""
    assert [json.loads(event)["sequence_number"] for event in events] == list(range(len(events)))
    whole = httpx.get(f"{url}/v1/responses/{id}", params={"stream": "true"}, timeout=60).text
    assert read(iter(whole.splitlines()), None) == events
    last = json.loads(events[-1])
    assert last["type"] == "response.incomplete", last
    assert httpx.get(f"{url}/v1/responses/{id}", timeout=60).json() == last["response"]
    other = new_conversation(url)
    body = ASK | {"max_output_tokens": size, "conversation": other}
    undisturbed = httpx.post(url + "/v1/responses", json=body, timeout=60).json()
    assert text_of(undisturbed) == text_of(last["response"])
    said = said_in(url, conversation)
    assert [role for role, _ in said] == ["user", "user", "assistant"]
    assert said == said_in(url, other)
    assert said[-1][1] == text_of(last["response"])


def test_a_killed_engine_and_a_killed_server(tmp_path: Path) -> None:
    server, url = started(tmp_path)
    try:
        for size in SIZES:
            conversation = new_conversation(url)
            id, events = begun(url, size, conversation)
            engines = engines_of(server)
            assert engines
            for pid in engines:
                os.kill(pid, signal.SIGKILL)
            events += followed(url, id, len(events) - 1, 20)
            killed(server)
            interrupted = is_running(tmp_path, id)
            for _ in range(KILLS - 1):
                server, url = started(tmp_path)
                events += followed(url, id, len(events) - 1, 20)
                killed(server)
            server, url = started(tmp_path)
            events += followed(url, id, len(events) - 1, None)
            check_whole(url, id, events, size, conversation)
            if interrupted:
                return
        raise AssertionError("every response was finished before its server was killed")
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


@pytest.mark.thorough
def test_a_stopped_server_leaves_it_to_the_next(tmp_path: Path) -> None:
    server, url = started(tmp_path)
    try:
        for size in SIZES:
            conversation = new_conversation(url)
            id, events = begun(url, size, conversation)
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
            assert server.returncode == 0
            interrupted = is_running(tmp_path, id)
            server, url = started(tmp_path)
            events += followed(url, id, len(events) - 1, None)
            check_whole(url, id, events, size, conversation)
            if interrupted:
                return
        raise AssertionError("every response was finished before its server was stopped")
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
