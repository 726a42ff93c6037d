"""``make siege`` in short: under a few attacks nobody else loses a request, and memory stays bounded."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_polite_client_loses_nothing_while_others_attack() -> None:
    command = [sys.executable, "-m", "benchmarks.siege", "--short", "--port", str(free_port())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
