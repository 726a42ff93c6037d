"""Reference of attention of one sequence, without blocks or online softmax."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    first: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    slopes: Floats | None = None,
    bias: Floats | None = None,
    causal: bool = True,
    sinks: Floats | None = None,
    chunk: int = 0,
    own: tuple[Floats, Floats] | None = None,
) -> Floats:
    """Return the attention of queries ``[rows, heads, head_dim]`` at positions ``first``, ``first + 1``, …

    Keys and values of all positions are ``[positions, kv_heads, head_dim]``; neighbouring query heads share a KV
    head. ``softcap`` as in Gemma 2 (Gemma Team 2024), ``slopes`` ``[heads]`` as in ALiBi (Press et al. 2021),
    ``bias`` ``[heads, 2 · D + 1]`` by distance as in T5 (Raffel et al. 2019), ``sinks`` ``[heads]`` as in gpt-oss
    (OpenAI 2025), ``chunk`` as in Llama 4. Values may have
    another size than keys, as in latent attention. ``own``: the keys and values that a query reads in place of the
    others in the block of 32 positions that its own is in. Returns ``[rows, heads · size of a value]``.
    """
    rows, heads, _ = q.shape
    group = heads // k.shape[1]

    def by_head(x: Floats) -> Floats:
        return np.repeat(np.asarray(x, np.float64), group, axis=1).transpose(1, 0, 2)

    queries = np.asarray(q, np.float64).transpose(1, 0, 2)  # and scores, [heads, rows, positions]
    scores = queries @ by_head(k).transpose(0, 2, 1)
    is_own = np.arange(len(k)) // 32 == (first + np.arange(rows)[:, None]) // 32
    if own is not None:
        scores = np.where(is_own, queries @ by_head(own[0]).transpose(0, 2, 1), scores)
    scores = scores.transpose(1, 0, 2) * scale
    distance = np.arange(len(k)) - (first + np.arange(rows)[:, None, None])
    if softcap > 0:
        scores = softcap * np.tanh(scores / softcap)
    if slopes is not None:
        scores = scores + np.asarray(slopes, np.float64)[None, :, None] * distance
    if bias is not None:
        reach = bias.shape[1] // 2
        scores = scores + bias[np.arange(heads)[None, :, None], np.clip(distance, -reach, reach) + reach]
    if causal:
        seen = (distance <= 0) & (distance > -window if window > 0 else True)
        if chunk > 0:
            seen &= np.arange(len(k)) // chunk == (first + np.arange(rows)[:, None, None]) // chunk
        scores = np.where(seen, scores, -np.inf)
    elif window > 0:
        scores = np.where(np.abs(distance) < window, scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64)[None, :, None] - most)
    weights /= total
    weights = weights.transpose(1, 0, 2)
    mixed: Floats = (weights if own is None else np.where(is_own, 0, weights)) @ by_head(v)
    if own is not None:
        mixed += np.where(is_own, weights, 0) @ by_head(own[1])
    return mixed.transpose(1, 0, 2).reshape(rows, heads * v.shape[2])


def in_int8(x: Floats) -> Floats:
    """Return keys or values ``[..., head_dim]`` as an int8 pool stores them: codes with a scale for 32 neighbours.

    The scale is the smallest bfloat16 of which 127 reach the largest magnitude.
    """
    x = np.asarray(x, np.float32)
    groups = np.zeros((*x.shape[:-1], -(-x.shape[-1] // 32), 32), np.float32)
    groups.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]] = x
    bits = (np.abs(groups).max(-1, keepdims=True) / np.float32(127)).view(np.uint32)
    scale = ((bits + 0xFFFF) & 0xFFFF0000).view(np.float32)
    with np.errstate(divide="ignore"):
        factor = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
    rounded: Floats = (np.rint(groups * factor) * scale).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
    return rounded


LEVELS = np.array([6, 18, 31, 44, 58, 75, 96, 127], np.float32)
"""Magnitudes that a code of an int4 pool stands for, in scales."""


def rotate(x: Floats) -> Floats:
    """Return ``[..., n]`` times a Hadamard matrix for each power of two in n, a multiple of 16, the largest first."""
    parts: list[Floats] = []
    while x.shape[-1]:
        size = 1 << (x.shape[-1].bit_length() - 1)
        matrix = np.ones((1, 1), np.float32)
        while len(matrix) < size:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        parts.append(x[..., :size] @ (matrix / np.float32(np.sqrt(size))))
        x = x[..., size:]
    return np.concatenate(parts, -1)


def int4_values(x: Floats) -> Floats:
    """Return values ``[..., head_dim]`` as an int4 pool stores them: levels with a scale for 32 neighbours."""
    groups = _groups(np.asarray(x, np.float32))
    found = _in_levels(groups, _candidates(groups), x.shape[-1])
    return _numbers(found, x.shape[-1])


def int4_keys(x: Floats, block: int = 32) -> Floats:
    """Return keys ``[positions, kv_heads, head_dim]`` as an int4 pool stores them, for queries that are not rotated.

    A block's first key is its origin, in steps of 64 scales; groups of later ones are differences to it where those are
    the smaller.
    """
    dim = x.shape[-1]
    padded = -(-dim // 16) * 16
    filled = np.zeros((*x.shape[:-1], padded), np.float32)
    filled[..., :dim] = x
    keys = _groups(rotate(filled))
    stored = np.empty_like(keys)
    for begin in range(0, len(keys), block):
        here = keys[begin : begin + block]
        scale = _bfloat16_at_least(np.abs(here[:1]).max(-1, keepdims=True) / np.float32(127 * 64))
        steps = scale * np.float32(64)
        origin = np.rint(here[:1] * _inverse(steps)) * steps
        rest = here - origin
        whole = _in_levels(here, _candidates(here), padded)
        difference = origin + _in_levels(rest, _candidates(rest), padded)
        energies = ((each**2).sum(-1, keepdims=True) for each in (rest, here))
        stored[begin : begin + block] = np.where(np.less(*energies), difference, whole)
        stored[begin] = (origin + _in_levels(rest[:1], scale[None], padded))[0]
    return rotate(_numbers(stored, padded))[..., :dim]


def _groups(x: Floats) -> Floats:
    groups = np.zeros((*x.shape[:-1], -(-x.shape[-1] // 32), 32), np.float32)
    groups.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]] = x
    return groups


def _numbers(groups: Floats, size: int) -> Floats:
    return groups.reshape(*groups.shape[:-2], -1)[..., :size]


def _inverse(x: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.where(x > 0, np.float32(1) / x, np.float32(0))


def _bfloat16(x: Floats) -> Floats:
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def _bfloat16_at_least(x: Floats) -> Floats:
    return ((np.asarray(x, np.float32).view(np.uint32) + 0xFFFF) & 0xFFFF0000).view(np.float32)


def _candidates(groups: Floats) -> Floats:
    """Return scales to try, ``[candidates, ..., 1]``."""
    most = np.abs(groups).max(-1, keepdims=True)
    deviations = np.float32(1.9) + np.float32(0.125) * np.arange(12, dtype=np.float32)
    return np.stack([_bfloat16(most / (each * np.float32(127 / 2.7326))) for each in deviations])


def _in_levels(groups: Floats, scales: Floats, size: int) -> Floats:
    """Return the groups in levels of the scale with the least error in the first ``size`` numbers."""
    counted = np.arange(groups.shape[-2] * 32).reshape(-1, 32) < size
    middles = (LEVELS[1:] + LEVELS[:-1]) / 2
    best, least = groups, np.full((*groups.shape[:-1], 1), np.inf)
    for scale in scales:
        levels = LEVELS[np.searchsorted(middles, np.abs(groups) * _inverse(scale), side="right")] * scale
        found = np.where(groups < 0, -levels, levels)
        error = (np.where(counted, found - groups, 0) ** 2).sum(-1, keepdims=True)
        best, least = np.where(error < least, found, best), np.minimum(error, least)
    return best
