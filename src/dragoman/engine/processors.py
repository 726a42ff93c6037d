"""What happens to a row of logits before a token is drawn from it: one function per step, one ordered table.

A step is a function of the request: it returns None when the request does not ask for it, which is then free, or else
the ``Processor`` that changes one row in place. Adding a step is one function and one entry in ``PIPELINE``. A
processor may remember what it has seen of its sequence, but must give the same result when it starts over from the
token ids alone: that is what happens after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from dragoman.core.request import EngineRequest
from dragoman.engine.batch import Float32, Int32
from dragoman.engine.sequence import Processor, Sequence


def minimum_length(request: EngineRequest) -> Processor | None:
    """While fewer than ``min_tokens`` tokens exist, every end-of-text id is -inf."""
    if request.min_tokens <= 0 or not request.end_token_ids:
        return None
    banned = np.array(request.end_token_ids, np.intp)

    def process(logits: Float32, sequence: Sequence) -> None:
        if sequence.num_generated < request.min_tokens:
            logits[banned] = -np.inf

    return process


def repetition_penalty(request: EngineRequest) -> Processor | None:
    """Each distinct id of prompt and output once: a logit > 0 is divided by r, else multiplied (CTRL, Keskar 2019)."""
    if request.sampling.repetition_penalty == 1.0:
        return None
    penalty = np.float32(request.sampling.repetition_penalty)
    seen = _Occurrences(len(request.prompt) + request.max_tokens)

    def process(logits: Float32, sequence: Sequence) -> None:
        seen.count(sequence.token_ids)
        values = logits[seen.ids]
        logits[seen.ids] = np.where(values > 0, values / penalty, values * penalty)

    return process


def frequency_and_presence_penalty(request: EngineRequest) -> Processor | None:
    """logit -= f * count + p * [count > 0], counted over generated tokens (OpenAI)."""
    sampling = request.sampling
    if sampling.frequency_penalty == 0.0 and sampling.presence_penalty == 0.0:
        return None
    frequency, presence = np.float32(sampling.frequency_penalty), np.float32(sampling.presence_penalty)
    seen = _Occurrences(request.max_tokens, skip=len(request.prompt))

    def process(logits: Float32, sequence: Sequence) -> None:
        seen.count(sequence.token_ids)
        logits[seen.ids] -= frequency * seen.counts + presence

    return process


def logit_bias(request: EngineRequest) -> Processor | None:
    """logit += bias for each given id."""
    bias = request.sampling.logit_bias
    if not bias:
        return None
    ids = np.array(list(bias), np.intp)
    values = np.array(list(bias.values()), np.float32)

    def process(logits: Float32, sequence: Sequence) -> None:
        logits[ids] += values

    return process


PIPELINE: tuple[Callable[[EngineRequest], Processor | None], ...] = (
    minimum_length,
    repetition_penalty,
    frequency_and_presence_penalty,
    logit_bias,
)
"""In the order of ``docs/generation.md``. Temperature and what follows are native: see ``sampler``."""


def processors_for(request: EngineRequest) -> tuple[Processor, ...]:
    """The steps that this request asks for, with a memory of their own for one sequence."""
    made = (step(request) for step in PIPELINE)
    return tuple(process for process in made if process is not None)


class _Occurrences:
    """The distinct ids of a growing list of tokens, and how often each occurs; each token is looked at once."""

    def __init__(self, capacity: int, skip: int = 0) -> None:
        self._ids = np.empty(capacity, np.int32)
        self._counts = np.zeros(capacity, np.float32)
        self._place: dict[int, int] = {}
        self._next = skip

    def count(self, token_ids: list[int]) -> None:
        for token_id in self._new(token_ids):
            place = self._place.setdefault(token_id, len(self._place))
            self._ids[place] = token_id
            self._counts[place] += 1

    def _new(self, token_ids: list[int]) -> Iterable[int]:
        start, self._next = self._next, len(token_ids)
        return token_ids[start:]

    @property
    def ids(self) -> Int32:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> Float32:
        return self._counts[: len(self._place)]
