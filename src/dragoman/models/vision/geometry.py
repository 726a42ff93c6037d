"""Sizes of images and their tiles: how an image is scaled and cut, from its width and height alone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.parts import Tiling

Detail = Literal["auto", "low", "high"]
"""How closely a client wants an image looked at: ``low`` is one tile, where a model cuts images into several."""

_LONGEST_EDGE = 4096  # of an image before it is cut, whatever a preprocessor's config asks for
_LONGEST_RATIO = 200  # of an image's edges, where its shape is kept
_RUN_ROWS = 1024  # of the tower: as many tiles together as have no more, and one at least


class Size(NamedTuple):
    """Pixels of an image."""

    height: int
    width: int


class Grid(NamedTuple):
    """Place of tiles within an image.

    Attributes:
        rows, columns: of tiles that the image was cut into; 0 where it is one tile. Of a tile of any shape, those of
            its embeddings. size: of the image as it was sent.
    """

    rows: int
    columns: int
    size: Size


@dataclass(frozen=True, slots=True)
class Cut:
    """How an image becomes tiles.

    Attributes:
        scaled: sizes that the image is resized to, one after the other, before it is cut.
        whole: the tile with the whole image is the first or the last; None: there is none.
        whole_scaled: it is made of the image as scaled; else as it was sent.
        any_shape: there is one tile, of the size that the image is scaled to.
    """

    scaled: tuple[Size, ...]
    grid: Grid
    whole: Literal["first", "last"] | None = "last"
    whole_scaled: bool = False
    any_shape: bool = False

    @property
    def parts(self) -> int:
        """Number of tiles without the one of the whole image."""
        return 0 if self.any_shape else self.grid.rows * self.grid.columns

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.parts + (self.whole is not None)


def cut_of(width: int, height: int, vision: VisionDescription, detail: Detail) -> Cut:
    """Return how an image of so many pixels is scaled and cut. Raises ValueError for an image without pixels, or one
    that is too long for a model."""
    if width < 1 or height < 1:
        raise ValueError(f"an image has at least one pixel, got {width} x {height}")
    size, tiling = Size(height, width), vision.tiling
    if tiling.kind == "any":
        return _any_shape(size, tiling)
    cutters = {"split": _split, "fit": _fit, "closest": _closest}
    if tiling.kind in cutters and detail != "low":
        return cutters[tiling.kind](size, tiling)
    scaled = (*([_to_longest(size, tiling.longest)] if tiling.longest else []), Size(tiling.side, tiling.side))
    return Cut(scaled, Grid(0, 0, size))


def image_token_count(width: int, height: int, vision: VisionDescription, detail: Detail = "auto") -> int:
    """Return how many tokens of a prompt an image of so many pixels takes, its tags included.

    Line breaks in a row are counted as one token, as the tokenizers of these models have them.
    """
    cut = cut_of(width, height, vision, detail)
    return embedding_count(cut.grid, cut.tiles, vision) + _tag_count(cut, vision)


def embedding_count(grid: Grid, tiles: int, vision: VisionDescription) -> int:
    """Return how many embeddings so many tiles become."""
    if vision.tiling.kind == "any":
        return grid.rows * grid.columns
    if vision.tiling.kind != "fit":
        return tiles * vision.tile_tokens
    if not grid.rows:
        return vision.tile_tokens + 1
    kept = kept_patches(grid, vision.patches_per_side)
    return vision.tile_tokens + kept.height * (kept.width + 1)


class Box(NamedTuple):
    """A part of a grid of patches."""

    top: int
    left: int
    height: int
    width: int


def kept_patches(grid: Grid, side: int) -> Box:
    """Return the patches of a canvas of tiles, with ``side`` patches in a row of each, that have the image in them."""
    height, width = grid.rows * side, grid.columns * side
    if grid.size.width / grid.size.height > width / height:
        inner = int(round(grid.size.height * (width / grid.size.width), 7))
        top = (height - inner) // 2
        return Box(top, 0, height - 2 * top, width)
    inner = int(round(grid.size.width * (height / grid.size.height), 7))
    left = (width - inner) // 2
    return Box(0, left, height, width - 2 * left)


def _tag_count(cut: Cut, vision: VisionDescription) -> int:
    tags, tiles = vision.tags, cut.parts
    found = _tokens_in(tags.before) + _tokens_in(tags.after) + (cut.whole is not None) * _tokens_in(tags.whole)
    if cut.any_shape:
        found += (cut.grid.rows - 1) * _tokens_in(tags.row_end)
    if tiles:
        found += tiles * _tokens_in(tags.tile) + (cut.grid.rows - 1) * _tokens_in(tags.row_end)
        found += _tokens_in(tags.row_end + tags.rows_end)
    return found


def _tokens_in(tag: str) -> int:
    """Return how many tokens a tag has: one for each name in brackets, and for line breaks in a row."""
    return len(re.findall(r"<|\[|\n+", tag))


def _split(size: Size, tiling: Tiling) -> Cut:
    first = _to_longest(size, tiling.longest)
    second = _to_whole_tiles(first, tiling.side)
    rows, columns = second.height // tiling.side, second.width // tiling.side
    if rows * columns == 1:
        rows = columns = 0
    return Cut((first, second), Grid(rows, columns, size), whole_scaled=True)


def _any_shape(size: Size, tiling: Tiling) -> Cut:
    """Return a cut of one tile whose edges are the nearest multiples, within the limits of its pixels."""
    height, width = size
    if tiling.longest:
        return _within(size, tiling)
    if max(size) > _LONGEST_RATIO * min(size):
        raise ValueError(f"an image is at most {_LONGEST_RATIO} times as long as wide, got {width} x {height}")
    side = tiling.side
    rows, columns = round(height / side), round(width / side)  # halves to even
    pixels = rows * columns * side**2
    if pixels > tiling.most:
        factor = math.sqrt(height * width / tiling.most)
        rows, columns = (max(1, math.floor(edge / factor / side)) for edge in size)
    elif pixels < tiling.least:
        factor = math.sqrt(tiling.least / (height * width))
        rows, columns = (math.ceil(edge * factor / side) for edge in size)
    return Cut((Size(rows * side, columns * side),), Grid(rows, columns, size), any_shape=True)


def _within(size: Size, tiling: Tiling) -> Cut:
    """Return a cut of one tile that is no larger than the image, but for the rest of whole tokens."""
    side, most = tiling.side, tiling.most // tiling.side**2
    ratio = max(max(size) / tiling.longest, 1.0)
    height, width = (max(1, math.floor(edge / ratio)) if ratio > 1 else edge for edge in size)
    rows, columns = ((edge - 1) // side + 1 for edge in (height, width))
    if rows * columns > most:
        factor = math.sqrt(rows * columns / most)
        rows, columns = (max(1, math.floor(count / factor)) for count in (rows, columns))
    return Cut((Size(rows * side, columns * side),), Grid(rows, columns, size), any_shape=True)


def _fit(size: Size, tiling: Tiling) -> Cut:
    """Return the cut of the canvas that keeps most pixels of the image and of these leaves the fewest unused."""

    def value(canvas: tuple[int, int]) -> tuple[int, int]:
        height, width = canvas[0] * tiling.side, canvas[1] * tiling.side
        scale = min(width / size.width, height / size.height)
        kept = min(int(size.width * scale) * int(size.height * scale), size.width * size.height)
        return kept, kept - width * height

    rows, columns = max(tiling.canvases, key=value)  # the first of equal ones
    height, width = rows * tiling.side, columns * tiling.side
    across, down = width / size.width, height / size.height
    if across < down:
        scaled = Size(min(math.ceil(size.height * across), height), width)
    else:
        scaled = Size(height, min(math.ceil(size.width * down), width))
    return Cut((scaled,), Grid(rows, columns, size), whole="first")


def _closest(size: Size, tiling: Tiling) -> Cut:
    """Return the cut into the grid whose shape is closest: of those equally close the one with most tiles that has no
    more than twice the image's pixels."""
    most = tiling.most - 1
    every = ((rows, columns) for columns in range(1, most + 1) for rows in range(1, most // columns + 1))
    grids = sorted((grid for grid in every if grid[0] * grid[1] >= tiling.least), key=lambda grid: grid[0] * grid[1])
    ratio, closest, least = size.width / size.height, (1, 1), math.inf
    for rows, columns in grids:
        distance = abs(ratio - columns / rows)
        larger = size.width * size.height > 0.5 * tiling.side**2 * rows * columns
        if distance < least or (distance == least and larger):
            closest, least = (rows, columns), distance
    rows, columns = closest
    scaled = Size(rows * tiling.side, columns * tiling.side)
    if rows * columns == 1:
        return Cut((scaled,), Grid(0, 0, size))
    return Cut((scaled,), Grid(rows, columns, size))


def _to_longest(size: Size, longest: int) -> Size:
    """Return the size with a longer edge of so many pixels, at most 4,096; the shorter one is made even before that
    limit. In floating point, as the preprocessors that models were trained with."""
    height, width = size
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > _LONGEST_EDGE:
        width, height = _LONGEST_EDGE, int(_LONGEST_EDGE / ratio)
    elif height > width and height > _LONGEST_EDGE:
        height, width = _LONGEST_EDGE, int(_LONGEST_EDGE * ratio)
    return Size(max(height, 1), max(width, 1))


def _to_whole_tiles(size: Size, side: int) -> Size:
    height, width = size
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / ratio) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * ratio) / side) * side
    return Size(height, width)


def rows_of_run(vision: VisionDescription) -> int:
    """Return the rows of the largest run."""
    return max(1, _RUN_ROWS // vision.tile_rows) * vision.tile_rows


def buffer_bytes(vision: VisionDescription) -> int:
    """Return the bytes that a tower takes besides its weights: the buffers of a run, keys and values, pixels."""
    layers, rows = vision.layers, rows_of_run(vision)
    floats = 6 * layers.width + max(3 * layers.width, layers.feed_forward) + 2 * vision.patch_floats
    reduced = 2 * vision.reduced_width + 2 * vision.taken_width + vision.projection.inner + 2 * vision.projection.out
    return 4 * rows * (floats + reduced // vision.reduction.factor**2) + 4 * vision.most_tokens * vision.projection.out
