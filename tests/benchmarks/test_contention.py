"""What counts lost claims compiles with the pool as it is, and its loops do each of their chunks once."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.contention import count


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_all_chunks_are_claimed_and_losses_counted() -> None:
    found = count([2, 17], 1, "-O0")
    assert [(row.threads, row.chunk_us, row.kind) for row in found] == [
        (threads, chunk_us, kind) for threads in (2, 17) for chunk_us in (0, 10) for kind in ("single", "guided")
    ]
    for row in found:
        assert row.claims == row.chunks if row.kind == "single" else row.claims < row.chunks
        assert row.lost >= 0
