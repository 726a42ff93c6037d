"""Attention and sampling alone: seconds of attention in a prefill and a decode step, milliseconds of sampling.

    python benchmarks/kernels_attention.py [--precision bfloat16] [--threads 2]
    python benchmarks/kernels_attention.py --precision int8 --layers 4 --contexts 1024 16384 131072
    python benchmarks/kernels_attention.py --precision int8 int4 --layers 2 --contexts 131072

With --contexts, several precisions take turns, and the least times are shown too. The newest block of int4 is in int8,
as in a server. The shape is that of llama-3.2-1b: 16 layers, 32 query heads over 8 KV heads of 64. Medians of several
runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.kv_pool import KVPrecision

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 64
CHUNK = 512


def attention_program(sequences: int, context: int, precision: KVPrecision, layers: int) -> kernels.Program:
    """Only what attention needs: rows of [q | k | v] from a table, the KV write and the attention of every layer."""
    blocks = sequences * (context // 32 + 1)
    kv = kernels.KVPool(
        layers=layers,
        blocks=blocks,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        precision=precision,
        own_blocks=sequences * (CHUNK // 32 + 2) if precision == "int4" else 0,
    )
    p = kernels.Program(max_tokens=CHUNK, max_sequences=sequences, max_logit_rows=1, kv=kv)
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    qkv, out, last = p.buffer(width), p.buffer(HEADS * HEAD_DIM), p.buffer(HEADS * HEAD_DIM)
    p.embed(qkv, kernels.pack(np.random.default_rng(0).normal(size=(64, width)).astype(np.float32), "float32"))
    for layer in range(layers):
        p.write_kv(qkv, HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM, layer)
        p.attend(out, qkv, 0, HEADS, layer, HEAD_DIM**-0.5)
    p.select_rows(last, out)
    p.logits(last)
    return p


def tables_of(program: kernels.Program, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The block tables of all groups; a sequence's own blocks take turns."""
    return np.stack([blocks % count for count in program.kv.blocks])


def prefill(program: kernels.Program, sequence: int, context: int, width: int) -> None:
    tables = tables_of(program, sequence * width + np.arange(width)[None])
    for begin in range(0, context, CHUNK):
        n = min(CHUNK, context - begin)
        program.run(np.arange(n) % 64, begin + np.arange(n), [0, n], tables, [n - 1])


def median(run: Callable[[], float], rounds: int = 5) -> float:
    run()
    return statistics.median(run() for _ in range(rounds))


def report_prefill(precision: KVPrecision, layers: int) -> None:
    for context in (512, 2048):
        program = attention_program(1, context, precision, layers)

        def seconds(program: kernels.Program = program, context: int = context) -> float:
            program.profile()
            prefill(program, 0, context, context // 32 + 1)
            times = program.profile()
            return times["attend"] + times["write_kv"]

        taken = median(seconds)
        flops = 4 * layers * HEADS * HEAD_DIM * context * context / 2
        print(f"prefill {context:5d} tokens   {taken:7.3f} s   {flops / taken / 1e9:6.0f} GFLOP/s")


DECODES = [(1, 512), (1, 2048), (1, 16384), (8, 1024), (32, 512)]


def decoding(precision: KVPrecision, layers: int, sequences: int, context: int) -> tuple[Callable[[], float], int]:
    """A decode step's seconds of attention, and the bytes of keys and values that it reads."""
    width = context // 32 + 1
    program = attention_program(sequences, context, precision, layers)
    # Keys and values are all written, but not by attending to them: that would take minutes at 100,000 tokens.
    for group in range(len(program.kv.blocks)):
        program.kv.block_data(group).view(np.uint32)[:] = 0x3C003C00
    tables = tables_of(program, np.arange(sequences * width).reshape(sequences, width))

    def step() -> float:
        program.profile()
        program.run(np.zeros(sequences), np.full(sequences, context), np.arange(sequences + 1), tables, [0])
        times = program.profile()
        return times["attend"] + times["write_kv"]

    return step, sequences * (context // 32) * program.kv.bytes_per_block


def report_decode(precision: KVPrecision, layers: int, decodes: list[tuple[int, int]]) -> None:
    for sequences, context in decodes:
        step, read = decoding(precision, layers, sequences, context)
        taken = median(step, 15)
        print(f"decode {sequences:2d} x {context:6d}      {taken * 1e3:7.3f} ms  {read / taken / 1e9:6.1f} GB/s of KV")


def report_contexts(precisions: list[KVPrecision], layers: int, contexts: list[int]) -> None:
    """One sequence, each precision in turn."""
    for context in contexts:
        steps = {precision: decoding(precision, layers, 1, context) for precision in precisions}
        taken: dict[KVPrecision, list[float]] = {precision: [] for precision in precisions}
        for turn in range(31):
            for precision, (step, _) in steps.items():
                seconds = step()
                if turn:  # the first finds nothing in the caches
                    taken[precision].append(seconds)
        for precision, seconds_of in taken.items():
            middle, least = statistics.median(seconds_of), min(seconds_of)
            print(
                f"decode 1 x {context:6d} {precision:8s}  {middle * 1e3:7.3f} ms, at least {least * 1e3:7.3f}  "
                f"{steps[precision][1] / middle / 1e9:6.1f} GB/s of KV"
            )


SAMPLING = [  # temperature, top-k, top-p, min-p
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (1.0, 50, 1.0, 0.0),
    (1.0, 0, 0.95, 0.0),
    (1.0, 50, 0.95, 0.0),
    (1.0, 0, 1.0, 0.05),
]


def report_sampling(rows: int = 32, vocab: int = 151936) -> None:
    rng = np.random.default_rng(1)
    token_ids = np.empty(rows, np.int32)
    uniform = rng.random(rows, np.float32)
    for name, spread in (("flat", 1.0), ("peaked", 4.0)):
        logits = (rng.normal(size=(rows, vocab)) * spread).astype(np.float32)
        for parameters in SAMPLING:
            t, k, p, m = (np.full(rows, value) for value in parameters)
            truncations = {"top_k": k, "top_p": p, "min_p": m}

            def run(
                logits: NDArray[np.float32] = logits,
                t: NDArray[np.float64] = t,
                truncations: dict[str, NDArray[np.float64]] = truncations,
            ) -> float:
                begin = time.perf_counter()
                kernels.sample(logits, t, uniform, token_ids, truncations)
                return time.perf_counter() - begin

            what = "temperature {} top-k {} top-p {} min-p {}".format(*parameters)
            print(f"sample {rows} x {vocab} {name:6s} {what:48s} {median(run) * 1e3:7.2f} ms")

        def logprobs(logits: NDArray[np.float32] = logits) -> float:
            begin = time.perf_counter()
            kernels.top_logprobs(logits, np.arange(rows), 20)
            return time.perf_counter() - begin

        print(f"top-20 logprobs {rows} x {vocab} {name:6s} {median(logprobs) * 1e3:7.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="+", choices=["float32", "bfloat16", "int8", "int4"], default=["bfloat16"])
    parser.add_argument("--contexts", type=int, nargs="*", help="only decode one sequence behind so many tokens")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    kernels.set_threads(arguments.threads)
    print(f"{kernels.instruction_set()}, {kernels.threads()} threads, KV in {', '.join(arguments.precision)}")
    if arguments.contexts:
        report_contexts(arguments.precision, arguments.layers, arguments.contexts)
        return
    for precision in arguments.precision:
        report_prefill(precision, arguments.layers)
        report_decode(precision, arguments.layers, DECODES)
    report_sampling()


if __name__ == "__main__":
    main()
