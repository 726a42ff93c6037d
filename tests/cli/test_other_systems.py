"""What runs on macOS, tried on this system without all that only Linux has: see ``like_macos``."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
from command_server import start_server

from dragoman import child_process
from dragoman.serving import memory_budget
from dragoman.text import sandbox_child

LIKE_MACOS = os.pathsep.join([str(Path(__file__).with_name("like_macos")), *sys.path])
EACH_MODULE = """
import importlib, pkgutil, dragoman
for module in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name in ("ray", "zmq"), error  # of extras
from dragoman.cli import machine_info, tgi_launcher
from dragoman.dialects.locallab import machine
machine.cpu()
print(machine_info.machine_rows()["cores"], *tgi_launcher.environment_report(), sep="\\n")
"""


def test_every_module_is_imported_and_the_machine_is_described() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EACH_MODULE], env=os.environ | {"PYTHONPATH": LIKE_MACOS}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{os.cpu_count()} to use")
    assert done.stdout.endswith(f"{os.cpu_count()} cores\n")


def test_a_server_answers_with_template_and_grammar_and_goes_on_after_a_crash() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 40,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }
    server, url = start_server("--log-level", "debug", PYTHONPATH=LIKE_MACOS)
    try:
        first = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        (engine,) = [each for each in psutil.Process(server.pid).children() if "dragoman.engine" in each.cmdline()]
        engine.kill()
        second = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    finally:
        server.terminate()
        said = server.communicate(timeout=60)[1]
    assert server.returncode == 0, said
    for answer in (first, second):
        assert answer.status_code == 200, (answer.text, said)
        assert answer.json()["choices"][0]["message"]["content"].replace(" ", "") in ('{"a":1}', '{"a":2}')
    assert "worker is ready, confined by: ['file_limit']" in said  # and no limit of memory, which is refused there


def test_without_proc_the_state_of_a_child_is_asked_of_the_system() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            found = child_process._child_state_elsewhere(child.pid)
            while found is not None and found.cpu_ticks < 5:
                found = child_process._child_state_elsewhere(child.pid)
            assert found is not None
            assert not found.is_stopped
            here = child_process.child_state(child.pid)
            assert here is not None
            assert found.cpu_ticks <= here.cpu_ticks < found.cpu_ticks + 100
            child.send_signal(signal.SIGSTOP)
            while not (found := child_process._child_state_elsewhere(child.pid)) or not found.is_stopped:
                pass
        finally:
            child.kill()
    assert child_process._child_state_elsewhere(child.pid) is None


def test_without_proc_the_memory_of_a_process_is_what_is_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = memory_budget.process_bytes(os.getpid())
    monkeypatch.setattr(memory_budget, "sys", SimpleNamespace(platform="darwin"))
    resident = memory_budget.process_bytes(os.getpid())
    assert shared is not None
    assert resident is not None
    assert 0.5 * shared < resident < 20 * shared
    assert memory_budget.process_bytes(1 << 22) is None  # above the largest process id


def test_without_proc_a_limit_of_memory_is_beyond_what_all_processes_share(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = sandbox_child.address_space_bytes()
    limits: list[tuple[int, int]] = []

    def set_limit(which: int, limit: tuple[int, int]) -> None:
        limits.append((which, limit[0]))
        if which == resource.RLIMIT_AS and limit[0] < most_refused:
            raise ValueError("current limit exceeds maximum limit")

    def no_file(name: str, **more: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", name)

    monkeypatch.setattr(sandbox_child, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(sandbox_child, "open", no_file, raising=False)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    most_refused = shared // 2
    assert sandbox_child.limit(1 << 20) == ("file_limit", "memory_limit")
    assert limits[0] == (resource.RLIMIT_AS, 1 << 20)
    assert limits[1][1] >= most_refused + (1 << 20)
    most_refused = 1 << 62
    assert sandbox_child.limit(1 << 20) == ("file_limit",)
