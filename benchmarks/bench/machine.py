"""What the machine gives just now. On shared machines it changes within seconds: measure beside every figure."""

from __future__ import annotations

import psutil

from benchmarks.bench.limits import Machine
from dragoman import kernels

BANDWIDTH_S = 0.3
LOOK_S = 0.2
TRIES = 3
PEAKS: tuple[kernels.Precision, ...] = ("bfloat16", "int8")


def measured() -> Machine:
    """Half a second of measuring, with as many threads as the kernels use."""
    peaks: dict[str, float] = {each: max(kernels.multiply_peak(each) for _ in range(TRIES)) for each in PEAKS}
    return Machine(kernels.memory_bandwidth(BANDWIDTH_S), peaks)


def between(before: Machine, after: Machine) -> Machine:
    """What a figure taken between two looks could have had: the mean of the bandwidths, which drift, and the greater of
    the multiply rates, which only other work can lower."""
    peaks = {name: max(peak, after.operations_per_s[name]) for name, peak in before.operations_per_s.items()}
    return Machine((before.bytes_per_s + after.bytes_per_s) / 2, peaks)


def foreign_cores() -> float:
    """How many cores are busy while nothing is asked of any server: other people's work, which spoils the figures."""
    return psutil.cpu_percent(LOOK_S) / 100 * (psutil.cpu_count() or 1)


def memory_bytes(pid: int) -> int:
    """What a process and its children hold together, shared pages counted once."""
    process = psutil.Process(pid)
    return sum(each.memory_full_info().pss for each in (process, *process.children(recursive=True)))
