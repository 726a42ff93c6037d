"""Serving requests with images: their places in prompts, what is refused, and what is recorded of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asking import GREEDY, request
from image_files import picture as photo
from image_files import saved
from seeing_server import PARTS, STRINGS, load_model, make_idefics, make_model, picture, seeing_server
from stub_runtime import LocalServer

from dragoman.cli.attached_images import read_image, with_images
from dragoman.cli.session import LocalSession
from dragoman.cli.settings import SamplingSettings
from dragoman.core import capsule as capsules
from dragoman.core.capsule import Capsule
from dragoman.core.errors import BadRequest, ContextOverflow, Overloaded, UnsupportedFeature
from dragoman.core.events import FinishReason
from dragoman.core.image_sources import ImageSource, image_part
from dragoman.core.images import IMAGE_PART, ImageInput, ImageTiles
from dragoman.core.journal import Journal, Submission
from dragoman.core.observer import ObservedGeneration, Observer
from dragoman.core.pooling import PoolingParams
from dragoman.core.request import ChatPrompt, FillPrompt, GenerationRequest, PromptEmbeddings, TextPrompt, TokenPrompt
from dragoman.core.resume import ResumeProgress, SavedSequence
from dragoman.core.sampling import EndingParams, SamplingParams
from dragoman.models.model import Model
from dragoman.models.vision.prompt import replacement
from dragoman.serving.image_prompts import _prepared
from dragoman.serving.image_reader import taken_apart
from dragoman.serving.recorder import Recorder

pytestmark = pytest.mark.anyio

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

TILES: Any = {"pixels": bytes(12), "tiles": 1, "height": 2, "width": 2, "rows": 0, "columns": 0, "image_height": 2}
TILES |= {"image_width": 2, "tokens": 3, "embeddings": 1}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    folder = make_model(tmp_path_factory.mktemp("seeing"))
    return load_model(folder), folder


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def chat(*content: Any) -> ChatPrompt:
    return ChatPrompt(messages=({"role": "user", "content": list(content)},))


def ask(prompt: Any, *images: ImageTiles, **fields: Any) -> GenerationRequest:
    fields = {"sampling": GREEDY, "images": images, "images_param": "image_url"} | fields
    return request(prompt=prompt, **fields)


async def test_a_model_without_a_tower_refuses_images_by_its_name(runtime: LocalServer) -> None:
    card = runtime.serving.model(None)
    assert card.images is None
    with pytest.raises(UnsupportedFeature, match=f"The model '{card.name}' sees no images") as raised:
        await runtime.serving.image_tiles(ImageInput(width=1, height=1, pixels=bytes(3)), param="messages[0]")
    assert raised.value.param == "messages[0]"
    asked = request(images=(ImageTiles.of(**TILES),), images_param="image_url")
    for answer in (runtime.serving.generate, runtime.serving.explain, runtime.serving.prepare):
        with pytest.raises(UnsupportedFeature, match="sees no images") as raised:
            await answer(asked)
        assert raised.value.param == "image_url"
    with pytest.raises(UnsupportedFeature, match="sees no images"):
        await anext(runtime.serving.stream(asked))


async def test_images_take_their_places_in_chats_and_in_texts(seeing: tuple[Model, Path]) -> None:
    model, _ = seeing
    assert model.tower is not None
    vision = model.tower.vision
    async with seeing_server(*seeing) as (serving, engine):
        info = serving.model(None).images
        assert info is not None
        assert (info.has_detail, info.placeholder, info.most_tokens) == (True, "<image>", vision.most_tokens)
        first, second = await serving.image_tiles(picture(120, 90)), await serving.image_tiles(picture(40, 60))
        small = await serving.image_tiles(msgspec.structs.replace(picture(120, 90), detail="low"))
        assert small.tokens < first.tokens
        assert first.service > small.service > 0
        inner = [replacement(vision, _prepared(each)) for each in (first, second)]
        content = ("Look: ", inner[0], "and", inner[1], "which?")
        expected = {
            "chat": f"user:{''.join(content)}<|end|>\nassistant:",
            "text": "".join(content),
        }
        prompts = {
            "chat": chat(text_part("Look: "), IMAGE_PART, text_part("and"), IMAGE_PART, text_part("which?")),
            "text": TextPrompt(text="Look: andwhich?", image_places=(6, 9), add_special_tokens=False),
            "spelled": TextPrompt(text="Look: <image>and<image>which?", add_special_tokens=False),
        }
        for name, prompt in prompts.items():
            found = await serving.generate(ask(prompt, first, second))
            submitted = engine.requests[-1]
            text = expected["chat" if name == "chat" else "text"]
            assert submitted.prompt == tuple(serving._model.tokenizer.encode(text, False))
            assert found.usage.prompt_tokens == len(submitted.prompt) == found.prompt.prompt_tokens
            assert [each.tiles for each in submitted.images] == [first, second]
            for image in submitted.images:
                span = submitted.prompt[image.start : image.end]
                assert span[0] == span[-1] == 256
                assert span.count(256) == image.tiles.embeddings
            explained = await serving.explain(ask(prompt, first, second))
            assert explained.token_ids == submitted.prompt
            assert explained.engine.cached_tokens >= len(submitted.prompt) // 32 * 32 - 32
        other = await serving.generate(ask(prompts["text"], second, first))
        again = await serving.generate(ask(prompts["text"], first, second))
        assert [each.token_id for each in again.generations[0].tokens] == [
            each.token_id for each in found.generations[0].tokens
        ]
        assert other.generations[0].text != again.generations[0].text


async def test_commands_ask_about_files(seeing: tuple[Model, Path], tmp_path: Path) -> None:
    """The session of ``dragoman chat`` and ``dragoman run`` with an engine of its own."""
    (tmp_path / "one.png").write_bytes(saved(photo(60)))
    url, options = read_image(str(tmp_path / "one.png")), SamplingSettings(temperature=0.0, max_new_tokens=8)
    async with seeing_server(*seeing) as (serving, _):
        session, answers = LocalSession(serving), []
        for urls in ([], [url], [url], [url, url]):
            deltas = session.chat([{"role": "user", "content": with_images("Hi", urls)}], options)
            answers.append("".join([delta.text async for delta in deltas]))
    blind, once, again, twice = answers
    assert once == again
    assert len({blind, once, twice}) == 3


async def test_images_side_by_side_share_a_tag(tmp_path: Path) -> None:
    """And spaces beside them are dropped, in Idefics."""
    folder = make_idefics(tmp_path)
    async with seeing_server(load_model(folder), folder) as (serving, engine):
        images = [await serving.image_tiles(picture(*size)) for size in ((120, 90), (40, 60))]
        tag, tokenizer = "<fake_token_around_image>", serving._model.tokenizer
        seen = f"{tag}<image>{tag}<image>{tag}which?"
        for prompt, before, after in (
            (
                chat(text_part("Look: "), IMAGE_PART, IMAGE_PART, text_part(" which?")),
                "user:Look:",
                "<|end|>\nassistant:",
            ),
            (TextPrompt(text="Look: which?", image_places=(6, 6), add_special_tokens=False), "Look:", ""),
        ):
            found = await serving.generate(ask(prompt, *images))
            submitted = engine.requests[-1]
            assert submitted.prompt == tuple(tokenizer.encode(before + seen + after, False))
            assert [each.end - each.start for each in submitted.images] == [1, 1]
            assert found.usage.prompt_tokens == len(submitted.prompt)


async def test_templates_get_contents_in_the_form_that_they_read(seeing: tuple[Model, Path]) -> None:
    messages: tuple[dict[str, Any], ...] = (
        {"role": "user", "content": [text_part("This"), IMAGE_PART, text_part("is")]},
        {"role": "assistant", "content": "what?"},
        {"role": "user", "content": "Say."},
    )
    ends = "<|end|>\nassistant:what?<|end|>\nuser:Say.<|end|>\nassistant:"
    expected = {PARTS: f"user:This<image>is{ends}", STRINGS: f"user:This\n<image>\nis{ends}"}
    for template, text in expected.items():
        async with seeing_server(*seeing, template) as (serving, engine):
            prompt = ChatPrompt(messages=messages)
            assert await serving.render(prompt) == text
            await serving.generate(ask(prompt, await serving.image_tiles(picture(50, 50))))
            assert len(engine.requests[-1].images) == 1
            plain = ChatPrompt(messages=({"role": "user", "content": "Say."},))
            assert await serving.render(plain) == "user:Say.<|end|>\nassistant:"


async def test_what_cannot_be_placed_is_refused(seeing: tuple[Model, Path]) -> None:
    async with seeing_server(*seeing) as (serving, _):
        tiles = await serving.image_tiles(picture(60, 60))
        one = TextPrompt(text="a b", image_places=(1,))
        values = PromptEmbeddings(token_indices=(0,), values=bytes(4 * 64))
        cases: list[tuple[GenerationRequest, type[BadRequest], str, str]] = [
            (ask(TextPrompt(text="a"), tiles), BadRequest, "0 places for images .* 1 images", "image_url"),
            (ask(chat(IMAGE_PART, IMAGE_PART), tiles), BadRequest, "2 places .* 1 images", "image_url"),
            (ask(chat(IMAGE_PART, text_part("<image>")), tiles), BadRequest, "2 places", "image_url"),
            (ask(TokenPrompt(token_ids=(1, 256)), tiles), UnsupportedFeature, "not in prompts of this", "image_url"),
            (ask(FillPrompt(prefix="a", suffix="b"), tiles), UnsupportedFeature, "not in prompts", "image_url"),
            (ask(one, tiles, truncate=5), BadRequest, "leaves no room for the prompt's images", "truncate"),
            (ask(one, tiles, embeddings=values), BadRequest, "exclude each other", "embeddings"),
            (
                ask(TextPrompt(text="a", image_places=(0,) * 60), *[tiles] * 60),
                ContextOverflow,
                "images take",
                "image_url",
            ),
            (
                ask(one, tiles, pooling=PoolingParams(kind="last"), ending=EndingParams(max_tokens=0)),
                UnsupportedFeature,
                "not of images",
                "image_url",
            ),
        ]
        for asked, kind, message, param in cases:
            with pytest.raises(kind, match=message) as raised:
                await serving.generate(asked)
            assert raised.value.param == param
        kept = await serving.prepare(ask(one, tiles, truncate=tiles.tokens + 2))
        assert kept.prompt[kept.images[0].start] == 256
        with pytest.raises(BadRequest, match="levels"):
            await serving.image_tiles(ImageInput(width=2, height=2, pixels=bytes(3)))


async def test_pixels_of_all_requests_are_bounded(seeing: tuple[Model, Path]) -> None:
    async with seeing_server(*seeing, image_bytes=1) as (serving, _):
        tiles = await serving.image_tiles(picture(60, 60))
        with pytest.raises(Overloaded, match="images of requests take"):
            await serving.image_tiles(picture(60, 60))
        assert serving.tiler.bytes == len(tiles.pixels)
        del tiles
        gc.collect()
        assert serving.tiler.bytes == 0
        await serving.image_tiles(picture(60, 60))


async def test_what_was_cut_goes_on_with_its_images(seeing: tuple[Model, Path]) -> None:
    prompt = chat(IMAGE_PART, text_part("Say."))
    async with seeing_server(*seeing) as (serving, engine):
        tiles = await serving.image_tiles(picture(120, 90))
        whole = await serving.generate(ask(prompt, tiles, max_tokens=20))
        first = await serving.generate(
            ask(prompt, tiles, resumable=True, ending=EndingParams(max_tokens=8, ignore_eos=True))
        )
        progress = ResumeProgress()
        progress.note_result(first)
        saved = msgspec.msgpack.decode(msgspec.msgpack.encode(progress.sequence), type=SavedSequence)
    async with seeing_server(*seeing) as (serving, engine):
        cut = ask(TextPrompt(text=""), resumed=saved, resumable=True)
        rest = await serving.generate(msgspec.structs.replace(cut, ending=EndingParams(max_tokens=12, ignore_eos=True)))
        assert engine.requests[-1].images == saved.images
        ids = [each.token_id for each in whole.generations[0].tokens]
        assert list(saved.output) + [each.token_id for each in rest.generations[0].tokens] == ids[:20]


class Kept:
    """Takes capsules."""

    def __init__(self) -> None:
        self.capsules: list[Capsule] = []

    def put(self, name: str, make: Callable[[], Capsule]) -> None:
        self.capsules.append(make())

    def counters(self) -> dict[str, float]:
        return {}


async def test_capsules_have_the_images(seeing: tuple[Model, Path]) -> None:
    kept = Kept()
    async with seeing_server(*seeing, recorder=Recorder(kept)) as (serving, engine):
        tiles = await serving.image_tiles(picture(120, 90))
        await serving.generate(ask(chat(text_part("Say "), IMAGE_PART), tiles))
        submitted = engine.requests[-1]
        data = capsules.encode(kept.capsules[0])
        read = capsules.decode(data)
        assert capsules.engine_request("again", read.request).images == submitted.images
        outcome = await serving.replayer().replay("one", read)
        assert (outcome.error, outcome.equal, outcome.same) == ("", True, 12)
        (image,) = read.request.images
        for change in ({"pixels": image.pixels[:-9]}, {"pixels": b"x"}, {"rows": 7}, {"width": 1 << 20}):
            damaged = msgspec.structs.replace(image, **change)
            bad = msgspec.structs.replace(read, request=msgspec.structs.replace(read.request, images=(damaged,)))
            outcome = await serving.replayer().replay("bad", bad)
            assert "image" in outcome.error
        moved = msgspec.structs.replace(read, request=msgspec.structs.replace(read.request, prompt=(1, 2, 3)))
        outcome = await serving.replayer().replay("moved", moved)
        assert outcome.error == "images must be within the prompt, one after the other"


async def test_a_journal_has_no_pixels_and_finds_the_request_by_digests(seeing: tuple[Model, Path]) -> None:
    async with seeing_server(*seeing) as (serving, _):
        tiles, other = await serving.image_tiles(picture(50, 50)), await serving.image_tiles(picture(50, 50, 1))
        asked = ask(chat(IMAGE_PART), tiles, sampling=SamplingParams())
        submitted = await serving.prepare(asked)
        changed = await serving.prepare(msgspec.structs.replace(asked, images=(other,)))
    written: list[bytes] = []
    first = Journal(write=written.append)
    first.enter(submitted, "m")
    assert sum(map(len, written)) < len(tiles.pixels) < 100_000
    second = Journal()
    second.read(b"".join(written))
    again = second.enter(msgspec.structs.replace(submitted, seeds=(9,)), "m")
    assert again.request.images == submitted.images
    assert again.request.seeds == submitted.seeds
    third = Journal()
    third.read(b"".join(written))
    assert third.enter(changed, "m").request.seeds == changed.seeds
    assert third._numbers == 2
    assert Submission(1, "m", submitted.without_pixels).request.images[0].tiles.digest == tiles.digest


async def test_a_stream_with_an_image_that_is_left_frees_everything(seeing: tuple[Model, Path]) -> None:
    async with seeing_server(*seeing) as (serving, engine):
        engine.free.clear()
        tiles = await serving.image_tiles(picture(120, 90))
        events = serving.stream(ask(chat(IMAGE_PART), tiles))
        waiting = asyncio.create_task(anext(events))
        for _ in range(20):
            await asyncio.sleep(0)
        engine.engine.step()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await events.aclose()
        engine.free.set()
        engine.engine.step()
        assert engine.engine.scheduler.images.groups == 0
        assert engine.free_blocks == engine.engine.scheduler.cache.num_blocks
        done = await serving.generate(ask(chat(IMAGE_PART), tiles))
        assert done.generations[0].finish is FinishReason.LENGTH


class Keeper(Observer):
    """Keeps what it is told of generations, as a request's observers do for as long as its connection lives."""

    def __init__(self) -> None:
        self.seen: list[ObservedGeneration] = []

    def submitted(self, generation: ObservedGeneration) -> None:
        self.seen.append(generation)


async def test_observers_keep_no_images(seeing: tuple[Model, Path]) -> None:
    keeper = Keeper()
    async with seeing_server(*seeing, observer=keeper) as (serving, _):
        tiles = await serving.image_tiles(picture(40, 60))
        await serving.generate(ask(chat(IMAGE_PART), tiles))
        await serving.generate(ask(chat(image_part(ImageSource(file=saved(photo(40)))))))
    assert [(each.requested.images, taken_apart(each.requested.prompt).sources) for each in keeper.seen] == 2 * [
        ((), ())
    ]
