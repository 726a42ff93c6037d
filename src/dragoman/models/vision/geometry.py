"""Sizes of images and their tiles: how an image is scaled and cut, from its width and height alone."""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

import msgspec

from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.parts import Tiling, grids_of

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


class Cut(msgspec.Struct, frozen=True):
    """How an image becomes tiles.

    Attributes:
        scaled: sizes that the image is resized to, one after the other, before it is cut.
        whole: the tile with the whole image is the first or the last; None: there is none.
        whole_scaled: it is made of the image as scaled; else as it was sent. whole_size: its own, if not a tile's.
        any_shape: there is one tile, of the size that the image is scaled to.
    """

    scaled: tuple[Size, ...]
    grid: Grid
    whole: Literal["first", "last"] | None = "last"
    whole_scaled: bool = False
    whole_size: Size | None = None
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
    if tiling.kind == "halves":
        return _halves(size, tiling, whole_only=detail == "low")
    if tiling.kind == "canvas":
        return _canvas(size, tiling, one_tile=detail == "low")
    if tiling.kind == "mixed":
        return _mixed(size, tiling, whole_only=detail == "low")
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
    """Return how many embeddings so many tiles become; of those that a decoder looks at, how many tokens stand for
    them."""
    if vision.cross_attention_layers:
        return 1
    if vision.tiling.kind == "any":
        return grid.rows * grid.columns
    if vision.tiling.kind == "mixed":
        return sum(tile_embeddings(grid, vision))
    if vision.tiling.kind != "fit":
        return tiles * vision.tile_tokens
    if not grid.rows:
        return vision.tile_tokens + 1
    kept = kept_patches(grid, vision.patches_per_side)
    return vision.tile_tokens + kept.height * (kept.width + 1)


def tile_sizes(grid: Grid, vision: VisionDescription) -> list[Size]:
    """Return the sizes of the tiles of an image, where these differ (``mixed``, ``halves``)."""
    if vision.tiling.kind == "halves":
        parts = [*quarters(grid.size), grid.size] if grid.rows else [grid.size]
        return [_bounded(part, vision.tiling) for part in parts]
    side, whole = vision.tiling.side, _nearest(grid.size, vision.tiling)
    return [*[Size(side, side)] * (grid.rows * grid.columns), whole]


def are_tiles(tiles: int, height: int, width: int, grid: Grid, vision: VisionDescription) -> bool:
    """Return whether so many tiles of so many pixels are what an image of that grid is cut into."""
    tiling = vision.tiling
    if tiling.kind == "any":
        whole = (height, width) == (grid.rows * tiling.side, grid.columns * tiling.side)
        return tiles == 1 and whole and 0 < height * width <= tiling.most
    cut = grid.rows * grid.columns
    if tiling.kind == "canvas":
        return (height, width) == (tiling.side, tiling.side) and tiles == cut and 0 < cut <= tiling.most
    if tiling.kind in ("mixed", "halves"):
        try:
            sizes = tile_sizes(grid, vision)
        except ValueError:
            return False
        largest = tuple(max(edges) for edges in zip(*sizes, strict=True))
        if tiling.kind == "halves":
            whole = grid[:2] in ((0, 0), (2, 2)) and tiles <= tiling.most and (cut == 0 or min(grid.size) > 1)
        else:
            whole = cut == 0 or tiling.least <= cut <= tiling.most
        return (height, width) == largest and tiles == len(sizes) and whole
    return (height, width) == (tiling.side, tiling.side) and tiles == cut + 1 <= tiling.most


def tile_embeddings(grid: Grid, vision: VisionDescription) -> list[int]:
    """Return how many embeddings each tile becomes, where these differ (``mixed``)."""
    if vision.resampler is not None:
        return [vision.resampler.vectors] * (grid.rows * grid.columns + 1)
    token = vision.tiling.whole_side**2
    return [size.height * size.width // token for size in tile_sizes(grid, vision)]


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
    found = _tokens_in(tags.before) + _tokens_in(tags.after)
    if cut.whole is not None and (tiles or vision.tiling.kind != "mixed"):
        found += _tokens_in(tags.whole)
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
    if tiling.filled:
        return _filled(size, tiling)
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


def _filled(size: Size, tiling: Tiling) -> Cut:
    """Return a cut of one tile with as many pixels as there may be, in whole tokens, and one at least to each side."""
    side = tiling.side
    factor = math.sqrt(tiling.most / (size.height * size.width))
    rows, columns = (math.floor(factor * edge / side) for edge in size)
    longest = tiling.most // side**2
    if rows == 0:
        rows, columns = 1, min(size.width // size.height, longest)
    elif columns == 0:
        rows, columns = min(size.height // size.width, longest), 1
    return Cut((Size(rows * side, columns * side),), Grid(rows, columns, size), any_shape=True)


def _mixed(size: Size, tiling: Tiling, *, whole_only: bool) -> Cut:
    """Return a cut of one tile of any shape, or of tiles of the grid whose shape is closest and that one."""
    whole, token = _nearest(size, tiling), tiling.whole_side
    height, width = (max(1, round(edge / token) * token) for edge in size)
    if whole_only or height * width <= tiling.cut_above:
        return Cut((whole,), Grid(0, 0, size), whole_size=whole)
    counts = range(tiling.least, tiling.most + 1)
    # In the order of the model's own processor, by which equally close ones are told: of widths and heights.
    grids = {(w, h) for n in counts for w in range(1, n + 1) for h in range(1, n + 1) if w * h in counts}
    ratio, closest, least = size.width / size.height, (1, 1), math.inf
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        distance = abs(ratio - columns / rows)
        larger = size.width * size.height > 0.5 * tiling.side**2 * rows * columns
        if distance < least or (distance == least and larger):
            closest, least = (columns, rows), distance
    columns, rows = closest
    scaled = Size(rows * tiling.side, columns * tiling.side)
    return Cut((scaled,), Grid(rows, columns, size), whole_size=whole)


def quarters(size: Size) -> list[Size]:
    """Return the sizes of an image's quarters, row by row; the middle row and column are in the later ones."""
    down, across = size.height // 2, size.width // 2
    return [Size(h, w) for h in (down, size.height - down) for w in (across, size.width - across)]


def _halves(size: Size, tiling: Tiling, *, whole_only: bool) -> Cut:
    """Return a cut of one tile of nearly any shape, or of an image's quarters and that one."""
    cut = 0 if whole_only or tiling.most == 1 or min(size) < 2 else 2
    whole = _bounded(size, tiling)
    return Cut((whole,), Grid(cut, cut, size), whole_size=whole)


def _bounded(size: Size, tiling: Tiling) -> Size:
    """Return the size of an image whose longer edge is at most ``longest``, and then both at least ``least_edge``."""
    (height, width), longest = size, tiling.longest
    ratio = width / height
    if width >= height and width > longest:
        height, width = int(longest / ratio), longest
    elif height > width and height > longest:
        height, width = longest, int(longest * ratio)
    return Size(max(height, tiling.least_edge), max(width, tiling.least_edge))


def _nearest(size: Size, tiling: Tiling) -> Size:
    """Return the size of whole tokens that is nearest to an image's, within the limits of its pixels. Raises ValueError
    for an image that is too long for them."""
    token = tiling.whole_side
    height, width = (max(token, round(edge / token) * token) for edge in size)
    if height * width > tiling.whole_most:
        factor = math.sqrt(size.height * size.width / tiling.whole_most)
        height, width = (max(token, math.floor(edge / factor / token) * token) for edge in size)
    elif height * width < tiling.whole_least:
        factor = math.sqrt(tiling.whole_least / (size.height * size.width))
        height, width = (math.ceil(edge * factor / token) * token for edge in size)
    if height * width > tiling.whole_most:
        most = tiling.whole_most // token**2
        raise ValueError(f"an image is less than {most} times as long as wide, got {size.width} x {size.height}")
    return Size(height, width)


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


def _canvas(size: Size, tiling: Tiling, *, one_tile: bool) -> Cut:
    """Return the cut of the canvas that an image fills best: that of the least factor of 1 or more, else of the
    largest; of equal ones the smallest, and of these the first."""
    most, side = 1 if one_tile else tiling.most, tiling.side
    found: list[tuple[tuple[bool, float, int], Size]] = []
    for rows, columns in grids_of(most):
        factor = min(rows * side / size.height, columns * side / size.width)
        rank = (factor < 1, factor if factor >= 1 else -factor, rows * columns)
        found.append((rank, Size(rows, columns)))
    rows, columns = min(found, key=lambda each: each[0])[1]
    height, width = min(max(size.height, side), rows * side), min(max(size.width, side), columns * side)
    down, across = height / size.height, width / size.width
    if across < down:
        scaled = Size(min(math.floor(size.height * across) or 1, height), width)
    else:
        scaled = Size(height, min(math.floor(size.width * down) or 1, width))
    return Cut((scaled,), Grid(rows, columns, size), whole=None)


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
    alone = vision.resampler is not None or vision.tiling.kind in ("mixed", "halves", "canvas")
    together = 1 if alone else max(1, _RUN_ROWS // vision.tile_rows)
    return together * vision.tile_rows


def buffer_bytes(vision: VisionDescription) -> int:
    """Return the bytes that a tower takes besides its weights: the buffers of a run, keys and values, pixels."""
    layers, rows, out = vision.layers, rows_of_run(vision), vision.embedding_floats
    floats = 6 * layers.width + max(3 * layers.width, layers.feed_forward) + 2 * vision.patch_floats
    reduced = 2 * vision.reduced_width + 2 * vision.taken_width + vision.projection.inner + 2 * out
    return 4 * rows * (floats + reduced // vision.reduction.factor**2) + 4 * vision.most_embeddings * out
