"""From image files to pixels, in confined processes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import BadImage, EngineUnavailable, UnsupportedFeature
from dragoman.serving.image_header import MAX_PIXELS, ImageHeader
from dragoman.text.sandbox import Cancelled, ProcessFailure, ProcessLost, SandboxedProcesses

_WORKER = Path(__file__).with_name("image_worker.py")


class DecodingLimits(NamedTuple):
    """Limits of decoding one file: processor seconds, and bytes of the process's whole address space.

    40 million pixels take 160 MB in Pillow, and a format's decoder and a rotation hold them again.
    """

    time_s: float = 10.0
    memory_bytes: int = 1 << 30
    pixels: int = MAX_PIXELS


class DecodedImage(NamedTuple):
    """An image. ``levels``: red, green and blue of each pixel, in rows from above."""

    width: int
    height: int
    levels: bytes


class ImageDecoder:
    """Decodes files, one at a time in each of ``count`` processes, which start when they are needed. Methods block, and
    may be called from any thread."""

    def __init__(self, count: int = 1, limits: DecodingLimits | None = None) -> None:
        limits = limits or DecodingLimits()
        self._limits = limits
        self._processes = SandboxedProcesses(
            _WORKER,
            lambda: {"limits": limits._asdict()},
            time_s=limits.time_s,
            answer_bytes=1 << 16,
            payload_bytes=3 * limits.pixels,
            count=count,
        )

    def decode(self, data: bytes, header: ImageHeader, cancelled: Cancelled | None = None) -> DecodedImage:
        """Return the pixels of a file: of its first frame, its EXIF orientation applied, what is transparent on white.

        ``cancelled``: as in ``SandboxedProcess.ask``. Raises BadImage, UnsupportedFeature where Pillow is not
        installed, and EngineUnavailable where the process was lost twice.
        """
        try:
            answer = self._processes.ask({"format": header.format}, cancelled, data)
        except ProcessLost as loss:
            raise EngineUnavailable(f"The image could not be decoded: {loss.reason}. Try again.") from None
        except ProcessFailure as failure:
            if failure.kind == "missing":
                message = "Images are not supported: this server has no Pillow (pip install 'dragoman[images]')."
                raise UnsupportedFeature(message) from None
            if failure.kind == "memory":
                raise BadImage("invalid_image", "its decoder needs too much memory") from None
            if failure.kind == "bad":
                raise BadImage("invalid_image", f"its {header.format} file is damaged: {failure.message}") from None
            raise BadImage("invalid_image", f"it cannot be decoded: {failure.message}") from None
        width, height, levels = answer["width"], answer["height"], bytes(answer["payload"])
        if len(levels) != 3 * width * height:
            raise EngineUnavailable("The image could not be decoded. Try again.")
        return DecodedImage(width, height, levels)

    def close(self) -> None:
        """End the processes; a later ``decode`` starts them again."""
        self._processes.close()
