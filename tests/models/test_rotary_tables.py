"""Rotary tables are filled as far as positions are used, with the very numbers that whole tables would have."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from dragoman import models
from dragoman.models.decoder import Recorder
from dragoman.models.rope import Divided, Dynamic, Linear, Llama3, LongRope, Rope, RotaryTables, Scaling, Yarn

HALF = 12
SCALINGS = {
    "plain": Scaling(),
    "linear": Linear(4.0),
    "dynamic": Dynamic(2.0, 1500),
    "llama3": Llama3(32.0, 1.0, 4.0, 2048),
    "yarn": Yarn(4.0, 2048),
    "longrope": LongRope((1.0,) * HALF, tuple(np.linspace(1, 40, HALF)), 2048, 8192, long=True),
    "divided": Divided(tuple(np.linspace(1, 8, HALF))),
}
POSITIONS = 5000
"""No whole number of the pieces in which tables are filled."""


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("theta", [10_000.0, 1.0])  # angles up to 5,000
def test_tables_that_grow_equal_whole_ones_bit_for_bit(scaling: Scaling, theta: float) -> None:
    if theta == 1.0 and isinstance(scaling, Yarn):
        pytest.skip("its ramp divides by the logarithm of theta")
    rope = Rope(theta, 2 * HALF, scaling)
    cos, sin = rope.tables(range(POSITIONS))
    tables = RotaryTables(rope, POSITIONS)
    for reached in (1, 33, 1024, 1025, 3000, POSITIONS + 1):
        tables.reach(reached)
        assert min(reached, POSITIONS) <= tables.filled < reached + 1024
        np.testing.assert_array_equal(tables.cos[: tables.filled], cos[: tables.filled])
        np.testing.assert_array_equal(tables.sin[: tables.filled], sin[: tables.filled])
    assert tables.filled == POSITIONS


def test_large_angles_do_not_depend_on_what_is_computed_beside_them() -> None:
    rope = Rope(1.0, 2 * HALF)  # beyond some 70,000 numbers go through another algorithm, one by one
    for piece, whole in zip(rope.tables(range(70_001, 75_000)), rope.tables(range(75_000)), strict=True):
        np.testing.assert_array_equal(piece, whole[70_001:])


def test_tables_take_no_memory_before_they_are_used() -> None:
    tables = RotaryTables(Rope(500_000.0, 64), 1 << 26)  # 16 GB
    tables.reach(100)
    assert tables.filled == 1024


def test_any_thread_may_ask() -> None:
    rope = Rope(10_000.0, 2 * HALF, Dynamic(2.0, 1500))
    tables = RotaryTables(rope, POSITIONS)
    threads = [threading.Thread(target=tables.reach, args=(n,)) for n in range(1, POSITIONS, 97)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cos, sin = rope.tables(range(tables.filled))
    np.testing.assert_array_equal(tables.cos[: tables.filled], cos)
    np.testing.assert_array_equal(tables.sin[: tables.filled], sin)


def test_a_model_fills_them_as_far_as_its_steps_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RotaryTables] = []
    record = Recorder.record

    def noted(self: Recorder) -> None:
        made.extend(self.tables.values())
        record(self)

    monkeypatch.setattr(Recorder, "record", noted)
    model = models.load(Path(models.embedded_path()))
    assert [each.filled for each in made] == [0] * len(made) != []
    one, none = np.ones(1, np.int32), np.zeros(1, np.int32)
    model.program.run(one, none, [0, 1], [[0]], none)
    assert all(0 < each.filled <= 1024 for each in made)
