"""Headers of image files: what the bytes are, and how many pixels they would become, before anything is decoded.

What a client says about its image (a media type, the end of a name) is not looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from dragoman.core.errors import BadImage

MAX_FILE_BYTES = 20 << 20
MAX_PIXELS = 40_000_000
MAX_ASPECT = 200
"""The longer edge divided by the shorter one, at the most: that of Qwen's models in transformers."""

FORMATS = "PNG, JPEG, WebP, GIF and BMP"

_OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"II*\x00", "a TIFF file"),
    (b"MM\x00*", "a TIFF file"),
    (b"II+\x00", "a TIFF file"),
    (b"MM\x00+", "a TIFF file"),
    (b"%PDF", "a PDF file"),
    (b"<svg", "an SVG file"),
    (b"<?xml", "an XML file"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
    (b"\x00\x00\x01\x00", "an icon"),
    (b"8BPS", "a Photoshop file"),
    (b"\xff\x0a", "a JPEG XL file"),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL file"),
    (b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 file"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 file"),
    (b"PK\x03\x04", "a ZIP file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"RIFF", "a RIFF file that is no WebP image"),
)


class ImageHeader(NamedTuple):
    """The format of a file, in Pillow's name, and the pixels of its first frame as they are stored: an orientation in
    its metadata is not applied."""

    format: str
    width: int
    height: int

    @property
    def pixels(self) -> int:
        return self.width * self.height


def read_header(data: bytes) -> ImageHeader:
    """Return the header of an image file whose pixels are within the limits. Raises BadImage."""
    if not data:
        raise BadImage("empty_image_file", "it is empty")
    if len(data) > MAX_FILE_BYTES:
        raise BadImage("image_too_large", f"its file has {len(data)} bytes, and the most are {MAX_FILE_BYTES}")
    found = next((each for each in _READERS if data.startswith(each[0])), None)
    if found is None or (found[1] == "WEBP" and data[8:12] != b"WEBP"):
        raise BadImage("unsupported_image_media_type", f"it is {_other(data)}; {FORMATS} are read")
    _, name, size_of = found
    try:
        width, height = size_of(data)
    except (struct.error, IndexError):
        raise BadImage("image_parse_error", f"its {name} file ends within the header") from None
    _check_size(width, height)
    return ImageHeader(name, width, height)


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise BadImage("image_too_small", f"it has {width} x {height} pixels")
    if width * height > MAX_PIXELS:
        raise BadImage("image_too_large", f"it has {width} x {height} pixels, and the most are {MAX_PIXELS}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        reason = f"of its {width} x {height} pixels one edge is more than {MAX_ASPECT} times the other"
        raise BadImage("invalid_image", reason)


def _other(data: bytes) -> str:
    """Return what a file is that is not read."""
    if data[4:8] == b"ftyp":
        return "an AVIF file" if data[8:12] in (b"avif", b"avis") else "a HEIF file or a film"
    start = data[:256].lstrip()
    for mark, name in _OTHERS:
        if start.lower().startswith(mark.lower()) if mark.startswith(b"<") else data.startswith(mark):
            return name
    return "no image of a known format"


def _png(data: bytes) -> tuple[int, int]:
    length, kind, width, height = struct.unpack_from(">I4sII", data, 8)
    if (length, kind) != (13, b"IHDR"):
        raise BadImage("image_parse_error", "its PNG file does not begin with a header")
    if max(width, height) >= 1 << 31:
        raise BadImage("image_parse_error", "its PNG header has numbers that are no size")
    return width, height


_NO_FRAME = (0xC4, 0xC8, 0xCC)  # tables, an extension, and conditions of arithmetic coding: no frame's header
_BARE = (0x01, *range(0xD0, 0xD9))  # markers without a length


def _jpeg(data: bytes) -> tuple[int, int]:
    place = 2
    while True:
        if data[place] != 0xFF:
            raise BadImage("image_parse_error", "its JPEG file has bytes between its segments")
        while data[place] == 0xFF:  # any number of them may fill up
            place += 1
        marker = data[place]
        place += 1
        if marker in _BARE:
            continue
        if marker in (0xD9, 0xDA):
            raise BadImage("image_parse_error", "its JPEG file has no header of a frame")
        (length,) = struct.unpack_from(">H", data, place)
        if length < 2:
            raise BadImage("image_parse_error", "its JPEG file has a segment without a length")
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = struct.unpack_from(">HH", data, place + 3)
            return width, height
        place += length


def _gif(data: bytes) -> tuple[int, int]:
    if data[3:6] not in (b"87a", b"89a"):
        raise BadImage("image_parse_error", "its GIF file is of an unknown version")
    screen_width, screen_height, flags = struct.unpack_from("<HHB", data, 6)
    place = 13 + _colours(flags)
    while True:
        kind = data[place]
        if kind == 0x21:  # an extension: two bytes, and blocks up to an empty one
            place += 2
            while size := data[place]:
                place += size + 1
            place += 1
        elif kind == 0x2C:
            left, top, width, height = struct.unpack_from("<HHHH", data, place + 1)
            if not width or not height:
                return width, height
            # A frame beyond the screen makes the picture larger.
            return max(screen_width, left + width), max(screen_height, top + height)
        else:
            raise BadImage("image_parse_error", "its GIF file has no frame")


def _colours(flags: int) -> int:
    """Return the bytes of the table of colours that these flags announce."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _webp(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        low_width, high_width, low_height, high_height = struct.unpack_from("<HBHB", data, 24)
        return (low_width | high_width << 16) + 1, (low_height | high_height << 16) + 1
    if kind == b"VP8L":
        mark, bits = struct.unpack_from("<BI", data, 20)
        if mark != 0x2F:
            raise BadImage("image_parse_error", "its WebP file has no header of a lossless image")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        start, width, height = struct.unpack_from("<3sHH", data, 23)
        if start != b"\x9d\x01\x2a":
            raise BadImage("image_parse_error", "its WebP file has no header of a frame")
        return width & 0x3FFF, height & 0x3FFF
    if len(data) < 16:
        raise IndexError
    raise BadImage("image_parse_error", "its WebP file has no image first")


def _bmp(data: bytes) -> tuple[int, int]:
    (size,) = struct.unpack_from("<I", data, 14)
    if size == 12:
        width, height = struct.unpack_from("<HH", data, 18)
        return width, height
    if size not in (40, 52, 56, 64, 108, 124):
        raise BadImage("image_parse_error", "its BMP file has a header of an unknown kind")
    width, height = struct.unpack_from("<ii", data, 18)
    return width, abs(height)  # below 0: rows from above


_Reader = Callable[[bytes], tuple[int, int]]
_READERS: tuple[tuple[bytes, str, _Reader], ...] = (
    (b"\x89PNG\r\n\x1a\n", "PNG", _png),
    (b"\xff\xd8\xff", "JPEG", _jpeg),
    (b"GIF8", "GIF", _gif),
    (b"RIFF", "WEBP", _webp),
    (b"BM", "BMP", _bmp),
)
