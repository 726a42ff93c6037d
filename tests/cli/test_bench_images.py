"""``dragoman bench --image``: its figures, and its limits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dragoman import models
from dragoman.cli.bench_images import measure_image, size_of
from dragoman.core.errors import BadRequest
from dragoman.models.limits import Limits, Machine, shape_of
from dragoman.models.vision.cost import image_service, least_step_tokens, products, products_of_image
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import tile_sizes
from dragoman.models.vision.preprocess import preprocess

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "serving"), str(TESTS / "server"), str(TESTS / "models"), str(TESTS.parent)]

pytest.importorskip("torch")
pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

seeing = pytest.importorskip("seeing_server")
CONFIGS, PREPROCESSORS = seeing.vision_models.CONFIGS, seeing.vision_models.PREPROCESSORS

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def vision_of(name: str) -> VisionDescription:
    found = VisionDescription.from_config(CONFIGS[name], PREPROCESSORS[name])
    assert found is not None
    return found


async def test_an_image_is_timed_beside_what_the_multiplier_needs(tmp_path: Path) -> None:
    model = seeing.load_model(seeing.make_model(tmp_path))
    settings = models.ModelSettings(precision="float32", cache_bytes=0)
    described = models.describe(tmp_path)
    async with seeing.seeing_server(model, tmp_path) as (serving, engine):
        found = await measure_image(serving, described, settings, (120, 90), 3)
        assert engine.engine.output().stats.encoded_images == 4, "each has other pixels"
        tiles = await serving.image_tiles(seeing.picture(120, 90))
        assert found.tokens > tiles.embeddings + len("What is this?")
    assert 0 < found.limit_s < found.first_token_s
    machine = Machine(1e9, {"float32": 1e9, "bfloat16": 1e9}, 1e9)
    whole = products(vision_of("smolvlm"), tiles.tiles, tiles.height, tiles.width)
    limits = Limits(shape_of(described, "float32"), machine)
    assert limits.image_s(120, 90) == pytest.approx(2 * sum(whole) / 1e9)
    assert limits.first_token_of_image_s(120, 90, 5) == pytest.approx(
        limits.image_s(120, 90) + limits.first_token_s(tiles.tokens + 5)
    )


def test_multiplications_are_those_of_the_layers() -> None:
    """Of one tile of 16 patches through three layers of width 48, four patches a token, to a width of 64."""
    found = products(vision_of("smolvlm"), 1, 56, 56)
    layers = 3 * 16 * (4 * 48 * 48 + 2 * 48 * 88)
    assert found.weights == layers + 16 * 3 * 14 * 14 * 48 + 4 * (4 * 48) * 64
    assert found.attention == 3 * 16 * 2 * 16 * 48
    assert image_service(vision_of("smolvlm"), 1, 56, 56, sum(found)) == 1
    assert image_service(vision_of("smolvlm"), 2, 56, 56, sum(found)) == 2
    windows = products(vision_of("qwen2_5_vl"), 1, 224, 224)
    whole = products(vision_of("qwen2_vl"), 1, 224, 224)
    assert windows.attention < whole.attention


@pytest.mark.parametrize("name", ["smolvlm", "gemma3", "llava_next", "internvl", "qwen2_vl", "lfm2_vl", "idefics2"])
def test_an_image_takes_the_multiplications_of_its_tiles(name: str) -> None:
    vision = vision_of(name)
    found = preprocess(Image.new("RGB", (200, 120)), vision)
    tiles, _, height, width = found.pixels.shape
    if vision.tiling.kind in ("mixed", "halves"):  # each its own size
        expected = [
            sum(each)
            for each in zip(*(products(vision, 1, *size) for size in tile_sizes(found.grid, vision)), strict=True)
        ]
    else:
        expected = list(products(vision, tiles, height, width))
    assert list(products_of_image(vision, 200, 120)) == expected


def test_a_model_without_a_tower_has_no_limit_of_images() -> None:
    described = models.describe(models.embedded_path())
    with pytest.raises(ValueError, match="sees no images"):
        Limits(shape_of(described, "int8"), Machine(1e9, {"int8": 1e9, "bfloat16": 1e9}, 1e9)).image_s(5, 5)


def test_steps_have_room_for_what_is_read_in_one() -> None:
    assert least_step_tokens(None, 64) == least_step_tokens(vision_of("smolvlm"), 64) == 0
    assert least_step_tokens(vision_of("gemma3"), 64) == 16 + 64
    assert least_step_tokens(vision_of("paligemma"), 64) == 64 + 64 + 256


@pytest.mark.parametrize("text", ["1024", "1024x", "0x5", "5x0", "-1x5", "x", "1024X768", "999999x1"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    assert size_of("1024x768") == (1024, 768)
    with pytest.raises(BadRequest, match="expected a width and a height"):
        size_of(text)
