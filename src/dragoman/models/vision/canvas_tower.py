"""A vision tower that sees all tiles of an image at once, in two stages (Mllama, Meta 2024,
https://arxiv.org/abs/2407.21783, section 7).

Absent tiles of a canvas, and rows that fill up a tile's, take part as in training: all rows see them, and they see the
others alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.settings import Precision
from dragoman.models.vision.arrangement import Arrangement, Sequences
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import Grid
from dragoman.models.vision.parts import grids_of
from dragoman.models.vision.preprocess import PreparedImage, normalise
from dragoman.models.vision.tower_programs import TowerWeights, record_layers, record_projection

Floats = NDArray[np.float32]


class CanvasTower:
    """Such a tower over packed weights. ``vision``: its description."""

    def __init__(self, weights: Mapping[str, object], vision: VisionDescription, precision: Precision) -> None:
        """Record the tower. ``precision``: of the model, which decides that of the tower's keys and values."""
        self.vision = vision
        self._weights = TowerWeights(weights)
        self._layers = record_layers(vision, self._weights, precision, 1)
        self._projection = record_projection(vision, self._weights, vision.cross_attention_rows)

    def encode(self, pixels: NDArray[np.uint8], grid: Grid) -> Floats:
        """Return embeddings ``[tiles · cross_attention_rows, hidden]`` of tiles ``[tiles, 3, side, side]``."""
        *_, found = self._steps(pixels, grid)
        assert found is not None
        return found

    def encode_steps(self, prepared: PreparedImage) -> Iterator[Floats | None]:
        """Compute an image in parts: yield None after each, and last its embeddings. A part is at most the attention or
        the network of one layer, or a tile's projection."""
        yield from self._steps(prepared.pixels, prepared.grid)

    def _steps(self, pixels: NDArray[np.uint8], grid: Grid) -> Iterator[Floats | None]:
        vision, side = self.vision, self.vision.tiling.side
        if pixels.shape != (grid.rows * grid.columns, 3, side, side) or grid[:2] not in grids_of(vision.tiling.most):
            raise ValueError(f"tiles must be {grid.rows * grid.columns} x 3 x {side} x {side}, got {pixels.shape}")
        number = 1 + grids_of(vision.tiling.most).index(grid[:2])
        order = self._order(len(pixels))
        stream = self._rows(pixels, number)[order]
        yield None
        between = np.broadcast_to(self._of_tiles("tiles_between", number)[:, None], (*self._shape, vision.layers.width))
        between = between.reshape(-1, vision.layers.width)[order]
        count = len(pixels) * vision.cross_attention_rows
        taken: Floats | None = None
        for part in self._layers.run(stream, self._arranged(count), between):
            taken = part
            yield None
        assert taken is not None
        found = []
        for first in range(0, count, vision.cross_attention_rows):
            found.append(self._projection.run(self._in_order(taken[first : first + vision.cross_attention_rows])))
            yield None
        yield np.concatenate(found)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.vision.tiling.most, self.vision.padded_rows

    def _order(self, tiles: int) -> NDArray[np.intp]:
        """Return the rows of a canvas, those of patches and class tokens of so many tiles before all others."""
        is_real = np.zeros(self._shape, bool)
        is_real[:tiles, : self.vision.cross_attention_rows] = True
        return np.argsort(~is_real.reshape(-1), kind="stable")

    def _arranged(self, count: int) -> Arrangement:
        """Return what the rows see, of which the first ``count`` see all, and the others these."""
        rows = self.vision.tile_rows
        table = np.arange(-(-rows // kernels.BLOCK_TOKENS), dtype=np.int32)
        return Arrangement(
            Sequences(
                np.arange(rows, dtype=np.int32),
                np.array([0, count, rows], np.int32),
                np.stack([table, table]),
                np.array([rows, count], np.int32),
            )
        )

    def _of_tiles(self, module: str, number: int, gate: str = "") -> Floats:
        """Return the learned rows of a grid's tiles, ``[most, …]``, with their gate's factor."""
        factor = math.tanh(self._weights.vector(gate or f"{module}_gate")[0])
        found: Floats = self._weights.vector(module)[number].reshape(self.vision.tiling.most, -1) * np.float32(factor)
        return found

    def _rows(self, pixels: NDArray[np.uint8], number: int) -> Floats:
        """Return the rows before the first layer, ``[most · padded_rows, width]``."""
        vision = self.vision
        patch, side, width = vision.patch, vision.patches_per_side, vision.layers.width
        levels = normalise(pixels, vision.pixels).reshape(len(pixels), 3, side, patch, side, patch)
        flat = levels.transpose(0, 2, 4, 1, 3, 5).reshape(-1, vision.patch_floats)
        rows = np.zeros((vision.tiling.most, vision.cross_attention_rows, width), np.float32)
        patches = kernels.linear(flat, self._weights.matrix("patch"), self._weights.bias("patch"))
        rows[: len(pixels), 1:] = patches.reshape(len(pixels), side * side, width)
        rows[:, 1:] += self._of_tiles("tiles_before", number)[:, None]
        rows[:, 0] = self._weights.vector("class")
        rows += np.float32(1 - math.tanh(self._weights.vector("positions_gate")[0])) * self._weights.vector("positions")
        rows += self._of_tiles("tiles_each", number, "positions_gate").reshape(rows.shape)
        rows -= rows.mean(axis=-1, keepdims=True)
        eps = np.float32(vision.layers.last_eps or vision.layers.norm_eps)
        rows /= np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + eps)
        bias = self._weights.bias("first_norm")
        assert bias is not None
        found = np.zeros((*self._shape, width), np.float32)
        found[:, : vision.cross_attention_rows] = rows * self._weights.vector("first_norm") + bias
        return found.reshape(-1, width)

    def _in_order(self, taken: Floats) -> Floats:
        """Return what was taken of the layers as the projection reads it: the last first, and then all numbers of the
        others in turn."""
        width = self.vision.layers.width
        others = taken[:, :-width].reshape(len(taken), -1, width).swapaxes(1, 2).reshape(len(taken), -1)
        return np.concatenate([taken[:, -width:], others], axis=1)
