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
_RUN_ROWS = 1024  # of the tower: as many tiles together as have no more, and one at least


class Size(NamedTuple):
    """Pixels of an image."""

    height: int
    width: int


class Grid(NamedTuple):
    """Place of tiles within an image.

    Attributes:
        rows, columns: of tiles that the image was cut into; 0 where it is one tile. size: of the image as it was sent.
    """

    rows: int
    columns: int
    size: Size


@dataclass(frozen=True, slots=True)
class Cut:
    """How an image becomes tiles.

    Attributes:
        scaled: sizes that the image is resized to, one after the other, before it is cut.
        whole: one more tile has the whole image; it is the last.
    """

    scaled: tuple[Size, ...]
    grid: Grid
    whole: bool

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.grid.rows * self.grid.columns + self.whole


def cut_of(width: int, height: int, vision: VisionDescription, detail: Detail) -> Cut:
    """Return how an image of so many pixels is scaled and cut. Raises ValueError for an image without pixels."""
    if width < 1 or height < 1:
        raise ValueError(f"an image has at least one pixel, got {width} x {height}")
    size, tiling = Size(height, width), vision.tiling
    if tiling.kind == "split" and detail != "low":
        return _split(size, tiling)
    scaled = (*([_to_longest(size, tiling.longest)] if tiling.longest else []), Size(tiling.side, tiling.side))
    return Cut(scaled, Grid(0, 0, size), whole=True)


def image_token_count(width: int, height: int, vision: VisionDescription, detail: Detail = "auto") -> int:
    """Return how many tokens of a prompt an image of so many pixels takes, its tags included.

    Line breaks in a row are counted as one token, as the tokenizers of these models have them.
    """
    cut = cut_of(width, height, vision, detail)
    return cut.tiles * vision.tile_tokens + _tag_count(cut, vision)


def _tag_count(cut: Cut, vision: VisionDescription) -> int:
    tags, tiles = vision.tags, cut.grid.rows * cut.grid.columns
    found = _tokens_in(tags.before) + _tokens_in(tags.after) + cut.whole * _tokens_in(tags.whole)
    if tiles:
        found += tiles * _tokens_in(tags.tile) + (cut.grid.rows - 1) * _tokens_in(tags.row_end)
        found += _tokens_in(tags.row_end + tags.rows_end)
    return found


def _tokens_in(tag: str) -> int:
    """Return how many tokens a tag has: one for each name in angle brackets, and for line breaks in a row."""
    return len(re.findall(r"<|\n+", tag))


def _split(size: Size, tiling: Tiling) -> Cut:
    first = _to_longest(size, tiling.longest)
    second = _to_whole_tiles(first, tiling.side)
    rows, columns = second.height // tiling.side, second.width // tiling.side
    if rows * columns == 1:
        rows = columns = 0
    return Cut((first, second), Grid(rows, columns, size), whole=True)


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
    reduced = 2 * vision.reduced_width + vision.projection.inner + 2 * vision.projection.out
    return 4 * rows * (floats + reduced // vision.reduction.factor**2) + 4 * vision.most_tokens * vision.projection.out
