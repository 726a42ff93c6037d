"""The programs of a vision tower: its layers, run one after the other, and its projections."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.settings import Precision
from dragoman.models.vision.arrangement import Arrangement, most_blocks, most_sequences
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.parameters import PREFIX
from dragoman.models.vision.parts import Activation, Layers, Norm

Floats = NDArray[np.float32]

_QUICK = 1.702  # of the activation that CLIP was trained with


def kept_precision(precision: Precision) -> kernels.KVPrecision:
    """Return the precision of a tower's keys and values in a model of that precision.

    Beside weights in int8 they are as the processor multiplies them fastest: attention took a sixth less time on
    bfloat16 than on int8 with products of bfloat16, and writing them half. In int8 they add nothing to the error of
    such weights either.
    """
    if precision == "float32":
        return "float32"
    return "bfloat16" if precision == "bfloat16" or kernels.multiplies_bfloat16() else "int8"


class TowerWeights:
    """The tower's parameters among those of a model."""

    def __init__(self, weights: Mapping[str, object]) -> None:
        self._weights = weights

    def matrix(self, module: str, layer: int | None = None) -> kernels.PackedMatrix:
        """Return the packed matrix of a product, of one of the layers or of none."""
        found = self._weights[_name(module, "weight", layer)]
        assert isinstance(found, kernels.PackedMatrix)
        return found

    def vector(self, module: str, layer: int | None = None) -> Floats:
        """Return the float32 weight of a norm, a scale or a table."""
        return np.asarray(self._weights[_name(module, "weight", layer)], np.float32)

    def bias(self, module: str, layer: int | None = None) -> Floats | None:
        """Return the float32 bias of a product or a norm; None: it has none."""
        found = self._weights.get(_name(module, "bias", layer))
        return None if found is None else np.asarray(found, np.float32)


def _name(module: str, kind: str, layer: int | None) -> str:
    place = "" if layer is None else f"layers.{layer}."
    return f"{place}{PREFIX}{module}.{kind}"


class RecordedLayers(msgspec.Struct, frozen=True):
    """The layers as one program. ``ends``: its operations so far at the end of each layer's attention, and of its
    network."""

    program: kernels.Program
    ends: tuple[int, ...]
    vision: VisionDescription

    def run(self, stream: Floats, arranged: Arrangement, between: Floats | None = None) -> Iterator[Floats | None]:
        """Run layer after layer: yield None after each attention and each network but the last, and then the rows after
        that. ``between``: what is added to the rows before the second stage."""
        count, first = len(stream), 0
        each = np.arange(count, dtype=np.int32)
        for place, end in enumerate(self.ends):
            sequences = arranged.of_layer(self.vision.layers, place // 2)
            given = None if place else stream
            if between is not None and place == 2 * self.vision.layers.first_stage:
                given = np.concatenate([np.zeros_like(between), between], axis=1)
            found = self.program.run(
                np.zeros(count, np.int32),
                sequences.positions,
                sequences.starts,
                sequences.tables,
                each,
                embedding_rows=None if given is None else each,
                embedding_values=given,
                cross_tables=None if sequences.lengths is None else sequences.tables,
                cross_lengths=sequences.lengths,
                rotary_positions=arranged.places,
                operations=(first, end),
            )
            first = end
            yield None if place + 1 < len(self.ends) else found.copy()


def record_layers(vision: VisionDescription, weights: TowerWeights, precision: Precision, tiles: int) -> RecordedLayers:
    """Record the layers of a tower, for images of so many ``tiles``, each of ``vision.tile_rows`` rows. ``precision``:
    of the matrices, which decides that of keys and values."""
    layers, rows = vision.layers, tiles * vision.tile_rows
    width, sequences = layers.width, most_sequences(vision, tiles)
    kv = kernels.KVPool(
        layers=1,
        blocks=most_blocks(vision, tiles),
        kv_heads=layers.heads,
        head_dim=layers.head_dim,
        precision=kept_precision(precision),
    )
    p = kernels.Program(max_tokens=rows, max_sequences=sequences, max_logit_rows=rows, kv=kv)
    record = LayerRecorder(p, weights, layers.norm, layers.norm_eps)
    x, normed, mixed = p.buffer(width), p.buffer(width), p.buffer(width)
    apart = layers.branch_scales or layers.norms_around or layers.clipped or layers.first_stage
    branch = p.buffer(width) if apart else x
    wide = p.buffer(max(3 * width, layers.feed_forward * (1 + layers.gated)))
    qkv = p.buffer(3 * width, wide)
    inner = p.buffer(layers.feed_forward * (1 + layers.gated), wide)
    narrow = p.buffer(layers.feed_forward) if layers.gated else inner
    rotation = _rotation(vision, rows) if layers.rotary_theta else None
    scale = layers.attention_scale or layers.head_dim**-0.5
    clipped = _ClippedProducts(record, layers, qkv, inner, normed) if layers.clipped else None
    p.embed(x, no_rows(width))
    ends, taken = [], _Taken(p, layers)
    if layers.first_norm and not layers.first_stage:
        record.norm(x, x, "first_norm")
    for layer in range(layers.count):
        if 0 < layers.first_stage == layer:
            replace(record, eps=layers.last_eps or layers.norm_eps).norm(x, x, "last_norm")
            p.add_given(x, 1)
        record.norm(normed, x, "attention_norm", layer)
        if clipped:
            clipped.record_together(clipped.qkv, ("query", "key", "value"), layer)
        else:
            record.linear(qkv, normed, "qkv", layer)
        if layers.head_norm:
            record.norm_heads(qkv, layers, layer)
        if layers.joint_head_norm:
            p.head_norm(qkv, 0, 1, width, weights.vector("query_norm", layer), layers.norm_eps)
            p.head_norm(qkv, width, 1, width, weights.vector("key_norm", layer), layers.norm_eps)
        if rotation is not None:
            _rotate(p, layers, qkv, rotation)
        p.write_kv(qkv, width, 2 * width, 0)
        if layers.first_stage:
            p.cross_attend(mixed, qkv, 0, layers.heads, 0, scale, of_step=True)
        else:
            p.attend(mixed, qkv, 0, layers.heads, 0, scale, causal=False)
        record.join(x, mixed, branch, "attention", layer, layers)
        ends.append(p.operation_count)
        record.norm(normed, x, "feed_forward_norm", layer)
        if clipped:
            clipped.record_together(clipped.inner, ("gate", "up"), layer)
        else:
            record.linear(inner, normed, "feed_forward_in", layer)
        if layers.gated:
            assert layers.activation != "quick_gelu"
            p.gate(narrow, inner, layers.activation)
        else:
            record.activate(inner, layers.activation)
        record.join(x, narrow, branch, "feed_forward", layer, layers)
        if layer + 1 in layers.taken[:-1]:
            taken.add(x)
        ends.append(p.operation_count)
    if layers.last_norm and not layers.first_stage:
        replace(record, eps=layers.last_eps or layers.norm_eps).norm(x, x, "last_norm")
    taken.add(x)
    result = p.buffer(layers.width * len(layers.taken))
    p.select_rows(result, taken.buffer)
    p.logits(result)
    return RecordedLayers(p, (*ends[:-1], p.operation_count), vision)


def _rotate(p: kernels.Program, layers: Layers, qkv: int, rotation: tuple[Floats, Floats, NDArray[np.int32]]) -> None:
    """Record the rotation of queries and keys."""
    cos, sin, axes = rotation
    for offset in (0, layers.width):
        if not layers.rotary_halves:
            p.rotate(qkv, offset, layers.heads, layers.head_dim, cos, sin, axes=axes)
            continue
        half, pairs = layers.head_dim // 2, len(axes) // 2
        for place, axis in ((0, 2), (half, 1)):
            own = np.full(pairs, axis, np.int32)
            p.rotate(qkv, offset + place, layers.heads, layers.head_dim, cos[:, :pairs], sin[:, :pairs], axes=own)


def _rotation(vision: VisionDescription, rows: int) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """Return cosines and sines ``[rows, pairs]``, and of each pair the place that it is rotated by: the first half by
    rows, the other by columns."""
    pairs = vision.layers.head_dim // 2
    exponents = np.arange(pairs // 2) * 2 / pairs
    between = 0.0 if vision.layers.rotary_shared else 1 / pairs
    rates = vision.layers.rotary_theta ** -np.concatenate([exponents, exponents + between])
    angles = np.arange(rows)[:, None] * rates.astype(np.float32)
    axes = np.repeat(np.array([1, 2], np.int32), pairs // 2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), axes


class _Taken:
    """What is taken of the layers, side by side in the memory of one buffer.

    Attributes:
        buffer: of all that was taken so far.
    """

    def __init__(self, p: kernels.Program, layers: Layers) -> None:
        self._program, self._width, self._count = p, layers.width, 0
        self._whole = p.buffer(layers.width * len(layers.taken))
        self._most = len(layers.taken)
        self.buffer = self._whole

    def add(self, x: int) -> None:
        """Record that the stream is taken."""
        p, before = self._program, self.buffer
        self._count += 1
        last = self._count == self._most
        self.buffer = self._whole if last else p.buffer(self._count * self._width, over=self._whole)
        if self._count == 1:
            p.copy_columns(self.buffer, x, 0)
        else:
            p.join(self.buffer, before, x)


class RecordedProjection(msgspec.Struct, frozen=True):
    """The projection as a program over rows that have no positions."""

    program: kernels.Program

    def run(self, rows: Floats) -> Floats:
        """Return the embeddings of reduced patches."""
        count = len(rows)
        each = np.arange(count, dtype=np.int32)
        return self.program.run(
            np.zeros(count, np.int32),
            each,
            np.array([0, count], np.int32),
            np.zeros((1, -(-count // kernels.BLOCK_TOKENS)), np.int32),
            each,
            embedding_rows=each,
            embedding_values=rows,
        ).copy()


def record_projection(
    vision: VisionDescription, weights: TowerWeights, rows: int, place: int | None = None
) -> RecordedProjection:
    """Record the projection, or that of the stacked part at a place, which has a norm."""
    projection, name = vision.projection, "project" if place is None else "stacked"
    if place is not None:
        projection = replace(projection, norm="layer")
    kv = kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=16, precision="float32")  # a program has one; unused
    p = kernels.Program(max_tokens=rows, max_sequences=1, max_logit_rows=rows, kv=kv)
    record = LayerRecorder(p, weights, projection.norm or "rms", projection.norm_eps)
    x = p.buffer(vision.reduced_width)
    p.embed(x, no_rows(vision.reduced_width))
    if projection.norm is not None:
        if projection.norm_weight:
            record.norm(x, x, f"{name}_norm", place)
        else:
            p.norm(x, x, np.ones(vision.reduced_width, np.float32), eps=projection.norm_eps, kind=projection.norm)
    if projection.merged:
        merged = p.buffer(vision.taken_width)
        record.linear(merged, x, "project_merge")
        x = merged
    if projection.inner:
        inner = p.buffer(projection.inner * (1 + projection.gated))
        record.linear(inner, x, f"{name}_in", place)
        if projection.gated:
            assert projection.activation != "quick_gelu"
            x = p.buffer(projection.inner)
            p.gate(x, inner, projection.activation)
        else:
            record.activate(inner, projection.activation)
            x = inner
    out, wanted = p.buffer(projection.out), p.buffer(projection.out)
    record.linear(out, x, f"{name}_out", place)
    p.select_rows(wanted, out)
    p.logits(wanted)
    return RecordedProjection(p)


def no_rows(width: int) -> kernels.PackedMatrix:
    """Return a table for rows that are all given."""
    return kernels.pack(np.zeros((1, width), np.float32), "float32")


class _ClippedProducts:
    """Products of one input side by side, each with limits of its own.

    Attributes:
        qkv, inner: the buffers of queries, keys and values, and of the feed-forward network, each with those of its
            first products in the same memory.
    """

    def __init__(self, record: LayerRecorder, layers: Layers, qkv: int, inner: int, normed: int) -> None:
        p, width, wide = record.program, layers.width, layers.feed_forward
        self._record, self._input = record, normed
        self._clipped = p.buffer(width)
        self.qkv = (p.buffer(width, qkv), p.buffer(2 * width, qkv), qkv)
        self.inner = (p.buffer(wide, inner), inner)
        self._parts = {width: p.buffer(width), wide: p.buffer(wide)}

    def record_together(self, outs: tuple[int, ...], modules: tuple[str, ...], layer: int) -> None:
        """Record the products of some modules: ``outs`` are the buffers for the first, the first two, and so on."""
        p = self._record.program
        for place, (out, module) in enumerate(zip(outs, modules, strict=True)):
            p.copy_columns(self._clipped, self._input, 0)
            self._record.clip(self._clipped, f"{module}_input", layer)
            target = out if place == 0 else self._parts[p.width(outs[0])]
            self._record.linear(target, self._clipped, module, layer)
            self._record.clip(target, f"{module}_output", layer)
            if place:
                p.join(out, outs[place - 1], target)


class LayerRecorder(msgspec.Struct, frozen=True):
    """Records norms and products of modules."""

    program: kernels.Program
    weights: TowerWeights
    kind: Norm
    eps: float

    def norm(self, out: int, x: int, module: str, layer: int | None = None) -> None:
        """Record out = norm(x)."""
        weight, bias = self.weights.vector(module, layer), self.weights.bias(module, layer)
        self.program.norm(out, x, weight, bias=bias, eps=self.eps, kind=self.kind)

    def linear(self, out: int, x: int, module: str, layer: int | None = None, accumulate: bool = False) -> None:
        """Record out (+)= x·W (+ bias)."""
        matrix, bias = self.weights.matrix(module, layer), self.weights.bias(module, layer)
        self.program.linear(out, x, matrix, bias=bias, accumulate=accumulate)

    def join(self, x: int, value: int, branch: int, module: str, layer: int, layers: Layers) -> None:
        """Record x += scale · norm(value·W + bias), by way of another buffer where there is a scale or a norm."""
        if branch == x:
            self.linear(x, value, f"{module}_out", layer, accumulate=True)
            return
        if layers.clipped:
            self.clip(value, f"{module}_out_input", layer)
        self.linear(branch, value, f"{module}_out", layer)
        if layers.clipped:
            self.clip(branch, f"{module}_out_output", layer)
        if layers.norms_around:
            self.norm(branch, branch, f"{module}_out_norm", layer)
        if layers.branch_scales:
            self.program.scale_columns(branch, self.weights.vector(f"{module}_scale", layer))
        gated = 0 < layers.first_stage <= layer
        self.program.add(x, branch, math.tanh(self.weights.vector(f"{module}_gate", layer)[0]) if gated else 1.0)

    def clip(self, x: int, limits: str, layer: int) -> None:
        """Record x = min(max(x, low), high)."""
        low, high = (float(self.weights.vector(f"{limits}_{end}", layer)[0]) for end in ("min", "max"))
        self.program.clip_columns(x, 0, self.program.width(x), low, high)

    def norm_heads(self, qkv: int, layers: Layers, layer: int) -> None:
        """Record norms of each head of queries, keys and values."""
        unweighted = np.ones(layers.head_dim, np.float32)
        weights = (self.weights.vector("query_norm", layer), self.weights.vector("key_norm", layer), unweighted)
        for place, weight in enumerate(weights):
            offset = place * layers.width
            self.program.head_norm(qkv, offset, layers.heads, layers.head_dim, weight, layers.norm_eps)

    def activate(self, x: int, activation: Activation) -> None:
        """Record x = act(x)."""
        if activation != "quick_gelu":
            self.program.activate(x, activation)
            return
        self.program.scale(x, _QUICK)  # x · sigmoid(1.702 x)
        self.program.activate(x, "silu")
        self.program.scale(x, 1 / _QUICK)
