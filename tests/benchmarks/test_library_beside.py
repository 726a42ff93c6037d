"""The engine beside a library: the same work for both, each once in a turn, and the parts of a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import library_beside
from benchmarks.library_beside import Ours, Row, measure
from benchmarks.recurrent_shapes import RECURRENT_SHAPES, make_recurrent_model
from dragoman import models
from dragoman.models.limits import Limits, Machine, shape_of
from tests.benchmarks.test_recurrent_shapes import SMALL


class Library:
    """Takes half a second after the first tokens, and one in all."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def run(self, streams: int, prompt: int, output: int) -> tuple[float, float]:
        self.asked.append((streams, prompt, output))
        return 0.5, 1.0


def test_a_row_has_both_and_a_part_of_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1e9, {"bfloat16": 1e9, "int8": 1e9}, 1e9)
    monkeypatch.setattr(library_beside, "measured", lambda: machine)
    name = "granite4-350m-h"
    make_recurrent_model(tmp_path, RECURRENT_SHAPES[name] | SMALL[name] | {"vocab_size": 131})
    settings = models.ModelSettings(precision="int8", kv_tokens=512, max_context=256, cache_bytes=0)
    model = models.load(str(tmp_path), settings)
    shape, library = shape_of(models.describe(str(tmp_path)), "int8"), Library()
    row = Row("two", 2, 40, 3, lambda after, all_s: 6 / all_s, lambda limits: limits.tokens_per_s(2, 40, 3), True)
    line = measure(Ours(model), library, row, 2, lambda found: Limits(shape, found))
    assert library.asked == [(2, 40, 3)] * 2
    title, rate, part, other, ratio = (cell.split()[0].replace(",", "") for cell in line.strip("| ").split(" | "))
    assert (title, other) == ("two", "6.00")
    assert float(rate) / 6 == pytest.approx(float(ratio), rel=0.3)
    limit = row.limit(Limits(shape, machine))
    assert float(part) == pytest.approx(100 * float(rate) / limit, rel=0.02)
