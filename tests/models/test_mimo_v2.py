"""What a config of MiMo-V2-Flash may say, in the names of transformers and in those of the published one."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import VARIANTS

from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec

BASE = VARIANTS["mimo-v2"]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "values wider than keys": ({"v_head_dim": 128}, "values of 128 numbers"),
    "narrow values of another size": ({"v_head_dim": 40}, "both multiples of 32"),
    "narrow values beside odd keys": ({"head_dim": 80, "v_head_dim": 64}, "both multiples of 32"),
    "other heads with a window": ({"swa_num_attention_heads": 2}, "swa_num_attention_heads = 2"),
    "other keys with a window": ({"swa_head_dim": 64}, "swa_head_dim = 64"),
    "other values with a window": ({"swa_v_head_dim": 32}, "swa_v_head_dim = 32"),
    "heads that do not divide": ({"swa_num_key_value_heads": 3}, "4 query heads cannot share 3"),
    "sinks in all layers": ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias = true"),
    "no sinks": ({"add_swa_attention_sink_bias": False}, "add_swa_attention_sink_bias = false"),
    "a shared expert": ({"n_shared_experts": 1}, "n_shared_experts = 1"),
    "a pattern of other layers": ({"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern must have 3 numbers"),
    "a pattern in words": ({"moe_layer_freq": ["a"] * 3}, "moe_layer_freq must have 3 numbers"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(BASE | change)


def test_the_published_names_say_the_same() -> None:
    newer = BASE | {
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "sliding_window": 21,
        "rms_norm_eps": 1e-4,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
            for kind, theta in (("full_attention", 3000.0), ("sliding_attention", 500.0))
        },
    }
    older = {key: value for key, value in BASE.items() if key != "rms_norm_eps"} | {
        "hybrid_layer_pattern": [0, 1, 0],
        "moe_layer_freq": [1, 0, 1],
        "sliding_window": 20,
        "sliding_window_size": 20,
        "layernorm_epsilon": 1e-4,
        "rope_theta": 3000.0,
        "swa_rope_theta": 500.0,
        "partial_rotary_factor": 0.5,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 96,
        "n_shared_experts": None,
    }
    assert read_spec(older) == read_spec(newer)


def test_layers_with_a_window_have_sinks_and_more_keys() -> None:
    spec = read_spec(BASE)
    assert [spec.has_sinks(layer) for layer in range(3)] == [False, True, True]
    assert [spec.of_layer(layer).kv_heads for layer in range(3)] == [1, 2, 2]
    assert spec.value_scale == 0.707
    assert read_spec(BASE | {"attention_value_scale": None}).value_scale == 1.0
