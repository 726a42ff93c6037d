"""What a start waits for: which process imports what, and the engine's process that waits for its settings."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dragoman.cli.start import prespawn
from dragoman.core.errors import DragomanError
from dragoman.engine.messages import EngineInfo, StubModel, WorkerSettings
from dragoman.engine_client.client import EngineClient
from dragoman.engine_client.prespawn import PrespawnedWorker

HTTP = ("starlette", "uvicorn", "httptools", "websockets", "asyncio", "ssl", "sqlite3", "prometheus_client")
TEXT = ("tokenizers", "jinja2", "llguidance")
TERMINAL = ("typer", "rich", "pydantic")
HUB = ("huggingface_hub", "requests", "httpx")


def imported(code: str) -> set[str]:
    """The modules of a fresh interpreter that has run the code."""
    code = f"{textwrap.dedent(code)}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_engines_process_imports_nothing_of_the_servers() -> None:
    modules = imported("""
        import dragoman.engine.worker
        from dragoman import models

        models.load(None, models.ModelSettings(max_context=64))
    """)
    assert not modules & {*HTTP, *TEXT, *TERMINAL, *HUB, "dragoman.server", "dragoman.cli", "dragoman.dialects"}


def test_the_command_line_imports_neither_the_server_nor_the_engine() -> None:
    modules = imported("import dragoman.cli.app, dragoman.cli.serve")
    assert not modules & {*HTTP, *TEXT, *HUB, "numpy", "rich", "dragoman.kernels", "dragoman.models.families"}
    assert not {name for name in modules if name.startswith("dragoman.dialects.") and name.endswith(".dialect")}


def test_the_server_imports_nothing_of_the_kernels() -> None:
    modules = imported("import dragoman.cli.running\nfrom dragoman.dialects import made_dialects\nmade_dialects()")
    assert not modules & {
        "llguidance",
        "rich",
        "typer",
        *HUB,
        "jinja2",
        "numpy",
        "dragoman.kernels",
        "dragoman.models.loading",
    }


def test_the_server_looks_at_a_model_without_numpy() -> None:
    modules = imported("""
        from dragoman.engine.settings import SchedulerSettings
        from dragoman.engine.worker_settings import worker_settings
        from dragoman.models import ModelSettings

        worker_settings(None, ModelSettings(), SchedulerSettings())
    """)
    assert not modules & {"numpy", "dragoman.models.gguf.opening", "dragoman.models.quantized.awq"}


def test_a_process_that_nobody_needs_ends() -> None:
    prespawned = PrespawnedWorker()
    prespawned.close()
    prespawned.close()
    assert prespawned.process.poll() is not None


def test_a_process_whose_parent_leaves_before_it_says_anything_ends_by_itself() -> None:
    prespawned = PrespawnedWorker()
    prespawned.connection.close()
    assert prespawned.process.wait(60) == 0


@pytest.mark.parametrize("told", [512, 300], ids=["these settings", "others"])
def test_a_process_that_has_been_told_other_settings_is_not_taken(told: int) -> None:
    settings = WorkerSettings(model=StubModel(vocab_size=512))
    prespawned = PrespawnedWorker()
    prespawned.send_settings(WorkerSettings(model=StubModel(vocab_size=told)))
    info, pid = asyncio.run(started(EngineClient(settings, prespawned)))
    prespawned.close()
    assert info.vocab_size == 512
    assert (pid == prespawned.process.pid) == (told == 512)
    assert prespawned.process.wait(60) is not None


async def started(engine: EngineClient) -> tuple[EngineInfo, int | None]:
    try:
        return await engine.start(), engine.health().pid
    finally:
        await engine.close()


def test_telling_a_process_that_is_gone_leaves_its_end_to_who_listens() -> None:
    prespawned = PrespawnedWorker()
    prespawned.process.kill()
    prespawned.process.wait(60)
    prespawned.send_settings(WorkerSettings(model=StubModel()))
    prespawned.close()


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["serve", "--port", "1"], {}, True),
        (["start"], {}, True),
        (["serve", "--help"], {}, False),
        (["generate", "serve"], {}, False),
        (["--version"], {}, False),
        ([], {}, False),
        (["serve"], {"DRAGOMAN_KERNELS": "none-such"}, False),
    ],
)
def test_only_commands_that_will_want_an_engine_begin_with_it(
    arguments: list[str], variables: dict[str, str], expected: bool
) -> None:
    prespawned = prespawn(arguments, variables)
    assert (prespawned is not None) == expected
    if prespawned is not None:
        prespawned.close()


def test_nothing_looks_for_garbage_while_a_server_starts_and_it_is_looked_for_again_when_it_has() -> None:
    code = """
        import asyncio, gc, sys
        from dragoman.cli import main
        from dragoman.server.lifecycle import _post_start_cleanup

        sys.argv = ["dragoman", "serve", "--no-such-option"]
        try:
            main()
        except SystemExit:
            assert not gc.isenabled()

        async def settle():
            _post_start_cleanup()

        asyncio.run(settle())
        assert gc.isenabled()
    """
    environment = {name: value for name, value in os.environ.items() if name != "DRAGOMAN_KERNELS"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, check=True)


@pytest.mark.parametrize("module", ["dragoman.child_process", "logging", "dragoman.cli.app", "typer"])
def test_an_interrupt_while_modules_are_imported_ends_a_command_without_a_traceback(module: str) -> None:
    code = f"""
        import sys

        class Interrupting:
            def find_spec(self, name, path, target=None):
                if name == {module!r}:
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupting())
        sys.argv = ["dragoman", "--version"]
        from dragoman.cli import main

        main()
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["--port", "x"], ["--help"], ["/no/such/model"]])
def test_a_command_that_is_refused_leaves_no_process(arguments: list[str], tmp_path: Path) -> None:
    mark = f"DRAGOMAN_TEST_MARK={tmp_path}"
    environment = {**os.environ, "DRAGOMAN_CONFIG": os.devnull, "DRAGOMAN_TEST_MARK": str(tmp_path)}
    command = [sys.executable, "-m", "dragoman", "serve", *arguments]
    assert subprocess.run(command, env=environment, capture_output=True).returncode in (0, 1, 2)
    assert not _marked(mark)


def test_a_command_that_is_killed_early_leaves_no_process(tmp_path: Path) -> None:
    mark = f"DRAGOMAN_TEST_MARK={tmp_path}"
    environment = {**os.environ, "DRAGOMAN_CONFIG": os.devnull, "DRAGOMAN_TEST_MARK": str(tmp_path)}
    command = subprocess.Popen([sys.executable, "-m", "dragoman", "serve"], env=environment)
    until = time.monotonic() + 60
    while len(_marked(mark)) < 2:  # itself and the engine's process
        assert time.monotonic() < until
    command.kill()
    command.wait(60)
    while _marked(mark):
        assert time.monotonic() < until
        time.sleep(0.01)


def _marked(mark: str) -> list[Path]:
    return [each for each in Path("/proc").glob("[0-9]*/environ") if mark in _text(each)]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_kernels_that_cannot_be_had_are_refused_before_a_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_KERNELS", "none-such")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr(importlib, "import_module", _refusing)
    with pytest.raises(DragomanError, match="none-such"):
        PrespawnedWorker()


def _refusing(name: str) -> None:
    raise ImportError("DRAGOMAN_KERNELS=none-such")
