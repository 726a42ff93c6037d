"""From logits to tokens: the pipeline of ``docs/generation.md`` over the rows of one step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.core.events import TokenLogprob
from dragoman.core.sampling import MAX_TIES, TRUNCATIONS, SamplingParams
from dragoman.engine.arrays import Float32, Int32
from dragoman.engine.sampling.grammar_state import GrammarState
from dragoman.engine.sequence import Sequence

DRAW_TOKEN = 0
"""Purpose of a random number, the second half of its counter: the draw of the token itself."""
DRAW_XTC = 1
"""Purpose: whether XTC happens. So an XTC that drops no token leaves the text unchanged."""

_FORCED = SamplingParams(temperature=0.0)
"""The parameters of a row whose token is given: the cheapest ones; the drawn token is ignored."""

_NEUTRAL = {"top_k": 0.0, "min_p": 0.0}
"""Values with which a truncation is off in a row; of the others it is 1."""

RECENT_SETS = 4

TopLogprobs = tuple[TokenLogprob, ...]


class Sampled(NamedTuple):
    """One token per sequence, in order; -1 where the row held no valid distribution.

    ``logprobs`` and ``top`` have entries only for the places of sequences that use them, ``mirostat`` (the state after
    the token) for those whose sampler it is.
    """

    token_ids: list[int]
    logprobs: dict[int, float]
    top: dict[int, TopLogprobs]
    mirostat: dict[int, float]


class _Rows(NamedTuple):
    """The sampling parameters of one set of sequences, as arrays. Made once; steps with the same sequences reuse it."""

    sequences: list[Sequence]
    temperature: Float32
    truncations: dict[str, Float32]
    """By name, those that are on in some row, except XTC."""
    truncated_first: Int32
    """Rows whose truncations run before the temperature."""
    xtc: tuple[Float32, Float32] | None
    """Probability and threshold; None, as below, where it is off in every row."""
    mirostat: NDArray[np.int32] | None
    overwrite: NDArray[np.uint8] | None
    """Rows whose log-probabilities are those of the distribution that the token was drawn from."""
    forced: list[tuple[int, Sequence]]
    seeds: NDArray[np.uint64]
    is_greedy: bool
    """True where every row is greedy, so that no random numbers are needed."""
    no_uniform: Float32
    processed: list[tuple[int, Sequence]]
    followed: list[tuple[int, GrammarState]]
    logprob_rows: Int32
    """Rows whose log-probabilities are those of the unprocessed logits."""
    processed_logprob_rows: list[int]
    keeps_own_logits: bool
    """True where a step changes logits whose unprocessed log-probabilities are reported."""

    @staticmethod
    def of(sequences: list[Sequence]) -> _Rows:
        sampling = [_FORCED if s.sampling.forced_tokens else s.sampling for s in sequences]
        processed_logprobs = [s.logprob_mode == "processed" for s in sequences]
        mirostat = np.array([p.mirostat_mode if p.temperature > 0 else 0 for p in sampling], np.int32)
        has_xtc = any(p.has_xtc for p in sampling)
        raw = [
            s.top_logprobs >= 0 and not processed for s, processed in zip(sequences, processed_logprobs, strict=True)
        ]
        return _Rows(
            sequences=sequences,
            temperature=np.array([p.temperature for p in sampling], np.float32),
            truncations=truncation_columns(sampling),
            truncated_first=np.flatnonzero([p.truncates_first for p in sampling]).astype(np.int32),
            xtc=(
                np.array([p.xtc_probability if p.has_xtc else 0.0 for p in sampling], np.float32),
                np.array([p.xtc_threshold for p in sampling], np.float32),
            )
            if has_xtc
            else None,
            mirostat=mirostat if mirostat.any() else None,
            overwrite=np.array(processed_logprobs, np.uint8) if any(processed_logprobs) else None,
            forced=[(row, s) for row, s in enumerate(sequences) if s.sampling.forced_tokens],
            seeds=np.array([s.seed for s in sequences], np.uint64),
            is_greedy=all(p.temperature == 0 for p in sampling),
            no_uniform=np.zeros(len(sequences), np.float32),
            processed=[(row, s) for row, s in enumerate(sequences) if s.processors],
            followed=[(row, s.grammar_state) for row, s in enumerate(sequences) if s.grammar_state is not None],
            logprob_rows=np.flatnonzero(raw).astype(np.int32),
            processed_logprob_rows=np.flatnonzero(processed_logprobs).tolist(),
            keeps_own_logits=any(
                asks and (s.processors or s.grammar_state or s.sampling.truncates_first)
                for s, asks in zip(sequences, raw, strict=True)
            ),
        )


class Sampler:
    """Draws one token for each row. Its only state can be recomputed from the sequences.

    The random number of a token is ``philox(key = seed, counter = (place in the output, purpose))``.
    """

    def __init__(self) -> None:
        self._recent: list[_Rows] = []
        self._own = np.empty((0, 0), np.float32)

    def sample(self, logits: Float32, sequences: list[Sequence]) -> Sampled:
        """Draw the next token of each sequence. ``logits`` float32 [len(sequences), vocabulary] may be overwritten."""
        rows = self._rows_of(sequences)
        own = self._keep(logits, rows.logprob_rows) if rows.keeps_own_logits else None
        for row, sequence in rows.processed:
            for process in sequence.processors:
                process(logits[row], sequence)
        for row, grammar_state in rows.followed:
            grammar_state.mask(logits[row])
        positions = rows.seeds if rows.is_greedy else np.array([s.num_generated for s in sequences], np.uint64)
        uniform = rows.no_uniform if rows.is_greedy else kernels.philox_uniform(rows.seeds, positions, DRAW_TOKEN)
        truncations = rows.truncations | _xtc_now(rows.xtc, rows.seeds, positions) if rows.xtc else rows.truncations
        if len(rows.truncated_first):
            truncations = _truncate(logits, rows.truncated_first, truncations)
        token_ids = np.empty(len(sequences), np.int32)
        mirostat = None
        if rows.mirostat is not None:
            limit = np.array([s.mirostat for s in sequences], np.float32)
            mirostat = kernels.Mirostat(rows.mirostat, limit, np.empty(len(sequences), np.float32))
        kernels.sample(
            logits,
            rows.temperature,
            uniform,
            token_ids,
            truncations,
            mirostat=mirostat,
            overwrite=rows.overwrite,
        )
        drawn: list[int] = token_ids.tolist()
        for row, sequence in rows.forced:
            if drawn[row] >= 0:
                drawn[row] = sequence.sampling.forced_tokens[sequence.num_generated]
        sampled = Sampled(drawn, {}, {}, {} if mirostat is None else _learned(mirostat, drawn, sequences))
        raw: list[int] = rows.logprob_rows.tolist()
        if raw:
            _add_logprobs(sampled, *((logits, raw) if own is None else (own, list(range(len(raw))))), raw, sequences)
        if rows.processed_logprob_rows:
            _add_logprobs(sampled, logits, rows.processed_logprob_rows, rows.processed_logprob_rows, sequences)
        return sampled

    def _rows_of(self, sequences: list[Sequence]) -> _Rows:
        """Return the parameters of these sequences. The newest sets are kept: with drafts a step samples several sets,
        and the next step mostly the same."""
        for rows in self._recent:
            if rows.sequences == sequences:
                return rows
        rows = _Rows.of(sequences)
        self._recent = [rows, *self._recent[: RECENT_SETS - 1]]
        return rows

    def _keep(self, logits: Float32, rows: Int32) -> Float32:
        """Return a copy of some rows, in reused memory: allocating this size costs more than the copying."""
        if self._own.shape[0] < len(rows) or self._own.shape[1] != logits.shape[1]:
            self._own = np.empty((len(rows), logits.shape[1]), np.float32)
        return logits.take(rows, axis=0, out=self._own[: len(rows)], mode="clip")


def truncation_columns(sampling: list[SamplingParams]) -> dict[str, Float32]:
    """Return the columns of the truncations that are on in some row, by name, except XTC, which depends on a random
    number."""
    asked = {name for params in sampling for name in params.truncations}
    return {
        name: np.array([getattr(params, name) for params in sampling], np.float32)
        for name in TRUNCATIONS
        if name in asked and name != "xtc_probability"
    }


def _truncate(logits: Float32, rows: Int32, truncations: dict[str, Float32]) -> dict[str, Float32]:
    """Set what the truncations drop of these rows at temperature 1 to -inf; return the truncations of the others.

    A row that holds no valid distribution stays as it is.
    """
    chosen, ones = logits[rows], np.ones(len(rows), np.float32)
    own = {name: values[rows] for name, values in truncations.items()}
    drawn = np.empty(len(rows), np.int32)
    kernels.sample(chosen, ones, np.zeros(len(rows), np.float32), drawn, own, overwrite=np.ones(len(rows), np.uint8))
    logits[rows] = chosen
    others = {name: values.copy() for name, values in truncations.items()}
    for name, values in others.items():
        values[rows] = _NEUTRAL.get(name, 1.0)
    return others


def _xtc_now(
    xtc: tuple[Float32, Float32], seeds: NDArray[np.uint64], positions: NDArray[np.uint64]
) -> dict[str, Float32]:
    """Return the XTC threshold of each row: that of the request where a separate random number turns XTC on, otherwise
    1 (off)."""
    probability, threshold = xtc
    happens = kernels.philox_uniform(seeds, positions, DRAW_XTC) < probability
    return {"xtc_threshold": np.where(happens, threshold, np.float32(1.0))}


def _learned(mirostat: kernels.Mirostat, drawn: list[int], sequences: list[Sequence]) -> dict[int, float]:
    """Return Mirostat's states after the drawn tokens: each moves by eta times the excess of the surprise over tau."""
    states = {}
    for place in np.flatnonzero(mirostat.version).tolist():
        if drawn[place] >= 0:
            sequence, surprise = sequences[place], float(mirostat.surprise[place])
            sampling = sequence.sampling
            states[place] = sequence.mirostat - sampling.mirostat_eta * (surprise - sampling.mirostat_tau)
    return states


def _add_logprobs(
    sampled: Sampled, logits: Float32, rows: list[int], places: list[int], sequences: list[Sequence]
) -> None:
    """Add the log-probabilities of the sequences at ``places``, from the rows ``rows`` of ``logits``."""
    drawn = sampled.token_ids
    valid = [(row, place) for row, place in zip(rows, places, strict=True) if drawn[place] >= 0]
    rows = [row for row, _ in valid]
    values = kernels.log_softmax_at(logits, rows, [drawn[place] for _, place in valid]).tolist()
    asking = [sequences[place] for _, place in valid]
    top = top_logprobs(logits, rows, [s.top_logprobs for s in asking], [s.keeps_ties for s in asking])
    sampled.logprobs.update({place: value for (_, place), value in zip(valid, values, strict=True)})
    sampled.top.update({place: top[row] for row, place in valid if row in top})


def top_logprobs(logits: Float32, rows: list[int], counts: list[int], ties: list[bool]) -> dict[int, TopLogprobs]:
    """Return the ``counts[i]`` likeliest tokens of row ``rows[i]``, best first, ties by token id; none for a count of
    0.

    Where ``ties[i]``, those that are as likely as the last of them too, ``MAX_TIES`` at most; not those of probability
    0. Log-probabilities are the log-softmax of ``logits``, float32 [any, vocabulary].
    """
    at = [(row, count, tied) for row, count, tied in zip(rows, counts, ties, strict=True) if count > 0]
    if not at:
        return {}
    most = min(max(count + MAX_TIES * tied for _, count, tied in at), logits.shape[1])
    ids, values = kernels.top_logprobs(logits, [row for row, _, _ in at], most)
    return {
        row: tuple(map(TokenLogprob, row_ids[:end], row_values[:end]))
        for (row, count, tied), row_ids, row_values in zip(at, ids.tolist(), values.tolist(), strict=True)
        for end in (_end_of_ties(row_values, count) if tied else count,)
    }


def _end_of_ties(values: list[float], count: int) -> int:
    """Return how many of the descending ``values`` are no less than the ``count``-th, the last requested one."""
    last = values[min(count, len(values)) - 1]
    end = count
    while end < min(len(values), count + MAX_TIES) and values[end] == last > -np.inf:
        end += 1
    return end
