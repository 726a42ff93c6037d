"""Temporary stand-in until the native sampling kernels are there."""

import numpy as np


def philox_uniform(seeds, positions, purpose):
    out = []
    for s, p in zip(seeds.tolist(), positions.tolist()):
        out.append(np.random.Generator(np.random.Philox(key=s, counter=[p, purpose, 0, 0])).random(dtype=np.float32))
    return np.array(out, np.float32)


def log_softmax_at(logits, rows, ids):
    out = []
    for r, i in zip(rows.tolist(), ids.tolist()):
        x = logits[r].astype(np.float64)
        m = x.max()
        out.append(x[i] - m - np.log(np.exp(x - m).sum()))
    return np.array(out, np.float32)


def top_logprobs(logits, rows, k):
    ids = (
        np.stack([np.argsort(-logits[r], kind="stable")[:k] for r in rows.tolist()]) if len(rows) else np.zeros((0, k))
    )
    ids = ids.astype(np.int32)
    lps = (
        np.stack([log_softmax_at(logits, np.full(k, r), i) for r, i in zip(rows.tolist(), ids)])
        if len(rows)
        else np.zeros((0, k), np.float32)
    )
    return ids, lps


def sample(logits, temperature, top_k, top_p, min_p, uniform, token_ids, logprobs):
    for r in range(len(logits)):
        x = logits[r].astype(np.float64)
        if np.isnan(x).any():
            token_ids[r] = -1
            continue
        if temperature[r] == 0:
            token_ids[r] = int(x.argmax())
            continue
        x = x / temperature[r]
        if top_k[r] > 0 and top_k[r] < len(x):
            x[x < np.sort(x)[-top_k[r]]] = -np.inf
        p = np.exp(x - x.max())
        p /= p.sum()
        if top_p[r] < 1:
            order = np.argsort(-p, kind="stable")
            c = np.cumsum(p[order])
            p[order[int(np.searchsorted(c, top_p[r])) + 1 :]] = 0
        if min_p[r] > 0:
            p[p < min_p[r] * p.max()] = 0
        c = np.cumsum(p)
        token_ids[r] = min(int(np.searchsorted(c, uniform[r] * c[-1], side="right")), len(x) - 1)


def apply_penalties(row, ids, counts, repetition, frequency, presence):
    v = row[ids]
    v = np.where(v > 0, v / np.float32(repetition), v * np.float32(repetition))
    row[ids] = v - (np.float32(frequency) * counts + np.where(counts > 0, np.float32(presence), np.float32(0)))


def add_bias(row, ids, bias):
    row[ids] += bias
