"""From the images that a request names to the tiles that the model's tower takes, one after the other.

A decoded image has up to 120 MB. It is scaled in the thread that waited for it, before the next one is decoded.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from dragoman.core.caller import current_caller
from dragoman.core.errors import BadImage, BadRequest, UnsupportedFeature
from dragoman.core.image_sources import MAX_IMAGES, ImageSource
from dragoman.core.images import IMAGE_PART, ImageInput, ImageTiles, images_refused
from dragoman.core.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt
from dragoman.core.sampling import EndingParams
from dragoman.core.serving import ModelCard
from dragoman.serving.image_decoder import ImageDecoder
from dragoman.serving.image_fetch import MAX_FETCHES, PORT, ImageFetcher
from dragoman.serving.image_header import MAX_FILE_BYTES, read_header
from dragoman.serving.worker_pool import WorkerPools

MakeTiles = Callable[[Callable[[], ImageInput], str], Awaitable[ImageTiles]]
"""``ImageTiler.tiles``."""


class Sourced(NamedTuple):
    """A prompt as serving reads it, and its images in the order of the prompt."""

    prompt: Prompt
    sources: tuple[ImageSource, ...] = ()


def taken_apart(prompt: Prompt) -> Sourced:
    """Return the prompt without its sources, and these."""
    if isinstance(prompt, TextPrompt):
        return Sourced(msgspec.structs.replace(prompt, images=()), prompt.images) if prompt.images else Sourced(prompt)
    if not isinstance(prompt, ChatPrompt):
        return Sourced(prompt)
    found: list[ImageSource] = []
    messages = []
    for message in prompt.messages:
        content = message.get("content")
        if isinstance(content, list):
            found += [_source(part["source"]) for part in content if "source" in part]
            message = {**message, "content": [IMAGE_PART if "source" in part else part for part in content]}
        messages.append(message)
    if not found:
        return Sourced(prompt)
    return Sourced(msgspec.structs.replace(prompt, messages=tuple(messages)), tuple(found))


def _source(found: Any) -> ImageSource:
    """Return a source; of a request that was stored it is what a struct is written as."""
    return found if isinstance(found, ImageSource) else msgspec.convert(found, ImageSource)


def without_images(request: GenerationRequest) -> GenerationRequest:
    """Return a request as observers have it: they keep it for longer than it takes, and its images are large."""
    prompt, sources = taken_apart(request.prompt)
    return msgspec.structs.replace(request, prompt=prompt, images=()) if sources or request.images else request


def request_of_images(prompt: Prompt) -> GenerationRequest | None:
    """Return the shortest request for a prompt that names images, whose tokens are counted by preparing it; None for
    other prompts."""
    if not taken_apart(prompt).sources:
        return None
    ending = EndingParams(max_tokens=1, clamp_to_context=True)
    return GenerationRequest(request_id="images", prompt=prompt, ending=ending)


def without_sources(prompt: ChatPrompt) -> ChatPrompt:
    """Return the prompt as a template sees it."""
    found = taken_apart(prompt).prompt
    assert isinstance(found, ChatPrompt)
    return found


class ImageReader:
    """Reads the images of requests. ``hosts``: those that images are fetched from. Raises DragomanError for what is no
    host."""

    def __init__(self, pools: WorkerPools, hosts: Sequence[str] = (), *, fetcher: ImageFetcher | None = None) -> None:
        workers = pools.images.threads
        self._pools = pools
        self._fetcher = fetcher or ImageFetcher(hosts, look_up=self._look_up)
        self._decoder = ImageDecoder(count=workers)
        self._fetches = asyncio.Semaphore(MAX_FETCHES)
        self._callers: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def loaded(self, request: GenerationRequest, card: ModelCard, make_tiles: MakeTiles) -> GenerationRequest:
        """Return the request with tiles in place of the images that its prompt names. Raises as ``read`` does."""
        prompt, sources = taken_apart(request.prompt)
        if not sources:
            return request
        images = () if request.resumed is not None else await self.read(sources, card, make_tiles)
        return msgspec.structs.replace(request, prompt=prompt, images=images, images_param=sources[0].param)

    async def read(
        self, sources: Sequence[ImageSource], card: ModelCard, make_tiles: MakeTiles
    ) -> tuple[ImageTiles, ...]:
        """Return the tiles of all images, for the model of this card.

        Raises UnsupportedFeature for a model that sees none, BadImage, EngineUnavailable, and the errors of
        ``make_tiles``, all with the wire field of the image.
        """
        if card.images is None:
            raise images_refused(card.name, sources[0].param)
        if len(sources) > MAX_IMAGES:
            param = sources[MAX_IMAGES].param
            raise BadRequest(f"'{param}': a request may have {MAX_IMAGES} images, and has {len(sources)}.", param=param)
        found = []
        for source in sources:
            tiles = source.tiles(card.name)
            if tiles is None:
                tiles = await self._tiles(source, make_tiles)
                source.keep(card.name, tiles)
            found.append(tiles)
        return tuple(found)

    def close(self) -> None:
        """End the processes."""
        self._decoder.close()

    async def _tiles(self, source: ImageSource, make_tiles: MakeTiles) -> ImageTiles:
        try:
            if source.url and source.url[:5].lower() != "data:":
                async with self._of_caller(), self._fetches:
                    data = await self._fetcher.fetch(source.url)
                    return await make_tiles(lambda: self._decoded(data, source), source.param)
            return await make_tiles(lambda: self._decoded(file_of(source), source), source.param)
        except BadImage as error:
            if error.param:
                raise
            raise BadImage(error.code, error.reason, param=source.param) from None
        except UnsupportedFeature as error:
            error.param = error.param or source.param
            raise

    def _of_caller(self) -> asyncio.Semaphore:
        """Return what bounds the images that are fetched for the running task's caller."""
        key = current_caller.get().share_key
        found = self._callers.get(key)
        if found is None:
            found = self._callers[key] = asyncio.Semaphore(MAX_FETCHES // 4)
        return found

    def _decoded(self, data: bytes, source: ImageSource) -> ImageInput:
        image = self._decoder.decode(data, read_header(data))
        return ImageInput(width=image.width, height=image.height, pixels=image.levels, detail=source.detail)

    async def _look_up(self, host: str) -> Sequence[str]:
        found = await self._pools.lookups.run(lambda: socket.getaddrinfo(host, PORT, type=socket.SOCK_STREAM))
        return [str(address[0]) for *_, address in found]


def file_of(source: ImageSource) -> bytes:
    """Return the file that a source holds itself. Raises BadImage."""
    if source.file:
        return source.file
    if not source.url:
        return _from_base64(source.data)
    head, comma, data = source.url.partition(",")
    parameters = head[len("data:") :].lower().split(";")
    if not comma or parameters[-1].strip() != "base64":
        raise BadImage("invalid_image_url", "a 'data:' URL of an image has to be in base64")
    return _from_base64(data)


def _from_base64(text: str) -> bytes:
    if len(text) > MAX_FILE_BYTES * 4 // 3 + 1024:
        raise BadImage("image_too_large", f"its file has more than {MAX_FILE_BYTES} bytes")
    try:
        raw = text.encode("ascii")
        if raw[-1:].isspace() or b"\n" in raw or b"%" in raw:  # lines, and what URLs escape
            raw = b"".join(raw.replace(b"%2B", b"+").replace(b"%2F", b"/").replace(b"%3D", b"=").split())
        return base64.b64decode(raw, validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError) as error:
        raise BadImage("invalid_base64_image", f"its base64 is invalid ({error})") from None
