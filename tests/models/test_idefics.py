"""Idefics against transformers: text, pixels, embeddings of images, prompts with images, and what files must have."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import idefics_models
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from same_tokens_with_images import require_equal_tokens
from test_hostile_configs import JUNK, NESTED_JUNK, check, places
from vision_models import image

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec
from dragoman.models.model import Model
from dragoman.models.parameters import parameter_count, seeing
from dragoman.models.settings import ModelSettings
from dragoman.models.spec import DecoderSpec
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import image_token_count
from dragoman.models.vision.preprocess import normalise, preprocess
from dragoman.models.vision.prompt import joined

torch = pytest.importorskip("torch")
SETTINGS = ModelSettings(precision="float32", kv_precision="float32", max_sequences=8, max_tokens=160, cache_bytes=0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model]:
    folder = tmp_path_factory.mktemp("idefics")
    return idefics_models.save(folder), models.load(folder, SETTINGS)


@pytest.mark.parametrize("size", [(100, 70), (56, 56), (1, 1), (10, 400), (640, 480)])
def test_pixels_are_those_of_transformers(size: tuple[int, int]) -> None:
    vision = idefics_models.description()
    prepared = preprocess(image(*size), vision)
    np.testing.assert_array_equal(
        normalise(prepared.pixels, vision.pixels)[0], idefics_models.their_pixels(image(*size))
    )
    assert (prepared.tokens, prepared.embeddings) == (3, 1)


def test_prompts_are_those_of_transformers() -> None:
    """An image has tags on both sides, of which two images side by side share one; spaces beside them are dropped."""
    vision, one = idefics_models.description(), preprocess(image(5, 5), idefics_models.description())
    tag = "<fake_token_around_image>"
    expected = f"User:{tag}<image>{tag}<image>{tag}What is it?"
    assert joined(vision, ["User: ", " ", " What is it? "], [one, one]) == expected
    assert joined(vision, [" no image "], []) == " no image "


PROMPTS = {
    "text": ((5, 6, 7, 8, 131, 9), ()),
    "first": ((0, *range(3, 20)), ((100, 70),)),
    "two": ((*range(3, 60), 131, 0, 131, 5, 6, 7, 0, *range(9, 40)), ((100, 70), (50, 170))),
    "side by side": ((3, 0, 0, *range(9, 40), 131, 0, 131, 0, 5, 6), ((100, 70), (50, 170), (60, 60), (9, 9))),
    "text that ends": ((3, 0, 5, 2), ((100, 70),)),
    "several texts": ((3, 0, 5, 2, 6, 7, 2, 8, 0, 0, 9, 2, 5, 0, 7), ((100, 70), (50, 170), (60, 60), (9, 9))),
}
"""Tokens, of which 0 is an image, and 2 the end of a text."""


@pytest.mark.parametrize("name", PROMPTS)
def test_logits_and_greedy_tokens_are_those_of_transformers(name: str, served: tuple[Any, Model]) -> None:
    require_equal_tokens(*served, idefics_models, *PROMPTS[name])


OPTIONS: dict[str, dict[str, Any]] = {
    "numbers as gates, no resampler": {"alpha_type": "float", "use_resampler": False, "cross_layer_interval": 1},
    "no norms of heads, tied": {"qk_layer_norms": False, "tie_word_embeddings": True, "cross_layer_interval": 4}
    | {"perceiver_config": idefics_models.CONFIG["perceiver_config"] | {"qk_layer_norms_perceiver": False}},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_are_those_of_transformers(options: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = idefics_models.save(tmp_path, **options), models.load(tmp_path, SETTINGS)
    require_equal_tokens(theirs, ours, idefics_models, *PROMPTS["two"])
    assert ours.card.parameter_count == _theirs_counted(theirs)


def test_embeddings_are_those_of_transformers(served: tuple[Any, Model]) -> None:
    theirs, ours = served
    assert ours.tower is not None
    prepared = preprocess(image(100, 70), ours.tower.vision)
    found = ours.tower.encode(prepared.pixels, prepared.grid)
    with torch.no_grad():
        pixels = torch.tensor(idefics_models.their_pixels(image(100, 70)))[None]
        expected = theirs.model.perceiver_resampler(theirs.model.vision_model(pixels).last_hidden_state)[0].numpy()
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_files_without_a_tower_are_text_alone(tmp_path: Path) -> None:
    """Their layers between the others have networks, which all tokens pass."""
    theirs = idefics_models.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    left = {name: value for name, value in weights.items() if "vision_model" not in name and "perceiver" not in name}
    save_file(left, tmp_path / "model.safetensors")
    ours = models.load(tmp_path, SETTINGS)
    assert ours.tower is None
    require_equal_tokens(theirs, ours, idefics_models, *PROMPTS["text"])
    save_file(
        left | {"model.perceiver_resampler.latents": np.zeros((9, 48), np.float32)}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ModelError, match="missing"):
        models.load(tmp_path, SETTINGS)


def _theirs_counted(model: Any) -> int:
    unused = "vision_model.post_layernorm"  # of a vector that no decoder sees
    return sum(p.numel() for name, p in model.named_parameters() if unused not in name)


PUBLISHED = {
    "Idefics 9B": ({"cross_layer_interval": 4, "qk_layer_norms": True, "additional_vocab_size": 2}, 8_929_677_072),
    "Idefics 80B": (
        {"cross_layer_interval": 4, "qk_layer_norms": True, "additional_vocab_size": 2, "alpha_type": "vector"}
        | {"hidden_size": 8192, "intermediate_size": 22016, "num_hidden_layers": 80, "num_attention_heads": 64},
        79_968_168_704,
    ),
}


@pytest.mark.parametrize(("config", "count"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_models_have_their_number_of_parameters(config: dict[str, Any], count: int) -> None:
    transformers = pytest.importorskip("transformers")
    tower = {"embed_dim": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16}
    config = config | {"architectures": ["IdeficsForVisionText2Text"], "model_type": "idefics", "vision_config": tower}
    config |= {"use_resampler": True, "perceiver_config": {"qk_layer_norms_perceiver": True}}
    spec = _described(config | {"image_token_id": 32001}, {})
    with torch.device("meta"):
        theirs = transformers.IdeficsForVisionText2Text(transformers.AutoConfig.for_model(**copy.deepcopy(config)))
    assert parameter_count(spec) == _theirs_counted(theirs) == count


HOSTILE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "layers that do not divide": ({"cross_layer_interval": 3}, {}, "4 is not a multiple of cross_layer_interval 3"),
    "no interval": ({"cross_layer_interval": 0}, {}, "cross_layer_interval must be a positive integer"),
    "unknown gates": ({"alpha_type": "matrix"}, {}, "alpha_type 'matrix' is not supported; known: float, vector"),
    "tokens that are no number": ({"additional_vocab_size": "2"}, {}, "additional_vocab_size must be a positive"),
    "heads of another size": ({"head_dim": 24}, {}, "head_dim = 24 is not supported"),
    "norms that are no flag": ({"qk_layer_norms": "yes"}, {}, "qk_layer_norms must be true or false"),
    "resampler that is no flag": ({"use_resampler": 1}, {}, "use_resampler must be true or false"),
    "heads without end": ({"perceiver_config": {"resampler_n_heads": 500}}, {}, "500 heads of 96 numbers, 6 layers"),
    "another side": ({}, {"image_size": 224}, "images of 224 pixels differ from the tower's image_size 56"),
    "another size": ({}, {"image_size": None, "size": {"height": 56, "width": 28}}, "size must be a square"),
    "no resizing": ({}, {"do_resize": False}, "do_resize = false is not supported"),
    "end that is a word": ({"eos_token_id": "</s>"}, {}, "eos_token_id must be a token id"),
    "image token that is a word": ({"image_token_id": "<image>"}, {}, "image_token_id must be a token id"),
    "no image token": ({"image_token_id": None}, {}, "image_token_id is missing"),
}


def _described(config: dict[str, Any], preprocessor: dict[str, Any]) -> DecoderSpec:
    return seeing(read_spec(config), VisionDescription.from_config(config, preprocessor))


@pytest.mark.parametrize(("changes", "prepared", "message"), HOSTILE.values(), ids=HOSTILE)
def test_configs_that_cannot_be_honoured_are_refused(
    changes: dict[str, Any], prepared: dict[str, Any], message: str
) -> None:
    config = idefics_models.CONFIG | changes
    with pytest.raises(ModelError, match=message):
        _described(config, idefics_models.PREPROCESSOR | prepared)


def test_junk_in_any_field_is_refused_or_has_no_effect() -> None:
    preprocessor = idefics_models.PREPROCESSOR | {"size": {"height": 56, "width": 56}, "image_mean": [0.5] * 3}
    extra = {"head_dim": 16, "rope_parameters": None, "num_key_value_heads": 2, "rope_scaling": None}
    for place in [*places(extra | idefics_models.CONFIG), *(("", *each) for each in places(preprocessor))]:
        for junk in (*JUNK, *NESTED_JUNK):
            both = {"": copy.deepcopy(preprocessor)} | copy.deepcopy(idefics_models.CONFIG)
            inner: Any = both
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = copy.deepcopy(junk)
            prepared = both.pop("")
            with suppress(ModelError):
                check(read_spec(both))
                found = _described(both, prepared)
                check(found)
                assert found.vision is None or image_token_count(640, 480, found.vision) == 3


def test_the_image_token_is_found_in_the_tokenizer(tmp_path: Path) -> None:
    idefics_models.save(tmp_path)
    config = {key: value for key, value in idefics_models.CONFIG.items() if key != "image_token_id"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="image_token_id is missing"):
        models.describe(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<fake_token_around_image>": 131, "<image>": 132}))
    vision = models.describe(tmp_path).spec.vision
    assert vision is not None
    assert vision.tags.image_id == 132
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<image>": 133}))
    with pytest.raises(ModelError, match="image token 133 is beyond the vocabulary of 133"):
        models.describe(tmp_path)
