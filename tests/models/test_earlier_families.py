"""What configs of families from before Llama, and of those that learn from them, mean and may not mean."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from earlier_variants import EARLIER
from safetensors.numpy import load_file, save_file
from small_models import checkpoint_of, make_folder

from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec


def test_gpt_neo_has_windows_where_its_config_says_local() -> None:
    assert read_spec(EARLIER["gpt-neo"]).windows == (20, 0, 20)
    alone = {key: value for key, value in EARLIER["gpt-neo"].items() if key != "attention_types"}
    assert read_spec(alone | {"num_layers": 24}).windows == (0, 20) * 12
    with pytest.raises(ModelError, match="attention_types is missing"):
        read_spec(alone)


@pytest.mark.parametrize("kinds", [[[["global"], 2]], [[["global", "banded"], 2]], [["global", 3]], "global", [[], 3]])
def test_gpt_neo_without_a_known_kind_for_each_layer_is_refused(kinds: Any) -> None:
    with pytest.raises(ModelError, match=re.escape("attention_types must name 3 layers")):
        read_spec(EARLIER["gpt-neo"] | {"attention_types": kinds})


def test_buffers_of_old_checkpoints_are_no_weights(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, EARLIER["gpt-neo"])
    [file] = folder.glob("*.safetensors")
    mask = {"transformer.h.0.attn.attention.bias": np.ones((1, 1, 4, 4), np.uint8)}
    mask |= {"transformer.h.0.attn.attention.masked_bias": np.full((), -1e9, np.float32)}
    save_file(load_file(file) | mask, file)
    checkpoint_of(folder)


def test_nanochat_without_a_cap_has_none() -> None:
    assert read_spec(EARLIER["nanochat"]).output.softcap == 15.0
    assert read_spec(EARLIER["nanochat"] | {"final_logit_softcapping": None}).output.softcap == 0.0


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("codegen", "n_head", 2),
        ("codegen", "rotary_dim", 7),
        ("xglm", "add_cross_attention", True),
        ("xglm", "d_model", 63),
        ("persimmon", "hidden_act", "tanh"),
        ("gpt", "afn", "gelu_new"),
    ],
)
def test_other_mathematics_are_refused_by_name(name: str, field: str, value: object) -> None:
    with pytest.raises(ModelError, match=field):
        read_spec(json.loads(json.dumps(EARLIER[name] | {field: value})))
