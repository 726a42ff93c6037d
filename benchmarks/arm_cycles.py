"""What ARM's kernels would cost, computed: instructions of the inner loops of tiles, and their cycles by llvm-mca.

    python benchmarks/arm_cycles.py [--mca llvm-mca-19]

    python benchmarks/arm_cycles.py --sve [--mca llvm-mca-19]

No processor is needed but this one: ``aarch64-linux-gnu-g++`` compiles the tiles, and llvm-mca simulates the loop that
holds their products, without caches, for models of cores. Prints the table of docs/performance.md. The peak of a core
is what the same model gives for products on registers alone.

With ``--sve``: what the loops of the two widest tiles would be in SVE, whose vectors have 256 bits on the Neoverse V1
and 128 on the others. These loops are sketches that exist here alone; docs/performance.md says why.
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
ATTRIBUTES = "+sve,+dotprod,+i8mm,+bf16,+fullfp16"
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
SVE_SOURCE = """
#include <arm_sve.h>
#include <cstdint>
constexpr int kStep = 4 * {bits} / 8;  // bytes of a quad (or pair) of each of the columns of four vectors, of two rows
template <class Rows> Rows load_rows(const std::uint8_t*);
template <> inline svint8_t load_rows(const std::uint8_t* p) {{
  return svld1rq_s8(svptrue_b8(), reinterpret_cast<const std::int8_t*>(p));
}}
template <> inline svbfloat16_t load_rows(const std::uint8_t* p) {{
  return svreinterpret_bf16_s8(load_rows<svint8_t>(p));
}}
inline svint32_t add(svint32_t sum, svuint32_t w, svint8_t x) {{
  return svusmmla_s32(sum, svreinterpret_u8_u32(w), x);
}}
inline svfloat32_t add(svfloat32_t sum, svuint32_t w, svbfloat16_t x) {{
  return svbfmmla_f32(sum, svreinterpret_bf16_u32(w), x);
}}
extern "C" void tile(const std::uint8_t* w, const std::uint8_t* pairs, {number}* out, long eights) {{
  using Sum = {sum};
  const svbool_t all = svptrue_b32();
  const auto load = [&](int i) {{ return svld1_vnum_u32(all, reinterpret_cast<const std::uint32_t*>(w), i); }};
  Sum s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15;
  s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = s8 = s9 = s10 = s11 = s12 = s13 = s14 = s15 = {zero};
#pragma GCC unroll 2
  for (; eights > 0; --eights) {{
    const svuint32_t a = load(0), b = load(1), c = load(2), d = load(3);
    const svuint32_t w0 = svzip1_u32(a, c), w1 = svzip2_u32(a, c), w2 = svzip1_u32(b, d), w3 = svzip2_u32(b, d);
    const {rows} x0 = load_rows<{rows}>(pairs), x1 = load_rows<{rows}>(pairs + 16), x2 = load_rows<{rows}>(pairs + 32),
          x3 = load_rows<{rows}>(pairs + 48);
    s0 = add(s0, w0, x0); s1 = add(s1, w1, x0); s2 = add(s2, w2, x0); s3 = add(s3, w3, x0);
    s4 = add(s4, w0, x1); s5 = add(s5, w1, x1); s6 = add(s6, w2, x1); s7 = add(s7, w3, x1);
    s8 = add(s8, w0, x2); s9 = add(s9, w1, x2); s10 = add(s10, w2, x2); s11 = add(s11, w3, x2);
    s12 = add(s12, w0, x3); s13 = add(s13, w1, x3); s14 = add(s14, w2, x3); s15 = add(s15, w3, x3);
    w += kStep;
    pairs += 64;
  }}
  Sum* to[] = {{&s0, &s1, &s2, &s3, &s4, &s5, &s6, &s7, &s8, &s9, &s10, &s11, &s12, &s13, &s14, &s15}};
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) svst1_vnum(all, out, i, *to[i]);
}}
"""
SVE_TYPES = {
    "usmmla": {"number": "std::int32_t", "sum": "svint32_t", "rows": "svint8_t", "zero": "svdup_s32(0)"},
    "bfmmla": {"number": "float", "sum": "svfloat32_t", "rows": "svbfloat16_t", "zero": "svdup_f32(0)"},
}
SVE_BITS = {"neoverse-n2": 128, "neoverse-v1": 256, "neoverse-v2": 128}
TILES = {
    "neon": (("float32", 4), ("bfloat16", 4), ("int8", 1), ("int8", 4), ("wide_int8", 6), ("int4", 1), ("int4", 4)),
    # The others have the same instructions.
    "neon_i8mm": (("bfloat16", 1), ("bfloat16", 8), ("int8", 1), ("int8", 4), ("wide_int8", 1), ("wide_int8", 8)),
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


def compile_sve(dot: str, bits: int) -> str:
    """The assembly of the sketch of a tile of eight rows for vectors of so many bits."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "tile.cpp")
        source.write_text(SVE_SOURCE.format(bits=bits, **SVE_TYPES[dot]))
        command = ("aarch64-linux-gnu-g++", "-std=c++20", "-O3", "-fno-schedule-insns", f"-msve-vector-bits={bits}",
                   "-march=armv8.4-a+sve+i8mm+bf16", "-S", "-o", "-", source)  # fmt: skip
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def print_sve(mca: str) -> None:
    """The table of ``--sve``."""
    print("| tile, 8 rows | core | vectors | instructions | products of each | of a cycle |")
    print("|---|---|---|---|---|---|")
    for dot in SVE_TYPES:
        for core, bits in SVE_BITS.items():
            loop = inner_loop(compile_sve(dot, bits))
            products = loop.products * bits // 128
            reached = products / cycles(loop.instructions, core, mca)
            limit = peak(dot, core, mca, bits)
            count = len(loop.instructions)
            each = f"{bits} bits | {count} | {products / count:.1f}"
            print(f"| {dot} | {core} | {each} | {reached:.0f} of {limit:.0f} |", flush=True)


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
    command = (mca, "-mtriple=aarch64", f"-mcpu={core}", f"-mattr={ATTRIBUTES}", "-iterations=100")
    done = subprocess.run(command, input="\n".join(straight), check=True, capture_output=True, text=True)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert found is not None, done.stdout
    return int(found[1]) / 100


def peak(dot: str, core: str, mca: str, sve_bits: int = 0) -> float:
    """Products of a cycle on registers alone, 24 sums in turns, with a vector or a lane as the second factor; with
    ``sve_bits`` of SVE's vectors."""
    if sve_bits:
        of = "b" if dot == "usmmla" else "h"
        sums = [f"{dot} z{number}.s, z30.{of}, z31.{of}" for number in range(24)]
        return 24 * PRODUCTS[dot] * sve_bits / 128 / cycles(sums, core, mca)
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
    parser.add_argument("--sve", action="store_true", help="count the sketches in SVE instead")
    options = parser.parse_args()
    if options.sve:
        print_sve(options.mca)
        return 0
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
