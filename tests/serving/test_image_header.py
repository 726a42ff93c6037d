"""What a file is, and how large, is known before it is decoded; and what is refused then."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dragoman.core.errors import BadImage
from dragoman.serving.image_header import MAX_FILE_BYTES, read_header
from tests.serving.image_files import bomb, chunk, picture, png, saved

GOOD = {
    "PNG": saved(picture()),
    "interlaced PNG": saved(picture().convert("P")),
    "JPEG": saved(picture(), "JPEG"),
    "progressive JPEG": saved(picture(), "JPEG", progressive=True),
    "JPEG with a comment": saved(picture(), "JPEG", comment=b"\xff\xd8\xff\xc0 a frame? " * 90),
    "JPEG with a profile": saved(picture(), "JPEG", icc_profile=bytes(200_000)),
    "GIF": saved(picture(), "GIF"),
    "animated GIF": saved(picture(), "GIF", save_all=True, append_images=[picture().rotate(180)], loop=0),
    "WebP": saved(picture(), "WEBP"),
    "lossless WebP": saved(picture(), "WEBP", lossless=True),
    "WebP with alpha": saved(picture().convert("RGBA"), "WEBP", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"),
    "animated WebP": saved(picture(), "WEBP", save_all=True, append_images=[picture().rotate(180)]),
    "BMP": saved(picture(), "BMP"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_header_is_what_pillow_reads(name: str) -> None:
    header = read_header(GOOD[name])
    with Image.open(io.BytesIO(GOOD[name])) as image:
        assert header == (image.format, image.width, image.height)


@pytest.mark.parametrize("name", GOOD)
def test_a_file_that_ends_within_its_header_is_refused(name: str) -> None:
    for length in range(1, 24):
        with pytest.raises(BadImage) as caught:
            read_header(GOOD[name][:length])
        assert caught.value.code in ("image_parse_error", "unsupported_image_media_type")


@given(st.sampled_from(sorted(GOOD)), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8))
def test_damaged_headers_are_read_or_refused(name: str, damage: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD[name])
    for place, byte in damage:
        data[place % len(data)] = byte
    try:
        header = read_header(bytes(data))
    except BadImage:
        return
    assert 0 < header.pixels <= 40_000_000


def _beyond_its_screen() -> bytes:
    """A GIF file whose frame is larger than its screen."""
    frame = struct.pack("<BHHHHB", 0x2C, 0, 0, 60_000, 60_000, 0)
    return b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0, 0, 0) + frame + b"\x02\x02\x44\x01\x00\x3b"


HOSTILE = {
    "empty": (b"", "empty_image_file", "empty"),
    "a size without pixels": (png(2**31 - 1, 2**31 - 1, b""), "image_too_large", "2147483647 x 2147483647"),
    "a size that is none": (png(2**31, 1, b""), "image_parse_error", "no size"),
    "no pixels": (png(0, 16, zlib.compress(b"")), "image_too_small", "0 x 16 pixels"),
    "one row": (png(100_000, 1, zlib.compress(bytes(300_001))), "invalid_image", "more than 200 times"),
    "one column": (png(1, 100_000, zlib.compress(bytes(400_000))), "invalid_image", "more than 200 times"),
    "too many bytes": (GOOD["PNG"] + bytes(MAX_FILE_BYTES), "image_too_large", "bytes, and the most are 20971520"),
    "a chunk before the header": (
        b"\x89PNG\r\n\x1a\n" + chunk(b"tEXt", b"a\0b") + GOOD["PNG"][8:],
        "image_parse_error",
        "header",
    ),
    "JPEG without a frame": (b"\xff\xd8\xff\xd9" + bytes(64), "image_parse_error", "no header of a frame"),
    "JPEG of endless fill": (b"\xff\xd8" + b"\xff" * 100_000, "image_parse_error", "ends within the header"),
    "JPEG with an empty segment": (b"\xff\xd8\xff\xe0\x00\x00" * 2, "image_parse_error", "without a length"),
    "JPEG whose height comes later": (
        GOOD["JPEG"].replace(b"\xff\xc0\x00\x11\x08\x00\x20", b"\xff\xc0\x00\x11\x08\x00\x00"),
        "image_too_small",
        "48 x 0",
    ),
    "GIF beyond its screen": (_beyond_its_screen(), "image_too_large", "60000 x 60000"),
    "GIF without frames": (b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0, 0, 0) + b"\x3b", "image_parse_error", "no frame"),
    "GIF of endless extensions": (
        b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0, 0, 0) + b"\x21\xfe\x00" * 9_999,
        "image_parse_error",
        "ends within",
    ),
    "RIFF of sound": (b"RIFF\x24\0\0\0WAVEfmt " + bytes(32), "unsupported_image_media_type", "RIFF"),
    "BMP of 2^62 pixels": (b"BM" + bytes(12) + struct.pack("<Iii", 40, 2**31 - 1, -(2**31)), "image_too_large", "x"),
    "BMP to the left": (b"BM" + bytes(12) + struct.pack("<Iii", 40, -4, 4), "image_too_small", "-4 x 4"),
    "SVG": (b'\n<svg xmlns="http://www.w3.org/2000/svg"/>', "unsupported_image_media_type", "an SVG file"),
    "a page": (b"<!doctype html><title>404</title>", "unsupported_image_media_type", "a web page"),
    "TIFF": (saved(picture(), "TIFF"), "unsupported_image_media_type", "a TIFF file; PNG, JPEG, WebP, GIF and BMP"),
    "AVIF": (b"\0\0\0\x1cftypavif" + bytes(32), "unsupported_image_media_type", "an AVIF file"),
    "PDF": (b"%PDF-1.7\n", "unsupported_image_media_type", "a PDF file"),
    "text": (b"a picture of a cat", "unsupported_image_media_type", "no image of a known format"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_what_is_wrong(name: str) -> None:
    data, code, words = HOSTILE[name]
    with pytest.raises(BadImage) as caught:
        read_header(data)
    assert caught.value.code == code
    assert words in caught.value.message


def test_a_bomb_is_refused_by_its_header() -> None:
    with pytest.raises(BadImage, match="7000 x 6000 pixels") as caught:
        read_header(bomb(7_000, 6_000))
    assert caught.value.code == "image_too_large"


def test_the_largest_image_passes() -> None:
    assert read_header(png(8_000, 5_000, b"")).pixels == 40_000_000
    assert read_header(png(20_000, 100, b"")) == ("PNG", 20_000, 100)
