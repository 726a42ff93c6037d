"""Llama 3.2 Vision against transformers: pixels, embeddings of images, and what the file must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mllama_models
import numpy as np
import pytest
from same_tokens_with_images import require_equal_tokens
from vision_models import image

from dragoman import models
from dragoman.models.model import Model
from dragoman.models.settings import ModelSettings
from dragoman.models.vision.parts import grids_of
from dragoman.models.vision.preprocess import normalise, preprocess

torch = pytest.importorskip("torch")

SIZES = ((100, 70), (300, 500), (56, 56), (57, 112), (1, 1), (10, 400), (400, 3), (640, 480), (60, 50), (112, 113))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model]:
    folder = tmp_path_factory.mktemp("mllama")
    theirs = mllama_models.save(folder)
    settings = ModelSettings(precision="float32", kv_precision="float32", max_sequences=8, max_tokens=160)
    return theirs, models.load(folder, settings)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_transformers(size: tuple[int, int]) -> None:
    vision = mllama_models.description()
    prepared = preprocess(image(*size), vision)
    theirs, number = mllama_models.their_pixels(image(*size))
    assert grids_of(4)[number - 1] == prepared.grid[:2]
    np.testing.assert_array_equal(normalise(prepared.pixels, vision.pixels), theirs)
    assert preprocess(image(*size), vision, "low").pixels.shape == (1, 3, 56, 56)


@pytest.mark.parametrize("size", [(56, 56), (100, 70), (10, 400), (300, 500)])
def test_embeddings_are_those_of_transformers(size: tuple[int, int], served: tuple[Any, Model]) -> None:
    theirs, ours = served
    assert ours.tower is not None
    prepared = preprocess(image(*size), ours.tower.vision)
    found = ours.tower.encode(prepared.pixels, prepared.grid)
    inputs = mllama_models.their_inputs([mllama_models.IMAGE], [image(*size)])
    with torch.no_grad():
        seen = theirs.model.vision_model(
            **{key: inputs[key] for key in ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")}
        )
        expected = theirs.model.multi_modal_projector(seen.last_hidden_state)[0, 0, : len(prepared.pixels)].numpy()
    expected = expected.reshape(-1, expected.shape[-1])
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


PROMPTS = {
    "text": ((5, 6, 7, 8), ()),
    "first": ((0, *range(3, 20)), ((100, 70),)),
    "two": ((*range(3, 60), 0, 5, 6, 7, 0, *range(9, 40)), ((100, 70), (50, 170))),
    "side by side": ((3, 0, 0, *range(9, 40), 0, 5, 6), ((100, 70), (50, 170), (60, 60))),
}
"""Tokens, of which 0 is an image."""


@pytest.mark.parametrize("name", PROMPTS)
def test_logits_and_greedy_tokens_are_those_of_transformers(name: str, served: tuple[Any, Model]) -> None:
    theirs, ours = served
    require_equal_tokens(theirs, ours, mllama_models, *PROMPTS[name])


def test_keys_and_values_in_int4_have_no_own_blocks(tmp_path: Path) -> None:
    """The layers that look at images share blocks with the others, which all are in int4."""
    mllama_models.save(tmp_path)
    ours = models.load(
        tmp_path, ModelSettings(precision="float32", kv_precision="int4", max_sequences=8, max_tokens=160)
    )
    assert [pool.own for pool in ours.pools] == [False]
    assert ours.tower is not None
    prepared = preprocess(image(100, 70), ours.tower.vision)
    rows = ours.tower.encode(prepared.pixels, prepared.grid)
    ours.write_image(rows, np.arange(-(-len(rows) // 32), dtype=np.int32))


def test_a_decoder_that_ends_with_a_layer_that_looks(tmp_path: Path) -> None:
    theirs = mllama_models.save(tmp_path, cross_attention_layers=[0, 5])
    ours = models.load(tmp_path, ModelSettings(precision="float32", kv_precision="float32", max_tokens=160))
    assert ours.config.vision is not None
    assert ours.config.vision.cross_attention_layers == (0, 4)
    require_equal_tokens(theirs, ours, mllama_models, *PROMPTS["two"])
