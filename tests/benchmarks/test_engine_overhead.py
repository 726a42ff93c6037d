"""The engine runs with the runner whose logits are there already: each part of a step takes time that is measured."""

from __future__ import annotations

import pytest

from benchmarks.engine_overhead import KINDS, measure


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_of_a_step_is_measured(kind: str) -> None:
    parts = measure(rows=2, vocab_size=64, steps=3, kind=kind)
    assert parts.keys() == {"schedule", "batch", "sample", "postprocess", "send", "sum"}
    assert all(microseconds > 0 for microseconds in parts.values())
