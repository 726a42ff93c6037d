"""Memory and processor limits of this process's Linux control groups (cgroups(7)), version 1 and 2.

A process is in one group, and the limits of all parent groups apply too: a service's ``MemoryMax=``, a container's,
a pod's. The smallest one counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

MOST_PROCESSORS = 1 << 14
"""Larger numbers in a list are not of a processor: Linux is built for 8,192 at most."""

_NO_LIMIT = 1 << 60
"""Version 1 writes a number near 2**63 where there is no limit."""

_DROPPABLE = ("inactive_file", "active_file", "slab_reclaimable")


def memory_left() -> list[int]:
    """Return the bytes that each limited group of this process may still take, droppable caches included."""
    return [left for group in _groups("memory") if (left := _memory_left(group)) is not None]


def processors() -> float | None:
    """Return the smallest quota of processor time, in processors; None without one."""
    quotas = [quota for group in _groups("cpu") if (quota := _processors(group)) is not None]
    return min(quotas, default=None)


def whole_processors(quota: float) -> int:
    """Return how many threads a quota of so many processors keeps busy; with more, all of them are stopped for a part
    of each period."""
    return math.ceil(quota - 0.25)


def allowed_set() -> frozenset[int]:
    """Return the processors that this process may use: those it is tied to, within the sets of its groups."""
    allowed = frozenset(os.sched_getaffinity(0))
    for group in _groups("cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            try:
                allowed = allowed.intersection(parse_list((group / name).read_text("ascii"))) or allowed
            except (OSError, ValueError):  # not of this version, or empty
                continue
    return allowed


def parse_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a list as Linux writes it, ascending: ``0-3,8,10-11``. Raises ValueError."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        begin, end = (int(each) if each.isascii() and each.isdecimal() else -1 for each in (first, last))
        if not 0 <= begin <= end < MOST_PROCESSORS:
            raise ValueError(f"{part.strip()!r} is no range of processors")
        numbers.update(range(begin, end + 1))
    return tuple(sorted(numbers))


def allowed_processors() -> int:
    """Return how many processors this process may use; all of them where the system cannot tie a process to some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of its parents, in the hierarchy that has the controller."""
    try:
        lines = MEMBERSHIP.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = ROOT / controller if names else ROOT
        # In a container the path may be the host's, of which only the end, or nothing, is mounted here.
        inner = PurePosixPath(path.lstrip("/"))
        for group in (inner, *inner.parents):
            if ".." not in group.parts and (folder := root / group).is_dir():
                yield folder


def _memory_left(group: Path) -> int | None:
    """Return what a group may still take, with all that the system drops before it ends a process; None: no limit.

    That is the cache of files, those that were read more than once too: an engine that starts again has read its packed
    weights before. A group of version 1 knows the smallest limit above it, which a container may not see.
    """
    statistics = _statistics(group / "memory.stat")
    for limits, usage, prefix in (
        ((_number(group / "memory.max"), _number(group / "memory.high")), "memory.current", ""),
        (
            (_number(group / "memory.limit_in_bytes"), statistics.get("hierarchical_memory_limit")),
            "memory.usage_in_bytes",
            "total_",
        ),
    ):
        limited = [limit for limit in limits if limit is not None and limit < _NO_LIMIT]
        if limited:
            used = _number(group / usage) or 0
            droppable = sum(statistics.get(prefix + name, 0) for name in _DROPPABLE)
            return max(0, min(limited) - max(0, used - droppable))
    return None


def _processors(group: Path) -> float | None:
    try:
        quota, _, period = (group / "cpu.max").read_text().partition(" ")
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us is not None and quota_us > 0 and period_us else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # not of this version, or the limit is "max"
        return None


def _statistics(path: Path) -> dict[str, int]:
    try:
        return {name: int(value) for name, value in map(str.split, path.read_text().splitlines())}
    except (OSError, ValueError):
        return {}
