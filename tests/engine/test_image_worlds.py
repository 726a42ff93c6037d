"""Random worlds with images: several callers, little memory, requests that are cancelled, paused and deferred. Whoever
is not cancelled gets the tokens of a run alone, and at the end nothing is left."""

from __future__ import annotations

import os
import random
from typing import Any

import msgspec
import pytest
from seeing_models import request_with, tiles_of

from dragoman import models
from dragoman.core.images import ImageTiles
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.engine.engine import Engine
from dragoman.engine.settings import SchedulerSettings
from dragoman.models.model import Model
from simulation import Limited, Transcript, run_alone, step

pytest.importorskip("torch")
pytest.importorskip("PIL")
vision_models = pytest.importorskip("vision_models")

SETTINGS = models.ModelSettings(precision="float32", max_tokens=512, kv_tokens=2048, cache_bytes=0)
SIZES = ((60, 60), (120, 90), (90, 150), (50, 50))
WORLDS = 25 if os.environ.get("DRAGOMAN_THOROUGH") else 3
REQUESTS = 8
MOST_STEPS = 20_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Model] = {}

    def of(name: str) -> Model:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            vision_models.save(folder, name)
            made[name] = models.load(folder, SETTINGS)
        return made[name]

    return of


def requests_of(rng: random.Random, model: Model, pictures: list[ImageTiles]) -> list[EngineRequest]:
    """Prompts of texts and up to three pictures each; some begin alike."""
    assert model.tower is not None
    found = []
    for number in range(REQUESTS):
        parts: list[Any] = [tuple(rng.choices(range(3, 100), k=rng.randint(1, 60)))]
        for _ in range(rng.randint(0, 3)):
            parts += [rng.choice(pictures), tuple(rng.choices(range(3, 100), k=rng.randint(1, 30)))]
        found.append(
            request_with(
                model.tower.vision,
                *([(5,) * 33, *parts] if rng.random() < 0.3 else parts),
                name=f"r{number}",
                seeds=tuple(range(number, number + rng.choice([1, 1, 2, 3]))),
                max_tokens=rng.randint(1, 25),
                sampling=SamplingParams(temperature=rng.choice([0.0, 1.2])),
                tenant=rng.choice("abc"),
                priority=rng.choice([0, 0, 1, -1]),
                deferrable=rng.random() < 0.15,
                max_running=rng.choice([None, None, 2]),
            )
        )
    return found


@pytest.mark.parametrize("seed", range(WORLDS))
@pytest.mark.parametrize("name", ["smolvlm", "gemma3", "qwen2_vl"])
def test_everyone_gets_what_a_run_alone_gives(name: str, seed: int, served: Any) -> None:
    model, rng = served(name), random.Random(seed)
    pictures = [tiles_of(model.tower.vision, *size, seed=place) for place, size in enumerate(SIZES)]
    requests = requests_of(rng, model, pictures)
    runner = Limited(
        model,
        num_blocks=rng.choice([12, 16, 30, 64]),
        image_cache_bytes=rng.choice([0, 5000, 1 << 20]),
        max_sequences=rng.choice([3, 8, 16]),
    )
    sizes = {"step_tokens": rng.choice([64, 128, 512]), "mixed_prefill_tokens": rng.choice([5, 40, 128])}
    engine = Engine(runner, SchedulerSettings(prefix_cache=rng.random() < 0.8, **sizes))
    found = {request.request_id: Transcript() for request in requests}
    cancelled, paused, pending = set[str](), set[str](), list(requests)
    for _ in range(MOST_STEPS):
        if pending and rng.random() < 0.3:
            engine.submit(pending.pop())
        chosen = f"r{rng.randrange(REQUESTS)}"
        if rng.random() < 0.02:
            engine.cancel(chosen)
            cancelled.add(chosen)
        if rng.random() < 0.05:
            engine.pause(chosen)
            paused.add(chosen)
        if paused and (rng.random() < 0.2 or not engine.has_work):
            engine.resume(paused.pop())
        if engine.has_work:
            step(engine, found)
        elif not pending and not paused:
            break
    else:
        raise AssertionError("work is left")
    for request in requests:
        if request.request_id not in cancelled:
            plain = msgspec.structs.replace(request, deferrable=False, max_running=None, priority=0)
            assert found[request.request_id] == run_alone(model, plain)
    engine.schedule()
    images = engine.scheduler.images
    assert images.groups == 0
    assert images.target is None
    assert engine.scheduler.cache.available == engine.scheduler.cache.num_blocks
