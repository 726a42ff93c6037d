"""Shapes with recurrent layers, inputs of layers or experts: their checkpoints are what the readers expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.recurrent_shapes import MXFP4_BLOCK, RECURRENT_SHAPES, TENSORS, make_recurrent_model
from benchmarks.steps import batch_of
from dragoman import models
from dragoman.models.families import read_spec
from dragoman.models.limits import shape_of
from dragoman.models.parameters import parameter_count

PUBLISHED = {"lfm2-1.2b": 1_170_340_608, "gemma4-e2b": 4_628_569_379}

# Everything that a family's layers have, at sizes of nothing.
SMALL: dict[str, dict[str, Any]] = {
    "qwen3.5-0.8b": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "linear_num_key_heads": 2}
    | {"linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "head_dim": 32},
    "lfm2-1.2b": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "full_attn_idxs": [1]}
    | {"num_attention_heads": 4, "num_key_value_heads": 2},
    "granite4-350m-h": {"hidden_size": 48, "shared_intermediate_size": 96, "num_hidden_layers": 2}
    | {"layer_types": ["mamba", "attention"], "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 16},
    "gemma4-e2b": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 10, "num_kv_shared_layers": 5}
    | {"layer_types": [*["sliding_attention"] * 4, "full_attention"] * 2, "sliding_window": 64, "head_dim": 16}
    | {"global_head_dim": 32, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 131},
    "gpt-oss-4-layers": {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_local_experts": 4}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
}


@pytest.mark.parametrize("name", RECURRENT_SHAPES)
def test_a_checkpoint_has_the_parameters_of_its_config(name: str) -> None:
    config = RECURRENT_SHAPES[name]
    shapes = TENSORS[config["model_type"]](config)
    numbers = sum(
        int(np.prod(shape)) * (2 if tensor.endswith("_blocks") else 1)  # two numbers to a byte
        for tensor, shape in shapes.items()
        if not tensor.endswith("_scales")
    )
    assert MXFP4_BLOCK == 32
    assert numbers == parameter_count(read_spec(config)) == PUBLISHED.get(name, numbers)


@pytest.mark.parametrize("name", SMALL)
def test_a_model_is_made_and_runs(name: str, tmp_path: Path) -> None:
    make_recurrent_model(tmp_path, RECURRENT_SHAPES[name] | SMALL[name] | {"vocab_size": 131})
    model = models.load(str(tmp_path), models.ModelSettings(precision="int8", kv_bytes=1 << 22, max_context=256))
    logits = model.run(batch_of(2, 3, 40, model))
    assert logits.shape == (2, 131)
    assert np.isfinite(logits).all()
    shape = shape_of(models.describe(str(tmp_path)), "int8")
    assert shape.state_bytes == model.plan.bytes_per_state
    assert shape.kv_bytes == sum(group.bytes_per_token for group in model.plan.groups)
