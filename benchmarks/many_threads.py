#!/usr/bin/env python3
"""A simulation of the work sharing with more threads than this machine has processors.

    python benchmarks/many_threads.py                   # llama-3.2-1b at int8, by chunk costs that were measured once
    python benchmarks/many_threads.py --model FOLDER    # measures them here first
    python benchmarks/many_threads.py --line-ns 200 --threads 64 192

Time is virtual: each thread takes chunks as csrc/thread_pool.cpp hands them out, in a queue of events. What a chunk
takes is measured, with one thread; what the processors take to tell each other is a parameter:

    --line-ns    until a line that another core has changed is here: what each of many atomics on it costs, in turn
    --read-ns    between two cores that read a line which has just changed
    --wake-ns    until a thread that sleeps runs; threads sleep between steps that are a millisecond apart

Printed are, for a prefill of 512 tokens and for a decoding step, the time; the ``least`` there could be, which is that
of one thread divided by their number, or what the memory takes to read the weights; the part of it that is ``reached``,
and where the rest goes: ``start`` is until a thread has its first chunk of a loop, ``claim`` until it has further ones,
``end`` is from its last one to the end of the loop. ``before``: one cursor for all threads, and chunks of whole
columns, as it was; ``after``: as it is. Chunks differ by some percent at random; nothing else runs on the machine.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

LAYERS, WIDTH, INNER, QKV, VOCAB = 16, 2048, 8192, 3072, 128256
KV_HEADS, GROUP = 8, 4
TOKENS = 512

# Microseconds of all layers together, with one thread of an EPYC 9R14 (AVX-512) at int8, 128 tokens before the step:
# ``benchmarks/steps.py llama-3.2-1b --precision int8 --threads 1 --rows 1 --chunks 512``.
PREFILL_US = {
    "linear 16384 x 2048": 1_252_386, "linear 2048 x 8192": 640_079, "linear 3072 x 2048": 254_915,
    "linear 2048 x 2048": 160_987, "attend": 167_650, "activation": 26_460, "norm": 11_121,
    "linear 128256 x 2048": 9_388, "rotate": 8_104, "write_kv": 5_830, "embed": 2_772,
}  # fmt: skip
DECODE_US = {
    "linear 16384 x 2048": 23_407, "linear 2048 x 8192": 11_717, "linear 128256 x 2048": 10_808,
    "linear 3072 x 2048": 5_281, "linear 2048 x 2048": 3_684, "attend": 618, "write_kv": 134, "norm": 96,
    "activation": 77, "rotate": 46, "embed": 22,
}  # fmt: skip

# Of csrc: bytes of weights and floats that are a chunk, queries of a tile, rows of a part of a product.
CHUNK_BYTES, CHUNK_FLOATS, TILE_QUERIES, CHUNKS_OF_THREAD = 65536, 16384, 32, 24
JITTER = 0.03


class Machine(NamedTuple):
    """What processors take to tell each other, in nanoseconds; ``bytes_per_s`` of the memory, 0: no limit."""

    line_ns: float = 100.0
    read_ns: float = 10.0
    wake_ns: float = 50_000.0
    bytes_per_s: float = 0.0


class Loop(NamedTuple):
    """A parallel loop: ``count`` items that take ``item_ns`` each, handed out in ``grain``s."""

    name: str
    count: int
    grain: int
    item_ns: float
    guided: bool = False
    item_bytes: float = 0.0


class Pool(NamedTuple):
    """How work is shared: threads with a cursor in common (0: all), and rows of a part of a product (0: all)."""

    threads_of_cursor: int
    part_rows: int


BEFORE, AFTER = Pool(0, 0), Pool(8, 24)


class Spent(NamedTuple):
    """Nanoseconds of all threads together."""

    work: float = 0.0
    start: float = 0.0
    claim: float = 0.0
    end: float = 0.0


def loops(costs: dict[str, float], tokens: int, threads: int, pool: Pool) -> Iterator[Loop]:
    """The loops of a step, in order; those of one layer as often as there are layers."""
    norm_ns = 1e3 * costs["norm"] / (2 * LAYERS + 1) / tokens / WIDTH  # of one number; quantizing takes as long

    def grain_of(width: int) -> int:
        grain = max(1, CHUNK_FLOATS // width)
        if not pool.part_rows or tokens <= grain:
            return grain
        return min(grain, max(1, grain // 8, tokens // (2 * threads)))

    def rows(name: str, total_us: float, times: int, width: int) -> Loop:
        return Loop(name, tokens, grain_of(width), 1e3 * total_us / times / tokens)

    def prepare(width: int) -> Loop:
        return Loop("prepare", tokens, grain_of(width), norm_ns * width)

    def product(n: int, k: int, times: int, of_rows: int = tokens) -> Loop:
        name = f"linear {n} x {k}"
        blocks, parts = n // 32, 1
        alone_ns = 1e3 * costs[name] / times - (norm_ns * k * of_rows)
        grain = max(1, CHUNK_BYTES // (32 * k))
        wanted = -(-CHUNKS_OF_THREAD * threads // blocks)
        if pool.part_rows and (parts := max(1, min(of_rows // pool.part_rows, wanted))) > 1:
            grain = 1
        return Loop(name, blocks * parts, grain, alone_ns / blocks / parts, True, 0.0 if parts > 1 else 32.0 * k)

    def attend() -> Loop:
        if tokens == 1:
            return Loop(
                "attend", KV_HEADS, max(1, KV_HEADS // (4 * threads)), 1e3 * costs["attend"] / LAYERS / KV_HEADS
            )
        tiles = KV_HEADS * tokens * GROUP // TILE_QUERIES
        return Loop("attend", tiles, 1, 1e3 * costs["attend"] / LAYERS / tiles)

    yield rows("embed", costs["embed"], 1, WIDTH)
    for _ in range(LAYERS):
        yield rows("norm", costs["norm"], 2 * LAYERS + 1, WIDTH)
        yield prepare(WIDTH)
        yield product(QKV, WIDTH, LAYERS)
        yield rows("rotate", costs["rotate"], LAYERS, QKV)
        yield rows("write_kv", costs["write_kv"], LAYERS, WIDTH)
        yield attend()
        yield prepare(WIDTH)
        yield product(WIDTH, WIDTH, LAYERS)
        yield rows("norm", costs["norm"], 2 * LAYERS + 1, WIDTH)
        yield prepare(WIDTH)
        yield product(2 * INNER, WIDTH, LAYERS)
        yield rows("activation", costs["activation"], LAYERS, INNER)
        yield prepare(INNER)
        yield product(WIDTH, INNER, LAYERS)
    yield product(VOCAB, WIDTH, 1, 1)


def cursors(count: int, threads: int, pool: Pool) -> list[list[int]]:
    """First and last chunk of the range of each cursor."""
    groups = 1 if pool.threads_of_cursor == 0 else max(1, min(count, -(-threads // pool.threads_of_cursor)))
    return [[count * group // groups, count * (group + 1) // groups] for group in range(groups)]


def run(
    loop: Loop, threads: int, begin_ns: float, machine: Machine, pool: Pool, rng: random.Random
) -> tuple[float, Spent]:
    """When the loop ends, and what its threads spent. All of them wait for it from ``begin_ns`` on."""
    chunks = -(-loop.count // loop.grain)
    if threads == 1 or chunks == 1:
        work = loop.item_ns * loop.count
        return begin_ns + work, Spent(work=work, end=work * (threads - 1))
    ranges = cursors(chunks, threads, pool)
    of_group = -(-threads // len(ranges))
    published = begin_ns + machine.line_ns * (1 + len(ranges) / 8)  # stores to several lines overlap
    free_at = [published] * len(ranges)  # when the line of a cursor can be had by the next thread
    done_free = [published] * len(ranges)
    left = [last - first for first, last in ranges]
    finished = published
    # Each event: when a thread is about to take a chunk of a group, or has done so many of it.
    events = [
        (published + machine.line_ns + rank * machine.read_ns, rank, rank // of_group, 0) for rank in range(threads)
    ]
    events[0] = (published, 0, 0, 0)
    heapq.heapify(events)
    is_first = [True] * threads
    work = start = claim = 0.0
    idle_from = [published] * threads
    # Of the memory each thread that reads has a share.
    slowest_ns = loop.item_bytes * min(threads, chunks) / machine.bytes_per_s * 1e9 if machine.bytes_per_s else 0.0
    item_ns = max(loop.item_ns, slowest_ns)
    groups_left = len(ranges)
    while events:
        now, rank, group, done = heapq.heappop(events)
        if done:
            now = max(now, done_free[group]) + machine.line_ns
            done_free[group] = idle_from[rank] = now
            left[group] -= done
            if left[group] == 0:
                groups_left -= 1
                now += machine.line_ns if len(ranges) > 1 else 0.0
            finished = max(finished, now)
            heapq.heappush(events, (idle_from[rank], rank, group, 0))
            continue
        for step in range(len(ranges)):
            number = (group + step) % len(ranges)
            if ranges[number][0] < ranges[number][1]:
                break
            now += machine.read_ns  # a look at a line that nobody changes any more
        else:
            continue
        has = max(now, free_at[number]) + machine.line_ns
        free_at[number] = has
        first, last = ranges[number]
        share = 2 * of_group
        taken = max(1, (last - first) // share) if loop.guided else 1
        ranges[number][0] += taken
        items = min(loop.count, (first + taken) * loop.grain) - first * loop.grain
        cost = items * item_ns * rng.lognormvariate(0.0, JITTER)
        work += cost
        if is_first[rank]:
            is_first[rank] = False
            start += has - begin_ns
        else:
            claim += has - idle_from[rank]
        heapq.heappush(events, (has + cost, rank, number, taken))
    assert groups_left == 0
    ends = finished + machine.line_ns
    return ends, Spent(work, start, claim, threads * (ends - begin_ns) - work - start - claim)


def step(
    costs: dict[str, float], tokens: int, threads: int, machine: Machine, pool: Pool
) -> tuple[float, Spent, dict[str, float]]:
    """Nanoseconds of a step, what all threads spent, and how long its loops take by name."""
    rng = random.Random(0)
    now, spent = (machine.wake_ns if threads > 1 else 0.0), Spent()
    by_name: dict[str, float] = {}
    for loop in loops(costs, tokens, threads, pool):
        ended, found = run(loop, threads, now, machine, pool, rng)
        by_name[loop.name] = by_name.get(loop.name, 0.0) + ended - now
        now, spent = ended, Spent(*(a + b for a, b in zip(spent, found, strict=True)))
    return now, spent, by_name


def measured(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The costs of a chunk of 512 tokens and of a decoding step with one thread here, in microseconds by operation."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from dragoman import kernels, models
    from steps import batch_of, profile

    kernels.set_threads(1)
    model = models.load(str(folder), models.ModelSettings(precision="int8", kv_bytes=1 << 30, weights_memory="copy"))
    prefill = profile(model, batch_of(1, TOKENS, 128, model), 2)
    return prefill, profile(model, batch_of(1, 1, 128, model), 8)


def table(
    costs: dict[str, float], tokens: int, counts: Sequence[int], machine: Machine, *, by_loop: bool = False
) -> None:
    """Print a line for each number of threads, before and after."""
    one_ns = step(costs, tokens, 1, machine._replace(bytes_per_s=0.0), AFTER)[0]
    read_bytes = sum(loop.item_bytes * loop.count for loop in loops(costs, tokens, 1, BEFORE))
    read_ns = 1e9 * read_bytes / machine.bytes_per_s if machine.bytes_per_s else 0.0
    print("| threads | | ms | least | reached | start | claim | end |")
    print("|---|---|---|---|---|---|---|---|")
    for threads in counts:
        for name, pool in (("before", BEFORE), ("after", AFTER)):
            took, spent, by_name = step(costs, tokens, threads, machine, pool)
            shares = (f"{100 * each / threads / took:.1f} %" for each in spent[1:])
            least = max(one_ns / threads, read_ns)
            figures = f"{took / 1e6:.2f} | {least / 1e6:.2f} | {100 * least / took:.0f} %"
            print(f"| {threads} | {name} | {figures} |", " | ".join(shares), "|")
            if by_loop:
                for loop, ns in sorted(by_name.items(), key=lambda item: -item[1]):
                    print(f"    {loop:24} {ns / 1e3:10,.0f} µs", file=sys.stderr)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="llama-3.2-1b, to measure what chunks cost here")
    parser.add_argument("--threads", type=int, nargs="+", default=[8, 16, 64, 192])
    parser.add_argument("--line-ns", type=float, default=Machine().line_ns)
    parser.add_argument("--read-ns", type=float, default=Machine().read_ns)
    parser.add_argument("--wake-ns", type=float, default=Machine().wake_ns)
    parser.add_argument("--gb-per-s", type=float, default=400.0, help="of the memory, for decoding")
    parser.add_argument("--loops", action="store_true", help="also the time of each kind of loop")
    options = parser.parse_args()
    prefill, decode = measured(options.model) if options.model else (PREFILL_US, DECODE_US)
    machine = Machine(options.line_ns, options.read_ns, options.wake_ns)
    print(f"A prefill of {TOKENS} tokens\n")
    table(prefill, TOKENS, options.threads, machine, by_loop=options.loops)
    print(f"\nA decoding step, memory of {options.gb_per_s:g} GB/s\n")
    table(decode, 1, options.threads, machine._replace(bytes_per_s=1e9 * options.gb_per_s), by_loop=options.loops)
    return 0


if __name__ == "__main__":
    sys.exit(main())
