"""The decoder's mathematics once more, from outside: plain NumPy on whole sequences, no blocks, no batches.

Weights are given as numbers (dequantized where they were packed). For bfloat16, int8 and int4 the inputs of every
product are rounded as the kernels' documentation says, so what differs from the native program is only the order in
which float32 sums are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.models.spec import DecoderSpec

Array = NDArray[Any]


@dataclass(frozen=True)
class NumpyDecoder:
    """A decoder over ``weights[name]`` as float32.

    ``round_input`` is what a product with a weight sees of its input, ``round_kv`` what is kept of keys and values, and
    ``round_query`` what attention sees of queries and of softmax weights (relative to the largest; their sum is taken
    before). The last holds up to 32 tokens: further ones are weighed relative to a maximum that is still growing.
    """

    spec: DecoderSpec
    weights: Mapping[str, Array]
    round_input: Callable[[Array], Array] = lambda x: x
    round_kv: Callable[[Array], Array] = lambda x: x
    round_query: Callable[[Array], Array] = lambda x: x

    def logits(self, token_ids: NDArray[np.int32]) -> Array:
        """Logits ``[tokens, vocab]`` of every position."""
        spec, w = self.spec, self.weights
        x = w["embedding.weight"][token_ids]
        if spec.rope is None:
            x = x + w["positions.weight"][: len(token_ids)]
        for layer in range(spec.layers):
            at = f"layers.{layer}."
            x = x + self.attention(self.norm(x, at + "attention_norm"), layer)
            x = x + self.feed_forward(self.norm(x, at + "feed_forward_norm"), at)
        return self.linear(self.norm(x, "final_norm"), "embedding" if spec.tied else "head")

    def attention(self, x: Array, layer: int) -> Array:
        spec, at, tokens = self.spec, f"layers.{layer}.", len(x)
        q, k, v = np.split(self.linear(x, at + "qkv"), [spec.query_width, spec.query_width + spec.kv_width], axis=1)
        q = q.reshape(tokens, spec.heads, spec.head_dim)
        k, v = (part.reshape(tokens, spec.kv_heads, spec.head_dim) for part in (k, v))
        if spec.head_norm:
            q, k = (rms_norm(part, self.weights[f"{at}{name}_norm.weight"], spec.norm_eps)
                    for part, name in ((q, "query"), (k, "key")))  # fmt: skip
        if spec.rope is not None:
            q, k = (self.rotate(part) for part in (q, k))
        q, k, v = self.round_query(q), self.round_kv(k), self.round_kv(v)
        groups = spec.heads // spec.kv_heads
        k, v = (np.repeat(part, groups, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(spec.attention_scales[layer])
        distance = np.arange(tokens)[:, None] - np.arange(tokens)
        seen = (distance >= 0) & (distance < (spec.windows[layer] or tokens))
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        total = weights.sum(-1).T[:, :, None]
        mixed = (np.einsum("hqk,khd->qhd", self.round_query(weights), v) / total).reshape(tokens, spec.query_width)
        return self.linear(mixed, at + "attention_out")

    def rotate(self, x: Array) -> Array:
        assert self.spec.rope is not None
        cos, sin = (table[:, None, :] for table in self.spec.rope.tables(len(x)))
        half = self.spec.rope.dim // 2
        left, right = x[..., :half], x[..., half:]
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)

    def feed_forward(self, x: Array, at: str) -> Array:
        inner = self.linear(x, at + "feed_forward_in")
        if self.spec.gated:
            gate, up = np.split(inner, 2, axis=1)
            inner = activate(gate, self.spec.activation) * up
        else:
            inner = activate(inner, self.spec.activation)
        return self.linear(inner, at + "feed_forward_out")

    def norm(self, x: Array, name: str) -> Array:
        weight = self.weights[f"{name}.weight"]
        if self.spec.norm == "rms":
            return rms_norm(x, weight, self.spec.norm_eps)
        centred = x - x.mean(-1, keepdims=True)
        variance = np.square(centred).mean(-1, keepdims=True)
        normed: Array = centred / np.sqrt(variance + np.float32(self.spec.norm_eps)) * weight
        return normed + self.weights[f"{name}.bias"]

    def linear(self, x: Array, name: str) -> Array:
        y: Array = self.round_input(x) @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x²) + eps) · weight, over the last axis."""
    normed: Array = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(eps)) * weight
    return normed


def activate(x: Array, name: str) -> Array:
    """The activation functions by their definitions."""
    return np.asarray(_ACTIVATIONS[name](x), np.float32)


_erf = np.vectorize(math.erf, otypes=[np.float32])
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}
