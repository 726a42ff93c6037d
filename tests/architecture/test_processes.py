"""``--processes``: what forks report of their tests is what one process reports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

PLUGIN = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import processes

def pytest_addoption(parser):
    processes.add_option(parser)

def pytest_configure(config):
    config.pluginmanager.register(processes)
"""

FILES = {
    "test_a.py": """
import os, pytest, warnings

@pytest.fixture(scope="module")
def pid():
    print("made for the module")
    return os.getpid()

def test_good(pid, tmp_path):
    assert os.getpid() == pid

def test_bad(pid):
    print("said by a test")
    assert [1, 2] == [1, 3]

@pytest.mark.skip(reason="why not")
def test_left_out(): ...

def test_with_a_warning():
    warnings.warn(FutureWarning("of the future"))
""",
    "test_b.py": """
def test_before(): ...

def test_that_dies():
    import os
    os._exit(3)

def test_after(): ...
""",
    "test_c.py": "def test_c(): ...",
    "test_d.py": "def test_d(): ...",
}


def run(folder: Path, *options: str) -> str:
    (folder / "conftest.py").write_text(PLUGIN)
    (folder / "pytest.ini").write_text("[pytest]")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("processes", [2, 9])
def test_every_test_is_reported(processes: int, tmp_path: Path) -> None:
    output = run(tmp_path, "--processes", str(processes))
    for name in ("a.py::test_good", "a.py::test_with_a_warning", "b.py::test_before", "c.py::test_c", "d.py::test_d"):
        assert f"PASSED test_{name}\n" in output
    assert "FAILED test_a.py::test_bad - assert [1, 2] == [1, 3]" in output
    assert "made for the module" in output
    assert "said by a test" in output
    assert "FutureWarning: of the future" in output
    assert "SKIPPED [1] test_a.py:16: why not" in output
    assert "FAILED test_b.py::test_that_dies - " in output
    assert "the process that ran it ended with exit status 3" in output
    assert "FAILED test_b.py::test_after - " in output
    assert "not run: the process of test_b.py::test_that_dies ended before" in output
    assert "3 failed, 5 passed, 1 skipped, 1 warning in" in output


def test_the_first_failure_ends_all_if_it_is_to(tmp_path: Path) -> None:
    output = run(tmp_path, "--processes", "2", "-x", "-k", "test_a.py")
    assert "stopping after 1 failures" in output
    assert "1 failed, 1 passed, 5 deselected in" in output
