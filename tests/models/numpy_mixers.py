"""The layers with a state once more, in plain NumPy on whole sequences: see ``numpy_decoder``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dragoman.models.recurrent import (
    DeltaRule,
    GatedUnit,
    KeyedDeltaRule,
    LightningAttention,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)

if TYPE_CHECKING:
    from numpy_decoder import NumpyDecoder

Array = NDArray[Any]


def mix(decoder: NumpyDecoder, x: Array, layer: int) -> Array:
    """A layer's branch in attention's place."""
    mixer, at = decoder.spec.mixer(layer), f"layers.{layer}."
    if isinstance(mixer, ShortConvolution):
        b, c, x = np.split(decoder.linear(x, at + "mixer_in"), 3, axis=1)
        mixed = c * convolve(decoder, b * x, at)
    elif isinstance(mixer, StateSpace):
        mixed = state_space(decoder, mixer, x, at)
    elif isinstance(mixer, SelectiveScan):
        mixed = selective_scan(decoder, mixer, x, at)
    elif isinstance(mixer, GatedUnit):
        mixed = gated_unit(decoder, mixer, x, at)
    elif isinstance(mixer, KeyedDeltaRule):
        mixed = keyed_delta_rule(decoder, mixer, x, at)
    elif isinstance(mixer, LightningAttention):
        mixed = lightning_attention(decoder, mixer, x, layer)
    else:
        assert isinstance(mixer, DeltaRule)
        mixed = delta_rule(decoder, mixer, x, at)
    return decoder.linear(mixed, at + "mixer_out")


def convolve(decoder: NumpyDecoder, x: Array, at: str) -> Array:
    weight = decoder.weights[at + "mixer_convolution.weight"][:, 0].T
    padded = np.concatenate([np.zeros((len(weight) - 1, x.shape[1]), np.float32), x])
    y = sum(padded[j : j + len(x)] * row for j, row in enumerate(weight))
    return np.asarray(y + decoder.weights.get(at + "mixer_convolution.bias", np.float32(0)))


def delta_rule(decoder: NumpyDecoder, mixer: DeltaRule, x: Array, at: str) -> Array:
    tokens, weights = len(x), decoder.weights
    inner = decoder.linear(x, at + "mixer_in")
    convolved, z = inner[:, : mixer.convolved], inner[:, mixer.convolved :]
    q, k, v = np.split(silu(convolve(decoder, convolved, at)), [mixer.keys, 2 * mixer.keys], axis=1)
    gates = x @ weights[at + "mixer_gates.weight"].T  # never rounded
    factor = sigmoid(gates[:, : mixer.value_heads]) * np.float32(mixer.factor_scale)
    step = np.logaddexp(0, gates[:, mixer.value_heads :] + weights[at + "mixer_step_bias.weight"])
    decay = np.exp(-np.exp(weights[at + "mixer_rate.weight"]) * step)
    q, k = (unit(part.reshape(tokens, mixer.key_heads, -1)) for part in (q, k))
    q, k = (np.repeat(part, mixer.value_heads // mixer.key_heads, axis=1) for part in (q, k))
    v = v.reshape(tokens, mixer.value_heads, -1)
    state, out = np.zeros((mixer.value_heads, mixer.key_dim, mixer.value_dim), np.float32), np.empty_like(v)
    for t in range(tokens):
        state = state * decay[t, :, None, None].astype(np.float32)
        change = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * factor[t, :, None]
        state = state + np.einsum("hk,hv->hkv", k[t], change)
        out[t] = np.einsum("hkv,hk->hv", state, q[t]) / np.sqrt(np.float32(mixer.key_dim))
    normed = rms(out, mixer.norm_eps or decoder.spec.norm_eps) * weights[at + "mixer_scale.weight"]
    return np.asarray(normed.reshape(tokens, -1) * silu(z), np.float32)


def keyed_delta_rule(decoder: NumpyDecoder, mixer: KeyedDeltaRule, x: Array, at: str) -> Array:
    weights, shape = decoder.weights, (len(x), mixer.heads, mixer.dim)
    q, k, v = np.split(silu(convolve(decoder, decoder.linear(x, at + "mixer_in"), at)), 3, axis=1)
    q, k, v = unit(q.reshape(shape)), unit(k.reshape(shape)), v.reshape(shape)
    low = x @ weights[at + "mixer_gates.weight"].T  # never rounded, as the next
    step = low[:, : mixer.dim] @ weights[at + "mixer_decays.weight"].T + weights[at + "mixer_step_bias.weight"]
    rate = np.exp(weights[at + "mixer_rate.weight"])[:, None]
    decay = np.exp(-rate * np.logaddexp(0, step).reshape(shape)).astype(np.float32)
    factor = sigmoid(low[:, mixer.dim :])
    state, out = np.zeros((mixer.heads, mixer.dim, mixer.dim), np.float32), np.empty_like(v)
    for t in range(len(x)):
        state = state * decay[t, :, :, None]
        change = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * factor[t, :, None]
        state = state + np.einsum("hk,hv->hkv", k[t], change)
        out[t] = np.einsum("hkv,hk->hv", state, q[t]) / np.sqrt(np.float32(mixer.dim))
    normed = rms(out, decoder.spec.norm_eps) * weights[at + "mixer_scale.weight"]
    z = decoder.linear(decoder.linear(x, at + "mixer_opening_in"), at + "mixer_opening")
    return np.asarray(normed.reshape(len(x), -1) * sigmoid(z), np.float32)


def lightning_attention(decoder: NumpyDecoder, mixer: LightningAttention, x: Array, layer: int) -> Array:
    at, shape = f"layers.{layer}.", (len(x), mixer.heads, mixer.dim)
    inner = decoder.linear(x, at + "mixer_in")
    if not mixer.rotated:
        inner = decoder.activated(inner)
    q, k, v = (part.reshape(shape) for part in np.split(inner, 3, axis=1))
    if mixer.rotated:
        q, k = (
            decoder.rotated(rms(part, decoder.spec.norm_eps) * decoder.weights[f"{at}{module}.weight"], layer)
            for part, module in ((q, "query_norm"), (k, "key_norm"))
        )
        q = q / np.sqrt(np.float32(mixer.dim))
    decay = np.exp(-np.float32(mixer.rates(layer, decoder.spec.layers)))[:, None, None]
    state, out = np.zeros((mixer.heads, mixer.dim, mixer.dim), np.float32), np.empty_like(v)
    for t in range(len(x)):
        state = state * decay + np.einsum("hk,hv->hkv", k[t], v[t])
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    normed = rms(out.reshape(len(x), mixer.norm_groups, -1), mixer.norm_eps).reshape(len(x), -1)
    normed = normed * decoder.weights[at + "mixer_scale.weight"]
    return np.asarray(normed * sigmoid(decoder.linear(x, at + "mixer_opening")), np.float32)


def state_space(decoder: NumpyDecoder, mixer: StateSpace, x: Array, at: str) -> Array:
    tokens, weights = len(x), decoder.weights
    shared = mixer.groups * mixer.state_dim
    widths = (mixer.inner, mixer.inner, shared, shared, mixer.heads)
    inner = decoder.linear(x, at + "mixer_in") * np.repeat(np.float32(mixer.scales), widths)
    z, convolved, steps = np.split(inner, [mixer.inner, mixer.inner + mixer.convolved], axis=1)
    x, b, c = np.split(silu(convolve(decoder, convolved, at)), [mixer.inner, mixer.inner + shared], axis=1)
    step = np.logaddexp(0, steps + weights[at + "mixer_step_bias.weight"])
    step = np.clip(step, mixer.least_step, mixer.most_step)
    decay = np.exp(-np.exp(weights[at + "mixer_rate.weight"]) * step)
    group = mixer.heads // mixer.groups
    b, c = (np.repeat(part.reshape(tokens, mixer.groups, -1), group, axis=1) for part in (b, c))
    x = x.reshape(tokens, mixer.heads, -1)
    state, out = np.zeros((mixer.heads, mixer.state_dim, mixer.head_dim), np.float32), np.empty_like(x)
    for t in range(tokens):
        state = state * decay[t, :, None, None] + np.einsum("hs,hd->hsd", b[t], x[t] * step[t, :, None])
        out[t] = np.einsum("hsd,hs->hd", state, c[t]) + weights[at + "mixer_skip.weight"][:, None] * x[t]
    mixed = out.reshape(tokens, -1)
    if mixer.norm != "before":
        mixed = mixed * silu(z)
    if mixer.norm is not None:
        groups = mixed.reshape(tokens, mixer.norm_groups or mixer.groups, -1)
        mixed = (
            rms(groups, mixer.norm_eps or decoder.spec.norm_eps).reshape(tokens, -1)
            * weights[at + "mixer_scale.weight"]
        )
    return np.asarray(mixed * silu(z) if mixer.norm == "before" else mixed, np.float32)


def selective_scan(decoder: NumpyDecoder, mixer: SelectiveScan, x: Array, at: str) -> Array:
    x, z = np.split(decoder.linear(x, at + "mixer_in"), 2, axis=1)
    heads = np.split(silu(convolve(decoder, x, at)), mixer.heads, axis=1)
    out = np.concatenate([scan_head(decoder, mixer, part, at, head) for head, part in enumerate(heads)], axis=1)
    return np.asarray(out * silu(z), np.float32)


def scan_head(decoder: NumpyDecoder, mixer: SelectiveScan, x: Array, at: str, head: int) -> Array:
    weights, eps = decoder.weights, mixer.norm_eps or decoder.spec.norm_eps
    number, size = f".{head}" if mixer.heads > 1 else "", mixer.head_dim
    of_head = slice(head * size, head * size + size)
    selected = decoder.linear(x, f"{at}mixer_selection{number}")
    parts = np.split(selected, [mixer.rank, mixer.rank + mixer.state_dim], axis=1)
    if mixer.norm is not None:
        names = ("mixer_rank_norm", "mixer_b_norm", "mixer_c_norm")
        parts = [
            rms(part, eps) * weights.get(f"{at}{name}.weight", np.float32(1))
            for part, name in zip(parts, names, strict=True)
        ]
    ranks, b, c = parts
    bias = weights[at + "mixer_step_bias.weight"][of_head]
    step = np.logaddexp(0, decoder.linear(ranks, f"{at}mixer_steps{number}") + bias)
    rate, skip = np.exp(weights[at + "mixer_rate.weight"][of_head]), weights[at + "mixer_skip.weight"][of_head]
    state, out = np.zeros((size, mixer.state_dim), np.float32), np.empty_like(x)
    for t in range(len(x)):
        state = state * np.exp(-rate * step[t, :, None]) + np.outer(step[t] * x[t], b[t])
        out[t] = state @ c[t] + skip * x[t]
    return out


def gated_unit(decoder: NumpyDecoder, mixer: GatedUnit, x: Array, at: str) -> Array:
    weights, block = decoder.weights, mixer.inner // mixer.blocks
    x, y = np.split(decoder.linear(x, at + "mixer_in"), 2, axis=1)
    x = convolve(decoder, x, at)
    blocks = x.reshape(len(x), mixer.blocks, block)

    def gate(name: str) -> Array:  # never rounded
        weight = weights[f"{at}mixer_{name}_gate.weight"].reshape(mixer.blocks, block, block)
        return sigmoid(
            np.einsum("tbi,boi->tbo", blocks, weight).reshape(x.shape) + weights[f"{at}mixer_{name}_gate.bias"]
        )

    decay = np.exp(-8 * np.logaddexp(0, weights[at + "mixer_rate.weight"]) * gate("decay"))
    change, state, out = gate("input") * x, np.zeros(mixer.inner, np.float32), np.empty_like(x)
    for t in range(len(x)):
        state = decay[t] * state + (np.sqrt(1 - np.square(decay[t])) if t else 1) * change[t]
        out[t] = state
    inner = np.sqrt(np.float32(2 / np.pi)) * (y + np.float32(0.044715) * y**3)
    return np.asarray(out * y * (1 + np.tanh(inner)) / 2, np.float32)


def rms(x: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(eps)))


def unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt(np.square(x).sum(-1, keepdims=True) + np.float32(1e-6)))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Array) -> Array:
    return np.asarray(x * sigmoid(x))
