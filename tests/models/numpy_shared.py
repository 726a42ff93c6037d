"""Blocks that several layers share once more, in plain NumPy on whole sequences: see ``numpy_decoder``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from numpy_decoder import NumpyDecoder

Array = NDArray[Any]


def with_block(decoder: NumpyDecoder, x: Array, embeddings: Array, layer: int) -> Array:
    """The stream with the result of the layer's block added: the mixer's input, before its norm."""
    shared = decoder.spec.shared_blocks
    if shared is None or layer not in shared.layers:
        return x
    place = shared.layers.index(layer)
    at = f"layers.{shared.layers[place % shared.count]}.block_"

    def product(x: Array, module: str, low_rank: str) -> Array:
        if not shared.rank:
            return decoder.linear(x, at + module)
        low = decoder.linear(x, f"{at}{low_rank}_in.{place}")
        return decoder.linear(x, at + module) + decoder.linear(low, f"{at}{low_rank}_out.{place}")

    beside = decoder.norm(np.concatenate([x, embeddings], axis=1), at + "norm")
    q, k, v = (
        product(beside, name, f"{name}_low_rank") if shared.attention else decoder.linear(beside, at + name)
        for name in ("query", "key", "value")
    )
    y = decoder.linear(attend(decoder, q, k, v, layer), at + "attention_out")
    y = decoder.norm(y, at + "feed_forward_norm")
    gate, up = np.split(product(y, "feed_forward_in", "low_rank"), 2, axis=1)
    y = decoder.linear(decoder.activated(gate) * up, at + "feed_forward_out")
    return x + decoder.linear(y, f"layers.{layer}.block_result")


def attend(decoder: NumpyDecoder, q: Array, k: Array, v: Array, layer: int) -> Array:
    spec, tokens = decoder.spec, len(q)
    q, k, v = (part.reshape(tokens, -1, spec.head_dim) for part in (q, k, v))
    q, k = decoder.rotated(q, layer), decoder.rotated(k, layer)
    q, k, v = decoder.round_query(q), decoder.round_kv(k), decoder.round_kv(v)
    k, v = (np.repeat(part, spec.heads // spec.kv_heads, axis=1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(spec.attention_scales[layer])
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", decoder.round_query(weights), v) / weights.sum(-1).T[:, :, None]
    return np.asarray(mixed.reshape(tokens, spec.query_width), np.float32)
