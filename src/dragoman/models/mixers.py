"""Recording of the layers that keep a state in attention's place: from a branch's input to that of its last product."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dragoman.models.recording import PartRecorder
from dragoman.models.recurrent import (
    DeltaRule,
    GatedUnit,
    KeyedDeltaRule,
    LightningAttention,
    Mixer,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from dragoman.models.rope import Rope, RotaryTables


class MixerRecorder(PartRecorder, Protocol):
    """What a mixer needs of the recorder of a decoder.

    Attributes:
        tables: cosines and sines of rotations.
    """

    @property
    def tables(self) -> dict[Rope, RotaryTables]: ...
    def linear(self, out: int, x: int, module: str, layer: int | None = None) -> None:
        """Record out = x·W (+ bias)."""

    def state_part(self, layer: int, number: int) -> int:
        """Return the place in the pool's slots of one part of a layer's state."""

    def mixer_buffers(self, mixer: Mixer, *widths: int) -> tuple[int, ...]:
        """Return buffers that all layers of one kind use for what lies between their projections."""

    def mixer_out(self, mixer: Mixer) -> int:
        """Return the buffer of the output projection's input, after ``mixer_buffers``."""


def record_mixer(recorder: MixerRecorder, layer: int, x: int) -> int:
    """Record a layer's mixer on the branch's input x. Returns the buffer of the output projection's input."""
    mixer = recorder.spec.mixer(layer)
    if isinstance(mixer, ShortConvolution):
        return _short_convolution(recorder, mixer, layer, x)
    if isinstance(mixer, StateSpace):
        return _state_space(recorder, mixer, layer, x)
    if isinstance(mixer, SelectiveScan):
        return _selective_scan(recorder, mixer, layer, x)
    if isinstance(mixer, GatedUnit):
        return _gated_unit(recorder, mixer, layer, x)
    if isinstance(mixer, KeyedDeltaRule):
        return _keyed_delta_rule(recorder, mixer, layer, x)
    if isinstance(mixer, LightningAttention):
        return _lightning_attention(recorder, mixer, layer, x)
    assert isinstance(mixer, DeltaRule)
    return _delta_rule(recorder, mixer, layer, x)


def _short_convolution(recorder: MixerRecorder, mixer: ShortConvolution, layer: int, x: int) -> int:
    """Record c · conv(b · x) of (b, c, x) = input·W."""
    p, width = recorder.program, mixer.width
    b, c, mixed = 0, width, 2 * width
    (parts,) = recorder.mixer_buffers(mixer, 3 * width)
    recorder.linear(parts, x, "mixer_in", layer)
    p.multiply(parts, mixed, parts, mixed, parts, b, width, "plain")
    _convolve(recorder, parts, mixed, layer, activated=False)
    out = recorder.mixer_out(mixer)
    p.multiply(out, 0, parts, mixed, parts, c, width, "plain")
    return out


def _delta_rule(recorder: MixerRecorder, mixer: DeltaRule, layer: int, x: int) -> int:
    """Record norm(delta rule(silu(conv(q, k, v)))) · silu(z) of (q, k, v, z) = input·W."""
    p, weights, heads = recorder.program, recorder.weights, mixer.value_heads
    parts, raw, gates = recorder.mixer_buffers(mixer, mixer.convolved + mixer.inner, 2 * heads, 2 * heads)
    out = recorder.mixer_out(mixer)
    recorder.linear(parts, x, "mixer_in", layer)
    recorder.linear(raw, x, "mixer_gates", layer)
    p.recurrence_gates(
        gates,
        raw,
        heads,
        0,
        np.exp(weights.vector("mixer_rate", layer)),
        weights.vector("mixer_step_bias", layer),
    )
    if mixer.factor_scale != 1.0:
        p.scale(gates, mixer.factor_scale, heads, heads)
    _convolve(recorder, parts, 0, layer, activated=True)
    _norm_to_length_1(recorder, parts, mixer.key_heads, mixer.key_dim)
    p.recur(
        out,
        parts,
        gates,
        q_offset=0,
        k_offset=mixer.keys,
        v_offset=2 * mixer.keys,
        heads=heads,
        group=heads // mixer.key_heads,
        key_dim=mixer.key_dim,
        value_dim=mixer.value_dim,
        part=recorder.state_part(layer, 1),
        delta=True,
    )
    eps = recorder.spec.norm_eps if mixer.norm_eps is None else mixer.norm_eps
    p.head_norm(out, 0, heads, mixer.value_dim, weights.vector("mixer_scale", layer), eps)
    p.multiply(out, 0, out, 0, parts, mixer.convolved, mixer.inner, "silu")
    return out


def _keyed_delta_rule(recorder: MixerRecorder, mixer: KeyedDeltaRule, layer: int, x: int) -> int:
    """Record norm(delta rule(silu(conv(q, k, v)))) · sigmoid(z) of (q, k, v) = input·W, z = input·W'·W''."""
    p, weights, heads, dim, inner = recorder.program, recorder.weights, mixer.heads, mixer.dim, mixer.inner
    widths = (3 * inner, dim + heads, dim, inner, inner + heads, inner + heads, dim, inner)
    parts, low, rank, decays, raw, gates, narrow, z = recorder.mixer_buffers(mixer, *widths)
    out = recorder.mixer_out(mixer)
    recorder.linear(parts, x, "mixer_in", layer)
    recorder.linear(low, x, "mixer_gates", layer)
    p.copy_columns(rank, low, 0)
    recorder.linear(decays, rank, "mixer_decays", layer)
    p.join(raw, decays, low, dim)
    rate = np.repeat(np.exp(weights.vector("mixer_rate", layer)), dim)
    p.recurrence_gates(gates, raw, 0, inner, rate, weights.vector("mixer_step_bias", layer))
    _convolve(recorder, parts, 0, layer, activated=True)
    _norm_to_length_1(recorder, parts, heads, dim)
    p.recur(
        out,
        parts,
        gates,
        q_offset=0,
        k_offset=inner,
        v_offset=2 * inner,
        heads=heads,
        group=1,
        key_dim=dim,
        value_dim=dim,
        part=recorder.state_part(layer, 1),
        delta=True,
        key_decays=True,
    )
    p.head_norm(out, 0, heads, dim, weights.vector("mixer_scale", layer), recorder.spec.norm_eps)
    recorder.linear(narrow, x, "mixer_opening_in", layer)
    recorder.linear(z, narrow, "mixer_opening", layer)
    p.multiply(out, 0, out, 0, z, 0, inner, "sigmoid")
    return out


def _lightning_attention(recorder: MixerRecorder, mixer: LightningAttention, layer: int, x: int) -> int:
    """Record norm(linear attention(silu(q, k, v))) · sigmoid(z) of (q, k, v) = input·W, z = input·W'. Or not of
    silu(q, k, v), but of rotate(norm(q, k)) and v."""
    p, heads, inner = recorder.program, mixer.heads, mixer.inner
    parts, z, gates = recorder.mixer_buffers(mixer, 3 * inner, inner, 2 * heads)
    out = recorder.mixer_out(mixer)
    recorder.linear(parts, x, "mixer_in", layer)
    if mixer.rotated:
        _norm_and_rotate(recorder, mixer, layer, parts)
    else:
        assert recorder.spec.activation != "xielu"
        p.activate(parts, recorder.spec.activation)
    p.copy_columns(gates, parts, 0)
    p.clip_columns(gates, 0, 2 * heads, 1.0, 1.0)  # whatever they were
    decays = np.exp(-np.array(mixer.rates(layer, recorder.spec.layers)))
    p.scale_columns(gates, np.concatenate([decays, np.ones(heads)]))
    p.recur(
        out,
        parts,
        gates,
        q_offset=0,
        k_offset=inner,
        v_offset=2 * inner,
        heads=heads,
        group=1,
        key_dim=mixer.dim,
        value_dim=mixer.dim,
        part=recorder.state_part(layer, 0),
    )
    groups = mixer.norm_groups
    p.head_norm(out, 0, groups, inner // groups, recorder.weights.vector("mixer_scale", layer), mixer.norm_eps)
    recorder.linear(z, x, "mixer_opening", layer)
    p.multiply(out, 0, out, 0, z, 0, inner, "sigmoid")
    return out


def _norm_and_rotate(recorder: MixerRecorder, mixer: LightningAttention, layer: int, parts: int) -> None:
    """Record q = rotate(norm(q)) / sqrt(n) and k = rotate(norm(k)), which are the first columns."""
    p, spec = recorder.program, recorder.spec
    for number, (module, factor) in enumerate((("query_norm", mixer.dim**-0.5), ("key_norm", 1.0))):
        scale = recorder.weights.vector(module, layer) * np.float32(factor)
        p.head_norm(parts, number * mixer.inner, mixer.heads, mixer.dim, scale, spec.norm_eps)
        if rope := spec.rope(layer):
            tables = recorder.tables[rope]
            p.rotate(parts, number * mixer.inner, mixer.heads, mixer.dim, tables.cos, tables.sin, rope.interleaved)


def _norm_to_length_1(recorder: MixerRecorder, parts: int, heads: int, size: int) -> None:
    """Record q = q / |q| / sqrt(n) and k = k / |k|, which are the first columns.

    x / sqrt(Σ x² + 1e-6) is an RMS norm with weight 1 / sqrt(n).
    """
    p, eps = recorder.program, 1e-6 / size
    p.head_norm(parts, 0, heads, size, np.full(size, 1 / size, np.float32), eps)
    p.head_norm(parts, heads * size, heads, size, np.full(size, size**-0.5, np.float32), eps)


def _state_space(recorder: MixerRecorder, mixer: StateSpace, layer: int, x: int) -> int:
    """Record norm(state space(silu(conv(x, B, C)), step) · silu(z)) of (z, x, B, C, step) = scales · input·W."""
    p, weights, inner, heads = recorder.program, recorder.weights, mixer.inner, mixer.heads
    parts, gates = recorder.mixer_buffers(mixer, mixer.projected, 2 * heads)
    out = recorder.mixer_out(mixer)
    recorder.linear(parts, x, "mixer_in", layer)
    _scale(recorder, mixer, parts)
    p.recurrence_gates(
        gates,
        parts,
        inner + mixer.convolved,
        None,
        np.exp(weights.vector("mixer_rate", layer)),
        weights.vector("mixer_step_bias", layer),
        mixer.least_step,
        mixer.most_step,
    )
    _convolve(recorder, parts, inner, layer, activated=True)
    p.recur(
        out,
        parts,
        gates,
        q_offset=2 * inner + mixer.groups * mixer.state_dim,
        k_offset=2 * inner,
        v_offset=inner,
        heads=heads,
        group=heads // mixer.groups,
        key_dim=mixer.state_dim,
        value_dim=mixer.head_dim,
        part=recorder.state_part(layer, 1),
        skip=weights.vector("mixer_skip", layer),
    )
    groups = mixer.norm_groups or mixer.groups
    if mixer.norm != "before":
        p.multiply(out, 0, out, 0, parts, 0, inner, "silu")
    if mixer.norm is not None:
        eps = recorder.spec.norm_eps if mixer.norm_eps is None else mixer.norm_eps
        p.head_norm(out, 0, groups, inner // groups, weights.vector("mixer_scale", layer), eps)
    if mixer.norm == "before":
        p.multiply(out, 0, out, 0, parts, 0, inner, "silu")
    return out


def _scale(recorder: MixerRecorder, mixer: StateSpace, parts: int) -> None:
    """Record the factors on gate, inputs, B, C and time steps."""
    shared, start = mixer.groups * mixer.state_dim, 0
    for factor, width in zip(mixer.scales, (mixer.inner, mixer.inner, shared, shared, mixer.heads), strict=True):
        if factor != 1.0:
            recorder.program.scale(parts, factor, start, width)
        start += width


def _selective_scan(recorder: MixerRecorder, mixer: SelectiveScan, layer: int, x: int) -> int:
    """Record scan(x, step, B, C) · silu(z) of (x, z) = input·W, x = silu(conv(x)), and for each head (r, B, C) = x·W',
    step = r·W''."""
    p, weights, inner, size, rank = recorder.program, recorder.weights, mixer.inner, mixer.head_dim, mixer.rank
    several = mixer.heads > 1
    widths = (2 * inner, size, mixer.selection, rank, size, *(size,) * several)
    parts, convolved, selection, ranks, steps, *apart = recorder.mixer_buffers(mixer, *widths)
    out = recorder.mixer_out(mixer)
    recorder.linear(parts, x, "mixer_in", layer)
    _convolve(recorder, parts, 0, layer, activated=True)
    rate = np.exp(weights.vector("mixer_rate", layer)).T
    for head in range(mixer.heads):
        start, number = head * size, f".{head}" if several else ""
        scanned = apart[0] if several else out
        of_head = slice(start, start + size)
        p.copy_columns(convolved, parts, start)
        recorder.linear(selection, convolved, f"mixer_selection{number}", layer)
        if mixer.norm is not None:
            _norm_selection(recorder, mixer, layer, selection)
        p.copy_columns(ranks, selection, 0)
        recorder.linear(steps, ranks, f"mixer_steps{number}", layer)
        p.scan(
            scanned,
            convolved,
            steps,
            selection,
            b_offset=rank,
            c_offset=rank + mixer.state_dim,
            rate=rate[:, of_head],
            bias=weights.vector("mixer_step_bias", layer).reshape(-1)[of_head],
            skip=weights.vector("mixer_skip", layer).reshape(-1)[of_head],
            part=recorder.state_part(layer, 1 + head),
        )
        if several:  # in the gate's place
            p.multiply(parts, inner + start, scanned, 0, parts, inner + start, size, "silu")
        else:
            p.multiply(out, 0, out, 0, parts, inner, inner, "silu")
    if several:
        p.copy_columns(out, parts, inner)
    return out


def _norm_selection(recorder: MixerRecorder, mixer: SelectiveScan, layer: int, selection: int) -> None:
    """Record the norms of the time steps' inputs, B and C."""
    eps, start = recorder.spec.norm_eps if mixer.norm_eps is None else mixer.norm_eps, 0
    sizes = {"mixer_rank_norm": mixer.rank, "mixer_b_norm": mixer.state_dim, "mixer_c_norm": mixer.state_dim}
    for module, size in sizes.items():
        weighted = mixer.norm == "weighted"
        weight = recorder.weights.vector(module, layer) if weighted else np.ones(size, np.float32)
        recorder.program.head_norm(selection, start, 1, size, weight, eps)
        start += size


def _gated_unit(recorder: MixerRecorder, mixer: GatedUnit, layer: int, x: int) -> int:
    """Record unit(conv(x)) · gelu(y) of (x, y) = input·W."""
    p, weights, inner = recorder.program, recorder.weights, mixer.inner
    parts, convolved, inputs, decays = recorder.mixer_buffers(mixer, 2 * inner, inner, inner, inner)
    out = recorder.mixer_out(mixer)
    recorder.linear(parts, x, "mixer_in", layer)
    _convolve(recorder, parts, 0, layer, activated=False)
    p.copy_columns(convolved, parts, 0)
    p.head_linear(inputs, convolved, weights.matrix("mixer_input_gate", layer), mixer.blocks)
    p.head_linear(decays, convolved, weights.matrix("mixer_decay_gate", layer), mixer.blocks)
    input_bias, decay_bias = (weights.bias(f"mixer_{gate}_gate", layer) for gate in ("input", "decay"))
    assert input_bias is not None
    assert decay_bias is not None
    p.unit(
        convolved,
        inputs,
        decays,
        rate=8 * np.logaddexp(0, weights.vector("mixer_rate", layer)),
        input_bias=input_bias,
        decay_bias=decay_bias,
        part=recorder.state_part(layer, 1),
    )
    p.multiply(out, 0, convolved, 0, parts, inner, inner, "gelu_tanh")
    return out


def _convolve(recorder: MixerRecorder, x: int, offset: int, layer: int, *, activated: bool) -> None:
    """Record the layer's convolution, whose weights are stored ``[columns, 1, taps]``."""
    weight = recorder.weights.vector("mixer_convolution", layer)[:, 0].T
    bias = recorder.weights.bias("mixer_convolution", layer)
    recorder.program.convolve(x, offset, weight, recorder.state_part(layer, 0), bias, activated=activated)
