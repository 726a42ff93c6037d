"""Images in prompts: from decoded pixels to tiles, and from a text with places for images to token ids."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from dragoman.core.engine_fields import wire_name
from dragoman.core.errors import BadRequest, Overloaded, PayloadTooLarge, UnsupportedFeature
from dragoman.core.images import ImageInfo, ImageInput, ImageTiles, PlacedImage, images_refused
from dragoman.core.lazy_imports import np
from dragoman.core.request import ChatPrompt, GenerationRequest, TextPrompt
from dragoman.models.vision.cost import image_service
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import Grid, Size
from dragoman.models.vision.preprocess import PreparedImage, preprocess
from dragoman.models.vision.prompt import joined, with_text_tags
from dragoman.serving.model import ServedModel
from dragoman.serving.prompts import PromptReader, overflow
from dragoman.serving.worker_pool import WorkerPool

MOST_BYTES = 128 << 20
"""Pixels of one request's images: half of what a message to the engine's process can have."""

MISSING = "Images are not supported: this server has no Pillow (pip install 'dragoman[images]')."


class ReadPrompt(NamedTuple):
    """A prompt's token ids, and the images in it."""

    token_ids: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()


def image_info(vision: VisionDescription | None) -> ImageInfo | None:
    """Return what clients may know of a model's tower; None where it has none."""
    if vision is None:
        return None
    return ImageInfo(
        most_tokens=vision.most_tokens,
        has_detail=vision.has_detail,
        placeholder=vision.tags.placeholder,
    )


class ImageTiler:
    """Scales and cuts images for a model. ``limit_bytes``: of pixels, of all images that requests have."""

    def __init__(self, model: ServedModel, pool: WorkerPool, limit_bytes: int) -> None:
        self._model, self._pool, self._limit_bytes = model, pool, limit_bytes
        self.bytes = 0

    async def tiles(self, decode: Callable[[], ImageInput], param: str) -> ImageTiles:
        """Return an image as the model's tower takes it. ``decode`` returns the image; it is called in the thread that
        scales it, so that no more images are held than there are threads.

        Raises UnsupportedFeature, BadRequest, Overloaded, and what ``decode`` raises.
        """
        vision = self._model.vision
        if vision is None:
            raise images_refused(self._model.card.name, param)
        if self.bytes >= self._limit_bytes:
            raise Overloaded(f"The images of requests take {self.bytes} bytes already. Try again later.")
        try:
            made = await self._pool.run(lambda: tiles_of(decode(), vision, self._model.parameters))
        except ValueError as error:
            raise BadRequest(f"The image cannot be read by this model: {error}.", param=param) from None
        except ImportError:
            raise UnsupportedFeature(MISSING, param=param) from None
        found = msgspec.structs.replace(made)  # the thread refers to what it made until its next work
        self.hold(found)
        return found

    def hold(self, tiles: ImageTiles) -> None:
        """Count an image's bytes for as long as anything refers to it."""
        self.bytes += len(tiles.pixels)
        weakref.finalize(tiles, self._release, len(tiles.pixels))

    def _release(self, size: int) -> None:
        self.bytes -= size


def tiles_of(image: ImageInput, vision: VisionDescription, parameters: int) -> ImageTiles:
    """Return an image scaled and cut. ``parameters``: of the model. Raises ValueError, ImportError without Pillow."""
    from PIL import Image

    if len(image.pixels) != 3 * image.width * image.height:
        raise ValueError(f"{image.width} x {image.height} pixels have not {len(image.pixels)} levels")
    picture = Image.frombuffer("RGB", (image.width, image.height), image.pixels, "raw", "RGB", 0, 1)
    found = preprocess(picture, vision, image.detail)
    count, _, height, width = found.pixels.shape
    return ImageTiles.of(
        pixels=found.pixels.tobytes(),
        tiles=count,
        height=height,
        width=width,
        rows=found.grid.rows,
        columns=found.grid.columns,
        image_height=image.height,
        image_width=image.width,
        tokens=found.tokens,
        embeddings=found.embeddings,
        service=image_service(vision, count, height, width, parameters),
    )


async def read_with_images(model: ServedModel, reader: PromptReader, request: GenerationRequest) -> ReadPrompt:
    """Return the token ids of a prompt with images. Raises BadRequest, UnsupportedFeature or ContextOverflow."""
    vision, prompt, param = model.vision, request.prompt, request.images_param
    if vision is None:
        raise images_refused(model.card.name, param)
    if request.embeddings is not None:
        name = wire_name("embeddings.values", "embeddings")
        raise BadRequest(f"Images and '{name}' exclude each other: both take the place of tokens.", param=name)
    if sum(len(tiles.pixels) for tiles in request.images) > MOST_BYTES:
        raise PayloadTooLarge(f"The images take more than {MOST_BYTES} bytes as this model reads them.")
    needed = sum(tiles.tokens for tiles in request.images)
    if needed > model.max_prompt_tokens:
        raise overflow(model, f"the images take {needed}", param, prompt_tokens=needed, is_exact=False)
    match prompt:
        case ChatPrompt(token_ids=()):
            text, special = await reader.rendered(prompt), (False, True)
        case TextPrompt(parse_special_tokens=True):
            text = _with_placeholders(prompt, vision.tags.placeholder)
            special = (prompt.add_special_tokens, True)
        case _:
            raise UnsupportedFeature("Images are read in chats and in texts, not in prompts of this form.", param=param)
    if vision.tags.text_start:  # the text begins with it, after the images
        special = (False, True)
    pieces = with_text_tags(vision, text).split(vision.tags.placeholder)
    if len(pieces) != len(request.images) + 1:
        raise BadRequest(
            f"The prompt has {len(pieces) - 1} places for images ({vision.tags.placeholder!r}), and the request has "
            f"{len(request.images)} images.",
            param=param,
        )
    whole = joined(vision, pieces, [_prepared(tiles) for tiles in request.images])
    ids = await reader.tokenized(whole, special, param)
    found = ReadPrompt(ids, _placed(ids, request.images, vision, param))
    return found if request.truncate is None else _truncated(found, request.truncate)


def _with_placeholders(prompt: TextPrompt, placeholder: str) -> str:
    places = (0, *prompt.image_places)
    if list(places) != sorted(places) or places[-1] > len(prompt.text):
        raise BadRequest("The places of images are within the text, in their order.")
    return placeholder.join(
        prompt.text[start:end] for start, end in zip(places, (*prompt.image_places, None), strict=True)
    )


def _prepared(tiles: ImageTiles) -> PreparedImage:
    """Return the part of an image that its place in a prompt follows from."""
    grid = Grid(tiles.rows, tiles.columns, Size(tiles.image_height, tiles.image_width))
    return PreparedImage(np.empty(0, np.uint8), grid, tiles.tokens, tiles.embeddings)


def _placed(
    ids: tuple[int, ...], images: Sequence[ImageTiles], vision: VisionDescription, param: str
) -> tuple[PlacedImage, ...]:
    """Return the images in their places. Raises BadRequest where other text spells the token that stands for them."""
    places = [place for place, token_id in enumerate(ids) if token_id == vision.tags.image_id]
    if len(places) != sum(tiles.embeddings for tiles in images):
        raise BadRequest(
            f"The prompt's text has {vision.tags.image!r} in it, which stands for a part of an image.", param=param
        )
    found, first = [], 0
    for tiles in images:
        last = first + tiles.embeddings - 1
        found.append(PlacedImage(start=places[first], end=places[last] + 1, tiles=tiles))
        first = last + 1
    return tuple(found)


def _truncated(found: ReadPrompt, most: int) -> ReadPrompt:
    """Return the last tokens of a prompt. Raises BadRequest where they would be without a part of an image."""
    dropped = max(0, len(found.token_ids) - most)
    if found.images and found.images[0].start < dropped:
        message = f"'truncate' ({most}) leaves no room for the prompt's images: it has {len(found.token_ids)} tokens."
        raise BadRequest(message, param="truncate")
    images = tuple(PlacedImage(start=e.start - dropped, end=e.end - dropped, tiles=e.tiles) for e in found.images)
    return ReadPrompt(found.token_ids[dropped:], images)
