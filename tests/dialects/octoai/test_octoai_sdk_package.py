"""The package ``octoai-sdk`` as a witness: its chats whole and streamed, and its calls of any endpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from environments import names_of_checks, outcomes_of, python_with
from stub_runtime import RunningServer

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="it needs NumPy 1, which has no build for Python 3.13 and compiles for minutes"
)

SCRIPT = Path(__file__).with_name("checks_octoai_sdk.py")


@pytest.fixture(scope="module")
def outcomes(server: RunningServer) -> dict[str, str]:
    return outcomes_of(SCRIPT, python_with("octoai-sdk>=0.10,<0.11"), server.url)


@pytest.mark.parametrize("check", names_of_checks(SCRIPT))
def test_finds_what_it_expects(outcomes: dict[str, str], check: str) -> None:
    assert outcomes[check] == ""
