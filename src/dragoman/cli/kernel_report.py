"""``dragoman doctor --kernels``: the kernels of this machine beside the portable ones.

The checks (``kernels/self_test_checks.py``) run in a process of their own: a kernel that ends its process is a finding.
"""

from __future__ import annotations

import json
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

import dragoman
from dragoman.cli import console
from dragoman.models import topology

CPU_INFO = Path("/proc/cpuinfo")
COMMAND = (sys.executable, "-m", "dragoman.kernels.self_test_checks")
LIMIT_S = 600
"""Most seconds of all checks together; they take about three."""


class Finding(NamedTuple):
    """The worst of the checks of one kernel. ``problem``: what happened instead of a result; else empty."""

    kernel: str
    checks: int
    error: float
    bound: float
    problem: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem and self.error <= self.bound


def report_kernels(form: Literal["table", "json"]) -> bool:
    """Print the report of the kernels in use; whether they all passed."""
    from dragoman import kernels

    machine = {
        "dragoman": dragoman.__version__,
        "processor": processor_name(CPU_INFO),
        "system": platform.platform(),
        "processors": topology.describe(topology.read()),
        "threads": str(topology.place()),
        "kernels": f"{kernels.instruction_set()} (this machine has {', '.join(kernels.instruction_sets())})",
    }
    found = findings(kernels.instruction_set())
    passed = all(each.passed for each in found)
    if form == "json":
        value = {"machine": machine, "kernels": [_json(each) for each in found], "passed": passed}
        print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
    else:
        _print(machine, found)
    return passed


def findings(level: str) -> list[Finding]:
    """Run all checks in a process of their own; the worst of each kernel, in order. Where the process ends before its
    time, or takes longer than ``LIMIT_S``, the last finding says in which kernel.
    """
    try:
        done = subprocess.run((*COMMAND, level), capture_output=True, text=True, timeout=LIMIT_S)
        output, ending = done.stdout, _ending(done.returncode, done.stderr)
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        ending = f"no result within {LIMIT_S} s"
    found: dict[str, Finding] = {}
    begun = "the beginning"
    for line in output.splitlines():
        kernel, bound, error = json.loads(line)
        begun = kernel
        if error is None:
            continue
        last = found.get(kernel, Finding(kernel, 0, 0.0, bound))
        worst = error / bound if bound else error
        is_worst = not last.checks or worst > (last.error / last.bound if last.bound else last.error)
        most = (error, bound) if is_worst else (last.error, last.bound)
        found[kernel] = Finding(kernel, last.checks + 1, *most)
    if ending:
        last = found.get(begun, Finding(begun, 0, 0.0, 0.0))
        found[begun] = last._replace(problem=ending)
    return list(found.values())


def _ending(status: int, errors: str) -> str:
    """What ended the process; empty where it ended as it should."""
    if status == 0:
        return ""
    if status < 0:
        return f"the process ended by {signal.Signals(-status).name}"
    return (errors.strip().splitlines() or [f"the process ended with code {status}"])[-1]


def processor_name(cpu_info: Path) -> str:
    """Return what the system calls its processor: on Linux of ``/proc/cpuinfo`` the name, or, on ARM, which has none
    there, the numbers of its maker and part and the instructions that kernels look for."""
    try:
        text = cpu_info.read_text("utf-8", "replace")
    except OSError:
        return _name_on_macos() or platform.processor() or platform.machine()
    values: dict[str, str] = dict(re.findall(r"^([^\n:]*?)\s*:\s*(.*)$", text, re.MULTILINE))
    if "model name" in values:
        return values["model name"]
    if "CPU part" in values:
        features = {"asimddp", "i8mm", "bf16", "sve", "sve2"} & set(values.get("Features", "").split())
        return (
            f"{platform.machine()}, implementer {values.get('CPU implementer')}, part {values['CPU part']}, "
            f"{' '.join(sorted(features))}"
        )
    return platform.processor() or platform.machine()


def _name_on_macos() -> str:
    if platform.system() != "Darwin":
        return ""
    command = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()


def _json(found: Finding) -> dict[str, object]:
    # An infinite error, of NaN where there should be none, has no place in JSON.
    error = found.error if found.error < float("inf") else None
    return found._asdict() | {"error": error, "passed": found.passed}


def _print(machine: dict[str, str], found: list[Finding]) -> None:
    out = console.output()
    for name, text in machine.items():
        out.print(f"[bold]{name:>10}[/]  {console.escape(text)}")
    width = max(len(each.kernel) for each in found)
    out.print(f"\n[bold]{'kernel':<{width}}  checks  largest error    bound[/]")
    for each in found:
        verdict = "" if each.passed else f"  [bold red]✗ {console.escape(each.problem or 'beyond its bound')}[/]"
        bound = f"{each.bound:.0e}" if each.bound else "exact"
        out.print(f"{each.kernel:<{width}}  {each.checks:>6}  {each.error:>13.1e}  {bound:>7}{verdict}")
    wrong = [each.kernel for each in found if not each.passed]
    if wrong:
        out.print(
            f"\n[bold red]✗[/] {len(wrong)} of {len(found)} are wrong; DRAGOMAN_KERNELS=portable does without them"
        )
    else:
        out.print(f"\n[bold green]✓[/] all {len(found)} are within their bounds")
