"""The memory that all models of a server share, and what its processes take of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from dragoman.core.errors import ModelError
from dragoman.models.memory import available_memory
from dragoman.models.memory_share import SERVER_BYTES
from dragoman.serving.pool_loader import ModelMemory

MARGIN_BYTES = 1 << 30
"""The most that is left to the rest of the machine, where the operator sets no budget; a tenth, where that is less."""


class MemoryBudget:
    """Says whether models fit in together.

    Attributes:
        total_bytes: for the server, its helper processes and all engines.
        is_given: the operator has set it; it is not what the machine had left.
    """

    def __init__(
        self,
        memory_bytes: int | None = None,
        *,
        available: Callable[[], int] = available_memory,
        measure: Callable[[Iterable[int]], int] | None = None,
    ) -> None:
        """``memory_bytes`` None: what the machine, or this process's cgroup, allows now, less a margin. ``measure``:
        see ``processes_bytes``, which it is by default."""
        self._measure = measure or processes_bytes
        self.is_given = memory_bytes is not None
        self._available = available
        if memory_bytes is None:
            left = available()
            memory_bytes = left - min(left // 10, MARGIN_BYTES) + SERVER_BYTES
        self.total_bytes = memory_bytes
        self._server_bytes = SERVER_BYTES

    def measure_server(self, engines: Iterable[int]) -> None:
        """Measure the server with all its processes except those of ``engines``, which are counted by their plans.

        Takes some milliseconds. It counts as ``SERVER_BYTES`` at least: it grows with its callers.
        """
        self._server_bytes = max(SERVER_BYTES, self._measure(engines))

    @property
    def models_bytes(self) -> int:
        """Return the bytes for all models together."""
        return self.total_bytes - self._server_bytes

    def short_bytes(self, wanted: ModelMemory, others: Iterable[ModelMemory]) -> int:
        """Return how many bytes are missing to load a model beside the others; 0: it fits."""
        taken = sum(each.serving_bytes for each in others)
        short = wanted.peak_bytes + taken - self.models_bytes
        return max(0, short, wanted.peak_bytes - self._available())

    def require_possible(self, name: str, wanted: ModelMemory, pinned: Iterable[ModelMemory]) -> None:
        """Raise ModelError where the model does not fit though all others leave that may."""
        kept = sum(each.serving_bytes for each in pinned)
        if wanted.peak_bytes + kept <= self.models_bytes:
            return
        words = f", of which pinned models keep {_gib(kept)}" if kept else ""
        option = "--memory-bytes" if self.is_given else "the memory of this machine"
        raise ModelError(
            f"{name} does not fit: it needs {_gib(wanted.peak_bytes)} while it is loaded, and {option} leaves "
            f"{_gib(max(0, self.models_bytes))} for models{words}"
        )


def process_bytes(pid: int) -> int | None:
    """Return the memory of a process, pages that several share counted by their share (PSS); on other systems than
    Linux what is resident, shared pages included. None where the system does not say."""
    if sys.platform != "linux":
        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return None
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


def processes_bytes(without: Iterable[int]) -> int:
    """Return the memory of this process and its children, except some."""
    left_out = set(without)
    try:
        children = [child.pid for child in psutil.Process().children(recursive=True)]
    except psutil.Error:
        children = []
    pids = [os.getpid(), *(pid for pid in children if pid not in left_out)]
    return sum(process_bytes(pid) or 0 for pid in pids)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.1f} MiB"
