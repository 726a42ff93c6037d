"""The machine's processors, and the choice of those that compute.

Linux describes them in folders of text (sysfs, Documentation/ABI/testing/sysfs-devices-system-cpu), which ``read``
makes values of; where a file is missing, each processor counts as a fast core of its own on one memory node. ``choose``
decides, without looking at the system again.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import ModelError
from dragoman.models import cgroups

SYSTEM = Path("/sys/devices")

MOST_THREADS = 1024
"""As many as the kernels' pool takes."""

EFFICIENT_BELOW = 0.6
"""A core with less than this part of the fastest one's capacity is an efficiency core. Of ARM's pairs, a Cortex-A55 has
0.25 to 0.52 of what its neighbours have, a Cortex-A76 beside an X1 0.6."""

INTEL_KINDS = {"cpu_core": True, "cpu_atom": False, "cpu_lowpower": False}
"""Folders of Intel's hybrid processors, and whether their cores are the fast ones."""


class Core(NamedTuple):
    """A physical core. ``processors``: the numbers of its hardware threads, ascending. ``is_fast``: not an efficiency
    core. ``node``: whose memory is nearest."""

    processors: tuple[int, ...]
    package: int = 0
    node: int = 0
    is_fast: bool = True


class Topology(NamedTuple):
    """The online cores, by their first processor; ``caches``: how many last-level caches they share, 0 if unknown."""

    cores: tuple[Core, ...]
    caches: int = 0

    @property
    def processors(self) -> frozenset[int]:
        return frozenset(number for core in self.cores for number in core.processors)


class Placement(NamedTuple):
    """What computes, and why.

    Attributes:
        threads: how many.
        processors: those that the threads are tied to, ascending; empty: the system's choice among all that are
            allowed. Threads are tied to all of them together and not each to its own: one whose processor another
            process has taken goes on elsewhere, and engines that share a machine do not meet on the first ones.
        nodes: memory nodes that weights, keys and values are spread over; fewer than two: where they are first touched.
        reason: one line for people.
    """

    threads: int
    processors: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.threads} ({self.reason})"


def read(system: Path = SYSTEM) -> Topology:
    """Return the topology that the folder (``/sys/devices``) describes; without cores where it describes none."""
    folder = system / "system" / "cpu"
    online = _list(folder / "online") or tuple(_numbered(folder, "cpu"))
    nodes = {
        number: node
        for node in _numbered(system / "system" / "node", "node")
        for number in _list(system / "system" / "node" / f"node{node}" / "cpulist")
    }
    slow = _slow_processors(system, folder, online)
    cores: list[Core] = []
    seen: set[int] = set()
    for number in online:
        if number in seen:
            continue
        topology = folder / f"cpu{number}" / "topology"
        siblings = _list(topology / "core_cpus_list") or _list(topology / "thread_siblings_list")
        # An odd file must not make a processor appear twice, or not at all.
        own = tuple(each for each in siblings if each in online and each not in seen) or (number,)
        processors = own if number in own else (number,)
        seen.update(processors)
        package = max(0, _number(topology / "physical_package_id", 0))
        cores.append(Core(processors, package, nodes.get(number, 0), number not in slow))
    return Topology(tuple(cores), _count_caches(folder, online))


def choose(
    topology: Topology,
    allowed: Collection[int],
    quota: float | None = None,
    threads: int | None = None,
    wanted: Sequence[int] | None = None,
) -> Placement:
    """Return what computes on these cores.

    One thread for each physical core that is not an efficiency core, of the processors that are ``allowed``, within the
    ``quota`` of processor time; ``threads`` and ``wanted`` processors are the user's, and come before that. Raises
    ModelError where ``wanted`` are not all allowed.
    """
    usable = sorted(allowed)
    whose = f"{_count(len(usable), 'processor')}"
    if wanted is not None:
        if lacking := sorted(set(wanted) - set(allowed)):
            raise ModelError(f"--cpus: this process may not use {_spell(lacking)}; it may use {_spell(usable)}")
        usable = sorted(set(wanted))
        whose = f"{_count(len(usable), 'processor')} of --cpus"
    known = [(core, tuple(n for n in core.processors if n in usable)) for core in topology.cores]
    placed = {number for _, numbers in known for number in numbers}
    cores = [(core, numbers) for core, numbers in known if numbers]
    cores += [(Core((number,)), (number,)) for number in usable if number not in placed]
    fast = [(core, numbers) for core, numbers in cores if core.is_fast]
    # Whoever names processors wants them, and a quota may be all on slow ones.
    left_out = len(cores) - len(fast) if fast and wanted is None else 0
    computing = fast if left_out else cores
    most = MOST_THREADS if quota is None else max(1, cgroups.whole_processors(quota))
    count = threads if threads is not None else max(1, min(len(computing), most, MOST_THREADS))
    reasons = []
    if threads is not None:
        reasons.append("as --threads says")
    elif count < len(computing):
        reasons.append(
            f"a quota of {quota:g} processors" if quota is not None else f"the most there may be, {MOST_THREADS}"
        )
    else:
        kind = "physical core" if len(cores) < len(usable) or left_out else "core"
        reasons.append(f"one for each {kind} of {whose}")
    if left_out:
        reasons.append(f"without {_count(left_out, 'efficiency core')}")
    if threads is None or threads <= len(computing):
        chosen = tuple(sorted(numbers[0] for _, numbers in computing))
    else:
        chosen = tuple(usable)  # more threads than fast cores: all that there is
    if chosen == tuple(sorted(allowed)):
        chosen = ()
    nodes = tuple(sorted({core.node for core, numbers in cores if set(chosen or usable) & set(numbers)}))
    if len(nodes) > 1:
        reasons.append(f"memory spread over {len(nodes)} nodes")
    return Placement(count, chosen, nodes if len(nodes) > 1 else (), ", ".join(reasons))


def place(threads: int | None = None, cpus: str | None = None, system: Path = SYSTEM) -> Placement:
    """Return what computes on this machine: see ``choose``. ``cpus``: a list such as ``0-15,32``. Raises ModelError for
    processors that this process may not use, or where the system cannot tie a process to some."""
    wanted = None
    if cpus is not None:
        if not hasattr(os, "sched_setaffinity"):
            raise ModelError("--cpus: this system does not tie processes to processors; --threads limits their number")
        try:
            wanted = cgroups.parse_list(cpus)
        except ValueError as error:
            raise ModelError(f"--cpus: a list such as 0-15,32 is wanted, not {cpus!r}") from error
    if not hasattr(os, "sched_getaffinity"):
        return _place_elsewhere(threads, os.cpu_count() or 1, _system_number)
    allowed = cgroups.allowed_set()
    return choose(read(system), allowed, cgroups.processors(), threads, wanted)


def describe(topology: Topology) -> str:
    """Return one line about the machine: cores, hardware threads, sockets, caches and memory nodes."""
    if not topology.cores:
        return "the system does not describe them"
    slow = sum(not core.is_fast for core in topology.cores)
    parts = [
        f"{_count(len(topology.cores), 'core')}{f' ({slow} of them for efficiency)' if slow else ''}",
        _count(len(topology.processors), "hardware thread"),
        _count(len({core.package for core in topology.cores}), "socket"),
        _count(topology.caches, "last-level cache") if topology.caches else "",
        _count(len({core.node for core in topology.cores}), "memory node"),
    ]
    return ", ".join(filter(None, parts))


def _place_elsewhere(threads: int | None, processors: int, system_number: Callable[[str], int | None]) -> Placement:
    """macOS, which ties no thread to a processor, says how many cores are fast, and keeps busy threads there."""
    if threads is not None:
        return Placement(threads, reason="as --threads says")
    fast, cores = system_number("hw.perflevel0.physicalcpu"), system_number("hw.physicalcpu")
    if fast and cores and fast < cores:
        left_out = _count(cores - fast, "efficiency core")
        reason = f"one for each physical core of {_count(processors, 'processor')}, without {left_out}"
        return Placement(fast, reason=reason)
    count = max(1, min(cores or processors, MOST_THREADS))
    return Placement(count, reason=f"one for each core of {_count(processors, 'processor')}")


def _system_number(name: str) -> int | None:
    """Return a number of sysctl(3) of macOS; None elsewhere, and where it has none of the name."""
    if sys.platform != "darwin":
        return None
    value = ctypes.c_int64()
    size = ctypes.c_size_t(ctypes.sizeof(value))
    ask = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if ask is None or ask(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0) != 0:
        return None
    return value.value if size.value == 8 else value.value & 0xFFFFFFFF


def _slow_processors(system: Path, folder: Path, online: Sequence[int]) -> frozenset[int]:
    kinds = {is_fast: set[int]() for is_fast in (True, False)}
    for name, is_fast in INTEL_KINDS.items():
        kinds[is_fast].update(_list(system / name / "cpus"))
    if kinds[True]:
        return frozenset(kinds[False])
    capacity = {number: _number(folder / f"cpu{number}" / "cpu_capacity", 0) for number in online}
    highest = max(capacity.values(), default=0)
    return frozenset(number for number, found in capacity.items() if 0 < found < EFFICIENT_BELOW * highest)


def _count_caches(folder: Path, online: Sequence[int]) -> int:
    """How many caches of the third level there are; 0 where there is none, or the system does not tell."""
    seen: set[int] = set()
    count = 0
    for number in online:
        if number in seen:
            continue
        caches = folder / f"cpu{number}" / "cache"
        for index in (caches / f"index{each}" for each in _numbered(caches, "index")):
            if _number(index / "level", 0) == 3 and (shared := _list(index / "shared_cpu_list")):
                seen.update(shared)
                count += 1
                break
        else:
            return 0
    return count


def _numbered(folder: Path, name: str) -> list[int]:
    """Return the numbers of the folder's entries that are called so, ascending; none where it cannot be read."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(each.removeprefix(name)) for each in entries if re.fullmatch(name + r"[0-9]{1,5}", each))


def _list(path: Path) -> tuple[int, ...]:
    try:
        return cgroups.parse_list(path.read_text("ascii"))
    except (OSError, ValueError):  # missing, empty, or not what is documented
        return ()


def _number(path: Path, otherwise: int) -> int:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return otherwise


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _spell(numbers: Sequence[int]) -> str:
    """Return numbers as Linux writes them: ``0-3,8``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)
