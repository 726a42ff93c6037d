"""The vision tower, described once: the operations from the patches of tiles to embeddings of the decoder.

Layers of attention, in which every patch of a tile sees all others, and a feed-forward network, with norms of their
inputs. It is recorded once as a program, whose layers are run one after the other, so that a decoder's steps can come
between them. Its keys and values are in memory of its own, one layer's after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.settings import Precision
from dragoman.models.vision.arrangement import Arrangement, arrange, most_blocks, most_sequences
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import Grid, kept_patches, rows_of_run
from dragoman.models.vision.parameters import PREFIX
from dragoman.models.vision.parts import Activation, Norm
from dragoman.models.vision.preprocess import PreparedImage, normalise

Floats = NDArray[np.float32]

# Beside weights in int8, keys and values in int8 add nothing to the error, and a tile takes a quarter less time.
_KV_PRECISIONS: dict[Precision, kernels.KVPrecision] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "int4": "int8",
}
_QUICK = 1.702  # of the activation that CLIP was trained with


class VisionTower:
    """A vision tower over packed weights.

    Attributes:
        vision: its description. max_tiles: of one run.
    """

    def __init__(self, weights: Mapping[str, object], vision: VisionDescription, precision: Precision) -> None:
        """Record the tower. ``weights``: packed parameters by name; ``precision``: of the model, which decides that of
        the tower's keys and values."""
        self.vision = vision
        self._weights = _TowerWeights(weights)
        rows = rows_of_run(vision)
        self.max_tiles = rows // vision.tile_rows
        self._layers = _record_layers(vision, self._weights, precision, self.max_tiles)
        self._projection = _record_projection(vision, self._weights, self.max_tiles * vision.tile_tokens)

    def encode(self, pixels: NDArray[np.uint8], grid: Grid) -> Floats:
        """Return the embeddings ``[tokens, hidden]`` of an image's tiles ``[tiles, 3, height, width]``."""
        *_, found = self._steps(pixels, grid)
        assert found is not None
        return found

    def encode_steps(self, prepared: PreparedImage) -> Iterator[Floats | None]:
        """Compute an image in parts: yield None after each, and last its embeddings ``[prepared.embeddings, hidden]``.

        A part is at most one layer of ``max_tiles`` tiles. One image is computed at a time: the next one's parts begin
        after the last of this one's, or in place of what is left of them.
        """
        yield from self._steps(prepared.pixels, prepared.grid)

    def _steps(self, pixels: NDArray[np.uint8], grid: Grid) -> Iterator[Floats | None]:
        vision, parts = self.vision, []
        self._check(pixels)
        for first in range(0, len(pixels), self.max_tiles):
            tiles = pixels[first : first + self.max_tiles]
            arranged = arrange(vision, len(tiles), pixels.shape[2], pixels.shape[3])
            stream = self._patches(tiles, arranged)
            yield None
            for taken in self._layers.run(stream, arranged):
                if taken is None:
                    yield None
                else:
                    parts.append(self._projection.run(self._reduced(taken, len(tiles), arranged)))
            yield None
        yield self._packed(np.concatenate(parts), len(pixels), grid)

    def _check(self, pixels: NDArray[np.uint8]) -> None:
        """Raise ValueError for tiles of another shape than the tower's."""
        tiling = self.vision.tiling
        height, width = pixels.shape[2:] if pixels.ndim == 4 else (0, 0)
        if tiling.kind == "any":
            fits = len(pixels) == 1 and 0 < height * width <= tiling.most
            fits = fits and height % tiling.side == 0 and width % tiling.side == 0
        else:
            fits = (height, width) == (tiling.side, tiling.side)
        if not fits or pixels.shape[1] != 3:
            raise ValueError(f"tiles must be 3 x {tiling.side} x {tiling.side}, got {pixels.shape[1:]}")

    def _packed(self, embeddings: Floats, tiles: int, grid: Grid) -> Floats:
        """Return the embeddings ``[tiles · tile_tokens, hidden]`` in the order of the prompt: of a canvas without what
        is beside the image, and with the ends of its rows."""
        vision = self.vision
        if vision.projection.factor != 1.0:
            embeddings *= np.float32(vision.projection.factor)
        if vision.tiling.kind != "fit":
            return embeddings
        end = self._weights.vector("row_end")[None] * np.float32(vision.projection.factor)
        whole, rest = embeddings[: vision.tile_tokens], embeddings[vision.tile_tokens :]
        if not grid.rows:
            return np.concatenate([whole, end])
        if tiles != grid.rows * grid.columns + 1:
            raise ValueError(f"{grid.rows} x {grid.columns} tiles and the whole are not {tiles}")
        side, hidden = vision.patches_per_side, embeddings.shape[-1]
        canvas = rest.reshape(grid.rows, grid.columns, side, side, hidden).transpose(0, 2, 1, 3, 4)
        canvas = canvas.reshape(grid.rows * side, grid.columns * side, hidden)
        kept = kept_patches(grid, side)
        rows = canvas[kept.top : kept.top + kept.height, kept.left : kept.left + kept.width]
        ends = np.broadcast_to(end[None], (kept.height, 1, hidden))
        return np.concatenate([whole, np.concatenate([rows, ends], axis=1).reshape(-1, hidden)])

    def _patches(self, tiles: NDArray[np.uint8], arranged: Arrangement) -> Floats:
        """Return the rows before the first layer, ``[tiles · rows, width]``: of patches, with positions."""
        vision, count = self.vision, len(tiles)
        patch, (height, width) = vision.patch, tiles.shape[2:]
        rows, columns = height // patch, width // patch
        levels = normalise(tiles, vision.pixels).reshape(count, 3, 1, rows, patch, columns, patch)
        levels = np.broadcast_to(levels, (count, 3, vision.frames, rows, patch, columns, patch))
        flat = levels.transpose(0, 3, 5, 1, 2, 4, 6).reshape(count * rows * columns, vision.patch_floats)
        if arranged.order is not None:
            flat = flat[arranged.order]
        stream = kernels.linear(flat, self._weights.matrix("patch"), self._weights.bias("patch"))
        stream = stream.reshape(count, rows * columns, -1)
        if vision.class_token:
            first = np.broadcast_to(self._weights.vector("class"), (count, 1, vision.layers.width))
            stream = np.concatenate([first, stream], axis=1)
        if vision.positions == "learned":
            stream = stream + self._weights.vector("positions")
        return stream.reshape(-1, vision.layers.width)

    def _reduced(self, rows: Floats, tiles: int, arranged: Arrangement) -> Floats:
        """Return the rows that the projection takes, ``[tokens, reduced_width]``."""
        vision, reduction = self.vision, self.vision.reduction
        if arranged.order is not None:  # the patches of a token follow one another
            found: Floats = rows.reshape(-1, reduction.factor**2, vision.taken_width)[arranged.tokens]
            if reduction.kind == "unfold":
                found = found.swapaxes(1, 2)
            return found.reshape(-1, vision.reduced_width)
        side, factor = vision.patches_per_side, reduction.factor
        rows = rows.reshape(tiles, vision.tile_rows, -1)[:, int(vision.class_token) :]
        if reduction.kind == "none":
            return rows.reshape(tiles * side * side, -1)
        short, width = side // factor, vision.taken_width
        squares = rows.reshape(tiles, short, factor, short, factor, width)
        if reduction.kind == "average":
            found = squares.mean(axis=(2, 4), dtype=np.float32)
        else:
            found = squares.transpose(0, 1, 3, 2, 4, 5)
        return found.reshape(tiles * short * short, vision.reduced_width)


class _TowerWeights:
    """The tower's parameters among those of a model."""

    def __init__(self, weights: Mapping[str, object]) -> None:
        self._weights = weights

    def matrix(self, module: str, layer: int | None = None) -> kernels.PackedMatrix:
        found = self._weights[_name(module, "weight", layer)]
        assert isinstance(found, kernels.PackedMatrix)
        return found

    def vector(self, module: str, layer: int | None = None) -> Floats:
        return np.asarray(self._weights[_name(module, "weight", layer)], np.float32)

    def bias(self, module: str, layer: int | None = None) -> Floats | None:
        found = self._weights.get(_name(module, "bias", layer))
        return None if found is None else np.asarray(found, np.float32)


def _name(module: str, kind: str, layer: int | None) -> str:
    place = "" if layer is None else f"layers.{layer}."
    return f"{place}{PREFIX}{module}.{kind}"


@dataclass(frozen=True, slots=True)
class _RecordedLayers:
    """The layers as one program. ``ends``: its operations so far at the end of each layer."""

    program: kernels.Program
    ends: tuple[int, ...]
    vision: VisionDescription

    def run(self, stream: Floats, arranged: Arrangement) -> Iterator[Floats | None]:
        """Run layer after layer: yield None after each but the last, and then the rows after that."""
        count, first = len(stream), 0
        each = np.arange(count, dtype=np.int32)
        for layer, end in enumerate(self.ends):
            sequences = arranged.of_layer(self.vision.layers, layer)
            found = self.program.run(
                np.zeros(count, np.int32),
                sequences.positions,
                sequences.starts,
                sequences.tables,
                each,
                embedding_rows=each if layer == 0 else None,
                embedding_values=stream if layer == 0 else None,
                rotary_positions=arranged.places,
                operations=(first, end),
            )
            first = end
            yield None if layer + 1 < len(self.ends) else found.copy()


def _record_layers(
    vision: VisionDescription, weights: _TowerWeights, precision: Precision, tiles: int
) -> _RecordedLayers:
    layers, rows = vision.layers, tiles * vision.tile_rows
    width, sequences = layers.width, most_sequences(vision, tiles)
    kv = kernels.KVPool(
        layers=1,
        blocks=most_blocks(vision, tiles),
        kv_heads=layers.heads,
        head_dim=layers.head_dim,
        precision=_KV_PRECISIONS[precision],
    )
    p = kernels.Program(max_tokens=rows, max_sequences=sequences, max_logit_rows=rows, kv=kv)
    record = _LayerRecorder(p, weights, layers.norm, layers.norm_eps)
    x, normed, mixed = p.buffer(width), p.buffer(width), p.buffer(width)
    branch = p.buffer(width) if layers.branch_scales else x
    wide = p.buffer(max(3 * width, layers.feed_forward * (1 + layers.gated)))
    qkv = p.buffer(3 * width, wide)
    inner = p.buffer(layers.feed_forward * (1 + layers.gated), wide)
    narrow = p.buffer(layers.feed_forward) if layers.gated else inner
    rotation = _rotation(vision, rows) if layers.rotary_theta else None
    p.embed(x, _no_rows(width))
    ends, taken = [], None
    if layers.first_norm:
        record.norm(x, x, "first_norm")
    for layer in range(layers.count):
        record.norm(normed, x, "attention_norm", layer)
        record.linear(qkv, normed, "qkv", layer)
        if layers.joint_head_norm:
            p.head_norm(qkv, 0, 1, width, weights.vector("query_norm", layer), layers.norm_eps)
            p.head_norm(qkv, width, 1, width, weights.vector("key_norm", layer), layers.norm_eps)
        if rotation is not None:
            cos, sin, axes = rotation
            p.rotate(qkv, 0, layers.heads, layers.head_dim, cos, sin, axes=axes)
            p.rotate(qkv, width, layers.heads, layers.head_dim, cos, sin, axes=axes)
        p.write_kv(qkv, width, 2 * width, 0)
        p.attend(mixed, qkv, 0, layers.heads, 0, layers.head_dim**-0.5, causal=False)
        record.join(x, mixed, branch, "attention", layer)
        record.norm(normed, x, "feed_forward_norm", layer)
        record.linear(inner, normed, "feed_forward_in", layer)
        if layers.gated:
            assert layers.activation != "quick_gelu"
            p.gate(narrow, inner, layers.activation)
        else:
            record.activate(inner, layers.activation)
        record.join(x, narrow, branch, "feed_forward", layer)
        if layer + 1 in layers.taken[:-1]:
            taken = _joined(p, taken, x)
        ends.append(p.operation_count)
    if layers.last_norm:
        replace(record, eps=layers.last_eps or layers.norm_eps).norm(x, x, "last_norm")
    taken = _joined(p, taken, x)
    result = p.buffer(vision.taken_width)
    p.select_rows(result, taken)
    p.logits(result)
    return _RecordedLayers(p, (*ends[:-1], p.operation_count), vision)


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


def _joined(p: kernels.Program, before: int | None, x: int) -> int:
    """Record a buffer of what was taken before, and of x beside it."""
    joined = p.buffer(p.width(x) + (0 if before is None else p.width(before)))
    if before is None:
        p.copy_columns(joined, x, 0)
    else:
        p.join(joined, before, x)
    return joined


@dataclass(frozen=True, slots=True)
class _RecordedProjection:
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


def _record_projection(vision: VisionDescription, weights: _TowerWeights, rows: int) -> _RecordedProjection:
    projection = vision.projection
    kv = kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=16, precision="float32")  # a program has one; unused
    p = kernels.Program(max_tokens=rows, max_sequences=1, max_logit_rows=rows, kv=kv)
    record = _LayerRecorder(p, weights, projection.norm or "rms", projection.norm_eps)
    x = p.buffer(vision.reduced_width)
    p.embed(x, _no_rows(vision.reduced_width))
    if projection.norm is not None:
        record.norm(x, x, "project_norm")
    if projection.merged:
        merged = p.buffer(vision.taken_width)
        record.linear(merged, x, "project_merge")
        x = merged
    if projection.inner:
        inner = p.buffer(projection.inner)
        record.linear(inner, x, "project_in")
        record.activate(inner, projection.activation)
        x = inner
    out, wanted = p.buffer(projection.out), p.buffer(projection.out)
    record.linear(out, x, "project_out")
    p.select_rows(wanted, out)
    p.logits(wanted)
    return _RecordedProjection(p)


def _no_rows(width: int) -> kernels.PackedMatrix:
    """Return a table for rows that are all given."""
    return kernels.pack(np.zeros((1, width), np.float32), "float32")


@dataclass(frozen=True, slots=True)
class _LayerRecorder:
    """Records norms and products of modules."""

    program: kernels.Program
    weights: _TowerWeights
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

    def join(self, x: int, value: int, branch: int, module: str, layer: int) -> None:
        """Record x += scale · (value·W + bias), by way of another buffer where there is a scale."""
        if branch == x:
            self.linear(x, value, f"{module}_out", layer, accumulate=True)
            return
        self.linear(branch, value, f"{module}_out", layer)
        self.program.scale_columns(branch, self.weights.vector(f"{module}_scale", layer))
        self.program.add(x, branch)

    def activate(self, x: int, activation: Activation) -> None:
        """Record x = act(x)."""
        if activation != "quick_gelu":
            self.program.activate(x, activation)
            return
        self.program.scale(x, _QUICK)  # x · sigmoid(1.702 x)
        self.program.activate(x, "silu")
        self.program.scale(x, 1 / _QUICK)
