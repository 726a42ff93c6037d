"""Image files for tests: good ones, and those of an attacker."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image

COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255), (255, 0, 255))
"""Of the pixels of ``picture``: three columns, two rows."""


def picture(scale: int = 16) -> Image.Image:
    """Six squares of one colour each."""
    image = Image.new("RGB", (3, 2))
    image.putdata(COLOURS)
    return image.resize((3 * scale, 2 * scale), 0)


def saved(image: Image.Image, name: str = "PNG", **more: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **more)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, *more: bytes, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG file of the parts that are given, whether they fit or not."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = (chunk(b"IHDR", header), *more, chunk(b"IDAT", data), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def bomb(width: int, height: int) -> bytes:
    """A file whose pixels are all there: a thousandth of their size."""
    rows = zlib.compressobj(9)
    row = bytes(3 * width + 1)
    return png(width, height, b"".join([rows.compress(row) for _ in range(height)]) + rows.flush())
