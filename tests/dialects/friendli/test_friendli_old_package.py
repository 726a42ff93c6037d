"""An old version of the package ``friendli`` as a witness: it reads the stream of events."""

from __future__ import annotations

from pathlib import Path

import pytest
from environments import names_of_checks, outcomes_of, python_with
from stub_runtime import RunningServer

SCRIPT = Path(__file__).with_name("checks_friendli_old.py")


@pytest.fixture(scope="module")
def outcomes(server: RunningServer) -> dict[str, str]:
    return outcomes_of(SCRIPT, python_with("friendli==0.3.21"), server.url)


@pytest.mark.parametrize("check", names_of_checks(SCRIPT))
def test_finds_what_it_expects(outcomes: dict[str, str], check: str) -> None:
    assert outcomes[check] == ""
