"""Images of a prompt: as they were decoded, as a model's tower takes them, and where they are in the prompt."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from dragoman.core.errors import UnsupportedFeature

Detail = Literal["auto", "low", "high"]
"""How closely a client wants an image looked at: ``low`` is one tile, where a model cuts images into several."""

IMAGE_PART = {"type": "image"}
"""The part of a message's content that stands for an image, as chat templates read it."""


class ImageInput(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded image: its orientation is applied, its colours are RGB, and what was transparent is not any more.

    ``pixels``: uint8 ``[height, width, 3]``, rows from above.
    """

    width: int
    height: int
    pixels: bytes
    detail: Detail = "auto"


class ImageTiles(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """An image scaled and cut for a model's tower (``models.vision.preprocess``).

    Attributes:
        pixels: uint8 ``[tiles, 3, height, width]``.
        rows, columns: of the grid of tiles; of a tile of any shape, those of its embeddings.
        image_height, image_width: pixels of the image as it was decoded.
        tokens: of the prompt that it takes, its tags included. embeddings: those of them that the tower makes.
        service: prompt tokens that take about as long to compute as the image's embeddings.
        digest: of everything above, 16 bytes: equal ones have equal embeddings.
    """

    pixels: bytes
    tiles: int
    height: int
    width: int
    rows: int
    columns: int
    image_height: int
    image_width: int
    tokens: int
    embeddings: int
    service: int = 0
    digest: bytes

    @classmethod
    def of(cls, **values: Any) -> ImageTiles:
        """Return the tiles with their digest. ``values``: all other attributes."""
        found = cls(**values, digest=b"")
        return msgspec.structs.replace(found, digest=_digest(found))

    @property
    def is_sound(self) -> bool:
        """Whether the pixels are as many as there should be, and those that the digest is of."""
        return len(self.pixels) == 3 * self.tiles * self.height * self.width and _digest(self) == self.digest


def _digest(tiles: ImageTiles) -> bytes:
    sizes = (tiles.tiles, tiles.height, tiles.width, tiles.rows, tiles.columns, tiles.image_height, tiles.image_width)
    counts = (tiles.tokens, tiles.embeddings, tiles.service)
    found = hashlib.blake2b(
        b"".join(each.to_bytes(8, "little", signed=True) for each in sizes + counts), digest_size=16
    )
    found.update(tiles.pixels)
    return found.digest()


class PlacedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a prompt's tokens: ``start`` and ``end`` are the places of the first token that stands for one of its
    embeddings, and of the one after the last. All tokens between them that are the same as the first do so too."""

    start: int
    end: int
    tiles: ImageTiles

    @property
    def without_pixels(self) -> PlacedImage:
        """The same, with the digest alone to tell it from others."""
        return msgspec.structs.replace(self, tiles=msgspec.structs.replace(self.tiles, pixels=b""))


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What clients may know of a model that sees.

    ``most_tokens``: of one image. ``has_detail``: ``low`` takes fewer tokens than the other details. ``placeholder``:
    what stands for an image in the text of a prompt.
    """

    most_tokens: int
    has_detail: bool
    placeholder: str = ""


def images_refused(model: str, param: str) -> UnsupportedFeature:
    """Return the error of a request with images for a model that sees none. ``param``: the wire field with them."""
    return UnsupportedFeature(f"The model '{model}' sees no images.", param=param)
