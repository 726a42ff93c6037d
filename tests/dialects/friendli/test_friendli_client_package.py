"""The package ``friendli-client`` as a witness: the stream of events, beams, and what it sends with every request."""

from __future__ import annotations

from pathlib import Path

import pytest
from environments import names_of_checks, outcomes_of, python_with
from stub_runtime import RunningServer

SCRIPT = Path(__file__).with_name("checks_friendli_client.py")


@pytest.fixture(scope="module")
def outcomes(server: RunningServer) -> dict[str, str]:
    return outcomes_of(SCRIPT, python_with("friendli-client>=1.5,<1.6"), server.url)


@pytest.mark.parametrize("check", names_of_checks(SCRIPT))
def test_finds_what_it_expects(outcomes: dict[str, str], check: str) -> None:
    assert outcomes[check] == ""
