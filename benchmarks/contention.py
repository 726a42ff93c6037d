#!/usr/bin/env python3
"""How often threads of the pool want the same chunk at the same time, counted on this machine.

    python benchmarks/contention.py                      # some seconds to compile, and twenty to run
    python benchmarks/contention.py --threads 2 64 --milliseconds 2000

A thread claims chunks by exchanging a cursor, which several have in common. The exchange is ``lost``, and done again,
where another thread has changed the cursor since it was read. ``csrc/thread_pool.cpp`` is compiled with a counter of
those, once as it is and once for the thread sanitizer, which stops where a loop has a data race. Loops have 24 chunks
for each thread; a chunk is empty, so that threads do nothing but claim, or takes 10 µs as those of a model do. They are
claimed one by one, or by ``guided`` loops at first many at once. The exit code is 1 where a loop did not do each of its
chunks once, or the sanitizer found something.

With more threads than processors, few are at work at the same time: what is counted then is whether a thread that was
stopped in the middle of a claim is in the way of others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Counted(NamedTuple):
    """What the loops of one kind did."""

    threads: int
    chunk_us: int
    kind: str
    chunks: int
    claims: int
    lost: int


def count(threads: Sequence[int], milliseconds: int, *flags: str) -> list[Counted]:
    """Compile with further flags and count.

    Raises:
        subprocess.CalledProcessError: it does not compile, a loop was wrong, or the sanitizer found something.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "contention"
        source = ROOT / "benchmarks" / "contention.cpp"
        compiler = os.environ.get("CXX", "g++")
        subprocess.run(
            (compiler, "-std=c++20", "-pthread", *flags, "-I", ROOT / "csrc", source, "-o", program), check=True
        )
        command = (program, str(milliseconds), *map(str, threads))
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = (line.split() for line in printed.splitlines())
    return [Counted(int(row[0]), int(row[1]), row[2], *map(int, row[3:])) for row in rows]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 8, 16, 64, 200])
    parser.add_argument("--milliseconds", type=int, default=500, help="of each number of threads and kind of loop")
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors\n")
    for title, flags in (("plain", ("-O2",)), ("thread sanitizer", ("-O2", "-g", "-fsanitize=thread"))):
        try:
            found = count(options.threads, options.milliseconds, *flags)
        except subprocess.CalledProcessError as error:
            print(f"{title}: {error}", file=sys.stderr)
            return 1
        print("| | threads | a chunk | loops | claims | lost | of 1,000 claims |")
        print("|---|---|---|---|---|---|---|")
        for row in found:
            figures = f"{row.claims:,} | {row.lost:,} | {1000 * row.lost / row.claims:.3f}"
            print(f"| {title} | {row.threads} | {row.chunk_us} µs | {row.kind} | {figures} |")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
