"""Images through the engine: the same tokens as transformers', and the same however a request is run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from seeing_models import request_with, theirs_of, tiles_of

from dragoman import models
from dragoman.core.events import FinishEvent, FinishReason
from dragoman.core.request import EngineRequest, PromptEmbeddings
from dragoman.core.sampling import BeamParams, LogprobParams, SamplingParams
from dragoman.engine.engine import Engine
from dragoman.engine.prompt_images import cross_attention_blocks
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine_client.recovery import InFlightRequest
from dragoman.models.model import Model
from simulation import Limited, Transcript, hypotheses, run, run_alone, run_beams, step

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
idefics_models = pytest.importorskip("idefics_models")
mllama_models = pytest.importorskip("mllama_models")
vision_models = pytest.importorskip("vision_models")

NAMES = ("smolvlm", "gemma3", "qwen2_vl", "llava", "paligemma")
SETTINGS = models.ModelSettings(precision="float32", max_tokens=512, kv_tokens=2048, cache_bytes=0)
BEFORE, AFTER = tuple(range(5, 75)), (*range(40, 47), 2, 48, 49)  # after a 2 Idefics sees no image


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Model]]:
    """Each model once: transformers' own, and ours."""
    made: dict[str, tuple[Any, Model]] = {}

    def of(name: str) -> tuple[Any, Model]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            looking = {"mllama": mllama_models, "idefics": idefics_models}
            theirs = looking[name].save(folder) if name in looking else vision_models.save(folder, name)
            made[name] = theirs, models.load(folder, SETTINGS)
        return made[name]

    return of


@pytest.fixture(params=(*NAMES, "qwen3_vl", "lfm2_vl", "mllama", "idefics"))
def model(request: pytest.FixtureRequest, served: Any) -> Model:
    found: Model = served(request.param)[1]
    return found


def vision_of(model: Model) -> Any:
    assert model.tower is not None
    return model.tower.vision


def asked(model: Model, name: str = "ours", seed: int = 0, **fields: Any) -> EngineRequest:
    """A request with two images; with one where a whole prompt is read in a step, and images come first."""
    vision = vision_of(model)
    if vision.both_ways == "prompt":
        return request_with(vision, tiles_of(vision, 90, 70, seed), AFTER, name=name, **fields)
    first, second = tiles_of(vision, 120, 90, seed), tiles_of(vision, 60, 100, seed + 1)
    return request_with(vision, BEFORE, first, AFTER, second, AFTER, name=name, **fields)


def drawn(model: Model, name: str = "ours", **fields: Any) -> EngineRequest:
    """The same, with random numbers and with log-probabilities."""
    prompt = vision_of(model).both_ways == "none"
    logprobs = LogprobParams(top=2, prompt=prompt)
    return asked(model, name, sampling=SamplingParams(temperature=1.5), logprobs=logprobs, **fields)


def texts(count: int, **fields: Any) -> list[EngineRequest]:
    rng = random.Random(count)
    return [
        EngineRequest(
            request_id=f"text {index}",
            prompt=tuple(rng.choices(range(100), k=rng.randint(5, 90))),
            seeds=(index,),
            max_tokens=rng.randint(5, 30),
            **fields,
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_equal_those_of_transformers(name: str, served: Any) -> None:
    theirs, ours = served(name)
    vision = vision_of(ours)
    parts = (() if name == "paligemma" else (BEFORE[:30],)) + (tiles_of(vision, 120, 90), AFTER)
    ends = theirs.generation_config.eos_token_id or 0
    banned = SamplingParams(temperature=0, logit_bias=dict.fromkeys([ends] if isinstance(ends, int) else ends, -1e9))
    request = request_with(vision, *parts, max_tokens=64, sampling=banned)
    limits = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        found = theirs.generate(**theirs_of(name, vision, request), **limits)[0, len(request.prompt) :]
    assert run(Engine(ours), [request])["ours"].ids() == found.tolist()


def test_in_company(model: Model) -> None:
    request = drawn(model, seeds=(5,))
    alone = run_alone(model, request)
    crowd = [*texts(5), asked(model, "another", 7), asked(model, "the same"), request]
    random.Random(3).shuffle(crowd)
    engine = Engine(model)
    assert run(engine, crowd)["ours"] == alone
    stats = engine.output().stats
    assert stats.encoded_images == (2 if vision_of(model).both_ways == "prompt" else 4)
    assert stats.image_service == 10 * stats.encoded_images
    assert run(engine, crowd)["ours"] == alone, "with a cached prefix"
    assert engine.output().stats.encoded_images == stats.encoded_images


def test_beside_given_embeddings_of_another(served: Any) -> None:
    """Of an image they may be wider."""
    model = served("qwen3_vl")[1]
    vectors = np.random.default_rng(2).normal(size=(2, model.hidden_size)).astype(np.float32)
    given = PromptEmbeddings(token_indices=(3, 4), values=vectors.tobytes())
    (text,) = texts(1, embeddings=given)
    alone = [run_alone(model, request) for request in (text, asked(model))]
    together = run(Engine(model), [text, asked(model)])
    assert [together[text.request_id], together["ours"]] == alone


def test_in_small_steps(model: Model) -> None:
    request = drawn(model)
    alone = run_alone(model, request)
    runner = Limited(model, max_sequences=8)
    for size, mixed in ((25, 7), (50, 128), (101, 1), (140, 33)):
        settings = SchedulerSettings(step_tokens=size, mixed_prefill_tokens=mixed)
        both_ways = vision_of(model).both_ways
        if both_ways == "prompt" and size < 90:
            continue
        assert run(Engine(runner, settings), [*texts(4), request])["ours"] == alone, size


def test_with_any_part_of_the_prompt_cached(model: Model) -> None:
    request = drawn(model)
    request = msgspec.structs.replace(request, logprobs=LogprobParams(top=2))
    alone = run_alone(model, request)
    engine = Engine(model)
    for length in (40, 100, 120, 90, len(request.prompt)):
        if vision_of(model).both_ways != "prompt":
            images = tuple(each for each in request.images if each.end <= length)
            prefix = msgspec.structs.replace(request, request_id="p", prompt=request.prompt[:length], images=images)
            if not any(each.start < length < each.end for each in request.images):
                run(engine, [prefix])
        assert run(engine, [request])["ours"] == alone
    assert engine.output().stats.cached_tokens > 0


def test_after_preemption(model: Model) -> None:
    request = drawn(model, priority=-5, max_tokens=60)
    alone = run_alone(model, request)
    # What is computed again is seen again: nothing is kept of images.
    blocks = max(9, 5 + cross_attention_blocks(request, model.tower, model.block_size))
    engine = Engine(Limited(model, num_blocks=blocks, image_cache_bytes=0))
    intruders = [msgspec.structs.replace(each, prompt=(1,) * 250, max_tokens=5) for each in texts(3)]
    found = {each.request_id: Transcript() for each in [request, *intruders]}
    engine.submit(request)
    while engine.has_work:
        if intruders and len(found["ours"].ids()) > 20 * (3 - len(intruders)):
            engine.submit(intruders.pop())
        step(engine, found)
    assert found["ours"] == alone
    assert engine.scheduler.preemptions > 0
    assert engine.output().stats.encoded_images > len(request.images)


def test_one_of_many_and_beams(model: Model) -> None:
    request = drawn(model)
    engine = Engine(Limited(model, max_sequences=3))
    forked = run(engine, [msgspec.structs.replace(request, seeds=(4, 5, 6, 7)), *texts(2)])["ours"]
    for index, seed in enumerate((4, 5, 6, 7)):
        assert forked.of(index) == run_alone(model, msgspec.structs.replace(request, seeds=(seed,))).of(0)
    search = asked(model, seeds=(1, 1), beams=BeamParams(num_beams=3), max_tokens=8)
    alone = hypotheses(run_beams(model, search), search)
    assert hypotheses(run_beams(Limited(model, max_sequences=2), search), search) == alone


def test_after_a_replay_from_any_point(model: Model) -> None:
    rng = random.Random(4)
    request = drawn(model, seeds=(3, 7))
    alone = run_alone(model, request)
    told, unfinished = Transcript(), InFlightRequest(request)
    while not unfinished.is_over:
        engine = Engine(model, SchedulerSettings(step_tokens=rng.randint(160, 300)))
        for each in [unfinished.as_replay(), *texts(3)]:
            engine.submit(each)
        for _ in range(rng.randint(15, 60)):
            for event in engine.step().events:
                if event.request_id == "ours" and unfinished.accept(event):
                    told.add(event)
    assert told == alone


def test_only_equal_images_share_a_prefix(served: Any) -> None:
    model = served("smolvlm")[1]
    vision, engine = vision_of(model), Engine(model)
    one, other = tiles_of(vision, 120, 90), tiles_of(vision, 120, 90, seed=9)
    assert one.embeddings == other.embeddings
    first = run(engine, [request_with(vision, BEFORE, one, AFTER)])["ours"]
    before = engine.output().stats
    second = run(engine, [request_with(vision, BEFORE, other, AFTER)])["ours"]
    after = engine.output().stats
    assert second == run_alone(model, request_with(vision, BEFORE, other, AFTER))
    assert second != first
    assert after.cached_tokens - before.cached_tokens == 64, "the two blocks before the image"
    text = request_with(vision, BEFORE, (vision.tags.image_id,) * one.embeddings, AFTER)
    assert run(engine, [text])["ours"] == run_alone(model, text) != first


def test_streams_go_on_between_the_parts_of_an_image(served: Any) -> None:
    """A step with decode rows computes one part of an image, or prompts: never both."""
    model = served("smolvlm")[1]
    engine = Engine(model, SchedulerSettings(mixed_prefill_tokens=16, prefix_cache=False))
    stream = EngineRequest(request_id="stream", prompt=(3, 4), seeds=(1,), max_tokens=120)
    found = {name: Transcript() for name in ("stream", "ours", "long")}
    engine.submit(stream)
    while not found["stream"].tokens:
        step(engine, found)
    engine.scheduler.images.note_prompt(0.0, 1)
    engine.submit(asked(model))
    engine.submit(EngineRequest(request_id="long", prompt=BEFORE * 5, seeds=(1,), max_tokens=2))
    seen = prompts = 0
    while not found["ours"].tokens:
        engine.scheduler.images.note_prompt(0.0, 1)  # as if prompts took no time: a step has one part
        schedule = engine.schedule()
        assert schedule.decodes
        assert not (schedule.sees and schedule.chunks)
        before = len(found["stream"].ids())
        for event in engine.run(schedule).events:
            found[event.request_id].add(event)
        assert len(found["stream"].ids()) > before
        seen += schedule.sees is not None
        prompts += schedule.sees is None and bool(schedule.chunks)
    assert seen > 2 * len(vision_of(model).layers.taken)
    assert prompts > 5


def test_cancelled_in_the_middle_nothing_is_left(served: Any) -> None:
    model = served("smolvlm")[1]
    engine = Engine(model)
    engine.scheduler.images.note_prompt(0.0, 1)
    engine.submit(EngineRequest(request_id="stream", prompt=(3, 4), seeds=(1,), max_tokens=40))
    engine.step()
    engine.submit(asked(model))
    for _ in range(3):
        assert engine.schedule().sees is not None
        engine.step()
    waiting = engine.scheduler.groups["ours"].sequences[0]
    engine.cancel("ours")
    while engine.has_work:
        engine.step()
    images = engine.scheduler.images
    assert images.target is None
    assert images.groups == images.cached_bytes == len(waiting.image_values) == 0
    assert engine.scheduler.cache.available == engine.scheduler.cache.num_blocks
    again = run(engine, [asked(model)])["ours"]
    assert again == run_alone(model, asked(model))


@pytest.mark.parametrize("images", [0, 1, 2])
def test_what_is_kept_of_images_is_bounded(images: int, served: Any) -> None:
    model = served("smolvlm")[1]
    vision = vision_of(model)
    pictures = [tiles_of(vision, 50, 50, seed) for seed in range(4)]
    size = pictures[0].embeddings * model.hidden_size * 4
    engine = Engine(Limited(model, image_cache_bytes=size * images))
    parts = [part for picture in pictures for part in (picture, AFTER)]
    request = request_with(vision, *parts)
    assert run(engine, [request])["ours"] == run_alone(model, request)
    assert engine.output().stats.image_cache_bytes == size * images
    request = msgspec.structs.replace(request_with(vision, AFTER, pictures[-1], AFTER), request_id="again")
    run(engine, [request])
    assert engine.output().stats.found_images == (images > 0)


def test_an_image_without_valid_numbers_fails_its_request_alone(served: Any, monkeypatch: Any) -> None:
    model = served("smolvlm")[1]

    def broken(prepared: Any) -> Any:
        yield None
        yield np.full((prepared.embeddings, model.hidden_size), np.nan, np.float32)

    monkeypatch.setattr(model.tower, "encode_steps", broken)
    engine, ours = Engine(model), asked(model, seeds=(1, 2))
    found = run(engine, [*texts(1), ours])
    assert found["ours"].finish == {0: FinishReason.ERROR, 1: FinishReason.ERROR}
    assert found["text 0"] == run_alone(model, texts(1)[0])


def test_images_that_are_not_the_towers_are_refused(served: Any) -> None:
    model = served("smolvlm")[1]
    whole = asked(model)
    image = whole.images[0]
    tiles = image.tiles

    def changed(**fields: Any) -> EngineRequest:
        other = msgspec.structs.replace(image, tiles=msgspec.structs.replace(tiles, **fields))
        return msgspec.structs.replace(whole, images=(other, *whole.images[1:]))

    values = msgspec.structs.asdict(tiles)
    del values["digest"]
    wide = type(tiles).of(**{**values, "height": tiles.height // 2, "width": tiles.width * 2})
    fewer = type(tiles).of(**{**values, "rows": 1, "columns": 1})
    moved = msgspec.structs.replace(image, start=image.start + 1, end=image.end + 1)
    cases = {
        "digest": changed(pixels=tiles.pixels[:-1] + b"x"),
        "not cut": msgspec.structs.replace(
            whole, images=(msgspec.structs.replace(image, tiles=fewer), *whole.images[1:])
        ),
        "as many tokens": msgspec.structs.replace(whole, images=(moved, *whole.images[1:])),
        "one after the other": msgspec.structs.replace(whole, images=whole.images[::-1]),
        "other embeddings": msgspec.structs.replace(
            whole, embeddings=PromptEmbeddings(token_indices=(0,), values=bytes(4 * model.hidden_size))
        ),
    }
    for message, request in cases.items():
        engine = Engine(model)
        engine.submit(request)
        (event,) = engine.output().events
        assert isinstance(event, FinishEvent)
        assert message in event.message
    # What no count shows is found by the tower, which fails the request alone.
    turned = msgspec.structs.replace(whole, images=(msgspec.structs.replace(image, tiles=wide), *whole.images[1:]))
    found = run(Engine(model), [turned, *texts(1)])
    assert found["ours"].finish == {0: FinishReason.ERROR}
    assert found["text 0"] == run_alone(model, texts(1)[0])


def test_images_that_no_step_has_room_for_are_refused(served: Any) -> None:
    gemma = served("gemma3")[1]
    engine = Engine(gemma, SchedulerSettings(step_tokens=24, max_running=9))
    engine.submit(asked(gemma))
    (event,) = engine.output().events
    assert "an image of 16 tokens is computed in one step" in event.message  # type: ignore[union-attr]
    fitting = Engine(gemma, SchedulerSettings(step_tokens=25, max_running=9))
    assert run(fitting, [*texts(9), asked(gemma)])["ours"] == run_alone(gemma, asked(gemma))
    engine = Engine(gemma)
    engine.submit(asked(gemma, logprobs=LogprobParams(top=1, prompt=True)))
    (event,) = engine.output().events
    assert "log-probabilities of a prompt" in event.message  # type: ignore[union-attr]


def test_a_model_without_a_tower_refuses_images(served: Any) -> None:
    from simulation import stub

    engine = Engine(stub())
    engine.submit(asked(served("smolvlm")[1]))
    (event,) = engine.output().events
    assert event == FinishEvent("ours", 0, FinishReason.ERROR, "the model sees no images")
