"""What ARM's kernels would cost, computed: instructions of the inner loops of tiles, and their cycles by llvm-mca.

    python benchmarks/arm_cycles.py [--mca llvm-mca-19]

No processor is needed but this one: ``aarch64-linux-gnu-g++`` compiles the tiles, and llvm-mca simulates the loop that
holds their products, without caches, for models of cores. Prints the table of docs/performance.md. The peak of a core
is what the same model gives for products on registers alone.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CORES = ("neoverse-n1", "neoverse-n2", "neoverse-v1", "neoverse-v2", "apple-m1")
FLAGS = {"neon": "armv8.2-a+dotprod", "neon_i8mm": "armv8.2-a+dotprod+i8mm+bf16"}
WITHOUT_I8MM = {"neoverse-n1", "apple-m1"}
SOURCE = """
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#define DRAGOMAN_ISA %s
#include "simd/neon.h"
#include "simd/math.h"
#include "gemm/tiles.inl"
namespace dragoman::DRAGOMAN_ISA {
template void run_tile<TileKind::%s, %d, NextBlock>(const Matrix&, const Activations&, long, NextBlock, const Output&,
                                                    long);
}
"""
TILES = {
    "neon": (("float32", 4), ("bfloat16", 4), ("int8", 1), ("int8", 4), ("wide_int8", 6), ("int4", 1), ("int4", 4)),
    # The others have the same instructions.
    "neon_i8mm": (("bfloat16", 1), ("bfloat16", 6), ("int8", 1), ("int8", 4), ("wide_int8", 1), ("wide_int8", 8)),
}
# Products of one instruction.
PRODUCTS = {"sdot": 16, "usdot": 16, "usmmla": 32, "bfdot": 8, "bfmmla": 16, "fmla": 4}


class Loop(NamedTuple):
    """The instructions of a loop, and how many products they make."""

    instructions: list[str]
    dot: str
    products: int


def compile_tile(level: str, kind: str, rows: int) -> str:
    """The assembly of one tile."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "tile.cpp")
        source.write_text(SOURCE % (level, kind, rows))
        command = ("aarch64-linux-gnu-g++", "-std=c++20", "-O3", "-DNDEBUG", f"-I{ROOT / 'csrc'}", "-fPIC",
                   "-fno-math-errno", "-ffp-contract=off", "-fno-schedule-insns", f"-march={FLAGS[level]}",
                   "-S", "-o", "-", source)  # fmt: skip
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def inner_loop(assembly: str) -> Loop:
    """The loop with the most products, among those that hold no other loop with products; of matrices where it has
    them: groups that are left over are multiplied by dot products."""
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {line[:-1]: number for number, line in enumerate(lines) if re.fullmatch(r"\.L\w+:", line)}
    loops: dict[tuple[int, int], Loop] = {}
    for number, line in enumerate(lines):
        found = re.match(r"(?:b\.?\w*|cbn?z|tbn?z)\s.*?(\.L\w+)$", line)
        if found is None or labels.get(found[1], number) >= number:
            continue
        body = [each for each in lines[labels[found[1]] : number + 1] if each and each[0] not in "./#"]
        counts = {name: sum(each.split()[0] == name for each in body) for name in PRODUCTS}
        dot = max(counts, key=lambda name: counts[name] * PRODUCTS[name])
        if counts[dot]:
            loops[labels[found[1]], number] = Loop(body, dot, counts[dot] * PRODUCTS[dot])
    inner = [
        loop
        for (begin, end), loop in loops.items()
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in loops)
    ]
    return max(inner, key=lambda loop: (loop.dot.endswith("mmla"), loop.products))


def cycles(instructions: list[str], core: str, mca: str) -> float:
    """Cycles of one round of the instructions, of a hundred."""
    straight = [line for line in instructions if not re.match(r"(?:b|cbn?z|tbn?z)(?:\.\w+)?\s", line)]
    command = (mca, "-mtriple=aarch64", f"-mcpu={core}", "-mattr=+dotprod,+i8mm,+bf16,+fullfp16", "-iterations=100")
    done = subprocess.run(command, input="\n".join(straight), check=True, capture_output=True, text=True)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert found is not None, done.stdout
    return int(found[1]) / 100


def peak(dot: str, core: str, mca: str) -> float:
    """Products of a cycle on registers alone, 24 sums in turns, with a vector or a lane as the second factor."""
    of_bytes = ("v30.16b, v31.16b", "v30.16b, v31.4b[0]")
    kinds = {"sdot": of_bytes, "usdot": of_bytes,
             "usmmla": ("v30.16b, v31.16b",), "bfmmla": ("v30.8h, v31.8h",),
             "bfdot": ("v30.8h, v31.8h", "v30.8h, v31.2h[0]"),
             "fmla": ("v30.4s, v31.4s", "v30.4s, v31.s[0]")}  # fmt: skip
    rounds = [[f"{dot} v{number}.4s, {factors}" for number in range(24)] for factors in kinds[dot]]
    return max(24 * PRODUCTS[dot] / cycles(each, core, mca) for each in rounds)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mca", default="llvm-mca-19", help="the llvm-mca to use: 17 or newer knows these cores")
    options = parser.parse_args()
    print("| kernels | tile | instructions | products of each |", " | ".join(CORES), "|")
    print("|---|---|---|---|", "---|" * len(CORES), sep="")
    for level in FLAGS:
        for kind, rows in TILES[level]:
            loop = inner_loop(compile_tile(level, kind, rows))
            cells = []
            for core in CORES:
                if level == "neon_i8mm" and core in WITHOUT_I8MM:
                    cells.append("–")
                    continue
                reached = loop.products / cycles(loop.instructions, core, options.mca)
                cells.append(f"{reached:.0f} of {peak(loop.dot, core, options.mca):.0f}")
            name = f"{kind.replace('wide_int8', 'int8 wide')}, {rows} row{'s' * (rows > 1)}"
            each = loop.products / max(1, len(loop.instructions))
            print(f"| {level} | {name} | {len(loop.instructions)} | {each:.1f} |", " | ".join(cells), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
