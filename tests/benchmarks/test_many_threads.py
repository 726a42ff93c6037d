"""The simulation of many threads: it does all the work, is of this pool, and says what performance.md says."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from benchmarks.many_threads import (
    AFTER,
    BEFORE,
    CHUNK_BYTES,
    CHUNK_FLOATS,
    CHUNKS_OF_THREAD,
    DECODE_US,
    PREFILL_US,
    TILE_QUERIES,
    TOKENS,
    Loop,
    Machine,
    Pool,
    run,
    step,
)

CSRC = Path(__file__).parents[2] / "csrc"


def constant(file: str, pattern: str) -> int:
    found = re.search(pattern, (CSRC / file).read_text())
    assert found is not None, pattern
    return int(found[1])


def test_it_shares_work_as_the_pool_does() -> None:
    assert AFTER.threads_of_cursor == constant("thread_pool.h", r"kThreadsOfCursor = (\d+)")
    assert AFTER.part_rows == constant("gemm/linear.cpp", r"kTileRows = (\d+)")
    assert constant("gemm/linear.cpp", r"kChunksOfThread = (\d+)") == CHUNKS_OF_THREAD
    assert constant("gemm/linear.cpp", r"(\d+) / std::max\(1L, w\.block_bytes") == CHUNK_BYTES
    assert constant("program/for_rows.h", r"kChunkFloats = (\d+)") == CHUNK_FLOATS
    assert constant("attention/attention.h", r"kTileQueries = (\d+)") == TILE_QUERIES


@pytest.mark.parametrize("pool", [BEFORE, AFTER])
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 100, 1001])
def test_all_items_are_computed_once(pool: Pool, guided: bool, count: int) -> None:
    for threads in (1, 2, 9, 64):
        loop = Loop("any", count, 3, 1000.0, guided)
        ended, spent = run(loop, threads, 5.0, Machine(), pool, random.Random(0))
        assert spent.work == pytest.approx(1000.0 * count, rel=0.1)  # chunks differ
        assert sum(spent) == pytest.approx((ended - 5.0) * threads, rel=1e-6)
        assert ended - 5.0 > 900.0 * count / threads


@pytest.mark.parametrize(("threads", "least"), [(8, 0.98), (16, 0.97), (64, 0.95), (192, 0.90)])
def test_a_prefill_is_shared_well(threads: int, least: float) -> None:
    alone = step(PREFILL_US, TOKENS, 1, Machine(), AFTER)[0]
    assert alone == pytest.approx(1e3 * sum(PREFILL_US.values()), rel=0.01)
    assert alone / threads / step(PREFILL_US, TOKENS, threads, Machine(), AFTER)[0] >= least


def test_one_cursor_for_all_is_worse() -> None:
    machine = Machine(bytes_per_s=4e11)
    for costs, tokens in ((PREFILL_US, TOKENS), (DECODE_US, 1)):
        assert step(costs, tokens, 192, machine, BEFORE)[0] > 1.05 * step(costs, tokens, 192, machine, AFTER)[0]
