"""The models that the promises of this room are checked on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dragoman.engine.runner import Runner

sys.path.insert(0, str(Path(__file__).parent))

from simulation import stub


@pytest.fixture(scope="session", params=["stub"])
def runner(request: pytest.FixtureRequest) -> Runner:
    """A stub: its logits depend on every cell of the history, as read through the block table."""
    return stub(vocab_size=199, num_blocks=256, max_tokens=256, max_sequences=64, max_logit_rows=64)
