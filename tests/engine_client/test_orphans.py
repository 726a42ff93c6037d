"""No child process outlives the process that started it, whatever both were doing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from dragoman import child_process
from dragoman.child_process import start_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")

CHILD = "from dragoman.child_process import die_with_parent; die_with_parent({}); print(1, flush=True); input()"

ENGINE = """
    import asyncio
    from dragoman.engine_client.client import EngineClient
    from dragoman.engine.messages import StubModel, WorkerSettings

    async def main():
        client = EngineClient(WorkerSettings(model=StubModel()))
        await client.start()
        print(client.health().pid, flush=True)
        await asyncio.sleep(60)

    asyncio.run(main())
"""

LAUNCHED = """
    import time
    from dragoman.engine_client.prespawn import PrespawnedWorker

    print(PrespawnedWorker().process.pid, flush=True)
    time.sleep(60)
"""

HELPERS = """
    import threading, time
    from pathlib import Path
    import psutil
    from dragoman.core.vocabulary import Vocabulary
    from dragoman.core.constraint import Choice
    from dragoman.grammar.process import GrammarProcess
    from dragoman.text import ChatTemplate

    vocabulary = Vocabulary(tokens=(*(bytes([byte]) for byte in range(256)), b""), special_ids=(256,), end_ids=(256,))
    process = GrammarProcess(vocabulary)
    # In threads that end: it is the process that counts.
    for work in (lambda: process.check(Choice(("yes", "no"))),):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert process.check(Choice(("yes", "no")))
    print(*(child.pid for child in psutil.Process().children()), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("program", [ENGINE, LAUNCHED, HELPERS], ids=["engine", "waiting", "grammars"])
def test_a_stopped_child_dies_with_its_server(program: str) -> None:
    lines = "\n".join(line.removeprefix("    ") for line in program.splitlines())
    with subprocess.Popen([sys.executable, "-c", lines], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert children
        _wait_for_tie(children)
        for child in children:
            os.kill(child.pid, signal.SIGSTOP)
        os.kill(parent.pid, signal.SIGKILL)
    _gone, alive = psutil.wait_procs(children, timeout=60)
    for child in alive:
        child.kill()
    assert not alive


def test_a_child_outlives_the_thread_that_asked_for_it() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [sys.executable, "-c", CHILD.format(os.getpid())]
        started.append(start_child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (child,) = started
    assert child.stdout is not None
    assert child.stdout.readline() == b"1\n"
    time.sleep(0.1)
    assert child.poll() is None
    child.communicate(b"\n")
    assert child.returncode == 0


def test_a_child_whose_parent_died_before_it_looked_ends() -> None:
    command = [sys.executable, "-c", CHILD.format(os.getppid())]
    child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    assert (child.returncode, child.stdout) == (1, b"")


def _wait_for_tie(children: list[psutil.Process]) -> None:
    """Wait until each has run its first lines: after they tie it to its parent, SIGINT is ignored."""
    deadline = time.monotonic() + 60
    for child in children:
        while not _ignores_sigint(child.pid) and time.monotonic() < deadline:
            time.sleep(0.01)


def _ignores_sigint(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    (mask,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")]
    return bool(mask & 1 << signal.SIGINT - 1)


def test_a_program_that_cannot_be_started_for_want_of_a_thread_is_not_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    results: list[object] = []

    def start_one(file: Path) -> None:
        try:
            results.append(start_child(["touch", str(file)]).wait(30))
        except OSError as error:
            results.append(error.errno)

    def start_in_thread(file: Path) -> object:
        other = threading.Thread(target=start_one, args=(file,))
        start(other)
        other.join(60)
        return results.pop()

    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(child_process, "_starter", None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        assert start_in_thread(tmp_path / "first") == errno.EAGAIN
    assert start_in_thread(tmp_path / "second") == 0
    assert os.listdir(tmp_path) == ["second"]
