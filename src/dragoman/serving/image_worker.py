"""Worker program that decodes image files with Pillow, run as a separate process by ``image_decoder``.

A file comes from a stranger, and decoders are old C code: the process has no files, no network, and limited memory and
time, and it can be killed. Imports only what it needs, so that a new one is ready soon.

Uses the frames of ``text.sandbox``. The first request is ``{"limits": {...}}``, answered by ``{"confined": [...]}``
or ``{"error": ..., "kind": "missing"}`` where Pillow is not installed. Every later one is ``{"format": ...}`` with the
file as its payload, answered by ``{"width": ..., "height": ...}`` with the levels as the payload, red, green and blue
of each pixel in rows from above, or by ``{"error": ..., "kind": "bad"}``.
"""

from __future__ import annotations

import contextlib
import io
import math
import resource
import socket
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dragoman.text.confinement import confine
from dragoman.text.sandbox_child import greet, limit, limit_cpu, receive, receive_exactly, send

if TYPE_CHECKING:
    from PIL import Image

_STRIP_PIXELS = 1 << 21
"""Pixels that are converted at one time: a whole image would be held several times over."""


def decode(data: bytes | bytearray, name: str, max_pixels: int) -> Image.Image:
    """Return the first frame of a file of the format ``name``, its EXIF orientation applied, in its own mode. Raises
    whatever Pillow raises, and ValueError for more pixels."""
    from PIL import Image, ImageOps

    image = Image.open(io.BytesIO(data), formats=(name,))
    if image.width * image.height > max_pixels:
        raise ValueError(f"it has {image.width} x {image.height} pixels")
    image.load()
    try:
        ImageOps.exif_transpose(image, in_place=True)  # in place, so that the one before it is freed
    except MemoryError:
        raise
    except Exception as error:  # metadata that cannot be read leave the image as it is
        del error
    return image


def strips(image: Image.Image) -> Iterator[bytes]:
    """Yield the levels of the image in RGB."""
    rows = max(_STRIP_PIXELS // image.width, 1)
    for top in range(0, image.height, rows):
        yield in_rgb(image.crop((0, top, image.width, min(top + rows, image.height)))).tobytes()


def in_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB, what is transparent on white, as transformers has it (``convert_to_rgb``). Of 16 bits the
    higher 8 are taken, in grey as in colour."""
    from PIL import Image

    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda level: level * (1 / 256)).convert("L")
    if "A" in image.getbands() or "a" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def answer(connection: socket.socket, request: dict[str, Any], data: bytearray, max_pixels: int) -> None:
    """Decode one file and send the answer."""
    try:
        image = decode(data, request["format"], max_pixels)
        levels = strips(image)
        first = next(levels)  # an image that cannot be converted fails before its answer begins
    except MemoryError:
        send(connection, {"kind": "bad", "error": "it needs too much memory"})
    except Exception as error:  # decoders raise anything
        words = " ".join(str(error).split())[:200] or type(error).__name__
        send(connection, {"kind": "bad", "error": words})
    else:
        size = {"width": image.width, "height": image.height}
        send(connection, {**size, "payload_bytes": 3 * image.width * image.height})
        connection.sendall(first)
        for strip in levels:
            connection.sendall(strip)


def read_files() -> None:
    """Import what Pillow imports only when a file needs it: later no file can be opened."""
    from PIL import (  # noqa: F401
        BmpImagePlugin,
        ExifTags,
        GifImagePlugin,
        Image,
        ImageChops,
        ImageOps,
        ImagePalette,
        ImageSequence,
        JpegImagePlugin,
        JpegPresets,
        MpoImagePlugin,
        PngImagePlugin,
        TiffImagePlugin,
        WebPImagePlugin,
    )

    Image._initialized = 2  # a format that is not read must not make it look for more plugins
    for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        if name not in Image.SAVE:
            continue
        file = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (2, 2)).save(file, name, **({"exif": exif} if name != "BMP" and name != "GIF" else {}))
        in_rgb(decode(file.getvalue(), name, 4))


def allow_cpu(seconds: float) -> None:
    """Let the kernel end this process if it computes for longer, in case the parent cannot kill it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit_cpu(math.ceil(used.ru_utime + used.ru_stime + seconds) + 1)


def main() -> None:
    """Serve the socket until the other end closes it."""
    connection = greet()
    limits = receive(connection)["limits"]
    try:
        from PIL import Image

        Image.MAX_IMAGE_PIXELS = limits["pixels"]
        warnings.simplefilter("ignore")
        read_files()
    except ImportError as error:
        send(connection, {"kind": "missing", "error": str(error)})
        return
    limited = limit(limits["memory_bytes"])
    send(connection, {"confined": (*limited, *confine())})
    while True:
        request = receive(connection)
        data = receive_exactly(connection, request["payload_bytes"])
        allow_cpu(limits["time_s"])
        answer(connection, request, data, limits["pixels"])
        del data


if __name__ == "__main__":
    with contextlib.suppress(EOFError, ConnectionError):
        main()
