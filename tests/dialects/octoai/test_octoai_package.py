"""The package ``octoai`` as a witness: whole and streamed, sync and async, every field with its effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from environments import names_of_checks, outcomes_of, python_with
from stub_runtime import RunningServer

SCRIPT = Path(__file__).with_name("checks_octoai.py")


@pytest.fixture(scope="module")
def outcomes(server: RunningServer) -> dict[str, str]:
    return outcomes_of(SCRIPT, python_with("octoai>=1.11,<1.12"), server.url)


@pytest.mark.parametrize("check", names_of_checks(SCRIPT))
def test_finds_what_it_expects(outcomes: dict[str, str], check: str) -> None:
    assert outcomes[check] == ""
