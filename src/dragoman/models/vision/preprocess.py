"""From a decoded image to the tiles that a vision tower takes, as the model's own image processor makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.core.lazy_imports import np
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import Cut, Detail, Grid, Size, cut_of, image_token_count
from dragoman.models.vision.parts import Pixels, Resampling

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

__all__ = ["Detail", "Grid", "PreparedImage", "image_token_count", "normalise", "preprocess"]

_FILTERS: dict[Resampling, int] = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # Pillow's numbers


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """An image as a tower takes it.

    Attributes:
        pixels: uint8 ``[tiles, 3, height, width]``, levels of red, green and blue.
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
        embeddings=cut.tiles * vision.tile_tokens,
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
    side, resampling = vision.tiling.side, vision.pixels.resampling
    for size in cut.scaled:
        image = _resized(image, size, resampling)
    rows, columns = cut.grid.rows, cut.grid.columns
    found = np.empty((cut.tiles, 3, side, side), np.uint8)
    if rows and columns:
        levels = np.asarray(image).reshape(rows, side, columns, side, 3)
        found[: rows * columns] = levels.transpose(0, 2, 4, 1, 3).reshape(-1, 3, side, side)
        image = _resized(image, Size(side, side), resampling)
    if cut.whole:
        found[-1] = np.asarray(image).transpose(2, 0, 1)
    return found


def _resized(image: Image.Image, size: Size, resampling: Resampling) -> Image.Image:
    return image.resize((size.width, size.height), _FILTERS[resampling])
