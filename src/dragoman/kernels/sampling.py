"""From logits to a token: the native steps of sampling, log-probabilities, and counter-based random numbers.

Logits are float32 ``[rows, vocab]``; rows may be padded (a view as ``Program.run`` returns it). A row's result depends
on that row alone. ValueError on shapes that do not fit and on values out of range.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.kernels import _native

Logits = NDArray[np.float32]


class Mirostat(NamedTuple):
    """One value per row, arrays of exactly these types: Basu et al., "Mirostat", 2021, https://arxiv.org/abs/2007.14966.

    Version 1 keeps as many of the most likely tokens as algorithm 1 of the paper finds for the limit; version 2 (the
    authors' later form) those with at most ``limit`` bits of surprise, and in any case the most likely one.

    Attributes:
        version: int32; 0 is off. limit: float32, bits: the state of the algorithm, called mu by its authors.
        surprise: float32, filled: bits of the drawn token after temperature, before truncation; 0 where it is off.
    """

    version: NDArray[np.int32]
    limit: NDArray[np.float32]
    surprise: NDArray[np.float32]


TRUNCATIONS: tuple[str, ...] = _native.truncations()
"""The truncations by the names of their parameters, in the order in which they run: the table of ``csrc/sampling``."""


def sample(
    logits: Logits,
    temperature: ArrayLike,
    uniform: ArrayLike,
    token_ids: NDArray[np.int32],
    truncations: Mapping[str, ArrayLike] = MappingProxyType({}),
    *,
    logprobs: NDArray[np.float32] | None = None,
    mirostat: Mirostat | None = None,
    overwrite: ArrayLike | None = None,
) -> None:
    """Choose one token of each row; every parameter has one value per row.

    Temperature 0 takes the most likely token, lowest id first. Otherwise, on logits / temperature, the truncations run
    that are given by name (``TRUNCATIONS``) and on in the row, in the order of their table, each on what is left by
    those before it; and the token is drawn from what is left by the inverse distribution function in token-id order
    with ``uniform`` in [0, 1). In rows with ``mirostat`` that takes the place of all truncations.

    * ``top_k`` drops what is below the k-th largest (ties stay; 0 is off);
    * ``top_p`` keeps the smallest set whose mass reaches p (the crossing token stays, never empty, ties by id; 1: off);
    * ``min_p`` drops what is less likely than min_p times the most likely token (0 is off);
    * ``typical_p`` keeps the tokens whose surprise is nearest to the entropy until their mass reaches p (those as near
      as the last stay; 1 is off): Meister et al., "Locally typical sampling", 2023;
    * ``xtc_threshold``: where two tokens or more have at least this share of the mass that is left, all of these but
      the least likely are dropped (equals: the last by id stays; 1 is off): XTC, by its author's description,
      https://github.com/oobabooga/text-generation-webui/pull/6335.

    Fills ``token_ids`` int32 and, where given, ``logprobs`` float32: log-softmax of the row's logits as they are here,
    before temperature. −1 and NaN for a row with a NaN, with +infinity, or with nothing but −infinity. Rows where
    ``overwrite`` is not 0 become what their token was drawn from: logits / temperature, −infinity where dropped; at
    temperature 0 they stay as they are.
    """
    version, limit, surprise = mirostat or (None, None, None)
    _native.sample(
        logits,
        temperature=_float32(temperature),
        uniform=_float32(uniform),
        token_ids=token_ids,
        truncations={name: _float32(values) for name, values in truncations.items()},
        logprobs=logprobs,
        mirostat=version,
        mirostat_limit=limit,
        mirostat_surprise=surprise,
        overwrite=None if overwrite is None else np.ascontiguousarray(overwrite, dtype=np.uint8),
    )


def log_softmax_at(logits: Logits, rows: ArrayLike, ids: ArrayLike) -> NDArray[np.float32]:
    """``log_softmax(logits[rows[i]])[ids[i]]`` for each i; cheapest when equal rows are neighbours."""
    rows, ids = _int32(rows), _int32(ids)
    out = np.empty(len(rows), np.float32)
    _native.log_softmax_at(logits, rows, ids, out)
    return out


def top_logprobs(logits: Logits, rows: ArrayLike, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The k most likely tokens of each given row and their log-softmax, both ``[len(rows), k]``.

    Descending, ties by lower id. A row that is not a distribution (see ``sample``) has ids −1 and NaN.
    """
    rows = _int32(rows)
    ids = np.empty((len(rows), k), np.int32)
    logprobs = np.empty((len(rows), k), np.float32)
    _native.top_logprobs(logits, rows, ids, logprobs)
    return ids, logprobs


def apply_penalties(
    row: Logits, ids: ArrayLike, counts: ArrayLike, repetition: float, frequency: float, presence: float
) -> None:
    """Penalise tokens of one row of logits ``[vocab]``, in place.

    ``ids`` are the distinct tokens of prompt and output, ``counts`` how often each was generated (0: prompt only). The
    logit is divided by ``repetition`` where positive, else multiplied; then ``frequency · count`` is subtracted, and
    ``presence`` where the count is not 0.
    """
    _native.apply_penalties(row, _int32(ids), _int32(counts), repetition, frequency, presence)


def add_bias(row: Logits, ids: ArrayLike, bias: ArrayLike) -> None:
    """``row[ids] += bias``, in place; −infinity forbids a token."""
    _native.add_bias(row, _int32(ids), _float32(bias))


def philox_uniform(seeds: ArrayLike, positions: ArrayLike, purpose: int) -> NDArray[np.float32]:
    """Random numbers in [0, 1), each a function of its seed, position and purpose alone.

    The leading 24 bits of Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with key
    (seed, 0) and counter (position, purpose, 0, 0). ``seeds`` uint64, ``positions`` not negative.
    """
    seeds = np.ascontiguousarray(seeds, dtype=np.uint64)
    positions = np.ascontiguousarray(positions, dtype=np.uint64)
    out = np.empty(len(seeds), np.float32)
    _native.philox_uniform(seeds, positions, purpose, out)
    return out


def green_list(vocab: int, key: int, previous: int, share: float) -> NDArray[np.bool_]:
    """Which tokens a watermark favours behind the token ``previous``: ``[vocab]``, a function of the arguments alone.

    Token v is green where 32 bits of Philox4x64-10, with key (``key``, 1) and counter (v // 8, ``previous``, 0, 0), are
    below share · 2³²: word v % 8 of the block, low halves first. So each token is green with probability ``share``,
    independently, as in Kirchenbauer et al., "A watermark for large language models", 2023, with a random number of
    green tokens instead of exactly share · vocab.
    """
    out = np.empty(vocab, np.uint8)
    _native.green_list(key, previous, share, out)
    return out.view(np.bool_)


def add_to_green_list(row: Logits, key: int, previous: int, share: float, delta: float) -> None:
    """``row[green_list(len(row), key, previous, share)] += delta``, in place, for a row of logits ``[vocab]``."""
    _native.add_to_green_list(row, key, previous, share, delta)


def _int32(values: ArrayLike) -> NDArray[np.int32]:
    return np.ascontiguousarray(values, dtype=np.int32)


def _float32(values: ArrayLike) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, dtype=np.float32)
