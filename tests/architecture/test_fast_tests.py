"""Which files ``make test-fast`` leaves out before they are imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


class Fast:
    """The configuration of ``pytest --fast``."""

    def getoption(self, name: str) -> bool:
        return name == "--fast"


@pytest.fixture
def is_ignored(request: pytest.FixtureRequest) -> Any:
    """The hook of ``tests/conftest.py``."""
    plugins = request.config.pluginmanager.get_plugins()
    (shared,) = [each for each in plugins if getattr(each, "__file__", None) == str(TESTS / "conftest.py")]
    return lambda path: shared.pytest_ignore_collect(path, Fast())


def test_slow_files_are_left_out(is_ignored: Any) -> None:
    assert is_ignored(TESTS / "siege")
    assert is_ignored(TESTS / "engine_client" / "test_crash_replay.py")
    assert not is_ignored(TESTS / "architecture")
    assert not is_ignored(TESTS / "architecture" / "test_sources.py")


def test_files_without_tests_are_not_read(is_ignored: Any) -> None:
    for path in TESTS.rglob("*"):
        if path.suffix != ".py" and "__pycache__" not in path.parts and path.name not in {"siege", "browser"}:
            is_ignored(path)
