"""From logits to tokens: the pipeline of ``docs/generation.md`` over the rows of one step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.core.events import TokenLogprob
from dragoman.engine.batch import Float32, Int32
from dragoman.engine.sequence import Sequence
from dragoman.kernels import sampling as kernels

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
    logprob_rows: Int32
    keeps_own_logits: bool
    """Whether logits whose log-probabilities are wanted will be changed by processors."""

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
            logprob_rows=np.array([row for row, s in enumerate(sequences) if s.top_logprobs >= 0], np.int32),
            keeps_own_logits=any(s.processors and s.top_logprobs >= 0 for s in sequences),
        )


class Sampler:
    """Draws one token for each row. The only state is what can be computed anew from the sequences.

    The random number of a token is ``philox(key = seed, counter = (place in the output, purpose))``.
    """

    def __init__(self) -> None:
        self._rows = _Rows.of([])

    def sample(self, logits: Float32, sequences: list[Sequence]) -> Sampled:
        """Draw the next token of each sequence. ``logits`` float32 [len(sequences), vocabulary] may be overwritten."""
        rows = self._rows
        if rows.sequences != sequences:
            rows = self._rows = _Rows.of(sequences)
        own = logits.copy() if rows.keeps_own_logits else logits
        for row, sequence in rows.processed:
            for process in sequence.processors:
                process(logits[row], sequence)
        positions = np.array([s.num_generated for s in sequences], np.uint64)
        uniform = kernels.philox_uniform(rows.seeds, positions, DRAW_TOKEN)
        token_ids = np.empty(len(sequences), np.int32)
        kernels.sample(logits, rows.temperature, rows.top_k, rows.top_p, rows.min_p, uniform, token_ids, None)
        drawn: list[int] = token_ids.tolist()
        if not len(rows.logprob_rows):
            return Sampled(drawn, {}, {})
        return self._with_logprobs(own, drawn, rows)

    def _with_logprobs(self, own: Float32, drawn: list[int], rows: _Rows) -> Sampled:
        valid = [row for row in rows.logprob_rows.tolist() if drawn[row] >= 0]
        at = np.array(valid, np.int32)
        values = kernels.log_softmax_at(own, at, np.array([drawn[row] for row in valid], np.int32))
        asked = [rows.sequences[row].top_logprobs for row in valid]
        top = top_logprobs(own, valid, asked)
        return Sampled(drawn, dict(zip(valid, values.tolist(), strict=True)), top)


def top_logprobs(logits: Float32, rows: list[int], counts: list[int]) -> dict[int, TopLogprobs]:
    """The ``counts[i]`` likeliest tokens of row ``rows[i]``, best first, ties by token id; none for a count of 0.

    Log-probabilities are the log-softmax of ``logits``, float32 [any, vocabulary].
    """
    at = [(row, count) for row, count in zip(rows, counts, strict=True) if count > 0]
    if not at:
        return {}
    most = max(count for _, count in at)
    ids, values = kernels.top_logprobs(logits, np.array([row for row, _ in at], np.int32), most)
    return {
        row: tuple(map(TokenLogprob, row_ids[:count], row_values[:count]))
        for (row, count), row_ids, row_values in zip(at, ids.tolist(), values.tolist(), strict=True)
    }
