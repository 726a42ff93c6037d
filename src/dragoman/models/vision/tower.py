"""The vision tower, described once: the operations from the patches of tiles to embeddings of the decoder.

Layers of attention, in which every patch of a tile sees all others, and a feed-forward network, with norms of their
inputs. It is recorded once as a program, whose layers are run one after the other, so that a decoder's steps can come
between them. Its keys and values are in memory of its own, one layer's after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.settings import Precision
from dragoman.models.vision.arrangement import Arrangement, arrange, axial, bucketed, interpolated, resampled
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import Grid, kept_patches, rows_of_run, tile_sizes
from dragoman.models.vision.preprocess import PreparedImage, normalise
from dragoman.models.vision.resampler import RecordedResampler
from dragoman.models.vision.tower_programs import TowerWeights, record_layers, record_projection

Floats = NDArray[np.float32]

_OF_IMAGE = {"interpolated": interpolated, "resampled": resampled, "bucketed": bucketed, "axial": axial}
"""By the kind of positions, from their table to those of an image's patches."""


class VisionTower:
    """A vision tower over packed weights.

    Attributes:
        vision: its description. max_tiles: of one run.
    """

    def __init__(self, weights: Mapping[str, object], vision: VisionDescription, precision: Precision) -> None:
        """Record the tower. ``weights``: packed parameters by name; ``precision``: of the model, which decides that of
        the tower's keys and values."""
        self.vision = vision
        self._weights = TowerWeights(weights)
        rows = rows_of_run(vision)
        self.max_tiles = rows // vision.tile_rows
        self._layers = record_layers(vision, self._weights, precision, self.max_tiles)
        rows = self.max_tiles * (vision.tile_rows if vision.resampler else vision.tile_tokens)
        product = vision.projection.product
        self._projection = record_projection(vision, self._weights, rows) if product else None
        self._resampler = None
        if vision.resampler is not None:
            self._resampler = RecordedResampler(vision.resampler, vision.projection.out, self._weights, precision, rows)
        self._stacked = [record_projection(vision, self._weights, rows, place) for place in range(vision.stacked)]

    def encode(self, pixels: NDArray[np.uint8], grid: Grid) -> Floats:
        """Return the embeddings ``[tokens, embedding_floats]`` of an image's tiles ``[tiles, 3, height, width]``."""
        *_, found = self._steps(pixels, grid)
        assert found is not None
        return found

    def encode_steps(self, prepared: PreparedImage) -> Iterator[Floats | None]:
        """Compute an image in parts: yield None after each, and last its embeddings ``[prepared.embeddings,
        embedding_floats]``.

        A part is at most the attention or the network of one layer, of ``max_tiles`` tiles. One image is computed at a
        time: the next one's parts begin after the last of this one's, or in place of what is left of them.
        """
        yield from self._steps(prepared.pixels, prepared.grid)

    def _steps(self, pixels: NDArray[np.uint8], grid: Grid) -> Iterator[Floats | None]:
        vision, parts = self.vision, []
        self._check(pixels, grid)
        sizes = tile_sizes(grid, vision) if vision.tiling.kind in ("mixed", "halves") else None
        for first in range(0, len(pixels), self.max_tiles):
            tiles = pixels[first : first + self.max_tiles]
            if sizes is not None:  # one by one
                height, width = (edge // vision.patch * vision.patch for edge in sizes[first])
                tiles = tiles[:, :, :height, :width]
            arranged = arrange(vision, len(tiles), tiles.shape[2], tiles.shape[3])
            stream = self._patches(tiles, arranged)
            yield None
            for taken in self._layers.run(stream, arranged):
                if taken is None:
                    yield None
                else:
                    parts.append(self._projected(taken, len(tiles), arranged))
            yield None
        yield self._packed(np.concatenate(parts), len(pixels), grid)

    def _projected(self, taken: Floats, tiles: int, arranged: Arrangement) -> Floats:
        """Return the embeddings of what was taken of the layers, ``[tokens, embedding_floats]``: the last of it makes
        the embedding, what is before it the stacked parts."""
        stacked, width = self._stacked, self.vision.layers.width
        last = self._reduced(taken[:, len(stacked) * width :], tiles, arranged)
        if self._projection is not None:
            last = self._projection.run(last)
        if self._resampler is not None:  # of one tile
            return self._resampler.run(last)
        if not stacked:
            return last
        parts = (self._reduced(taken[:, i * width : (i + 1) * width], tiles, arranged) for i in range(len(stacked)))
        return np.concatenate([last, *(each.run(part) for each, part in zip(stacked, parts, strict=True))], axis=1)

    def _check(self, pixels: NDArray[np.uint8], grid: Grid) -> None:
        """Raise ValueError for tiles of another shape than the tower's."""
        tiling = self.vision.tiling
        height, width = pixels.shape[2:] if pixels.ndim == 4 else (0, 0)
        if tiling.kind == "any":
            fits = len(pixels) == 1 and 0 < height * width <= tiling.most
            fits = fits and height % tiling.side == 0 and width % tiling.side == 0
        elif tiling.kind in ("mixed", "halves"):
            sizes = tile_sizes(grid, self.vision)
            fits = len(pixels) == len(sizes) and (height, width) == tuple(map(max, zip(*sizes, strict=True)))
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
        axes = (0, 3, 5, 2, 4, 6, 1) if vision.channels_last else (0, 3, 5, 1, 2, 4, 6)
        flat = levels.transpose(axes).reshape(count * rows * columns, vision.patch_floats)
        if arranged.order is not None:
            flat = flat[arranged.order]
        stream = kernels.linear(flat, self._weights.matrix("patch"), self._weights.bias("patch"))
        stream = stream.reshape(count, rows * columns, -1)
        if vision.class_token:
            first = np.broadcast_to(self._weights.vector("class"), (count, 1, vision.layers.width))
            stream = np.concatenate([first, stream], axis=1)
        if vision.positions == "learned":
            stream = stream + self._weights.vector("positions")
        elif vision.positions != "none":
            table, side = self._weights.vector("positions"), vision.position_side
            added = _OF_IMAGE[vision.positions](table, side, rows, columns)
            stream = stream + (added if arranged.order is None else added[arranged.order])
        return stream.reshape(-1, vision.layers.width)

    def _standardised(self, rows: Floats) -> Floats:
        """Return means of patches, scaled, with learned means and scales."""
        reduction = self.vision.reduction
        if reduction.scale != 1.0:
            rows = rows * np.float32(reduction.scale)
        if not reduction.standardised:
            return rows
        return (rows - self._weights.vector("standard_mean")) * self._weights.vector("standard_scale")

    def _reduced(self, rows: Floats, tiles: int, arranged: Arrangement) -> Floats:
        """Return the rows that the projection takes, ``[tokens, reduced_width]``."""
        vision, reduction = self.vision, self.vision.reduction
        if vision.class_kept:
            return rows
        if arranged.order is not None:  # the patches of a token follow one another
            found: Floats = rows.reshape(-1, reduction.factor**2, vision.taken_width)[arranged.tokens]
            if reduction.kind == "average":
                return self._standardised(found.mean(axis=1, dtype=np.float32))
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
