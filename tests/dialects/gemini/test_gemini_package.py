"""The package ``google-genai`` as a witness: whole, streamed, in chats, parsed and run with functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from batch_world import ANN
from environments import names_of_checks, outcomes_of, python_with
from stub_runtime import FOLDER, QUICK, TOKENIZER, RunningServer, running_server
from tiny_server import SETTINGS

from dragoman.engine.messages import LoadModel, StubModel
from dragoman.models.settings import ModelSettings
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring

SCRIPT = Path(__file__).with_name("checks_gemini.py")
ACCESS = Path(__file__).with_name("checks_gemini_access.py")
PACKAGE = "google-genai>=3.6,<4"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The embedded model, which calls tools."""
    model = LoadModel(source=str(FOLDER), settings=ModelSettings(max_sequences=8, max_context=2048, cache_bytes=0))
    settings = msgspec.structs.replace(SETTINGS, name="embedded", alias=())
    with running_server(settings, model, FOLDER) as server:
        yield server


@pytest.fixture(scope="module")
def outcomes(server: RunningServer) -> dict[str, str]:
    return outcomes_of(SCRIPT, python_with(PACKAGE), server.url)


@pytest.mark.parametrize("check", names_of_checks(SCRIPT))
def test_finds_what_it_expects(outcomes: dict[str, str], check: str) -> None:
    assert outcomes[check] == ""


@pytest.fixture(scope="module")
def outcomes_of_access() -> dict[str, str]:
    """Of a server that asks for keys, with answers that are long enough to be left."""
    stub = StubModel(vocab_size=TOKENIZER.vocab_size, max_context=2048, num_blocks=192, step_s=0.01)
    with running_server(QUICK, stub, keys=Keyring([hashed(ANN, "ann")])) as server:
        return outcomes_of(ACCESS, python_with(PACKAGE), server.url)


@pytest.mark.parametrize("check", names_of_checks(ACCESS))
def test_keys_and_leaving(outcomes_of_access: dict[str, str], check: str) -> None:
    assert outcomes_of_access[check] == ""
