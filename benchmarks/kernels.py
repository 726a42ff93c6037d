"""The speed of the packed matrix products, compared to the limits of the machine.

For each shape, precision and number of rows: milliseconds, GB/s of weights and the measured read bandwidth, and
TOP/s and the peak of the multiply instruction. The weights are cold (a ring of matrices larger than the caches);
bandwidth is measured again around every line, since it drifts on shared machines. Best of several runs.

    python benchmarks/kernels.py --precision int8 --rows 1 8 32 512
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from dragoman import kernels

# N, K of the projections of llama-3.2-1b: fused query, key and value; output; fused gate and up; down; vocabulary.
SHAPES = [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048)]
PRECISIONS: list[kernels.Precision] = ["float32", "bfloat16", "int8", "int4", *kernels.BLOCK_PRECISIONS]
# Values and bytes of a block of ggml.
BLOCKS = {
    "mxfp4": (32, 17), "iq4_nl": (32, 18), "iq4_xs": (256, 136), "q3_k": (256, 110), "q4_k": (256, 144),
    "q5_k": (256, 176), "q6_k": (256, 210),
}  # fmt: skip
RING_BYTES = 300_000_000


def packed(n: int, k: int, precision: kernels.Precision) -> kernels.PackedMatrix:
    """A random matrix; of ggml's types blocks of equal bytes, whose numbers are all small."""
    if precision not in kernels.BLOCK_PRECISIONS:
        return kernels.pack(np.random.default_rng(0).standard_normal((n, k), np.float32), precision)
    values, size = BLOCKS[precision]
    return kernels.pack_blocks(np.full((n, k // values * size), 33, np.uint8), k, precision)


def ring_of(n: int, k: int, precision: kernels.Precision) -> list[kernels.PackedMatrix]:
    """Enough matrices of one shape that none is still in a cache when its turn comes again."""
    first = packed(n, k, precision)
    ring = [first]
    while sum(matrix.nbytes for matrix in ring) < RING_BYTES:
        memory = kernels.empty(first.nbytes)
        memory[:] = first.data
        ring.append(kernels.PackedMatrix(memory, n, k, precision))
    return ring


def seconds_per_product(ring: list[kernels.PackedMatrix], rows: int, repetitions: int) -> float:
    n, k = ring[0].shape
    x = np.random.default_rng(1).standard_normal((rows, k), np.float32)
    out = np.empty((rows, n), np.float32)
    used = ring if rows < 64 else ring[:3]  # many rows are bound by multiplication: a few matrices tell enough
    best = np.inf
    for _ in range(repetitions):
        start = time.perf_counter()
        for matrix in used:
            kernels.linear(x, matrix, out=out)
        best = min(best, (time.perf_counter() - start) / len(used))
    return best


def measure(precisions: Sequence[kernels.Precision], all_rows: Sequence[int], repetitions: int) -> Table:
    table = Table("N", "K", "precision", "rows", "ms", "GB/s", "of read", "TOP/s", "of peak")
    for precision in precisions:
        peak = kernels.multiply_peak(precision)
        for n, k in SHAPES:
            ring = ring_of(n, k, precision)
            for rows in all_rows:
                before = kernels.memory_bandwidth(0.1)
                seconds = seconds_per_product(ring, rows, repetitions)
                bandwidth = max(before, kernels.memory_bandwidth(0.1))
                read, operations = ring[0].nbytes / seconds, 2 * n * k * rows / seconds
                table.add_row(
                    str(n),
                    str(k),
                    precision,
                    str(rows),
                    f"{seconds * 1e3:.3f}",
                    f"{read / 1e9:.1f}",
                    f"{read / bandwidth:.0%}",
                    f"{operations / 1e12:.2f}",
                    f"{operations / peak:.0%}",
                )
            table.add_section()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 8, 32, 512])
    parser.add_argument("--threads", type=int, default=kernels.threads())
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    kernels.set_threads(arguments.threads)
    console = Console()
    console.print(f"{kernels.instruction_set()} kernels, {kernels.threads()} threads")
    console.print(f"read bandwidth {kernels.memory_bandwidth(1.0) / 1e9:.1f} GB/s")
    for precision in arguments.precision:
        console.print(f"peak {precision:8} {kernels.multiply_peak(precision) / 1e12:.2f} TOP/s")
    console.print(measure(arguments.precision, arguments.rows, arguments.repetitions))


if __name__ == "__main__":
    main()
