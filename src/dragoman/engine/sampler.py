"""From logits to tokens: the pipeline of ``docs/generation.md`` over the rows of one step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.core.events import TokenLogprob
from dragoman.engine.batch import Float32, Int32
from dragoman.engine.grammars import Follower
from dragoman.engine.sequence import Sequence

DRAW_TOKEN = 0
"""Purpose of a random number, the second half of its counter: the draw of the token itself."""

TopLogprobs = tuple[TokenLogprob, ...]


class Sampled(NamedTuple):
    """One token per sequence, in order; -1 where the row held no valid distribution.

    ``logprobs`` and ``top`` have entries only for the places of sequences that asked.
    """

    token_ids: list[int]
    logprobs: dict[int, float]
    top: dict[int, TopLogprobs]


class _Rows(NamedTuple):
    """What one set of sequences asks for, as arrays. Made once; steps with the same sequences use it again."""

    sequences: list[Sequence]
    temperature: Float32
    top_k: Int32
    top_p: Float32
    min_p: Float32
    seeds: NDArray[np.uint64]
    processed: list[tuple[int, Sequence]]
    followed: list[tuple[int, Follower]]
    logprob_rows: Int32
    keeps_own_logits: bool
    """Whether logits whose log-probabilities are wanted will be changed by processors or a grammar."""

    @staticmethod
    def of(sequences: list[Sequence]) -> _Rows:
        sampling = [s.sampling for s in sequences]
        return _Rows(
            sequences=sequences,
            temperature=np.array([p.temperature for p in sampling], np.float32),
            top_k=np.array([p.top_k for p in sampling], np.int32),
            top_p=np.array([p.top_p for p in sampling], np.float32),
            min_p=np.array([p.min_p for p in sampling], np.float32),
            seeds=np.array([s.seed for s in sequences], np.uint64),
            processed=[(row, s) for row, s in enumerate(sequences) if s.processors],
            followed=[(row, s.follower) for row, s in enumerate(sequences) if s.follower is not None],
            logprob_rows=np.array([row for row, s in enumerate(sequences) if s.top_logprobs >= 0], np.int32),
            keeps_own_logits=any((s.processors or s.follower) and s.top_logprobs >= 0 for s in sequences),
        )


class Sampler:
    """Draws one token for each row. The only state is what can be computed anew from the sequences.

    The random number of a token is ``philox(key = seed, counter = (place in the output, purpose))``.
    """

    def __init__(self) -> None:
        self._rows = _Rows.of([])
        self._own = np.empty((0, 0), np.float32)

    def sample(self, logits: Float32, sequences: list[Sequence]) -> Sampled:
        """Draw the next token of each sequence. ``logits`` float32 [len(sequences), vocabulary] may be overwritten."""
        rows = self._rows
        if rows.sequences != sequences:
            rows = self._rows = _Rows.of(sequences)
        own = self._keep(logits, rows.logprob_rows) if rows.keeps_own_logits else None
        for row, sequence in rows.processed:
            for process in sequence.processors:
                process(logits[row], sequence)
        for row, follower in rows.followed:
            follower.mask(logits[row])
        positions = np.array([s.num_generated for s in sequences], np.uint64)
        uniform = kernels.philox_uniform(rows.seeds, positions, DRAW_TOKEN)
        token_ids = np.empty(len(sequences), np.int32)
        kernels.sample(logits, rows.temperature, rows.top_k, rows.top_p, rows.min_p, uniform, token_ids, None)
        drawn: list[int] = token_ids.tolist()
        if not len(rows.logprob_rows):
            return Sampled(drawn, {}, {})
        asking: list[int] = rows.logprob_rows.tolist()
        if own is None:
            return _with_logprobs(logits, asking, asking, drawn, rows.sequences)
        return _with_logprobs(own, list(range(len(asking))), asking, drawn, rows.sequences)

    def _keep(self, logits: Float32, rows: Int32) -> Float32:
        """A copy of some rows, in memory that is used again: new memory of this size costs more than the copying."""
        if self._own.shape[0] < len(rows) or self._own.shape[1] != logits.shape[1]:
            self._own = np.empty((len(rows), logits.shape[1]), np.float32)
        return logits.take(rows, axis=0, out=self._own[: len(rows)], mode="clip")


def _with_logprobs(
    own: Float32, rows: list[int], places: list[int], drawn: list[int], sequences: list[Sequence]
) -> Sampled:
    """Log-probabilities for the sequences at ``places``, whose own logits are the rows ``rows`` of ``own``."""
    valid = [(row, place) for row, place in zip(rows, places, strict=True) if drawn[place] >= 0]
    rows = [row for row, _ in valid]
    values = kernels.log_softmax_at(own, rows, [drawn[place] for _, place in valid]).tolist()
    top = top_logprobs(own, rows, [sequences[place].top_logprobs for _, place in valid])
    return Sampled(
        drawn,
        {place: value for (_, place), value in zip(valid, values, strict=True)},
        {place: top[row] for row, place in valid if row in top},
    )


def top_logprobs(logits: Float32, rows: list[int], counts: list[int]) -> dict[int, TopLogprobs]:
    """The ``counts[i]`` likeliest tokens of row ``rows[i]``, best first, ties by token id; none for a count of 0.

    Log-probabilities are the log-softmax of ``logits``, float32 [any, vocabulary].
    """
    at = [(row, count) for row, count in zip(rows, counts, strict=True) if count > 0]
    if not at:
        return {}
    most = max(count for _, count in at)
    ids, values = kernels.top_logprobs(logits, [row for row, _ in at], most)
    return {
        row: tuple(map(TokenLogprob, row_ids[:count], row_values[:count]))
        for (row, count), row_ids, row_values in zip(at, ids.tolist(), values.tolist(), strict=True)
    }
