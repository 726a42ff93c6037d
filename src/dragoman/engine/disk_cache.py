"""The prefix cache on disk of one engine: how it is opened and closed, and what it has done."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dragoman.engine.disk_prefixes import DiskPrefixes, open_store
from dragoman.engine.prefix_store.store import Counts
from dragoman.engine.runner import Runner
from dragoman.engine.scheduler import Scheduler


def open_disk(
    scheduler: Scheduler,
    runner: Runner,
    path: Path,
    limit_bytes: int | None,
    fingerprint: str,
    label: str,
    compares: bool,
) -> None:
    """Keep prefixes on disk too. Does nothing where the prefix cache is off, and for models with an encoder."""
    if not scheduler.settings.prefix_cache or not runner.causal or runner.encoder_context:
        return
    tables = scheduler.tables
    store = open_store(
        path, limit_bytes, fingerprint, runner, tables.groups, tables.states, label=label, compares=compares
    )
    tables.disk = DiskPrefixes(store, tables.groups, tables.states)


def close_disk(scheduler: Scheduler, runner: Runner) -> None:
    """Write what is left to be kept on disk, for a second at most. No step follows."""
    tables = scheduler.tables
    if tables.disk is None:
        return
    for _ in range(2):
        copies = tables.take_state_copies()
        if copies:
            sources, targets = np.array(copies, np.int32).T.copy()
            runner.copy_states(sources, targets)
    tables.disk.close()


def disk_stats(scheduler: Scheduler) -> dict[str, int]:
    """Return the figures of ``EngineStats`` about the disk."""
    disk = scheduler.tables.disk
    counts = Counts() if disk is None else disk.store.counts
    return {
        "disk_records": 0 if disk is None else disk.store.records,
        "disk_bytes": counts.bytes,
        "disk_read_blocks": counts.read_blocks,
        "disk_read_bytes": counts.read_bytes,
        "disk_written_bytes": counts.written_bytes,
        "disk_damaged": counts.damaged,
        "disk_dropped": counts.dropped,
    }
