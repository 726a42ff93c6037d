"""Files become pixels as Pillow and transformers have them; hostile ones take no more than their limits."""

from __future__ import annotations

import io
import platform
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps, TiffImagePlugin

from dragoman.core.errors import BadImage, UnsupportedFeature
from dragoman.serving import image_decoder
from dragoman.serving.image_decoder import DecodedImage, DecodingLimits, ImageDecoder
from dragoman.serving.image_header import ImageHeader, read_header
from tests.serving.image_files import COLOURS, bomb, chunk, picture, png, saved


@pytest.fixture(scope="module")
def decoder() -> Iterator[ImageDecoder]:
    decoder = ImageDecoder()
    yield decoder
    decoder.close()


def decoded(decoder: ImageDecoder, data: bytes) -> DecodedImage:
    return decoder.decode(data, read_header(data))


def witness(data: bytes) -> Image.Image:
    """A file as transformers reads it."""
    from transformers.image_transforms import convert_to_rgb

    with Image.open(io.BytesIO(data)) as image:
        return convert_to_rgb(ImageOps.exif_transpose(image))  # type: ignore[no-any-return]


def _with_alpha() -> Image.Image:
    image = picture().convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


FILES = {
    "RGB": saved(picture()),
    "palette": saved(picture().convert("P")),
    "palette, a colour transparent": saved(picture().convert("P"), transparency=1),
    "palette with alpha": saved(_with_alpha().quantize(16)),
    "alpha": saved(_with_alpha()),
    "grey with alpha": saved(_with_alpha().convert("LA")),
    "grey": saved(picture().convert("L")),
    "two levels": saved(picture().convert("1")),
    "a colour that is transparent": saved(picture(), transparency=(255, 0, 0)),
    "JPEG": saved(picture(), "JPEG"),
    "CMYK": saved(picture().convert("CMYK"), "JPEG"),
    "grey JPEG": saved(picture().convert("L"), "JPEG"),
    "progressive": saved(picture(), "JPEG", progressive=True),
    "two pictures": saved(picture(), "MPO", save_all=True, append_images=[picture().rotate(180)]),
    "WebP": saved(_with_alpha(), "WEBP"),
    "lossless WebP": saved(_with_alpha(), "WEBP", lossless=True),
    "GIF": saved(picture().convert("P"), "GIF", transparency=2),
    "BMP": saved(picture(), "BMP"),
    "a profile that is none": saved(picture(), icc_profile=b"no profile"),
    "JPEG with half a profile": saved(picture(), "JPEG", icc_profile=bytes(70_000)).replace(
        b"ICC_PROFILE\0\1\2", b"ICC_PROFILE\0\7\1"
    ),
    "metadata that are none": saved(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"),
    "an orientation of 99": saved(picture(), "JPEG", exif=_exif(99)),
    **{f"orientation {which}": saved(picture(), "JPEG", exif=_exif(which), quality=95) for which in range(1, 9)},
    "PNG turned": saved(picture(), exif=_exif(6)),
    "WebP turned": saved(picture(), "WEBP", exif=_exif(8)),
    "larger than a strip": saved(picture(1_000).resize((2_100, 1_999), 3)),
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("name", FILES)
def test_levels_are_those_of_transformers(decoder: ImageDecoder, name: str) -> None:
    found, expected = decoded(decoder, FILES[name]), witness(FILES[name])
    assert (found.width, found.height) == expected.size
    assert found.levels == expected.tobytes()


def test_an_orientation_turns_the_picture(decoder: ImageDecoder) -> None:
    """6: the camera was turned, and the first row is on the right."""
    found = decoded(decoder, saved(picture(), exif=_exif(6)))
    levels = np.frombuffer(found.levels, np.uint8).reshape(found.height, found.width, 3)[8::16, 8::16]
    assert levels.shape == (3, 2, 3)
    assert [tuple(levels[row, 1]) for row in range(3)] == list(COLOURS[:3])


def test_grey_of_16_bits_keeps_its_higher_8(decoder: ImageDecoder) -> None:
    levels = np.array([[0, 255, 256, 30_000, 65_535]], np.uint16)
    found = decoded(decoder, saved(Image.fromarray(levels)))
    assert list(found.levels[::3]) == [0, 0, 1, 117, 255]


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_taken(decoder: ImageDecoder, name: str) -> None:
    more = {"save_all": True, "append_images": [picture().rotate(180)] * 40, "duration": 20}
    if name == "WEBP":
        more["lossless"] = True
    found = decoded(decoder, saved(picture(), name, **more))
    assert found.levels == picture().tobytes()


def test_a_name_in_the_file_is_not_believed(decoder: ImageDecoder) -> None:
    """The reader of the sniffed format is the only one that sees a file."""
    with pytest.raises(BadImage) as caught:
        decoder.decode(FILES["JPEG"], ImageHeader("PNG", 48, 32))
    assert caught.value.code == "invalid_image"


DAMAGED = {
    "truncated PNG": FILES["larger than a strip"][:3_000],
    "truncated JPEG": FILES["JPEG"][:-200],
    "truncated WebP": FILES["WebP"][:-20],
    "truncated GIF": FILES["GIF"][:-40],
    "no pixels": png(64, 64, zlib.compress(b"")),
    "a wrong sum": FILES["RGB"].replace(b"IDAT", b"IDAU"),
    "a depth that is none": png(4, 4, zlib.compress(bytes(52)), depth=7),
    "bytes that are not compressed": png(64, 64, b"\x00" * 400),
    "text that is a bomb": b"",  # made by the test: it takes half a second
    "a size that is another": saved(picture(), "GIF")[:6] + b"\x10\x27\x10\x0f" + saved(picture(), "GIF")[10:30],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_and_the_next_one_read(decoder: ImageDecoder, name: str) -> None:
    data = DAMAGED[name]
    if name == "text that is a bomb":
        text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 26), 9))
        data = png(4, 4, zlib.compress(bytes(52)), *[text] * 4)
    with pytest.raises(BadImage) as caught:
        decoded(decoder, data)
    assert caught.value.code in ("invalid_image", "image_parse_error")
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400
    assert decoded(decoder, FILES["RGB"]).levels == picture().tobytes()


def test_a_bomb_takes_no_more_than_its_memory() -> None:
    """Where a header passes, the process's own limits hold."""
    decoder = ImageDecoder(limits=DecodingLimits(memory_bytes=150 << 20))
    if sys.platform == "linux":
        with pytest.raises(BadImage, match="memory"):
            decoded(decoder, bomb(7_000, 5_600))
    assert decoded(decoder, FILES["RGB"]).width == 48
    decoder.close()


def test_pixels_are_counted_again_by_the_process() -> None:
    decoder = ImageDecoder(limits=DecodingLimits(pixels=1_000))
    with pytest.raises(BadImage, match="48 x 32 pixels"):
        decoded(decoder, FILES["RGB"])
    decoder.close()


def test_a_rotation_in_a_large_directory_is_read() -> None:
    """A directory of many entries, of which one is the orientation."""
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    directory[0x0112] = 3
    for tag in range(0x9000, 0x9100):
        directory[tag] = "x" * 40
    file = io.BytesIO()
    file.write(b"Exif\0\0")
    file.write(b"II*\0" + struct.pack("<I", 8))
    file.write(directory.tobytes(8))
    data = saved(picture(), "JPEG", exif=file.getvalue(), quality=95)
    decoder = ImageDecoder()
    assert decoded(decoder, data).levels == witness(data).tobytes()
    decoder.close()


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="no filter")
def test_the_process_has_given_up_files_and_the_network(decoder: ImageDecoder) -> None:
    decoded(decoder, FILES["RGB"])
    confined = decoder._processes.start()["confined"]
    assert {"no_new_privs", "seccomp", "memory_limit", "file_limit"} <= set(confined)


def test_without_pillow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(image_decoder.__file__).with_name("image_worker.py").read_text()
    hiding = source.replace("from PIL import", "from pillow_is_missing import")
    worker = tmp_path / "image_worker.py"
    worker.write_text(hiding)
    monkeypatch.setattr(image_decoder, "_WORKER", worker)
    decoder = ImageDecoder()
    for _ in range(2):
        with pytest.raises(UnsupportedFeature, match=r"pip install 'dragoman\[images\]'"):
            decoded(decoder, FILES["RGB"])
    decoder.close()
