#!/usr/bin/env python3
"""The time of a step by operation: the operations of a model's program, for decoding steps and prefill chunks.

    python benchmarks/steps.py MODEL_FOLDER --precision int8
    python benchmarks/steps.py MODEL_FOLDER --rows 1 8 32 --chunks 512 --context 128 1536

Every step runs some times, each after one that is not counted. Printed are microseconds per step by kind of operation,
with matrix products separated by shape, and ``between``: the time of the step beyond the sum of its operations.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from dragoman import kernels, models
from dragoman.models.batch import Batch, rows_of_slot
from dragoman.models.kv_groups import BLOCK_TOKENS


def batch_of(sequences: int, tokens: int, context: int, model: models.Model) -> Batch:
    """``sequences``, each with ``tokens`` new ones behind ``context`` that are computed. All want their last logits.

    Where a group of layers has fewer blocks, because it has a window, those out of it are used again.
    """
    count, blocks = sequences * tokens, -(-(context + tokens) // BLOCK_TOKENS)
    used = np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks)
    positions = np.tile(np.arange(context, context + tokens), sequences)
    starts = np.arange(sequences + 1) * tokens
    batch = Batch(
        np.random.default_rng(0).integers(0, model.vocab_size, count).astype(np.int32),
        positions.astype(np.int32),
        starts.astype(np.int32),
        np.stack([used % np.int32(pool.blocks) for pool in model.pools]),
        (starts[1:] - 1).astype(np.int32),
    )
    if not model.num_states:
        return batch
    slots = np.arange(sequences, dtype=np.int32)
    state_rows = np.concatenate([rows_of_slot(tokens, int(slot)) for slot in slots])
    return batch._replace(state_slots=slots, state_rows=state_rows)


def profile(model: models.Model, batch: Batch, repeat: int) -> dict[str, float]:
    """Microseconds per step by operation, then ``between`` and ``step``."""
    model.run(batch)
    model.program.profile()
    started = time.perf_counter()
    for _ in range(repeat):
        model.run(batch)
    step = (time.perf_counter() - started) / repeat
    found = {name: 1e6 * seconds / repeat for name, seconds in model.program.profile(by_shape=True).items()}
    found = dict(sorted(found.items(), key=lambda item: -item[1]))
    return {**found, "between": 1e6 * step - sum(found.values()), "step": 1e6 * step}


def show(title: str, found: dict[str, float]) -> None:
    print(f"\n{title}\n")
    print("| operation | µs | share |")
    print("|---|---|---|")
    for name, microseconds in found.items():
        print(f"| {name} | {microseconds:,.0f} | {100 * microseconds / found['step']:.1f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--precision", default="int8", choices=["float32", "bfloat16", "int8", "int4"])
    parser.add_argument("--kv-precision", default="auto", choices=["auto", "float32", "bfloat16", "int8", "int4"])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32], help="sequences of the decoding steps")
    parser.add_argument("--chunks", type=int, nargs="*", default=[512], help="tokens of the prefill chunks")
    parser.add_argument("--context", type=int, nargs="+", default=[128], help="tokens before the step")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        kernels.set_threads(options.threads)
    settings = models.ModelSettings(
        precision=options.precision, kv_precision=options.kv_precision, kv_bytes=1 << 30, weights_memory="copy"
    )
    model = models.load(str(options.model), settings)
    for context in options.context:
        for rows in options.rows:
            found = profile(model, batch_of(rows, 1, context, model), options.repeat)
            show(f"A decoding step of {rows} sequences, {context} tokens before it, {options.precision}", found)
        for tokens in options.chunks:
            found = profile(model, batch_of(1, tokens, context, model), max(2, options.repeat // 3))
            show(f"A chunk of {tokens} tokens behind {context}, {options.precision}", found)


if __name__ == "__main__":
    main()
