"""What AMX's tiles would cost, computed: documented cycles of products, and cycles of folding by llvm-mca.

    python benchmarks/amx_cycles.py [--mca llvm-mca-19]

No processor with AMX is needed. A pass is 32 rows of a block for 128 inputs of int8, or for 32 of bfloat16. Intel's
Optimization Reference Manual gives a product of tiles of 16 rows 16 cycles, a load of one 8 and a store 16, on
different units. Folding the sums of int8 into float32 are instructions of AVX-512: ``g++`` compiles csrc/simd/amx.cpp,
and llvm-mca simulates the loop with its model of Sapphire Rapids, without caches. Prints the table of
docs/performance.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CORE = "sapphirerapids"
AVX512 = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mavx512vbmi -mfma -mf16c -mavx2"
AMX = "-mamx-tile -mamx-int8 -mamx-bf16"
PRODUCT, LOAD, STORE = 16, 8, 16
"""Cycles of an instruction on tiles of 16 rows, one after the other."""


class Pass(NamedTuple):
    """Instructions on tiles of a pass, as csrc/simd/amx.inl has them, and the products that it makes."""

    name: str
    inputs: int
    products: int
    loads: int
    stores: int


PASSES = (Pass("int8, one scale for 128", 128, 8, 8, 4), Pass("bfloat16", 32, 4, 4, 0))


def assembly() -> list[str]:
    """The lines of the translation unit's assembly."""
    flags = f"-std=c++20 -O3 -DNDEBUG -fPIC -fno-math-errno -ffp-contract=off -w {AVX512} {AMX}".split()
    command = ("g++", *flags, f"-I{ROOT / 'csrc'}", "-S", "-o", "-", ROOT / "csrc" / "simd" / "amx.cpp")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [line.split("#")[0].strip() for line in done.stdout.splitlines()]


def loops(lines: Sequence[str]) -> list[list[str]]:
    """The bodies of all loops that jump back to a label, the shortest first."""
    labels = {line[:-1]: number for number, line in enumerate(lines) if re.fullmatch(r"\.L\w+:", line)}
    found = []
    for number, line in enumerate(lines):
        jump = re.match(r"j\w+\s+(\.L\w+)$", line)
        if jump is not None and labels.get(jump[1], number) < number:
            body = lines[labels[jump[1]] : number]
            found.append([each for each in body if each and each[0] not in "./" and not re.match(r"j\w+\s", each)])
    return sorted(found, key=len)


def cycles(instructions: Iterable[str], mca: str) -> float:
    """Cycles of one round of the instructions, of a hundred."""
    command = (mca, "-mtriple=x86_64", f"-mcpu={CORE}", "-iterations=100")
    done = subprocess.run(command, input="\n".join(instructions), check=True, capture_output=True, text=True)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert found is not None, done.stdout
    return int(found[1]) / 100


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mca", default="llvm-mca-19", help="the llvm-mca to use: 17 or newer knows this core")
    options = parser.parse_args()
    folding = next(
        body
        for body in loops(assembly())
        if sum("vcvtdq2ps" in each for each in body) == 2 and not any(each.startswith("t") for each in body)
    )
    fold = 32 * cycles(folding, options.mca)
    print(
        "| tiles | products | multiplying | loading | storing | folding | of a cycle, at once | one after the other |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for each in PASSES:
        products = 32 * 32 * each.inputs
        parts = (each.products * PRODUCT, each.loads * LOAD, each.stores * STORE, fold if each.stores else 0.0)
        cells = " | ".join(f"{part:.0f}" for part in parts)
        print(f"| {each.name} | {products:,} | {cells} | {products / max(parts):.0f} | {products / sum(parts):.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
