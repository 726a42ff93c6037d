"""The measurement of several models in one budget, in short, on a real server with an engine for each model."""

from __future__ import annotations

import pytest

from benchmarks.model_swaps import kept, measure


def test_three_models_with_room_for_two_and_a_killed_engine() -> None:
    found = measure(18, 6, tokens=60)
    assert found["lost"] == 0, found["faults"]
    assert found["loads"] >= 2
    assert found["killed"]["engine_restarts"] == 1
    assert found["looks"] >= 3
    assert kept(found), found


@pytest.mark.thorough
def test_five_hundred_requests() -> None:
    found = measure(500, 12)
    assert kept(found), found
