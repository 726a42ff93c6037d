"""From a decoded image to the tiles that a vision tower takes, as the model's own image processor makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dragoman.core.lazy_imports import np
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import (
    Cut,
    Detail,
    Grid,
    Size,
    cut_of,
    embedding_count,
    image_token_count,
    tile_sizes,
)
from dragoman.models.vision.parts import Pixels, Resampling

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

__all__ = ["Detail", "Grid", "PreparedImage", "image_token_count", "normalise", "preprocess"]

_FILTERS: dict[Resampling, int] = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # Pillow's numbers
_MOST_SCALED = 1 << 24  # pixels of an image of which the middle is taken


class PreparedImage(msgspec.Struct, frozen=True, eq=False):
    """An image as a tower takes it.

    Attributes:
        pixels: uint8 ``[tiles, 3, height, width]``, levels of red, green and blue; smaller tiles are in the upper left.
        grid: the tiles' place in the image.
        tokens: of the prompt that it takes, its tags included (``image_token_count``).
        embeddings: rows that the tower makes of it: the prompt has its image token as many times.
    """

    pixels: NDArray[np.uint8]
    grid: Grid
    tokens: int
    embeddings: int


def preprocess(image: Image.Image, vision: VisionDescription, detail: Detail = "auto") -> PreparedImage:
    """Return the tiles of an image, whose mode is RGB and whose orientation is applied.

    ``detail``: ``low`` makes one tile of it, where the model cuts images into several. Raises ValueError for an image
    of another mode or without pixels.
    """
    if image.mode != "RGB":
        raise ValueError(f"an image must be in RGB, got {image.mode}")
    cut = cut_of(image.width, image.height, vision, detail)
    return PreparedImage(
        pixels=_tiles(image, cut, vision),
        grid=cut.grid,
        tokens=image_token_count(image.width, image.height, vision, detail),
        embeddings=embedding_count(cut.grid, cut.tiles, vision),
    )


def normalise(pixels: NDArray[np.uint8], spec: Pixels) -> NDArray[np.float32]:
    """Return ``(level · rescale - mean) / deviation`` of each channel of ``[tiles, 3, height, width]``, in the float32
    steps of the image processors of transformers."""
    shares = (np.arange(256, dtype=np.float64) * spec.rescale).astype(np.float32)
    mean, deviation = np.array(spec.mean, np.float32), np.array(spec.deviation, np.float32)
    table = (shares[:, None] - mean) / deviation
    found = np.empty(pixels.shape, np.float32)
    for channel in range(3):
        np.take(table[:, channel], pixels[:, channel], out=found[:, channel])
    return found


def _tiles(image: Image.Image, cut: Cut, vision: VisionDescription) -> NDArray[np.uint8]:
    tiling, resampling = vision.tiling, vision.pixels.resampling
    side, sent = tiling.side, image
    if cut.any_shape:
        return np.asarray(_resized(image, cut.scaled[-1], resampling)).transpose(2, 0, 1)[None].copy()
    if tiling.kind == "halves":
        return _quarter_tiles(image, cut, vision)
    if cut.whole_size is not None:
        return _mixed_tiles(image, cut, side, resampling)
    found = np.empty((cut.tiles, 3, side, side), np.uint8)
    if tiling.kind == "crop":
        found[0] = _middle(image, side, resampling)
        return found
    for size in cut.scaled:
        image = _resized(image, size, resampling)
    first = 1 if cut.whole == "first" else 0
    if cut.parts:
        rows, columns = cut.grid.rows, cut.grid.columns
        place = _in_corner if tiling.kind == "canvas" else _in_middle
        levels = place(np.asarray(image), rows * side, columns * side).reshape(rows, side, columns, side, 3)
        found[first : first + cut.parts] = levels.transpose(0, 2, 4, 1, 3).reshape(-1, 3, side, side)
    if cut.parts and cut.whole is not None:
        image = _resized(image if cut.whole_scaled else sent, Size(side, side), resampling)
    if cut.whole is not None:
        found[0 if first else -1] = np.asarray(image).transpose(2, 0, 1)
    return found


def _quarter_tiles(image: Image.Image, cut: Cut, vision: VisionDescription) -> NDArray[np.uint8]:
    """Return the quarters of an image and the whole, each in the upper left of one as large as the largest edges."""
    sizes, parts = tile_sizes(cut.grid, vision), [image]
    if cut.parts:
        down, across = image.height // 2, image.width // 2
        rows, columns = ((0, down), (down, image.height)), ((0, across), (across, image.width))
        parts = [image.crop((left, top, right, bottom)) for top, bottom in rows for left, right in columns] + parts
    height, width = (max(edges) for edges in zip(*sizes, strict=True))
    found = np.zeros((len(sizes), 3, height, width), np.uint8)
    for tile, part, size in zip(found, parts, sizes, strict=True):
        scaled = np.asarray(_resized(part, size, vision.pixels.resampling))
        tile[:, : size.height, : size.width] = scaled.transpose(2, 0, 1)
    return found


def _mixed_tiles(image: Image.Image, cut: Cut, side: int, resampling: Resampling) -> NDArray[np.uint8]:
    """Return tiles of several sizes, each in the upper left of one of the largest."""
    whole, rows, columns = cut.whole_size, cut.grid.rows, cut.grid.columns
    assert whole is not None
    height, width = (max(side, edge) if cut.parts else edge for edge in whole)
    found = np.zeros((cut.tiles, 3, height, width), np.uint8)
    if cut.parts:
        levels = np.asarray(_resized(image, cut.scaled[-1], resampling)).reshape(rows, side, columns, side, 3)
        found[:-1, :, :side, :side] = levels.transpose(0, 2, 4, 1, 3).reshape(-1, 3, side, side)
    found[-1, :, : whole.height, : whole.width] = np.asarray(_resized(image, whole, resampling)).transpose(2, 0, 1)
    return found


def _in_corner(levels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Return an image ``[height, width, 3]`` in the upper left of a black canvas."""
    canvas = np.zeros((height, width, 3), np.uint8)
    canvas[: levels.shape[0], : levels.shape[1]] = levels
    return canvas


def _in_middle(levels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Return an image ``[height, width, 3]`` in the middle of a black canvas; an odd row or column is after it."""
    if levels.shape[:2] == (height, width):
        return levels
    canvas = np.zeros((height, width, 3), np.uint8)
    top, left = (height - levels.shape[0]) // 2, (width - levels.shape[1]) // 2
    canvas[top : top + levels.shape[0], left : left + levels.shape[1]] = levels
    return canvas


def _middle(image: Image.Image, side: int, resampling: Resampling) -> NDArray[np.uint8]:
    """Return the middle ``[3, side, side]`` of the image whose shorter edge is scaled to ``side``.

    Of a very long image only the middle is scaled, as the whole would be large. Its levels may differ by a few, since
    Pillow resamples it down before across, or the other way round, by the sizes.
    """
    short, long = sorted((image.width, image.height))
    scaled = int(side * long / short)
    width, height = (side, scaled) if image.width <= image.height else (scaled, side)
    left, top = (width - side) // 2, (height - side) // 2
    if width * height <= _MOST_SCALED:
        cropped = _resized(image, Size(height, width), resampling).crop((left, top, left + side, top + side))
    else:
        across, down = image.width / width, image.height / height
        box = (left * across, top * down, (left + side) * across, (top + side) * down)
        cropped = image.resize((side, side), _FILTERS[resampling], box=box)
    return np.asarray(cropped).transpose(2, 0, 1)


def _resized(image: Image.Image, size: Size, resampling: Resampling) -> Image.Image:
    return image.resize((size.width, size.height), _FILTERS[resampling])
