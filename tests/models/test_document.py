"""docs/models.md says what the families do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_models import VARIANTS

from dragoman.core.errors import ModelError
from dragoman.models.docgen_models import fields_of, least_config, page
from dragoman.models.families import FAMILIES, MISSING, REFUSED, read_spec

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_has_a_title_and_an_example(architecture: str) -> None:
    family = FAMILIES[architecture]
    assert family.title
    assert family.examples
    assert all(example.count("/") == 1 for example in family.examples)


@pytest.mark.parametrize("architecture", MISSING)
def test_what_a_refused_architecture_needs_is_said(architecture: str) -> None:
    assert architecture not in FAMILIES
    with pytest.raises(
        ModelError, match=re.escape(f"{architecture} is not supported: it needs {MISSING[architecture]}")
    ):
        read_spec({"architectures": [architecture]})
    transformers = pytest.importorskip("transformers")
    assert hasattr(transformers, architecture)


# Read by others than the families, or no part of a decoder.
_ELSEWHERE = (
    {"architectures", "model_type", "pad_token_id", "vision_config", "mm_tokens_per_image", "audio_config"}
    | {
        "projection_hidden_size",
        "insert_layer_id",
        "audio_token_id",
        "audio_token_index",
        "alignment_intermediate_size",
        "high_res_vision_config",
        "projector_hidden_size",
        "spatial_target_layers",
        "qformer_config",
        "deepstack_layer_map",
        "downsample_rate",
    }
    | {
        f"{place}_token_{kind}"
        for place in ("image", "video", "boi", "eoi", "vision_start", "vision_end")
        for kind in ("index", "id")
    }
)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_option_that_the_tests_set_is_on_the_page(name: str) -> None:
    config = VARIANTS[name]
    asked = fields_of(FAMILIES[config["architectures"][0]])
    assert config.keys() - _ELSEWHERE <= asked.read | asked.refused.keys() | REFUSED.keys()


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_the_page_calls_refused_is_refused(architecture: str) -> None:
    config = least_config(FAMILIES[architecture]) | {"architectures": [architecture]}
    asked = fields_of(FAMILIES[architecture])
    for key in asked.refused.keys() - asked.read:
        with pytest.raises(ModelError, match=key):
            read_spec(config | {key: ["something else"]})
