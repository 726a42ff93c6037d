"""One loaded model for all tests of the Python API, and one server that has the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dragoman import LLM

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
sys.path.insert(0, str(Path(__file__).parent))

from stub_runtime import running_server

from dragoman.engine.messages import LoadModel
from dragoman.server.settings import ServerSettings


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM() as llm:
        yield llm


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    settings = ServerSettings(port=0, name="embedded", drain_s=0.5)
    with running_server(settings, LoadModel()) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
