"""Rows made by processes of their own, ahead of the trainer, so that a GPU never waits for them.

A batch is a function of seed, step and row length alone, whoever makes it: any number of processes feeds the same rows.
"""

import multiprocessing
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from training.prose import encode_prose, read_books, split_books
from training.rows import Row, RowMaker
from training.tokenizer import load_tokenizer

Batch = tuple[NDArray[np.uint16], NDArray[np.float16]]
"""Ids and weights [rows, length + 1]."""

AHEAD = 4  # batches that each process makes ahead

_maker: RowMaker | None = None


class Feeder:
    """The batches of a run in the order of its steps; a context manager, whose exit ends the processes.

    `lengths(step)` is the row length of a step. It is asked some steps early; a change of plan shows that much later.
    """

    def __init__(
        self, maker: RowMaker, tokens_per_step: int, first_step: int, lengths: Callable[[int], int], *,
        workers: int, tokenizer: Path, prose: Path,
    ) -> None:  # fmt: skip
        self._maker = maker
        self._tokens = tokens_per_step
        self._next = first_step
        self._lengths = lengths
        self._made: deque[Future[Batch]] = deque()
        self._ahead = AHEAD * workers
        self._pool = None
        if workers:
            # Forked processes would copy the threads' locks of PyTorch and the tokenizers in an unknown state.
            self._pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), _start, (tokenizer, prose, maker.seed)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def batch(self) -> Batch:
        """The batch of the next step."""
        if self._pool is None:
            self._next += 1
            return made(self._maker, self._next - 1, self._lengths(self._next - 1), self._tokens)
        while len(self._made) < self._ahead:
            self._made.append(self._pool.submit(_make, self._next, self._lengths(self._next), self._tokens))
            self._next += 1
        return self._made.popleft().result()


def made(maker: RowMaker, step: int, length: int, tokens: int) -> Batch:
    """The rows of a step, as arrays."""
    return as_arrays([maker.row(step, place, length) for place in range(max(1, tokens // length))])


def as_arrays(rows: list[Row]) -> Batch:
    ids = np.array([row.ids for row in rows], dtype=np.uint16)
    return ids, np.array([row.weights for row in rows], dtype=np.float16)


def _start(tokenizer: Path, prose: Path, seed: int) -> None:
    global _maker
    loaded = load_tokenizer(tokenizer)
    training, _ = split_books(read_books(prose))
    _maker = RowMaker(loaded, encode_prose(training, loaded), seed=seed)


def _make(step: int, length: int, tokens: int) -> Batch:
    assert _maker is not None
    return made(_maker, step, length, tokens)
