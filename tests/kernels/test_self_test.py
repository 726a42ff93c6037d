"""The self-test of ``dragoman doctor --kernels``: it passes here, and finds kernels that are wrong or end it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dragoman import kernels
from dragoman.cli import kernel_report
from dragoman.cli.kernel_report import Finding, findings, processor_name, report_kernels
from dragoman.kernels import self_test
from dragoman.kernels.self_test import Check, relative_error

BROKEN = Path(__file__).with_name("broken_kernels.py")
BEST = kernels.instruction_sets()[0]
only_with_two = pytest.mark.skipif(BEST == "portable", reason="this machine has portable kernels alone")


def broken(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(kernel_report, "COMMAND", (sys.executable, str(BROKEN), kind))


@pytest.mark.parametrize("level", kernels.instruction_sets())
def test_every_kernel_of_this_machine_passes(level: str) -> None:
    found = findings(level)
    assert [each for each in found if not each.passed] == []
    assert len(found) > 60
    assert sum(each.checks for each in found) > 300


@only_with_two
def test_wrong_kernels_are_found_and_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(monkeypatch, "wrong,depends_on_company,not_a_number")
    assert not report_kernels("json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["passed"] is False
    assert answer["machine"]["kernels"].startswith(kernels.instruction_set())
    found = {each["kernel"]: each for each in answer["kernels"]}
    wrong = {name for name, each in found.items() if not each["passed"]}
    assert wrong >= {"product int8", "product bfloat16, rows alone", "product float32"}
    broken_kinds = ("product int8", "product bfloat16", "product float32", "low-rank")
    assert all(name.startswith(broken_kinds) for name in wrong), "and no other"
    assert found["product int8"]["error"] > found["product int8"]["bound"]
    assert found["product float32"]["error"] is None, "not a number"


def test_the_table_marks_what_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    one = Finding("product int8", 3, 0.5, 1e-5)
    monkeypatch.setattr(kernel_report, "findings", lambda level: [one, one._replace(kernel="clip", error=0.0)])
    assert not report_kernels("table")
    text = capsys.readouterr().out
    assert "beyond its bound" in text
    assert "1 of 2 are wrong" in text


@only_with_two
@pytest.mark.parametrize(
    ("kind", "problem"), [("without_instruction", "SIGILL"), ("raising", "there is no such kernel")]
)
def test_a_kernel_that_ends_the_process_is_named(monkeypatch: pytest.MonkeyPatch, kind: str, problem: str) -> None:
    broken(monkeypatch, kind)
    *_, last = findings(BEST)
    assert last.kernel == "product float32"
    assert problem in last.problem
    assert not last.passed


def test_a_process_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "import time; print('[\"product float32\", 1e-5, null]', flush=True); time.sleep(1000)"
    monkeypatch.setattr(kernel_report, "COMMAND", (sys.executable, "-c", endless))
    monkeypatch.setattr(kernel_report, "LIMIT_S", 3)
    [found] = findings(BEST)
    assert (found.kernel, found.problem) == ("product float32", "no result within 3 s")


def test_the_kernels_in_use_are_the_same_afterwards() -> None:
    before = kernels.instruction_set()
    seen = []

    def compute() -> self_test.Floats:
        seen.append(kernels.instruction_set())
        return np.zeros(1, np.float32)

    assert [error for _, error in self_test.run([Check("zero", 0.0, compute)], BEST)] == [0.0]
    assert seen == ["portable", BEST]
    assert kernels.instruction_set() == before


def test_errors_are_relative_to_the_largest_magnitude() -> None:
    def floats(*values: float) -> self_test.Floats:
        return np.array(values, np.float32)

    inf, nan = float("inf"), float("nan")
    assert relative_error(floats(1, -7), floats(1, -8)) == 1 / 8
    assert relative_error(floats(0, 0.5), floats(0, 0)) == 0.5
    assert relative_error(floats(inf, nan, 2), floats(inf, nan, 2)) == 0
    assert relative_error(floats(-inf, 2), floats(inf, 2)) == inf
    assert relative_error(floats(nan, 2), floats(1, 2)) == inf
    assert relative_error(floats(1, 2), floats(nan, 2)) == inf
    assert relative_error(floats(1), floats(1, 2)) == inf


def test_the_processor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: A Processor 9000\nflags\t\t: fpu\n")
    assert processor_name(file) == "A Processor 9000"
    file.write_text("processor\t: 0\nFeatures\t: fp asimddp i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
    assert processor_name(file).endswith(", implementer 0x41, part 0xd40, asimddp i8mm")
    monkeypatch.setattr(kernel_report.platform, "processor", lambda: "")
    assert processor_name(tmp_path / "none")
