"""What a start says to a person, and the first request that it offers."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess

import pytest
from command_server import read_until, start_command
from model_cards import card_of

from dragoman.cli.first_request import reachable
from dragoman.cli.running import answering

COMMAND = re.compile(r"^curl .*$", re.MULTILINE)


@pytest.mark.parametrize(
    "dialect",
    [
        "openai",
        "tgi",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("friendli", "octoai", "locallab")),
        "alexandria",
    ],
)
def test_the_first_request_is_in_the_dialect_and_is_answered(dialect: str) -> None:
    arguments = ("--dialect", dialect, "--host", "0.0.0.0", "--insecure", "--no-access-log")
    server = start_command(*arguments)
    try:
        told = read_until(server, COMMAND)
        found = COMMAND.search(told)
        assert found is not None
        assert "0.0.0.0" not in found[0]
        assert "Ctrl-C stops it" in told
        assert re.search(r"web page +http://localhost:\d+/  \(documents at /docs\)", told)
        assert ("OpenAI API" in told) == (dialect in ("openai", "tgi", "friendli", "octoai"))
        command = [*shlex.split(found[0]), "--silent", "--fail-with-body"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert answer.returncode == 0, answer.stdout
        assert answer.stdout
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def test_a_model_without_a_chat_template_is_said_to_have_none() -> None:
    assert "chat" not in answering(card_of())
    assert "--chat-template" in answering(card_of(has_chat_template=False))["chat"]
    assert "chat" not in answering(card_of(has_chat_template=False, generates=False))


def test_a_server_that_listens_everywhere_is_reached_at_localhost() -> None:
    assert reachable("http://0.0.0.0:80") == reachable("http://[::]:80") == "http://localhost:80"
    assert reachable("https://10.0.0.1:80") == "https://10.0.0.1:80"
    assert reachable("http://[::1]:80") == "http://[::1]:80"
