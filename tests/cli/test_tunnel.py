"""``dragoman serve --public``, with a package of our own in the place of pyngrok."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_server import read_until

FAKE_CONF = """
class PyngrokConfig:
    def __init__(self, auth_token):
        self.auth_token = auth_token
"""
FAKE_NGROK = """
import os, pathlib
calls = pathlib.Path(os.environ["FAKE_CALLS"])

class Opened:
    public_url = "https://tunnel.example"

def connect(addr, proto, pyngrok_config):
    with calls.open("a") as file:
        print("connect", int(addr) > 0, proto, pyngrok_config.auth_token == "secret-token", file=file)
    if os.environ.get("FAKE_FAULT"):
        raise RuntimeError("refused: " + pyngrok_config.auth_token)
    return Opened()

def disconnect(url):
    with calls.open("a") as file:
        print("disconnect", url, file=file)

def kill():
    with calls.open("a") as file:
        print("kill", file=file)
"""


def said_when_ready(server: subprocess.Popen[str]) -> str:
    return read_until(server, re.compile("Try it"))


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """The environment of a command that finds the package, and a token."""
    package = tmp_path / "pyngrok"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "conf.py").write_text(FAKE_CONF)
    (package / "ngrok.py").write_text(FAKE_NGROK)
    return {
        "PYTHONPATH": str(tmp_path),
        "FAKE_CALLS": str(tmp_path / "calls"),
        "NGROK_AUTHTOKEN": "secret-token",
        "DRAGOMAN_API_KEY": "a-long-enough-key",
    }


def started(environment: dict[str, str]) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if "NGROK" not in name}
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", "serve", "--public", "--max-context", "256"],
        env={**clean, "DRAGOMAN_CONFIG": os.devnull, "DRAGOMAN_PORT": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_public_address_is_printed_and_given_up_at_the_end(fake: dict[str, str]) -> None:
    server = started(fake)
    said = said_when_ready(server)
    server.send_signal(signal.SIGINT)
    _, rest = server.communicate(timeout=60)
    assert server.returncode == 0
    assert "https://tunnel.example" in said
    assert "secret-token" not in said + rest
    calls = Path(fake["FAKE_CALLS"]).read_text().splitlines()
    assert calls == ["connect True http True", "disconnect https://tunnel.example", "kill"]


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("DRAGOMAN_API_KEY", "--public needs an API key"),
        ("NGROK_AUTHTOKEN", "--public needs a token of ngrok's"),
        ("PYTHONPATH", "pip install 'dragoman[public]'"),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(fake: dict[str, str], without: str, said: str) -> None:
    del fake[without]
    server = started(fake)
    _, error = server.communicate(timeout=60)
    assert server.returncode == 1
    assert said in error
    assert "Ready" not in error


def test_a_tunnel_that_cannot_be_opened_ends_the_server(fake: dict[str, str]) -> None:
    server = started(fake | {"FAKE_FAULT": "1"})
    _, error = server.communicate(timeout=60)
    assert server.returncode == 1
    assert "the tunnel cannot be opened: refused: …" in error
    assert "secret-token" not in error
