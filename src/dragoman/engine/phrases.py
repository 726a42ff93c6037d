"""Steps that look at more than one token: phrases that may not be said, and what was said before.

Each finds out what it needs from the token ids as they grow, every token once, and so starts over from the ids alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Ids

import numpy as np
from numpy.typing import NDArray

from dragoman.core.request import EngineRequest
from dragoman.engine.batch import Float32, Int32
from dragoman.engine.sequence import Processor, Sequence

DRY_LONGEST_MATCH = 50
"""Matches are followed no further back: the penalty grows exponentially, and is far beyond any logit by then."""
_LARGEST_PENALTY = 1e30


def banned_phrases(request: EngineRequest) -> Processor | None:
    """The last token of a phrase is -inf when the generated tokens end in all before it; alone, it always is."""
    phrases = [phrase for phrase in request.sampling.banned_phrases if phrase]
    if not phrases:
        return None
    always = np.array([phrase[0] for phrase in phrases if len(phrase) == 1], np.intp)
    behind: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
    """By the token before the last: all tokens before the last, and the last."""
    for phrase in phrases:
        if len(phrase) > 1:
            behind[phrase[-2]].append((list(phrase[:-1]), phrase[-1]))

    def process(logits: Float32, sequence: Sequence) -> None:
        logits[always] = -np.inf
        if not behind or not sequence.num_generated:
            return
        ids, generated = sequence.token_ids, sequence.num_generated
        for beginning, last in behind.get(ids[-1], ()):
            if len(beginning) <= generated and ids[-len(beginning) :] == beginning:
                logits[last] = -np.inf

    return process


def no_repeat_ngram(request: EngineRequest) -> Processor | None:
    """No n-gram of prompt and output occurs twice: a token that would complete one again is -inf."""
    size = request.sampling.no_repeat_ngram_size
    if size <= 0:
        return None
    ngrams = _NGrams(size)

    def process(logits: Float32, sequence: Sequence) -> None:
        ngrams.take(sequence.token_ids)
        logits[ngrams.after(sequence.token_ids)] = -np.inf

    return process


def encoder_no_repeat_ngram(size: int, encoder_ids: Ids[int]) -> Processor | None:
    """No n-gram of an encoder's input occurs in the output, whose ids are those of the sequence."""
    if size <= 0:
        return None
    ngrams = _NGrams(size)
    ngrams.take(list(encoder_ids))

    def process(logits: Float32, sequence: Sequence) -> None:
        logits[ngrams.after(sequence.token_ids)] = -np.inf

    return process


def encoder_repetition_penalty(penalty: float, encoder_ids: Ids[int]) -> Processor | None:
    """Each distinct id of an encoder's input once: a logit > 0 is multiplied by the penalty, else divided by it.

    The other way about than the repetition penalty: above 1 the output keeps to the input's words, as transformers'
    ``encoder_repetition_penalty`` has it.
    """
    if penalty == 1.0:
        return None
    ids = np.array(sorted(set(encoder_ids)), np.intp)

    def process(logits: Float32, sequence: Sequence) -> None:
        values = logits[ids]
        logits[ids] = np.where(values > 0, values * np.float32(penalty), values / np.float32(penalty))

    return process


def dry(request: EngineRequest) -> Processor | None:
    """DRY ("don't repeat yourself"): what would go on with a repetition loses more the longer that is already.

    For each token that followed, somewhere earlier, the same tokens that the text ends in now, n of them at most: its
    logit -= multiplier * base ** (n - allowed_length), where n >= allowed_length. Neither those tokens nor the one that
    follows is a sequence breaker. Its author's description and formula:
    https://github.com/oobabooga/text-generation-webui/pull/5677
    """
    sampling = request.sampling
    if sampling.dry_multiplier == 0 or sampling.dry_penalty_last_n == 0:
        return None
    breakers = np.array(sampling.dry_breaker_ids, np.int32)
    history = _History(len(request.prompt) + request.max_tokens)
    most = sampling.dry_penalty_last_n

    def process(logits: Float32, sequence: Sequence) -> None:
        ids = history.of(sequence.token_ids)
        ids = ids[-most:] if most > 0 else ids
        following, lengths = _repetitions(ids, breakers)
        long_enough = lengths >= sampling.dry_allowed_length
        following, lengths = following[long_enough], lengths[long_enough]
        if not len(following):
            return
        with np.errstate(over="ignore"):
            penalties = sampling.dry_multiplier * sampling.dry_base ** (lengths - sampling.dry_allowed_length)
        worst: dict[int, float] = {}
        for token_id, penalty in zip(following.tolist(), penalties.tolist(), strict=True):
            worst[token_id] = max(worst.get(token_id, 0.0), penalty)
        for token_id, penalty in worst.items():
            logits[token_id] -= np.float32(min(penalty, _LARGEST_PENALTY))

    return process


def _repetitions(ids: Int32, breakers: Int32) -> tuple[Int32, NDArray[np.int64]]:
    """Tokens that followed what ``ids`` end in, with the length of the match before each. A token may come twice.

    All places are looked at together, one token further back each time: as many passes as the longest match has tokens.
    """
    nothing = np.empty(0, np.int32), np.empty(0, np.int64)
    if len(ids) < 2 or ids[-1] in breakers:
        return nothing
    ends = np.flatnonzero(ids[:-1] == ids[-1])
    ends = ends[~np.isin(ids[ends + 1], breakers)]
    if not len(ends):
        return nothing
    lengths = np.ones(len(ends), np.int64)
    matching = np.arange(len(ends))
    for length in range(1, min(DRY_LONGEST_MATCH, len(ids) - 1)):
        previous = ids[-1 - length]
        if previous in breakers:
            break
        matching = matching[ends[matching] >= length]
        matching = matching[ids[ends[matching] - length] == previous]
        if not len(matching):
            break
        lengths[matching] = length + 1
    return ids[ends + 1], lengths


class _NGrams:
    """All n-grams of a list of token ids that only ever grows: by the first n - 1 tokens, those that followed them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._followers: dict[tuple[int, ...], set[int]] = defaultdict(set)
        self._end = size - 1
        """Where the next n-gram that is not known yet ends."""

    def take(self, token_ids: list[int]) -> None:
        for end in range(self._end, len(token_ids)):
            self._followers[tuple(token_ids[end - self._size + 1 : end])].add(token_ids[end])
        self._end = max(self._end, len(token_ids))

    def after(self, token_ids: list[int]) -> list[int]:
        """What followed, anywhere, the last n - 1 of these tokens."""
        start = len(token_ids) - self._size + 1
        return list(self._followers.get(tuple(token_ids[start:]), ())) if start >= 0 else []


class _History:
    """The token ids as an array, each copied once."""

    def __init__(self, most_tokens: int) -> None:
        self._ids = np.empty(most_tokens, np.int32)
        self._seen = 0

    def of(self, token_ids: list[int]) -> Int32:
        """A view of a list that only ever grows."""
        self._ids[self._seen : len(token_ids)] = token_ids[self._seen :]
        self._seen = len(token_ids)
        return self._ids[: self._seen]
