"""The choice of a token, said with a full sort; and its random numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def kept(logits: Floats, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Floats:
    """Probabilities of one row ``[vocab]`` after temperature, top-k, top-p and min-p; 0 where dropped, not renormalised
    after top-p."""
    x = np.asarray(logits, np.float64) / temperature
    if 0 < top_k < len(x):
        x = np.where(x >= np.sort(x)[-top_k], x, -np.inf)
    p = np.exp(x - x.max())
    p /= p.sum()
    if top_p < 1:
        order = np.lexsort((np.arange(len(p)), -p))
        before = np.cumsum(p[order]) - p[order]
        outside = order[(before >= top_p) & (np.arange(len(p)) > 0)]
        p[outside] = 0
    return np.where(p >= min_p * p.max(), p, 0)


def sample(
    logits: Floats, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, uniform: float = 0.0
) -> int:
    """One token of one row: the inverse distribution function in token-id order."""
    if temperature == 0:
        return int(np.argmax(logits))
    cumulative = np.cumsum(kept(logits, temperature, top_k, top_p, min_p))
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def log_softmax(logits: Floats) -> Floats:
    """Natural logarithms of the probabilities, over the last axis."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))


def top_logprobs(logits: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
    """Ids and log-probabilities of the k most likely tokens of one row, ties by lower id."""
    logprobs = log_softmax(logits)
    order = np.lexsort((np.arange(len(logits)), -np.asarray(logits, np.float64)))[:k]
    return order, logprobs[order]


def philox_uniform(seed: int, position: int, purpose: int) -> np.float32:
    """NumPy's own Philox4x64-10, which steps its counter before the first number."""
    counter = [position, purpose, 0, 0]
    for i in range(4):  # 256 bits, minus one
        counter[i] = (counter[i] - 1) % 2**64
        if counter[i] != 2**64 - 1:
            break
    generator = np.random.Philox(key=np.array([seed, 0], np.uint64), counter=np.array(counter, np.uint64))
    return np.float32(int(generator.random_raw(1)[0]) >> 40) * np.float32(2.0**-24)


def penalize(
    logits: Floats, ids: list[int], counts: list[int], repetition: float, frequency: float, presence: float
) -> Floats:
    """Repetition (Keskar et al. 2019), frequency and presence penalties of one row."""
    y = np.array(logits, np.float64)
    for i, count in zip(ids, counts, strict=True):
        y[i] = y[i] / repetition if y[i] > 0 else y[i] * repetition
        y[i] -= frequency * count + presence * (count > 0)
    return y
