"""``dragoman version``, ``info`` and ``status``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

import dragoman
from dragoman import kernels
from dragoman.cli.app import cli
from dragoman.models import cgroups

Answers = dict[str, tuple[int, object]]


@contextmanager
def server(answers: Answers, key: str | None = None) -> Iterator[str]:
    """The address of a server with these answers, by path; 404 for others, 401 without the key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, {"detail": "No model currently loaded"}))
            if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
                status, body = 401, {"error": {"message": "a key is needed"}}
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=listening.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.typer, list(arguments), env={"DRAGOMAN_CONFIG": os.devnull, "COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def rows(said: str) -> dict[str, str]:
    return {name.strip(): text for name, _, text in (line.strip().partition("  ") for line in said.splitlines())}


HEALTHY: Answers = {"/health": (200, {"status": "healthy"})}
CURRENT: Answers = {"/models/current": (200, {"id": "org/one", "parameters": "2779.7M", "quantization": None})}


def test_version() -> None:
    assert run("version") == run("--version") == dragoman.__version__ + "\n"


def test_the_memory_that_is_available_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in {"memory.max": "2000000000", "memory.current": "500000000"}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "membership").write_text("0::/\n")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "MEMBERSHIP", tmp_path / "membership")
    assert rows(run("info"))["memory"].endswith(" GB, 1.5 GB available")


def test_status_of_a_server_with_a_model() -> None:
    with server(HEALTHY | CURRENT) as url:
        assert rows(run("status", "--url", url)) == {
            "server": f"http://{url}",
            "health": "healthy",
            "model": "org/one",
            "parameters": "2779.7M",
        }


def test_status_shows_sizes_for_people() -> None:
    told = {"id": "org/one", "memory_used": 5_559_400_000}
    with server(HEALTHY | {"/models/current": (200, told)}) as url:
        assert rows(run("status", "--url", url))["memory used"] == "5.56 GB"


def test_status_of_a_server_without_a_model() -> None:
    with server(HEALTHY) as url:
        said = rows(run("status", "--url", f"http://{url}"))
    assert "No model currently loaded" in said["model"]


def test_a_server_that_is_not_well_is_told_by_the_exit_code() -> None:
    starting: Answers = {"/health": (503, {"status": "initializing", "error": "the model is loading"})}
    with server(starting) as url:
        assert "503: the model is loading" in rows(run("status", "--url", url, code=1))["health"]


def test_status_gives_its_key() -> None:
    with server(HEALTHY | CURRENT, key="secret") as url:
        assert rows(run("status", "--url", url, "--api-key", "secret"))["model"] == "org/one"
        refused = run("status", "--url", url, "--api-key", "wrong", code=1)
    assert "a key is needed" in refused
    assert "wrong" not in refused


def test_nobody_there_is_one_clear_line() -> None:
    with server({}) as url:
        pass
    assert run("status", "--url", url, code=1).startswith(f"error: nobody answers at http://{url}")


def test_info_tells_of_the_machine_and_the_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    said = rows(run("info"))
    assert said["dragoman"] == dragoman.__version__
    assert said["kernels"].startswith(kernels.instruction_set())
    assert said["cores"].startswith(f"{len(os.sched_getaffinity(0))} to use")
    assert said["packed weights"] == str(tmp_path / "packed")
    assert said["LocalLab's configuration"] == "none"
    (tmp_path / ".locallab").mkdir()
    (tmp_path / ".locallab" / "config.json").write_text("{}")
    assert str(tmp_path) in rows(run("info"))["LocalLab's configuration"]
