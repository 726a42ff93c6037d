"""Zamba 1 and 2: what their configs may say, and how their files hold blocks that layers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_models import VARIANTS, make_folder, prompt, run_rows

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "without layers": ({"layers_block_type": None}, "layers_block_type is missing"),
    "without blocks": ({"layers_block_type": ["mamba"] * 5}, "layers_block_type names no hybrid"),
    "whose blocks are not shared": ({"tie_word_embeddings": False}, "tie_word_embeddings = false"),
    "with products of other shapes": ({"use_shared_attention_adapter": True}, "with fewer key-value"),
    "with a long context": ({"use_long_context": True}, "use_long_context = true"),
    "with heads of a part": ({"num_attention_heads": 6}, "is no multiple of num_attention_heads 6"),
    "heads that do not divide": ({"num_key_value_heads": 3}, "cannot share 3 key-value heads"),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        read_spec(VARIANTS["zamba2"] | change)


REFUSED_1: dict[str, tuple[dict[str, Any], str]] = {
    "without blocks": ({"layers_block_type": ["mamba"] * 5}, "layers_block_type names no hybrid"),
    "with a kind that is not known": ({"layers_block_type": ["moe"] * 5}, "layers_block_type"),
    "whose block is not shared": ({"tie_word_embeddings": False}, "tie_word_embeddings = false"),
    "with other inputs of attention": ({"attention_hidden_size": 64}, "attention_hidden_size = 64"),
    "heads that do not divide": ({"num_key_value_heads": 3}, "cannot share 3 key-value heads"),
    "heads of unequal channels": ({"n_mamba_heads": 3}, "128 is no multiple of n_mamba_heads 3"),
    "with another activation": ({"hidden_mamba_act": "gelu"}, "hidden_mamba_act 'gelu' is not supported"),
}


@pytest.mark.parametrize(("change", "said"), REFUSED_1.values(), ids=REFUSED_1)
def test_what_cannot_be_served_of_zamba_1_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        read_spec(VARIANTS["zamba"] | change)


def test_layers_with_a_block_are_those_that_transformers_takes() -> None:
    shared = read_spec({"architectures": ["ZambaForCausalLM"]}).shared_blocks
    assert shared is not None
    assert shared.layers == (2, *range(7, 76, 6))


def test_matrices_of_heads_are_as_many_as_heads(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["zamba"])
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mamba.x_proj_weight"
    save_file(weights | {name: weights[name][:1]}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"x_proj_weight: its shape \[1, 28, 64\] is not that of 2 matrices"):
        models.load(folder, models.ModelSettings(precision="float32", max_tokens=64, kv_tokens=288, cache_bytes=0))


def test_copies_of_shared_blocks_are_passed_over(tmp_path: Path) -> None:
    """As transformers does, which reads a block in its first layer alone."""
    folder = make_folder(tmp_path, VARIANTS["zamba2"])
    settings = models.ModelSettings(precision="float32", max_tokens=64, kv_tokens=288, cache_bytes=0)
    expected = run_rows(models.load(folder, settings), prompt(131))
    weights = load_file(folder / "model.safetensors")
    block = {name: value for name, value in weights.items() if "layers.1.shared_transformer." in name}
    assert len(block) == 12
    save_file(
        weights | {name.replace(".1.", ".4.", 1): value for name, value in block.items()}, folder / "model.safetensors"
    )
    np.testing.assert_array_equal(run_rows(models.load(folder, settings), prompt(131)), expected)
    save_file(
        weights | {name.replace(".1.", ".3.", 1): value for name, value in block.items()}, folder / "model.safetensors"
    )
    with pytest.raises(ModelError, match=r"layers\.3\.shared_transformer.* is not part of Zamba2ForCausalLM"):
        models.load(folder, settings)
