"""The package ``google-genai`` as a witness: whole, streamed, in chats, parsed and run with functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from environments import names_of_checks, outcomes_of, python_with
from stub_runtime import FOLDER, RunningServer, running_server
from tiny_server import SETTINGS

from dragoman.engine.messages import LoadModel
from dragoman.models.settings import ModelSettings

SCRIPT = Path(__file__).with_name("checks_gemini.py")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The embedded model, which calls tools."""
    model = LoadModel(source=str(FOLDER), settings=ModelSettings(max_sequences=8, max_context=2048, cache_bytes=0))
    settings = msgspec.structs.replace(SETTINGS, name="embedded", alias=())
    with running_server(settings, model, FOLDER) as server:
        yield server


@pytest.fixture(scope="module")
def outcomes(server: RunningServer) -> dict[str, str]:
    return outcomes_of(SCRIPT, python_with("google-genai>=3.6,<4"), server.url)


@pytest.mark.parametrize("check", names_of_checks(SCRIPT))
def test_finds_what_it_expects(outcomes: dict[str, str], check: str) -> None:
    assert outcomes[check] == ""
