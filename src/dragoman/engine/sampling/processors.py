"""Logits processors: one function per processing step of a row of logits, and their order in one table.

A step is a function of the request: it returns None when the request does not use it, at no cost, or else
the ``Processor`` that changes one row in place. Adding a step is one function and one entry in ``PIPELINE``. A
processor may keep state of its sequence, but must give the same result when it is rebuilt from the
token ids alone, as happens after a crash.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dragoman import kernels
from dragoman.core.request import EngineRequest
from dragoman.engine.arrays import Float32, Int32
from dragoman.engine.sampling.ngram_processors import banned_phrases, dry, encoder_no_repeat_ngram, no_repeat_ngram
from dragoman.engine.sampling.reasoning import reasoning_budget
from dragoman.engine.sequence import Processor, Sequence

EXTREME = 1e20
"""Larger repetition penalties and biases, and penalties smaller than its inverse, choose the same tokens, and would
take logits out of float32."""


def minimum_length(request: EngineRequest) -> Processor | None:
    """Return a processor that sets every end-of-text id to -inf while there are fewer than ``min_tokens`` tokens."""
    if request.min_tokens <= 0 or not request.end_token_ids:
        return None
    banned = np.array(request.end_token_ids, np.intp)

    def process(logits: Float32, sequence: Sequence) -> None:
        if sequence.num_generated < request.min_tokens:
            logits[banned] = -np.inf

    return process


def encoder_penalty(request: EngineRequest) -> Processor | None:
    """Return a processor that applies a repetition penalty to each distinct id of the encoder's input.

    Above 1 the output keeps away from the input's words. (transformers has a penalty of this name that is the inverse.)
    """
    penalty = min(max(request.sampling.encoder_repetition_penalty, 1 / EXTREME), EXTREME)
    if penalty == 1.0:
        return None
    ids = np.unique(np.array(request.encoder_input, np.int32))
    counts = np.zeros_like(ids)

    def process(logits: Float32, sequence: Sequence) -> None:
        kernels.apply_penalties(logits, ids, counts, penalty, 0.0, 0.0)

    return process


def penalties(request: EngineRequest) -> Processor | None:
    """Return a processor for the repetition penalty, then the frequency and presence penalties.

    Each distinct id of prompt and output once: a logit > 0 is divided by the repetition penalty, else multiplied by it
    (CTRL, Keskar 2019). Then logit -= f * count + p * [count > 0], counted over generated tokens (OpenAI). With
    ``penalty_last_n`` all of it over the newest tokens.
    """
    sampling = request.sampling
    repetition, frequency, presence = (
        min(max(sampling.repetition_penalty, 1 / EXTREME), EXTREME),
        0.0 if sampling.frequency_share else sampling.frequency_penalty,
        sampling.presence_penalty,
    )
    if (repetition, frequency, presence) == (1.0, 0.0, 0.0):
        return None
    if sampling.penalty_last_n == 0:
        return None
    occurrences = _occurrences(request, len(request.prompt))

    def process(logits: Float32, sequence: Sequence) -> None:
        ids, counts = occurrences.of(sequence.token_ids)
        kernels.apply_penalties(logits, ids, counts, repetition, frequency, presence)

    return process


def frequency_share(request: EngineRequest) -> Processor | None:
    """Return a processor for logit -= f * (the token's share of prompt and output), where the request sets
    ``frequency_share``."""
    penalty = request.sampling.frequency_penalty
    if not request.sampling.frequency_share or penalty == 0 or request.sampling.penalty_last_n == 0:
        return None
    occurrences, window = _occurrences(request, 0), request.sampling.penalty_last_n

    def process(logits: Float32, sequence: Sequence) -> None:
        ids, counts = occurrences.of(sequence.token_ids)
        seen = len(sequence.token_ids) if window < 0 else min(window, len(sequence.token_ids))
        logits[ids] -= (counts * (penalty / seen)).astype(np.float32)

    return process


def logit_bias(request: EngineRequest) -> Processor | None:
    """Return a processor for logit += bias for each given id."""
    bias = request.sampling.logit_bias
    if not bias:
        return None
    ids = np.array(list(bias), np.int32)
    values = np.clip(list(bias.values()), -EXTREME, EXTREME).astype(np.float32)

    def process(logits: Float32, sequence: Sequence) -> None:
        kernels.add_bias(logits, ids, values)

    return process


def forced_ends(request: EngineRequest) -> Processor | None:
    """Return a processor that gives the model's fixed first token, and its fixed token at the greatest length,
    probability 1, whatever other steps have done to the row."""
    places = ((0, request.first_token_id), (request.max_tokens - 1, request.last_token_id))
    forced = {place: token_id for place, token_id in places if token_id is not None}
    if not forced:
        return None

    def process(logits: Float32, sequence: Sequence) -> None:
        token_id = forced.get(sequence.num_generated)
        if token_id is not None:
            logits[:] = -np.inf
            logits[token_id] = 0.0

    return process


WATERMARK_KEY = 15485863
"""Key of the green lists: the millionth prime, as in the authors' code. Detection of the watermark needs it."""


def watermark(request: EngineRequest) -> Processor | None:
    """Return a processor for logit += delta for the green list of the previous token (Kirchenbauer et al. 2023); see
    ``kernels.green_list``."""
    sampling = request.sampling
    if not sampling.watermark or sampling.watermark_delta == 0:
        return None

    def process(logits: Float32, sequence: Sequence) -> None:
        kernels.add_to_green_list(
            logits, WATERMARK_KEY, sequence.token_ids[-1], sampling.watermark_gamma, sampling.watermark_delta
        )

    return process


PIPELINE: tuple[Callable[[EngineRequest], Processor | None], ...] = (
    minimum_length,
    banned_phrases,
    no_repeat_ngram,
    encoder_no_repeat_ngram,
    encoder_penalty,
    penalties,
    frequency_share,
    dry,
    logit_bias,
    watermark,
    reasoning_budget,
    forced_ends,
)
"""In the order of ``docs/generation.md``. The grammar, then temperature and the later steps, are in ``sampler``."""


def processors_for(request: EngineRequest) -> tuple[Processor, ...]:
    """Return the processors of this request, with their own state for one sequence. Empty for forced tokens."""
    if request.sampling.forced_tokens:
        return ()
    made = (step(request) for step in PIPELINE)
    return tuple(process for process in made if process is not None)


def _occurrences(request: EngineRequest, prompt_length: int) -> _Occurrences | _RecentOccurrences:
    window, most = request.sampling.penalty_last_n, len(request.prompt) + request.max_tokens
    return _RecentOccurrences(prompt_length, window) if 0 < window < most else _Occurrences(prompt_length, most)


class _Occurrences:
    """The distinct ids of prompt and output, and how often each was generated. Every token is counted once."""

    def __init__(self, prompt_length: int, most_tokens: int) -> None:
        self._prompt_length = prompt_length
        self._ids = np.empty(most_tokens, np.int32)
        self._counts = np.zeros(most_tokens, np.int32)
        self._place: dict[int, int] = {}
        self._seen = 0

    def of(self, token_ids: list[int]) -> tuple[Int32, Int32]:
        """Return ids and counts, as views, of an append-only list."""
        for index in range(self._seen, len(token_ids)):
            token_id = token_ids[index]
            place = self._place.setdefault(token_id, len(self._place))
            self._ids[place] = token_id
            self._counts[place] += index >= self._prompt_length
        self._seen = len(token_ids)
        return self._ids[: len(self._place)], self._counts[: len(self._place)]


class _RecentOccurrences:
    """The distinct ids among the newest ``window`` tokens, and how often each of them was generated."""

    def __init__(self, prompt_length: int, window: int) -> None:
        self._prompt_length, self._window = prompt_length, window

    def of(self, token_ids: list[int]) -> tuple[Int32, Int32]:
        """Return ids and counts of a list of tokens."""
        recent = np.array(token_ids[-self._window :], np.int32)
        generated = recent[max(0, len(recent) - (len(token_ids) - self._prompt_length)) :]
        ids = np.unique(recent)
        counts = np.bincount(np.searchsorted(ids, generated), minlength=len(ids))
        return ids, counts.astype(np.int32)
