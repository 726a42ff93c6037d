"""The tables as bar charts."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.bench.chart import PLOT, bars_of, chart, draw
from benchmarks.bench.report import Sample, rows_of
from benchmarks.bench.workloads import Unit
from tests.benchmarks.test_report import sample


def parts(*samples: Sample) -> dict[str, float]:
    [row] = rows_of(samples)
    return {bar.server: bar.part for bar in bars_of(row)}


def test_bars_are_parts_of_the_limit() -> None:
    assert parts(sample(30.0), sample(15.0, server="peer")) == {
        "dragoman": pytest.approx(0.75),
        "peer": pytest.approx(0.375),
    }


def test_seconds_are_parts_from_above() -> None:
    ours, theirs = sample(2.0, unit=Unit.TIME, limits=(1.0,)), sample(4.0, unit=Unit.TIME, server="peer")
    assert parts(ours, theirs) == {"dragoman": pytest.approx(0.5), "peer": pytest.approx(0.25)}


def test_a_row_without_a_limit_is_not_drawn() -> None:
    assert chart("tiny", [sample(30.0, limits=())]) == ""


def test_a_model_has_a_file_whose_bars_have_their_lengths(tmp_path: Path) -> None:
    hostile = sample(10.0, server='<script>"&', model="a/b c")
    [file] = draw([sample(30.0, model="a/b c"), hostile], tmp_path)
    assert file == tmp_path / "bench-a-b-c.svg"
    found = ElementTree.fromstring(file.read_text("utf-8"))
    bars = [each for each in found.iter("{http://www.w3.org/2000/svg}rect") if each.get("y") != "36"]
    assert [(each.get("class"), float(each.get("width", "0"))) for each in bars] == [
        ("limit", PLOT),
        ("ours", 0.75 * PLOT),
        ("other", 0.25 * PLOT),
    ]
    assert re.search("30.0 tokens/s, 75 %", file.read_text("utf-8"))
