"""Recording of attention over keys and values of all heads, from a branch's input to that of its last product."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.models.layer_buffers import LayerBuffers, Stream
from dragoman.models.optional_parts import AttentionGate
from dragoman.models.parameters import attention_module
from dragoman.models.recording import PartRecorder
from dragoman.models.rope import Rope, RotaryTables
from dragoman.models.spec import DecoderSpec, HeadNorm


class AttentionRecorder(PartRecorder, Protocol):
    """What attention needs of the recorder of a decoder or an encoder.

    Attributes:
        context: positions from 0 on that can be run.
        causal: as in the spec; where it is False all layers write their keys and values to one place.
        kv_layers: by layer, the place of its keys and values in the pool.
        tables: cosines and sines of rotations.
        query_factors: by position, what queries are multiplied by.
        rotary_axes: which of several positions each pair is rotated by; None: there is one.
    """

    @property
    def buffers(self) -> LayerBuffers: ...
    @property
    def context(self) -> int: ...
    @property
    def causal(self) -> bool: ...
    @property
    def kv_layers(self) -> dict[int, int]: ...
    @property
    def tables(self) -> dict[Rope, RotaryTables]: ...
    @property
    def query_factors(self) -> NDArray[np.float32] | None: ...
    @property
    def rotary_axes(self) -> NDArray[np.int32] | None: ...
    def linear(self, out: int, x: int, module: str, layer: int | None = None) -> None:
        """Record out = x·W (+ bias)."""

    def norm(self, out: int, x: int, module: str, layer: int | None = None) -> None:
        """Record out = norm(x)."""


def record_attention(recorder: AttentionRecorder, layer: int, stream: Stream, x: int, widest: int) -> int:
    """Record mixed = Attention(rotate(x·Wq), rotate(x·Wk), x·Wv), up to the input of its last product. Returns the
    buffer of that. ``widest``: a buffer for the queries, keys and values of any layer."""
    spec, p = recorder.spec.of_layer(layer), recorder.program
    module = attention_module(spec, layer)
    keys = spec.query_width + spec.gate_width
    values = keys + spec.kv_width
    width = recorder.weights.matrix(module, layer).shape[0]
    projected = recorder.buffers.narrowed(widest, width)
    if spec.narrow_values:
        projected = recorder.buffers.part("projected", width)
    recorder.linear(projected, x, module, layer)
    qkv = projected if module == "query" else recorder.buffers.narrowed(widest, values + spec.kv_width)
    if module == "query_key":
        p.join(qkv, projected, projected, keys)
    if spec.narrow_values:
        _widen_values(recorder, spec, projected, values, qkv, widest)
    if spec.value_scale != 1.0:
        p.scale(qkv, spec.value_scale, values, spec.kv_width)
    if spec.qkv_clip:
        p.clip(qkv, spec.qkv_clip)
    norm = spec.head_normed(layer)
    if norm and not norm.rotated:
        _norm_queries_and_keys(recorder, qkv, keys, norm, layer)
    if spec.value_norm and module != "query":
        unweighted = np.ones(spec.head_dim, np.float32)
        p.head_norm(qkv, values, spec.kv_heads, spec.head_dim, unweighted, spec.norm_eps)
    if rope := spec.rope(layer):
        cos, sin = recorder.tables[rope].cos, recorder.tables[rope].sin
        p.rotate(qkv, 0, spec.heads, spec.head_dim, cos, sin, rope.interleaved, recorder.rotary_axes)
        if module != "query":
            p.rotate(qkv, keys, spec.kv_heads, spec.head_dim, cos, sin, rope.interleaved, recorder.rotary_axes)
    if norm and norm.rotated:
        _norm_queries_and_keys(recorder, qkv, keys, norm, layer)
    if recorder.query_factors is not None and spec.query_scale and layer in spec.query_scale.layers:
        p.scale_by_position(qkv, 0, spec.query_width, recorder.query_factors)
    place = recorder.kv_layers[spec.kv_source(layer)] if recorder.causal else 0
    if module != "query":
        p.write_kv(qkv, keys, values, place)
    mixed = recorder.buffers.narrowed(stream.mixed, spec.mixed_width)
    whole = recorder.buffers.part("whole values", spec.query_width) if spec.narrow_values else mixed
    window = spec.windows[layer] if spec.windows[layer] < recorder.context else 0
    slopes = spec.alibi_slopes or None
    p.attend(
        whole,
        qkv,
        0,
        spec.heads,
        place,
        spec.attention_scales[layer],
        window=window,
        softcap=spec.attention_softcap,
        slopes=slopes,
        bias=_relative_bias(recorder, layer),
        causal=recorder.causal,
        sinks=recorder.weights.vector("sinks", layer) if spec.has_sinks(layer) else None,
        chunk=spec.chunks[layer] if spec.chunks else 0,
        both_ways=not (spec.vision and spec.vision.both_ways_in_windows) or bool(spec.windows[layer]),
    )
    if spec.narrow_values:
        shorter = recorder.buffers.head_matrix(spec.heads, spec.narrow_values, spec.head_dim)
        p.head_linear(mixed, whole, shorter, spec.heads)
    if spec.attention_gate is not None:
        _gate(recorder, spec, spec.attention_gate, mixed, qkv)
    if spec.block.inner_norms:
        recorder.norm(mixed, mixed, "attention_inner_norm", layer)
    return mixed


def _widen_values(
    recorder: AttentionRecorder, spec: DecoderSpec, projected: int, values: int, qkv: int, widest: int
) -> None:
    """Record ``qkv``, which ends with values as wide as keys, of narrow ones, which end ``projected``."""
    p, heads, buffer = recorder.program, spec.kv_heads, recorder.buffers.part
    narrow, wide = buffer("narrow values", heads * spec.narrow_values), buffer("wide values", spec.kv_width)
    front = recorder.buffers.narrowed(widest, values)
    p.copy_columns(front, projected, 0)
    p.copy_columns(narrow, projected, values)
    p.head_linear(wide, narrow, recorder.buffers.head_matrix(heads, spec.head_dim, spec.narrow_values), heads)
    p.join(qkv, front, wide)


def _gate(recorder: AttentionRecorder, spec: DecoderSpec, gate: AttentionGate, mixed: int, qkv: int) -> None:
    """Record mixed = mixed · act(gates), which follow the queries in ``qkv``."""
    p, buffer, heads, width = recorder.program, recorder.buffers.part, spec.heads, spec.gate_width
    gates, start = qkv, spec.query_width
    if gate.softplus:  # the steps of a recurrence, after its decays
        steps, none = buffer("steps", 2 * width), np.zeros(width, np.float32)
        p.recurrence_gates(steps, gates, start, None, none, none)
        gates, start = steps, width
    if gate.by_head:
        narrow, wide = buffer("narrow", heads), buffer("wide", spec.query_width)
        p.copy_columns(narrow, gates, start)
        p.head_linear(wide, narrow, recorder.buffers.head_matrix(heads, spec.head_dim, 1, ones=True), heads)
        gates, start = wide, 0
    p.multiply(mixed, 0, mixed, 0, gates, start, spec.query_width, "plain" if gate.softplus else "sigmoid")


def _relative_bias(recorder: AttentionRecorder, layer: int) -> NDArray[np.float32] | None:
    relative = recorder.spec.relative_bias
    if relative is None:
        return None
    learned = recorder.weights.vector("relative_bias", layer if relative.by_layer else None)
    return relative.table(learned, both_sides=not recorder.causal)


def _norm_queries_and_keys(recorder: AttentionRecorder, qkv: int, keys: int, norm: HeadNorm, layer: int) -> None:
    _norm_heads(recorder, qkv, 0, recorder.spec.of_layer(layer).heads, norm, "query_norm", layer)
    if recorder.spec.kv_source(layer) == layer:
        _norm_heads(recorder, qkv, keys, recorder.spec.of_layer(layer).kv_heads, norm, "key_norm", layer)


def _norm_heads(
    recorder: AttentionRecorder, x: int, offset: int, heads: int, norm: HeadNorm, module: str, layer: int
) -> None:
    head_dim = recorder.spec.of_layer(layer).head_dim
    if norm.over == "all":
        heads, head_dim = 1, heads * head_dim
    weight = recorder.weights.vector(module, layer) if norm.weighted else np.ones(head_dim, np.float32)
    bias = recorder.weights.bias(module, layer)
    recorder.program.head_norm(x, offset, heads, head_dim, weight, recorder.spec.norm_eps, bias, norm.kind)
