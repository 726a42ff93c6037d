"""``make siege`` in short: under a few attacks nobody else loses a request, and memory stays bounded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).parents[2]


def test_a_polite_client_loses_nothing_while_others_attack() -> None:
    command = [sys.executable, "-m", "benchmarks.siege", "--short", "--port", str(free_port())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
