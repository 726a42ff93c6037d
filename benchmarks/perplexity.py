#!/usr/bin/env python3
"""The cost of a lower precision: perplexity of a text under a model, at each precision of weights, keys and values, and
how far its probabilities are from those of the first: the Kullback-Leibler divergence, sum of p1 * ln(p1 / p), in nats,
mean over the tokens.

    python benchmarks/perplexity.py builtin TEXT_FILE
    python benchmarks/perplexity.py MODEL_FOLDER TEXT_FILE --precision bfloat16 int8 --tokens 4096
    python benchmarks/perplexity.py builtin TEXT_FILE --precision float32 --kv-precision float32 bfloat16 int8
    python benchmarks/perplexity.py builtin TEXT_FILE --precision float32 int4 --calibrate 0 4096

The text's last tokens are used, in independent pieces; the first token of a piece has no probability.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman import models
from dragoman.models import ModelSettings
from dragoman.models.batch import Batch, tables_of_one
from dragoman.models.model import Model
from dragoman.text import Tokenizer

PIECE = 512
ROWS = 64
"""Of logits in float64 at a time."""


def log_probabilities(model: Model, piece: NDArray[np.int32]) -> Iterator[NDArray[np.float64]]:
    """Of every token behind each token of the piece but the last, some rows ``[any, vocabulary]`` at a time. The
    sequence lives in the first blocks of the pool."""
    block_table = tables_of_one(model.pools, -(-len(piece) // model.block_size))
    rows = min(model.max_logit_rows, ROWS)
    for start in range(0, len(piece) - 1, rows):
        stop = min(start + rows, len(piece) - 1)
        logits = model.run(
            Batch(
                token_ids=piece[start:stop],
                positions=np.arange(start, stop, dtype=np.int32),
                row_starts=np.array([0, stop - start], np.int32),
                block_tables=block_table,
                logit_rows=np.arange(stop - start, dtype=np.int32),
            )
        ).astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        yield logits - np.log(np.exp(logits).sum(1, keepdims=True))


def compare(first: Model, model: Model, piece: NDArray[np.int32]) -> NDArray[np.float64]:
    """The negative log-likelihood of all tokens of the piece but the first under each of both models, and the sum of
    the divergences of the second from the first, in nats."""
    sums, start = np.zeros(3), 1
    for ours, theirs in zip(log_probabilities(first, piece), log_probabilities(model, piece), strict=True):
        rows, ids = np.arange(len(ours)), piece[start : start + len(ours)]
        sums -= ours[rows, ids].sum(), theirs[rows, ids].sum(), (np.exp(ours) * (theirs - ours)).sum()
        start += len(ours)
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder with config.json, weights and tokenizer.json")
    parser.add_argument("text", type=Path)
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16", "int8", "int4"])
    parser.add_argument("--kv-precision", nargs="+", default=["auto"])
    parser.add_argument("--calibrate", nargs="+", type=int, default=[0], help="of int4: tokens, each for itself")
    parser.add_argument("--tokens", type=int, default=16384)
    arguments = parser.parse_args()
    ids = Tokenizer.load(arguments.model).encode(arguments.text.read_text(), add_special_tokens=False)
    text = np.array(ids[-arguments.tokens :], np.int32)
    pieces = [text[start : start + PIECE] for start in range(0, len(text) - 1, PIECE)]
    count = sum(len(piece) - 1 for piece in pieces)
    first: Model | None = None
    calibrations = {"int4": arguments.calibrate}
    asked = [(each, tokens) for each in arguments.precision for tokens in calibrations.get(each, [0])]
    for (precision, tokens), kv_precision in itertools.product(asked, arguments.kv_precision):
        settings = ModelSettings(precision=precision, kv_precision=kv_precision, calibrate=tokens)
        model = models.load(arguments.model, settings)
        first = first or model
        of_first, of_this, divergence = sum((compare(first, model, piece) for piece in pieces), np.zeros(3)) / count
        change = f"{100 * math.expm1(of_this - of_first):+.3f} %, divergence {divergence:.5f}"
        perplexity = math.exp(of_this)
        calibrated = f", calibrated on {tokens}" if tokens else ""
        print(
            f"{precision:9} {model.card.kv_precision:9} {perplexity:9.4f}  {change}  ({count} tokens){calibrated}",
            flush=True,
        )


if __name__ == "__main__":
    main()
