"""Models with images: what their image processors, towers and decoders make is what transformers makes."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import vision_models
from numpy.typing import NDArray
from small_models import prompt, run_rows
from vision_models import CONFIGS, PREPROCESSORS

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.batch import Batch, tables_of_one
from dragoman.models.families import read_spec
from dragoman.models.model import Model
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import image_token_count
from dragoman.models.vision.preprocess import PreparedImage, normalise, preprocess
from dragoman.models.vision.prompt import expand, replacement
from dragoman.models.vision.tower import VisionTower

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

SETTINGS = models.ModelSettings(precision="float32", max_tokens=512, kv_tokens=2048, cache_bytes=0)
SIZES = ((100, 70), (300, 500), (56, 56), (57, 112), (1, 1), (10, 400), (400, 3), (640, 480), (1, 3000))
CUT = ("idefics3", "smolvlm")


def description(name: str) -> VisionDescription:
    found = VisionDescription.from_config(CONFIGS[name], PREPROCESSORS[name])
    assert found is not None
    return found


def image(width: int, height: int, seed: int = 0) -> Any:
    """Noise over a slope: resampling it wrongly shows."""
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)) // 2
    levels += (np.arange(width) * 127 // width)[:, None]
    return Image.fromarray(levels.astype(np.uint8))


def processor(name: str, **changes: Any) -> Any:
    """The image processor of transformers that resizes by Pillow."""
    config = {key: value for key, value in PREPROCESSORS[name].items() if key != "image_processor_type"}
    module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
    (kind,) = (getattr(module, each) for each in module.__all__ if each.endswith("ImageProcessorPil"))
    return kind(**config | (changes if name in CUT else {}))


def their_pixels(name: str, picture: Any, **changes: Any) -> NDArray[np.float32]:
    found = processor(name, **changes)(picture, return_tensors="np")["pixel_values"]
    return np.asarray(found).reshape(-1, *found.shape[-3:])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each model once: transformers' own, and ours."""
    made: dict[str, tuple[Any, Model]] = {}

    def of(name: str) -> tuple[Any, Model]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            theirs = vision_models.save(folder, name)
            made[name] = theirs, models.load(folder, SETTINGS)
        return made[name]

    return of


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CONFIGS)
def test_pixels_equal_those_of_transformers(name: str, size: tuple[int, int]) -> None:
    vision, picture = description(name), image(*size)
    for detail, changes in (("auto", {}), ("low", {"do_image_splitting": False})):
        found = preprocess(picture, vision, detail)
        assert found.pixels.dtype == np.uint8
        np.testing.assert_array_equal(normalise(found.pixels, vision.pixels), their_pixels(name, picture, **changes))


@pytest.mark.parametrize("name", CONFIGS)
def test_prompts_equal_those_of_transformers(name: str) -> None:
    module = importlib.import_module(f"transformers.models.{name}.processing_{name}")
    (kind,) = (getattr(module, each) for each in module.__all__ if each.endswith("Processor"))
    vision = description(name)
    gemma = f"\n\n<start_of_image>{'<image_soft_token>' * vision.tile_tokens}<end_of_image>\n\n"
    tokens = SimpleNamespace(
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        global_image_tag="<global-img>",
        global_image_token="<global-img>",
        image_seq_len=vision.tile_tokens,
        full_image_sequence=gemma,
    )
    for size in SIZES:
        found = preprocess(image(*size), vision)
        theirs = processor(name, return_row_col_info=True)(image(*size))
        expected = kind.replace_image_token(tokens, theirs, 0)
        assert replacement(vision, found) == expected
        assert expected.count(vision.tags.image) == found.embeddings
        assert found.tokens == len(re.findall(r"<|\n+", expected)) == image_token_count(*size, vision)


class Characters:
    """A tokenizer with a token for each name in brackets, and for line breaks in a row."""

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        found = [1] if add_special_tokens else []
        while text:
            end = text.index(">") + 1 if text.startswith("<") else len(text) - len(text.lstrip("\n"))
            found.append(1000 + sum(map(ord, text[:end])))
            text = text[end:]
        return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_placeholder_becomes_as_many_tokens_as_are_counted(name: str) -> None:
    vision = description(name)
    for size in SIZES:
        found = preprocess(image(*size), vision)
        ids = expand(vision, Characters(), found)
        assert len(ids) == found.tokens
        assert ids.count(vision.tags.image_id) == found.embeddings


def embeddings_of(theirs: Any, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.no_grad():
        cut = theirs.config.model_type in CUT  # takes the tiles of several images
        found = theirs.get_image_features(torch.tensor(pixels)[None] if cut else torch.tensor(pixels)).pooler_output
    return torch.cat(list(found)).reshape(-1, found[0].shape[-1]).numpy()


@pytest.mark.parametrize("name", CONFIGS)
def test_embeddings_equal_those_of_transformers(name: str, served: Any) -> None:
    theirs, ours = served(name)
    for size in ((100, 70), (300, 500), (10, 400)):
        found = preprocess(image(*size), ours.tower.vision)
        expected = embeddings_of(theirs, their_pixels(name, image(*size)))
        close = 1e-4 * np.abs(expected).max()
        np.testing.assert_allclose(ours.tower.encode(found.pixels, found.grid), expected, atol=close)


def with_image(ours: Model, found: PreparedImage) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """A prompt with an image: token ids, and the rows of its embeddings."""
    token = ours.tower.vision.tags.image_id
    ids = np.array([*range(5, 35), *[token] * found.embeddings, *range(40, 50)], np.int32)
    return ids, np.flatnonzero(ids == token)


def seen_ends(vision: VisionDescription, rows: NDArray[np.intp], count: int) -> NDArray[np.int32] | None:
    """The end of what each row sees, where an image's tokens see each other both ways."""
    if vision.both_ways == "none":
        return None
    ends = np.arange(1, count + 1, dtype=np.int32)
    ends[rows] = rows[-1] + 1
    return ends


def logits_of(ours: Model, ids: NDArray[np.int32], rows: NDArray[np.intp], values: Any) -> NDArray[np.float32]:
    count = len(ids)
    batch = Batch(
        token_ids=ids,
        positions=np.arange(count, dtype=np.int32),
        row_starts=np.array([0, count], np.int32),
        block_tables=tables_of_one(ours.pools, -(-count // ours.block_size)),
        logit_rows=np.arange(max(0, count - ours.max_logit_rows), count, dtype=np.int32),
        embedding_rows=rows.astype(np.int32),
        embedding_values=values,
        seen_ends=seen_ends(ours.tower.vision, rows, count),
    )
    return np.array(ours.run(batch))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(name: str, served: Any) -> None:
    theirs, ours = served(name)
    found = preprocess(image(300, 500), ours.tower.vision)
    ids, rows = with_image(ours, found)
    with torch.no_grad():
        pixels = torch.tensor(their_pixels(name, image(300, 500)))
        inputs = {"input_ids": torch.tensor(ids)[None].long(), "pixel_values": pixels[None] if name in CUT else pixels}
        if ours.tower.vision.both_ways != "none":
            inputs["token_type_ids"] = (inputs["input_ids"] == ours.tower.vision.tags.image_id).long()
        expected = theirs(**inputs).logits[0].numpy()
    logits = logits_of(ours, ids, rows, ours.tower.encode(found.pixels, found.grid))
    np.testing.assert_allclose(logits, expected[-len(logits) :], atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", CONFIGS)
def test_text_is_served_as_before_between_the_parts_of_an_image(name: str, served: Any) -> None:
    theirs, ours = served(name)
    ids = prompt(120)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(ids)[None].long()).logits[0].numpy()
    before = run_rows(ours, ids)
    np.testing.assert_allclose(before, expected, atol=1e-4 * np.abs(expected).max())
    found = preprocess(image(300, 500), ours.tower.vision)
    whole, parts = ours.tower.encode(found.pixels, found.grid), []
    for part in ours.tower.encode_steps(found):
        parts.append(part)
        np.testing.assert_array_equal(run_rows(ours, ids), before)
    assert all(part is None for part in parts[:-1])
    assert len(parts) > ours.tower.vision.layers.count
    np.testing.assert_array_equal(parts[-1], whole)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tile_has_the_same_bits_alone_and_with_others(name: str, served: Any) -> None:
    _, ours = served(name)
    found = preprocess(image(300, 500), ours.tower.vision)
    whole = ours.tower.encode(found.pixels, found.grid)
    alone = [ours.tower.encode(found.pixels[i : i + 1], found.grid) for i in range(len(found.pixels))]
    np.testing.assert_array_equal(np.concatenate(alone), whole)


@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_a_packed_tower_is_close_to_the_whole_one(precision: Any, tmp_path: Path) -> None:
    """In int4 a tower is int8: of these random weights that is an error of a hundredth of the largest number."""
    vision_models.save(tmp_path, "smolvlm")
    towers = [
        models.load(tmp_path, models.ModelSettings(precision=each, kv_tokens=2048, cache_bytes=0)).tower
        for each in ("float32", precision)
    ]
    found = preprocess(image(200, 100), towers[0].vision)
    exact, close = (tower.encode(found.pixels, found.grid) for tower in towers)
    assert np.abs(exact - close).max() < 0.02 * np.abs(exact).max()
    assert np.abs(exact - close).max() > 0


def test_files_without_a_tower_are_text_alone(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    vision_models.save(tmp_path, "smolvlm")
    whole = models.load(tmp_path, SETTINGS)
    path = tmp_path / "model.safetensors"
    text = {name: each for name, each in load_file(path).items() if "vision_model" not in name}
    save_file({name: each for name, each in text.items() if "connector" not in name}, path)
    alone = models.load(tmp_path, SETTINGS)
    assert alone.tower is None
    assert alone.card.vision is None
    np.testing.assert_array_equal(run_rows(alone, prompt(120)), run_rows(whole, prompt(120)))


def test_a_half_tower_is_refused_by_the_missing_tensor(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    vision_models.save(tmp_path, "smolvlm")
    path = tmp_path / "model.safetensors"
    kept = {name: each for name, each in load_file(path).items() if "layers.2.mlp.fc1" not in name}
    save_file(kept, path)
    with pytest.raises(ModelError, match=r"encoder\.layers\.2\.mlp\.fc1\.weight is missing"):
        models.load(tmp_path, SETTINGS)


HOSTILE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "tower that is no object": ({"vision_config": "siglip"}, {}, "vision_config must be an object"),
    "four channels": ({"vision_config": {"num_channels": 4}}, {}, "num_channels must be 3, got 4"),
    "heads that do not divide": ({"vision_config": {"num_attention_heads": 7}}, {}, "not a multiple of num_attention"),
    "patches that do not divide": ({"vision_config": {"patch_size": 15}}, {}, "multiple of patch_size 15"),
    "tile of a gigapixel": ({"vision_config": {"image_size": 14 << 20}}, {}, "up to 4096, got"),
    "layers without end": ({"vision_config": {"num_hidden_layers": 500}}, {}, "num_hidden_layers must be at most 256"),
    "unknown activation": ({"vision_config": {"hidden_act": "mish"}}, {}, "hidden_act 'mish' is not supported"),
    "squares that do not divide": ({"scale_factor": 3}, {}, "cannot be joined 3 by 3"),
    "image token that is a word": ({"image_token_id": "<image>"}, {}, "image_token_id must be a token id"),
    "tiles of another size": ({}, {"max_image_size": {"longest_edge": 64}}, "max_image_size 64 differs"),
    "tiles without end": ({}, {"size": {"longest_edge": 4000}}, "more than 256 tiles"),
    "size without sense": ({}, {"size": 448}, "size must be an object"),
    "no resizing": ({}, {"do_resize": False}, "do_resize = false is not supported"),
    "unknown resampling": ({}, {"resample": 9}, "resample 9 is not supported"),
    "resampling that is a flag": ({}, {"resample": True}, "resample True is not supported"),
    "two channels": ({}, {"image_mean": [0.5, 0.5]}, "image_mean must be three numbers"),
    "deviation of nothing": ({}, {"image_std": [0.0, 0.5, 0.5]}, "image_std must be three numbers"),
    "levels that are no number": ({}, {"rescale_factor": "1/255"}, "rescale_factor must be a positive number"),
}


@pytest.mark.parametrize(("changes", "prepared", "message"), HOSTILE.values(), ids=HOSTILE)
def test_configs_that_cannot_be_honoured_are_refused(
    changes: dict[str, Any], prepared: dict[str, Any], message: str
) -> None:
    config = CONFIGS["smolvlm"] | {key: value for key, value in changes.items() if key != "vision_config"}
    if isinstance(block := changes.get("vision_config", {}), dict):
        config = config | {"vision_config": config["vision_config"] | block}
    else:
        config = config | {"vision_config": block}
    with pytest.raises(ModelError, match=message):
        VisionDescription.from_config(config, PREPROCESSORS["smolvlm"] | prepared)


def test_a_config_without_images_has_no_description() -> None:
    assert VisionDescription.from_config({"model_type": "llama"}) is None
    assert VisionDescription.from_config({"model_type": "smolvlm", "text_config": {}}) is None


def test_images_that_are_none_are_refused() -> None:
    vision = description("smolvlm")
    with pytest.raises(ValueError, match="RGB"):
        preprocess(Image.new("L", (5, 5)), vision)
    with pytest.raises(ValueError, match="at least one pixel"):
        image_token_count(0, 5, vision)


def test_tiles_of_another_shape_are_refused(served: Any) -> None:
    tower: VisionTower = served("smolvlm")[1].tower
    with pytest.raises(ValueError, match="tiles must be"):
        tower.encode(np.zeros((1, 3, 28, 28), np.uint8), preprocess(image(5, 5), tower.vision).grid)


@pytest.mark.parametrize("name", CONFIGS)
def test_text_configs_are_read_by_their_own_family(name: str) -> None:
    spec = read_spec(CONFIGS[name])
    assert (spec.architecture, spec.tied) == (CONFIGS[name]["architectures"][0], CONFIGS[name]["tie_word_embeddings"])
    if name == "gemma3":
        return
    with pytest.raises(ModelError, match="model_type 'rwkv' is not supported; known: llama"):
        read_spec(CONFIGS[name] | {"text_config": {"model_type": "rwkv"}})
