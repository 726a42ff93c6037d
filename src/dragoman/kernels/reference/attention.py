"""Causal attention of one sequence, without blocks or online softmax."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def attend(q: Floats, k: Floats, v: Floats, first: int, scale: float, window: int = 0) -> Floats:
    """Attention of queries ``[rows, heads, head_dim]`` at positions ``first``, ``first + 1``, …

    Keys and values of all positions are ``[positions, kv_heads, head_dim]``; neighbouring query heads share a KV head.
    Returns ``[rows, heads · head_dim]``.
    """
    rows, heads, head_dim = q.shape
    group = heads // k.shape[1]
    keys = np.repeat(np.asarray(k, np.float64), group, axis=1)
    values = np.repeat(np.asarray(v, np.float64), group, axis=1)
    scores = np.einsum("rhd,phd->rhp", np.asarray(q, np.float64), keys) * scale
    position = first + np.arange(rows)[:, None, None]
    key_position = np.arange(len(k))[None, None, :]
    seen = key_position <= position
    if window > 0:
        seen &= key_position > position - window
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed: Floats = np.einsum("rhp,phd->rhd", weights, values)
    return mixed.reshape(rows, heads * head_dim)
