"""Images of a prompt: their digests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.core.images import ImageTiles

SIZES: dict[str, Any] = {"tiles": 2, "height": 2, "width": 1, "rows": 1, "columns": 2, "image_height": 5}
SIZES |= {"image_width": 9, "tokens": 8, "embeddings": 6}
PIXELS = bytes(range(12))


def test_equal_images_have_equal_digests() -> None:
    found = ImageTiles.of(pixels=PIXELS, **SIZES)
    assert found == ImageTiles.of(pixels=PIXELS, **SIZES)
    assert len(found.digest) == 16
    assert found.is_sound
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=ImageTiles) == found


@pytest.mark.parametrize("name", [*SIZES, "pixels"])
def test_whatever_differs_is_another_digest(name: str) -> None:
    found = ImageTiles.of(pixels=PIXELS, **SIZES)
    other = {"pixels": PIXELS[::-1]} if name == "pixels" else {name: SIZES[name] + 1}
    assert ImageTiles.of(**{"pixels": PIXELS, **SIZES, **other}).digest != found.digest
    assert not msgspec.structs.replace(found, **other).is_sound


def test_pixels_are_as_many_as_the_tiles_have() -> None:
    assert not ImageTiles.of(pixels=PIXELS[:-1], **SIZES).is_sound
