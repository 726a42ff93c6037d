"""``dragoman serve`` as a command in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys

ADDRESS = re.compile(r"address +(http://\S+)")


def start_command(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start ``dragoman serve`` on any free port, its words to a user on standard error."""
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", "serve", *arguments],
        env={**os.environ, "DRAGOMAN_CONFIG": os.devnull, "DRAGOMAN_PORT": "0", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(server: subprocess.Popen[str], pattern: re.Pattern[str]) -> str:
    """Return what the server says up to the pattern."""
    said = ""
    assert server.stderr is not None
    for line in server.stderr:
        said += line
        if pattern.search(said):
            return said
    raise AssertionError(f"the server ended with {server.wait()}:\n{said}")


def start_server(*arguments: str, **variables: str) -> tuple[subprocess.Popen[str], str]:
    """Start ``dragoman serve`` and return it with its address, when it has one."""
    server = start_command(*arguments, **variables)
    found = ADDRESS.search(read_until(server, ADDRESS))
    assert found is not None
    return server, found[1]
