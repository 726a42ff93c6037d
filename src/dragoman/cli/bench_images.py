"""``dragoman bench``, and its ``--image``: seconds from an image to the first token, beside what the multiplier
allows."""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from dragoman import kernels
from dragoman.cli.bench import print_measurements, target_of
from dragoman.cli.bench_report import bench_with_report, described_subject
from dragoman.cli.machine_speed import between, measured
from dragoman.cli.session import LocalSession, RemoteSession
from dragoman.cli.settings import BenchSettings, MachineSettings
from dragoman.core.errors import BadRequest, DragomanError
from dragoman.core.events import TextDelta
from dragoman.core.images import ImageInput
from dragoman.core.request import GenerationRequest, TextPrompt
from dragoman.core.sampling import EndingParams, SamplingParams
from dragoman.core.serving import Serving
from dragoman.models import ModelDescription, ModelSettings, describe
from dragoman.models.limits import MULTIPLIED_AS, Limits, shape_of

LEAST_ROUNDS = 3


class ImageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """An image's figures: ``tokens`` of its prompt, the median of ``first_token_s`` from its pixels on, and
    ``limit_s``, the time of its multiplications at the rate of the machine around that."""

    width: int
    height: int
    tokens: int
    first_token_s: float
    limit_s: float

    @property
    def share(self) -> float:
        """Return the part of the limit's speed that was reached."""
        return self.limit_s / self.first_token_s


async def bench_session(
    session: LocalSession | RemoteSession,
    model: str | None,
    load: BenchSettings,
    settings: ModelSettings,
    machine: MachineSettings,
) -> None:
    """Measure a model that the command has loaded, or a server: the loads, then images. Raises DragomanError."""
    sizes = [size_of(text) for text in load.image]
    if sizes and not isinstance(session, LocalSession):
        raise BadRequest("--image measures a model that the command loads itself, not a server", param="image")
    if load.html is None:
        await print_measurements(target_of(session), load)
    else:
        subject = described_subject(model, settings, machine) if isinstance(session, LocalSession) else None
        await bench_with_report(session, load, subject)
    if sizes and isinstance(session, LocalSession):
        await print_images(session, model, sizes, load, settings, machine)


def size_of(text: str) -> tuple[int, int]:
    """Return the width and height of ``1024x768``. Raises BadRequest."""
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if found is None or not all(map(int, found.groups())):
        raise BadRequest(f"--image {text}: expected a width and a height in pixels, as in 1024x768", param="image")
    return int(found[1]), int(found[2])


async def print_images(
    session: LocalSession,
    model: str | None,
    sizes: Sequence[tuple[int, int]],
    load: BenchSettings,
    settings: ModelSettings,
    machine: MachineSettings,
) -> None:
    """Measure and print a line for each size, or a JSON object."""
    described_subject(model, settings, machine)  # sets the threads of the look at the machine
    described = describe(model, **settings.describing)
    for size in sizes:
        found = await measure_image(session.serving, described, settings, size, load.rounds)
        if load.json:
            print(msgspec.json.encode({"image": msgspec.to_builtins(found), "share": found.share}).decode(), flush=True)
            continue
        what = f"image {found.width} x {found.height}: {found.tokens} tokens, first token after"
        limit = f"of which the multiplier needs {found.limit_s:.2f} s ({found.share:.0%})"
        print(f"{what} {found.first_token_s:.2f} s, {limit}", flush=True)


async def measure_image(
    serving: Serving, described: ModelDescription, settings: ModelSettings, size: tuple[int, int], rounds: int
) -> ImageFigures:
    """Return the figures of images of one size, each with other pixels, after one that is not counted."""
    precision = described.precision(settings.precision)
    kinds: tuple[kernels.Precision, ...] = ("bfloat16", MULTIPLIED_AS[precision])
    before = measured(kinds)
    times, tokens = [], 0
    for number in range(max(LEAST_ROUNDS, rounds) + 1):
        seconds, tokens = await _time(serving, size, number)
        times.append(seconds)
    limits = Limits(shape_of(described, precision), between((before, measured(kinds))))
    limit = limits.image_s(*size) + limits.first_token_s(tokens)
    seconds = statistics.median(times[1:])
    return ImageFigures(width=size[0], height=size[1], tokens=tokens, first_token_s=seconds, limit_s=limit)


async def _time(serving: Serving, size: tuple[int, int], number: int) -> tuple[float, int]:
    """Return the seconds from an image's pixels to the first token, and the prompt's tokens."""
    width, height = size
    image = ImageInput(width=width, height=height, pixels=random.Random(number).randbytes(3 * width * height))
    began = time.perf_counter()
    tiles = await serving.image_tiles(image)
    request = GenerationRequest(
        request_id=f"bench-image-{number}",
        prompt=TextPrompt(text="What is this?", image_places=(0,)),
        images=(tiles,),
        seeds=(0,),
        sampling=SamplingParams(temperature=0.0),
        ending=EndingParams(max_tokens=1, ignore_eos=True),
    )
    seconds, tokens = 0.0, 0
    async with aclosing(serving.stream(request)) as events:
        async for event in events:
            tokens = getattr(event, "prompt_tokens", tokens)
            if isinstance(event, TextDelta):
                seconds = seconds or time.perf_counter() - began
                if event.message:
                    raise DragomanError(event.message)
    return seconds, tokens
