"""What a request names as its images becomes tiles: within bounds, in order, each error with its field."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from image_files import COLOURS, picture, saved
from model_cards import card_of

from dragoman.core.caller import current_caller
from dragoman.core.errors import BadImage, BadRequest, DragomanError, UnsupportedFeature
from dragoman.core.image_sources import MAX_IMAGES, ImageSource, content_of, image_part, text_part
from dragoman.core.images import IMAGE_PART, ImageInfo, ImageInput, ImageTiles
from dragoman.core.request import ChatPrompt, GenerationRequest, TextPrompt, TokenPrompt
from dragoman.core.serving import ModelCard
from dragoman.serving.image_fetch import ImageFetcher
from dragoman.serving.image_reader import ImageReader, file_of, taken_apart
from dragoman.serving.settings import WorkSettings
from dragoman.serving.worker_pool import WorkerPools

FILE = saved(picture(1))
DATA = base64.b64encode(FILE).decode()
URL = f"data:image/png;base64,{DATA}"
SEEN = msgspec.convert({"most_tokens": 64, "has_detail": True, "placeholder": "<image>"}, ImageInfo)
CARD = card_of(name="seeing", images=SEEN)


async def tiles_of(decode: Callable[[], ImageInput], param: str) -> ImageTiles:
    """Tiles with the pixels of the image as they are."""
    image = await asyncio.to_thread(decode)
    size = {"height": image.height, "width": image.width}
    return ImageTiles.of(
        pixels=image.pixels,
        tiles=1,
        rows=1,
        columns=1,
        image_height=image.height,
        image_width=image.width,
        tokens=1,
        embeddings=1,
        **size,
    )


def read(sources: Sequence[ImageSource], card: ModelCard = CARD, make_tiles: Any = tiles_of, **more: Any) -> Any:
    async def run() -> Any:
        pools = WorkerPools(WorkSettings())
        reader = ImageReader(pools, **more)
        try:
            return await reader.read(sources, card, make_tiles)
        finally:
            reader.close()
            pools.close()

    return asyncio.run(run())


def test_images_are_read_in_order() -> None:
    white = saved(picture(1).point(lambda level: 255), "JPEG")
    sources = [ImageSource(url=URL), ImageSource(file=white), ImageSource(data=DATA, detail="low")]
    first, second, third = read(sources)
    assert first.pixels == b"".join(map(bytes, COLOURS)) == third.pixels
    assert set(second.pixels) == {255}
    assert first.digest == third.digest != second.digest


def test_an_image_is_decoded_once_for_each_model() -> None:
    counted = []

    async def counting(decode: Callable[[], ImageInput], param: str) -> ImageTiles:
        counted.append(param)
        return await tiles_of(decode, param)

    async def run() -> None:
        reader = ImageReader(pools := WorkerPools(WorkSettings()))
        source = ImageSource(url=URL, param="a")
        for _ in range(3):
            await reader.read([source], CARD, counting)
        await reader.read([source], msgspec.structs.replace(CARD, name="other"), counting)
        reader.close()
        pools.close()

    asyncio.run(run())
    assert counted == ["a", "a"]


@pytest.mark.parametrize(
    "text",
    [DATA, f"{DATA[:40]}\n{DATA[40:]}\n", f"{DATA[:40]}\r\n{DATA[40:]}", DATA.replace("+", "%2B").replace("/", "%2F")],
)
def test_base64_of_clients(text: str) -> None:
    assert file_of(ImageSource(data=text)) == FILE
    assert file_of(ImageSource(url=f"data:;BASE64,{text}")) == FILE
    assert file_of(ImageSource(url=f"DATA:text/plain;charset=utf-8;base64,{text}")) == FILE


WRONG = {
    "no base64": (ImageSource(data="a cat"), "invalid_base64_image"),
    "half a byte": (ImageSource(data=DATA[:-3]), "invalid_base64_image"),
    "other letters": (ImageSource(data="ä" * 8), "invalid_base64_image"),
    "percent": (ImageSource(url="data:image/png,%89PNG"), "invalid_image_url"),
    "no comma": (ImageSource(url="data:image/png;base64"), "invalid_image_url"),
    "nothing": (ImageSource(url="data:image/png;base64,"), "empty_image_file"),
    "no image": (ImageSource(data=base64.b64encode(b"a cat").decode()), "unsupported_image_media_type"),
    "damaged": (ImageSource(data=base64.b64encode(FILE[:50]).decode()), "invalid_image"),
    "too long": (ImageSource(data="A" * (28 << 20)), "image_too_large"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_has_the_field_of_its_image(name: str) -> None:
    source, code = WRONG[name]
    source = msgspec.structs.replace(source, param="messages[0].content[1]")
    with pytest.raises(BadImage) as caught:
        read([ImageSource(url=URL), source])
    assert (caught.value.code, caught.value.param) == (code, "messages[0].content[1]")
    assert caught.value.message.startswith("'messages[0].content[1]': ")


def test_a_host_is_asked_only_where_it_is_allowed() -> None:
    async def look_up(host: str) -> Sequence[str]:
        raise AssertionError(host)

    with pytest.raises(UnsupportedFeature, match="--image-hosts") as caught:
        read([ImageSource(url="https://images.example.com/", param="inputs")])
    assert caught.value.param == "inputs"
    fetcher = ImageFetcher(["images.example.com"], look_up=look_up)
    with pytest.raises(UnsupportedFeature, match="has not allowed"):
        read([ImageSource(url="https://other.example.com/")], fetcher=fetcher)


def test_a_fetched_file_is_read_like_any_other() -> None:
    class Fetched(ImageFetcher):
        async def fetch(self, url: str) -> bytes:
            return FILE

    (found,) = read([ImageSource(url="https://images.example.com/")], fetcher=Fetched((), look_up=None))  # type: ignore[arg-type]
    assert found.pixels == picture(1).tobytes()


def test_the_operator_names_hosts() -> None:
    with pytest.raises(DragomanError, match=r"--image-hosts: 'https://a\.example' is no name of a host"):
        read([], hosts=["https://a.example"])


def test_no_more_images_than_the_most() -> None:
    sources = [ImageSource(url=URL, param=f"images[{i}]") for i in range(MAX_IMAGES + 1)]
    with pytest.raises(BadRequest, match="may have 32 images, and has 33") as caught:
        read(sources)
    assert caught.value.param == f"images[{MAX_IMAGES}]"


def test_a_caller_is_fetched_few_images_at_one_time() -> None:
    """So that the images of others are fetched too."""
    at_once: dict[str, int] = {"": 0, "b": 0}
    most = dict(at_once)

    class Slow(ImageFetcher):
        async def fetch(self, url: str) -> bytes:
            key = current_caller.get().name
            at_once[key] += 1
            most[key] = max(most[key], at_once[key])
            await asyncio.sleep(0.01)
            at_once[key] -= 1
            return FILE

    async def run() -> None:
        reader = ImageReader(pools := WorkerPools(WorkSettings()), fetcher=Slow((), look_up=None))  # type: ignore[arg-type]
        source = partial(ImageSource, url="https://images.example.com/")
        first = [asyncio.create_task(reader.read([source()], CARD, tiles_of)) for _ in range(12)]
        await asyncio.sleep(0)
        current_caller.set(msgspec.structs.replace(current_caller.get(), name="b", tenant="b"))
        await asyncio.gather(*first, *(reader.read([source()], CARD, tiles_of) for _ in range(3)))
        reader.close()
        pools.close()

    asyncio.run(run())
    assert most == {"": 4, "b": 3}


def test_a_prompt_is_taken_apart() -> None:
    one, two = ImageSource(url=URL, param="one"), ImageSource(data=DATA, param="two")
    messages = (
        {"role": "user", "content": content_of([text_part("a"), text_part("b"), image_part(one), text_part("")])},
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": [image_part(two)]},
    )
    prompt, sources = taken_apart(ChatPrompt(messages=messages))
    assert sources == (one, two)
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == (
        {"role": "user", "content": [{"type": "text", "text": "ab"}, IMAGE_PART]},
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": [IMAGE_PART]},
    )
    text = TextPrompt(text="ab", image_places=(1,), images=(one,))
    assert taken_apart(text) == (TextPrompt(text="ab", image_places=(1,)), (one,))
    assert taken_apart(TokenPrompt(token_ids=(1,))) == (TokenPrompt(token_ids=(1,)), ())


def test_a_stored_request_names_its_images_still() -> None:
    """Responses in the background are stored until they run, also by another process."""
    request = GenerationRequest(
        request_id="a", prompt=ChatPrompt(messages=({"role": "user", "content": [image_part(ImageSource(url=URL))]},))
    )
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerationRequest)
    assert taken_apart(stored.prompt).sources == (ImageSource(url=URL),)
