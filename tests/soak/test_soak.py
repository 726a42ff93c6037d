"""``make soak`` in short: a few kills under 32 streams, and some hostile requests, against a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("part", "count"), [("kills", 3), ("hostile", 150)])
def test_nothing_is_lost_changed_silent_or_left_behind(part: str, count: int) -> None:
    command = [sys.executable, "-m", "tests.soak", "--part", part, "--count", str(count), "--port", str(free_port())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
