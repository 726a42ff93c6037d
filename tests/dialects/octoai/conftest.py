"""One server on a tiny model for every module of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from stub_runtime import RunningServer
from tiny_server import SETTINGS, make_tiny_model, tiny_server


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's files."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="package")
def server(folder: Path) -> Iterator[RunningServer]:
    """Serves all dialects; on bare paths this one."""
    with tiny_server(folder, settings=msgspec.structs.replace(SETTINGS, dialect="octoai")) as server:
        yield server
