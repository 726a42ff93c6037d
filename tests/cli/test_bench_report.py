"""The report of ``dragoman bench --html``: self-contained, with the limits of the machine beside the figures."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from forked_command import run_forked
from html_tags import assert_self_contained, parsed

from dragoman.cli.bench import Load
from dragoman.cli.bench_report import Measured, Subject, own_subject, report
from dragoman.cli.html_page import Series, chart
from dragoman.cli.measurement import Summary
from dragoman.models import ModelSettings, describe
from dragoman.models.limits import Limits, Machine
from dragoman.models.topology import place

HOSTILE = "<script>alert(1)</script>\"'&"
MACHINE = Machine(30e9, {"bfloat16": 0.5e12, "int8": 1e12}, 35e9)
FOUND = Summary(
    requests=8,
    failed=1,
    wall_s=2.0,
    output_tokens=448,
    tokens_per_s=224.0,
    ttft_p50_ms=12.0,
    ttft_p99_ms=30.0,
    itl_p50_ms=4.0,
    itl_p99_ms=9.0,
    stream_tokens_per_s=56.0,
    errors=(HOSTILE,),
)
NOTHING = Summary(requests=2, failed=2, wall_s=1.0, output_tokens=0, tokens_per_s=0.0)
LOADS = [Load(streams=streams, prompt_tokens=128, output_tokens=64) for streams in (1, 8)]


def test_figures_stand_beside_their_limits() -> None:
    subject = own_subject(describe(None), ModelSettings(), place())
    assert subject.shape is not None
    page = report(subject, [Measured(load=load, found=FOUND, machine=MACHINE) for load in LOADS])
    assert_self_contained(page)
    found = parsed(page)
    labels = [str(given["aria-label"]) for tag, given in found.tags if tag == "svg"]
    assert len(labels) == 4
    limits = Limits(subject.shape, MACHINE)
    assert f"1 × 128: measured 224, at most {limits.tokens_per_s(1, 128, 64):,.4g}" in labels[0]
    assert f"8 × 128: median 12, 99 % 30, at least {1e3 * limits.first_token_s(128):,.4g}" in labels[1]
    assert f"8 × 128: median 4, 99 % 9, at least {1e3 * limits.step_s(8, 128 + 32):,.4g}" in labels[2]
    assert f"{100 * 224 / limits.tokens_per_s(8, 128, 64):.0f} %" in found.text
    assert sum(given.get("class") == "limit" for tag, given in found.tags if tag == "line") == 4 * len(LOADS)
    assert "Memory read at 30 GB a second, 0.50 TOP/s in bfloat16, 1.00 TOP/s in int8" in found.text


def test_a_server_has_no_limits_and_names_are_text() -> None:
    page = report(Subject(name=HOSTILE), [Measured(load=load, found=FOUND) for load in LOADS])
    assert_self_contained(page)
    found = parsed(page)
    assert f"Speed of {HOSTILE}" in found.text
    assert f"1 of 8 requests failed: {HOSTILE}" in found.text
    assert not [given for tag, given in found.tags if given.get("class") == "limit"]
    assert "at most" not in found.text


@pytest.mark.parametrize("measurements", [[], [Measured(load=LOADS[0], found=NOTHING)]])
def test_a_report_on_nothing_is_a_page(measurements: list[Measured]) -> None:
    assert_self_contained(report(Subject(name="model"), measurements))


def test_bars_and_limits_are_inside_of_the_chart() -> None:
    page = chart(
        "T", "ms", ["a", "b"], [Series("x", [1.0, None]), Series("y", [5.0, 2.0])], Series("limit", [50.0, 0.5])
    )
    found = parsed(page)
    drawn = [given for tag, given in found.tags if tag in ("rect", "line")]
    for given in drawn:
        places = [float(given[name] or "nan") for name in ("x", "y", "x1", "x2", "y1", "y2") if name in given]
        assert all(0 <= place <= 840 and not math.isnan(place) for place in places)
    assert len([given for tag, given in found.tags if tag == "rect"]) == 3
    assert chart("T", "ms", ["a"], [Series("x", [None])], Series("limit", [1.0])) == ""


def test_the_command_writes_the_report_and_says_first_that_it_cannot(tmp_path: Path) -> None:
    page = tmp_path / "bench.html"
    load = ("--streams", "1", "--prompt-tokens", "16", "--output-tokens", "4", "--rounds", "1")
    environment = {**os.environ, "DRAGOMAN_CONFIG": os.devnull}
    done = run_forked("bench", *load, "--html", str(page), environment=environment)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) < 80
    assert str(page) in done.stderr
    assert_self_contained(page.read_text(encoding="utf-8"))
    assert "of the limit" in page.read_text(encoding="utf-8")
    done = run_forked("bench", *load, "--html", str(tmp_path / "no" / "b.html"), environment=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be written" in done.stderr
