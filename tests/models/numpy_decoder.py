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
from numpy_latent import attend_to_latents
from numpy_mixers import mix, sigmoid
from numpy_shared import with_block
from numpy_streams import TokenInputs, correct, layer_branch, low_rank, merge_parts, parts_of, predict

from dragoman.models.parameters import attention_module
from dragoman.models.rope import Rope
from dragoman.models.spec import DecoderSpec

Array = NDArray[Any]


@dataclass(frozen=True)
class NumpyDecoder:
    """A decoder over ``weights[name]`` as float32.

    ``round_input`` is what a product with a weight sees of its input, ``round_kv`` what is kept of keys and values
    ``[tokens, heads, head_dim]`` (of keys ``round_key``, where they are kept in another way), ``round_own`` what a
    token sees instead in the block of 32 that it is in, and ``round_query`` what attention sees of queries and of
    softmax weights (relative to the largest; their sum is taken before), with ``round_own`` only in that block. The
    last holds up to 32 tokens: further ones are weighed relative to a maximum that is still growing.
    """

    spec: DecoderSpec
    weights: Mapping[str, Array]
    round_input: Callable[[Array], Array] = lambda x: x
    round_kv: Callable[[Array], Array] = lambda x: x
    round_query: Callable[[Array], Array] = lambda x: x
    round_key: Callable[[Array], Array] | None = None
    round_own: Callable[[Array], Array] | None = None
    rounded: bool = False  # the table is not float32

    def logits(self, token_ids: NDArray[np.int32]) -> Array:
        """Logits ``[tokens, vocab]`` of every position."""
        spec, out = self.spec, self.spec.output
        x = self.embed(token_ids)
        inputs, embeddings = TokenInputs.of(self, token_ids, x), x
        shared: dict[int, tuple[Array, Array]] = {}
        if spec.altup:
            x = self.layers_of_parts(x, inputs, shared)
        else:
            for layer in range(spec.layers):
                x = self.parallel_layer(x, layer) if spec.block.parallel else self.layer(x, layer, shared, embeddings)
                if inputs:
                    x = x + layer_branch(self, x, inputs, layer)
                if spec.layer_scale:
                    x = x * self.weights[f"layers.{layer}.layer_scale.weight"]
        if out.norm:
            x = self.norm(x, "final_norm")
        if spec.embedding.width is not None:
            x = self.linear(x, "embedding_out")
        logits = self.round_input(x) @ self.weights[f"{'embedding' if spec.tied else 'head'}.weight"].T
        if out.bias:
            logits = logits + self.weights["head.bias"]
        return soft_cap(logits * np.float32(out.scale), out.softcap)

    def embed(self, token_ids: NDArray[np.int32]) -> Array:
        spec, embedding, w = self.spec, self.spec.embedding, self.weights
        scale = embedding.scale
        if embedding.scale_rounded and self.rounded:
            scale = float(np.asarray(round_to_bfloat16(np.float32([scale])))[0])
        x: Array = w["embedding.weight"][token_ids] * np.float32(scale)
        if embedding.norm == "plain":
            x = normalize(x, spec.norm, spec.norm_eps)
        elif embedding.norm:
            x = self.norm(x, "embedding_norm")
        if embedding.width is not None:
            x = self.linear(x, "embedding_in")
        if embedding.sinusoidal == "whole":
            x = x + sinusoids(np.arange(len(token_ids)) + embedding.positions_offset, spec.width)
        elif embedding.positions:
            x = x + w["positions.weight"][embedding.positions_offset :][: len(token_ids)]
        return x

    def layers_of_parts(self, x: Array, inputs: TokenInputs | None, shared: dict[int, tuple[Array, Array]]) -> Array:
        """The layers of a stream of several parts. Returns the merged stream."""
        assert inputs is not None
        parts = parts_of(self, x)
        for layer in range(self.spec.layers):
            parts = predict(self, parts, layer)
            parts = correct(self, parts, self.layer(parts[self.spec.altup.active], layer, shared), inputs, layer)
        return merge_parts(self, parts)

    def layer(
        self, x: Array, layer: int, shared: dict[int, tuple[Array, Array]], embeddings: Array | None = None
    ) -> Array:
        if self.spec.has_branch("first", layer):
            together = x if embeddings is None else with_block(self, x, embeddings, layer)
            inward = self.branch_input(together, "attention_norm", layer)
            x = inward if self.spec.norms(layer) == "stream" else x
            for name, branch in self.mixed(inward, layer, shared):
                x = self.join(x, branch, name, layer)
            if self.spec.altup:
                x = (x + low_rank(self, inward, layer)) * np.float32(math.sqrt(0.5))
        if self.spec.has_branch("second", layer):
            inward, experts = self.branch_input(x, "feed_forward_norm", layer), self.spec.routed(layer)
            x = inward if self.spec.norms(layer) == "stream" else x
            beside = experts is not None and experts.beside
            branch = self.beside(x, inward, layer) if beside else self.feed_forward(inward, layer)
            if experts is not None and experts.out_norm:
                branch = self.norm(branch, f"layers.{layer}.expert_out_norm")
            x = self.join(x, branch, "feed_forward_out", layer)
            before = self.spec.routed(layer - 1) if layer else None
            if before is not None and before.delayed:
                x = x + shared.pop(-1)[0]
            if experts is not None and experts.delayed:
                shared[-1] = (self.mixture(inward, layer), inward)
        return x

    def beside(self, x: Array, normed: Array, layer: int) -> Array:
        """A network and experts that are added, each with norms."""
        at, spec = f"layers.{layer}.", self.spec
        dense = self.network(normed, at + "feed_forward_in", at + "feed_forward_out")
        factor = self.weights[at + "router_scale.weight"] * np.float32(spec.width**-0.5)
        routing = normalize(x, spec.norm, spec.norm_eps) * factor
        routed = self.mixture(self.norm(x, at + "expert_norm"), layer, routing)
        return self.norm(dense, at + "dense_out_norm") + self.norm(routed, at + "expert_out_norm")

    def parallel_layer(self, x: Array, layer: int) -> Array:
        first = self.branch_input(x, "attention_norm", layer)
        second = first if self.spec.block.shared_norm else self.branch_input(x, "feed_forward_norm", layer)
        (_, mixed), *_ = self.mixed(first, layer, {})
        x = self.join(x, mixed, "attention_out", layer)
        return self.join(x, self.feed_forward(second, layer), "feed_forward_out", layer)

    def branch_input(self, x: Array, name: str, layer: int) -> Array:
        is_normed = self.spec.norms(layer) in ("before", "around", "stream")
        return self.norm(x, f"layers.{layer}.{name}") if is_normed else x

    def join(self, x: Array, branch: Array, name: str, layer: int) -> Array:
        norms, factor = self.spec.norms(layer), np.float32(self.spec.block.scale(name))
        x = x * np.float32(self.spec.block.kept(name))
        name = f"layers.{layer}.{'attention_out' if name == 'mixer_out' else name}_norm"
        if norms in ("after", "around"):
            branch = self.norm(branch, name, self.spec.block.out_norm_eps)
        x = x + branch * factor
        return self.norm(x, name) if norms == "joined" else x

    def mixed(self, x: Array, layer: int, shared: dict[int, tuple[Array, Array]]) -> list[tuple[str, Array]]:
        found = [("attention_out", self.attention(x, layer, shared))] if self.spec.attends(layer) else []
        return found if self.spec.mixer(layer) is None else [*found, ("mixer_out", mix(self, x, layer))]

    def attention(self, x: Array, layer: int, shared: dict[int, tuple[Array, Array]]) -> Array:
        if self.spec.latent is not None:
            return attend_to_latents(self, self.spec.latent, x, layer)
        spec, at, tokens = self.spec.of_layer(layer), f"layers.{layer}.", len(x)
        ends = np.cumsum([spec.query_width, spec.gate_width, spec.kv_width])
        module = attention_module(spec, layer)
        q, gate, k, v = np.split(self.linear(x, at + module), ends, axis=1)
        if module == "query_key":
            v = k
        if spec.value_norm and module != "query":
            v = normalize(v.reshape(tokens, -1, spec.head_dim), spec.norm, spec.norm_eps).reshape(v.shape)
        if spec.qkv_clip:
            q, k, v = (np.clip(part, -spec.qkv_clip, spec.qkv_clip) for part in (q, k, v))
        norm = spec.head_normed(layer)
        if norm is not None and not norm.rotated:
            q = self.norm_heads(q, at + "query_norm", spec.head_dim)
            k = self.norm_heads(k, at + "key_norm", spec.head_dim) if module != "query" else k
        q = q.reshape(tokens, spec.heads, spec.head_dim)
        if module == "query":
            k = v = np.zeros((tokens, spec.kv_heads, spec.head_dim), np.float32)
        k = k.reshape(tokens, spec.kv_heads, spec.head_dim)
        v = v.reshape(tokens, spec.kv_heads, -1) * np.float32(spec.value_scale)
        if (rope := spec.rope(layer)) is not None:
            q, k = (rotate(part, rope) for part in (q, k))
        if norm is not None and norm.rotated:
            q, k = (
                self.norm_heads(part.reshape(tokens, -1), at + name, spec.head_dim).reshape(part.shape)
                for part, name in ((q, "query_norm"), (k, "key_norm"))
            )
        if spec.query_scale is not None and layer in spec.query_scale.layers:
            q = q * spec.query_scale.table(tokens)[:, None, None]
        near, q = self.round_query(q), self.round_query(q) if self.round_own is None else q
        k, v = shared.setdefault(layer, (k, v)) if module != "query" else shared[spec.kv_source(layer)]
        groups = spec.heads // spec.kv_heads
        own = [np.repeat(self.round_own(part), groups, axis=1) for part in (k, v)] if self.round_own is not None else []
        k, v = (self.round_key or self.round_kv)(k), self.round_kv(v)
        k, v = (np.repeat(part, groups, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k)
        is_own = np.arange(tokens)[:, None] // 32 == np.arange(tokens) // 32
        if own:
            scores = np.where(is_own, np.einsum("qhd,khd->hqk", near, own[0]), scores)
        scores = scores * np.float32(spec.attention_scales[layer])
        scores = soft_cap(scores, spec.attention_softcap)
        distance = np.arange(tokens)[:, None] - np.arange(tokens)
        if spec.alibi_slopes:
            scores = scores - np.float32(spec.alibi_slopes)[:, None, None] * distance.astype(np.float32)
        seen = (distance >= 0) & (distance < (spec.windows[layer] or tokens))
        if spec.chunks and spec.chunks[layer]:
            chunk = np.arange(tokens) // spec.chunks[layer]
            seen &= chunk[:, None] == chunk
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        total = weights.sum(-1).T[:, :, None]
        if spec.has_sinks(layer):
            total = total + np.exp(self.weights[at + "sinks.weight"][:, None] - scores.max(-1)).T[:, :, None]
        if not own:
            mixed = np.einsum("hqk,khd->qhd", self.round_query(weights), v)
        else:
            scores_near = np.where(is_own, scores, -np.inf)
            most = scores_near.max(-1, keepdims=True)
            weights_near = self.round_query(np.exp(scores_near - most))
            mixed = np.einsum("hqk,khd->qhd", weights_near, own[1]) * np.exp(
                most - scores.max(-1, keepdims=True)
            ).swapaxes(0, 1)
            mixed = mixed + np.einsum("hqk,khd->qhd", np.where(is_own, 0, weights), v)
        mixed = (mixed / total).reshape(tokens, spec.mixed_width)
        if spec.attention_gate is not None:
            gate = np.logaddexp(0, gate).astype(np.float32) if spec.attention_gate.softplus else sigmoid(gate)
            mixed = mixed * (np.repeat(gate, spec.head_dim, axis=1) if spec.attention_gate.by_head else gate)
        if spec.block.inner_norms:
            mixed = self.norm(mixed, at + "attention_inner_norm")
        return self.linear(mixed, at + "attention_out")

    def feed_forward(self, x: Array, layer: int) -> Array:
        experts = self.spec.routed(layer)
        if experts is not None and not experts.delayed:
            return self.mixture(x, layer)
        at, name = f"layers.{layer}.", self.spec.activation
        if name == "xielu":
            inner = self.xielu(self.linear(x, at + "feed_forward_in"), at)
            return self.linear(inner, at + "feed_forward_out")
        norm = at + "feed_forward_inner_norm" if self.spec.block.inner_norms else None
        deviations = self.spec.altup.deviations[layer] if self.spec.altup else None
        return self.network(x, at + "feed_forward_in", at + "feed_forward_out", norm, deviations)

    def activated(self, x: Array) -> Array:
        return activate(x, self.spec.activation)

    def xielu(self, x: Array, at: str) -> Array:
        names = ("positive", "negative", "linear", "least")
        positive, negative, linear, least = (self.weights[f"{at}xielu_{name}.weight"][0] for name in names)
        above = np.log1p(np.exp(positive)) * x * x
        below = (np.expm1(np.minimum(x, least)) - x) * (linear + np.log1p(np.exp(negative)))
        return np.asarray(np.where(x > 0, above, below) + linear * x, np.float32)

    def network(
        self, x: Array, inward: str, outward: str, norm: str | None = None, deviations: float | None = None
    ) -> Array:
        inner = self.linear(x, inward)
        if self.spec.activation == "clamped_swiglu":
            gate, up = np.split(inner, 2, axis=1)
            gate, up = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7))
            inner = gate / (1 + np.exp(np.float32(-1.702) * gate)) * (up + 1)
        elif self.spec.gated:
            gate, up = np.split(inner, 2, axis=1)
            if inward.endswith("feed_forward_in"):
                gate = gate * np.float32(self.spec.gate_factor)
            if deviations is not None:
                least = gate.mean(1, keepdims=True) + gate.std(1, keepdims=True) * np.float32(deviations)
                gate = np.maximum(gate - least, 0)
            inner = activate(gate, self.spec.activation) * up
        else:
            inner = activate(inner, self.spec.activation)
        if norm is not None:
            inner = self.norm(inner, norm)
        return self.linear(inner, outward)

    def mixture(self, x: Array, layer: int, routing: Array | None = None) -> Array:
        """Every expert for every row, weighed with zero where it is not chosen. Routers are never rounded."""
        experts, at = self.spec.experts, f"layers.{layer}."
        assert experts is not None
        logits = (x if routing is None else routing) @ self.weights[at + "router.weight"].T
        if experts.bias:
            logits = logits + self.weights[at + "router.bias"]
        selectable = experts.count + experts.identities
        weights = self.expert_weights(logits[:, :selectable], at)
        y: Array = sum(
            self.expert(x, weights[:, e, None], f"{at}expert_in.{e}", f"{at}expert_out.{e}")
            for e in range(experts.count)
        )
        if experts.identities:
            y = y + weights[:, experts.count :].sum(axis=1, keepdims=True) * x
        if not experts.shared:
            return y * np.float32(experts.out_factor)
        share = 1 / (1 + np.exp(-logits[:, selectable:])) if experts.shared_gated else np.float32(1)
        y = y + share * self.network(x, at + "shared_expert_in", at + "shared_expert_out")
        return y * np.float32(experts.out_factor)

    def expert(self, x: Array, weight: Array, inward: str, outward: str) -> Array:
        experts = self.spec.experts
        assert experts is not None
        if experts.scale_inputs:
            return np.where(weight > 0, self.network(x * weight, inward, outward), 0)
        return weight * self.network(x, inward, outward)

    def expert_weights(self, logits: Array, at: str) -> Array:
        """``[rows, experts]``, zero for those that are not chosen."""
        experts = self.spec.experts
        assert experts is not None
        if experts.scores == "sparse_mixer":
            return sparse_mixer(logits, experts.margin)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = (
            powers / powers.sum(axis=1, keepdims=True) if experts.scores == "softmax" else 1 / (1 + np.exp(-logits))
        )
        choice = scores + self.weights[at + "router_choice.bias"] if experts.choice_bias else scores
        if experts.groups > 1:
            groups = choice.reshape(len(choice), experts.groups, -1)
            sums = np.sort(groups, axis=2)[:, :, -experts.group_top :].sum(axis=2)
            lowest = np.sort(sums, axis=1)[:, -experts.active_groups, None]
            choice = np.where((sums >= lowest)[:, :, None], groups, -np.inf).reshape(choice.shape)
        least = np.sort(choice, axis=1)[:, -experts.active, None]
        chosen = np.where(choice >= least, scores, 0)
        if not experts.over_all:
            chosen = chosen / np.maximum(chosen.sum(axis=1, keepdims=True), experts.least)
        if experts.beside:
            chosen = chosen * self.weights[at + "expert_scale.weight"]
        return np.asarray(chosen * np.float32(experts.factor), np.float32)

    def rotated(self, x: Array, layer: int) -> Array:
        rope = self.spec.rope(layer)
        return x if rope is None else rotate(x, rope)

    def norm(self, x: Array, name: str, eps: float | None = None) -> Array:
        normed = normalize(x, self.spec.norm, self.spec.norm_eps if eps is None else eps)
        if self.spec.norm_weight:
            normed = normed * self.weights[f"{name}.weight"]
        return normed + self.weights[f"{name}.bias"] if self.spec.norm_bias else normed

    def norm_heads(self, x: Array, name: str, head_dim: int) -> Array:
        """All heads as one vector, or each by itself with the one weight or its own."""
        norm = self.spec.head_norm
        assert norm is not None
        if not norm.weighted:
            heads = x.reshape(len(x), -1, head_dim)
            return normalize(heads, norm.kind, self.spec.norm_eps).reshape(x.shape)
        width = x.shape[1] if norm.over == "all" else head_dim
        heads = normalize(x.reshape(len(x), -1, width), norm.kind, self.spec.norm_eps)
        heads = heads * self.weights[f"{name}.weight"].reshape(-1, width)
        if norm.bias:
            heads = heads + self.weights[f"{name}.bias"].reshape(-1, width)
        return heads.reshape(x.shape)

    def linear(self, x: Array, name: str) -> Array:
        y: Array = self.round_input(x) @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y


def sinusoids(positions: Array, width: int) -> Array:
    """Sines and cosines of angles whose rates fall from 1 to 1 / 10,000."""
    angles = np.outer(positions, np.geomspace(1, 1e-4, width // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def sparse_mixer(logits: Array, margin: float) -> Array:
    """Weights of two experts: each one's share of a softmax over those near it, the second without the first."""
    rows, left = np.arange(len(logits)), logits.copy()
    weights = np.zeros_like(logits)
    for _ in range(2):
        best = left.argmax(axis=1)
        most = left[rows, best][:, None]
        near = (most - logits) / np.maximum(np.abs(logits), most) <= margin
        powers = np.where(near, np.exp(left - most), 0)
        weights[rows, best] = 1 / powers.sum(axis=1)
        left[rows, best] = -np.inf
    return weights


def rotate(x: Array, rope: Rope) -> Array:
    """Pairs of the first ``rope.dim`` dimensions turned: halves, or neighbours; the others stay."""
    cos, sin = (table[:, None, :] for table in rope.tables(range(len(x))))
    turned = x.copy()
    near = np.s_[..., : rope.dim : 2] if rope.interleaved else np.s_[..., : rope.dim // 2]
    far = np.s_[..., 1 : rope.dim : 2] if rope.interleaved else np.s_[..., rope.dim // 2 : rope.dim]
    turned[near] = x[near] * cos - x[far] * sin
    turned[far] = x[far] * cos + x[near] * sin
    return turned


def normalize(x: Array, kind: str, eps: float) -> Array:
    """x / sqrt(mean(x²) + eps) over the last axis, centred first where it is a LayerNorm."""
    if kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    normed: Array = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(eps))
    return normed


def soft_cap(x: Array, cap: float) -> Array:
    """cap · tanh(x / cap); 0: x."""
    return np.asarray(np.float32(cap) * np.tanh(x / np.float32(cap)), np.float32) if cap else x


def round_to_bfloat16(x: Array) -> Array:
    """Nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return rounded


def activate(x: Array, name: str) -> Array:
    """The activation functions by their definitions."""
    return np.asarray(_ACTIVATIONS[name](x), np.float32)


_erf = np.vectorize(math.erf, otypes=[np.float32])
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.square(np.maximum(x, 0)),
}
