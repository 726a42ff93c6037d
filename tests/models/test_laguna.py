"""What a Laguna's config may say of heads, gates and windows."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import VARIANTS

from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gates for each layer": ({"gating": "per-layer"}, "gating = 'per-layer' is not supported"),
    "gates that are a number": ({"gating": 1}, "gating = 1 is not supported"),
    "no gates": ({"gating": False}, "gating = False is not supported"),
    "gates of odd heads": ({"head_dim": 24}, "gates of heads of 24 numbers are not supported"),
    "heads that do not divide": ({"num_attention_heads_per_layer": [6, 4, 3]}, "each a multiple of 2"),
    "heads of other layers": ({"num_attention_heads_per_layer": [6, 4]}, "must have 3 numbers of heads"),
    "heads that are no list": ({"num_attention_heads_per_layer": 4}, "must have 3 numbers of heads"),
    "windows of nothing": ({"sliding_window": 0}, "sliding_window is 0"),
    "a router with a cap": ({"moe_router_logit_softcapping": 5.0}, "moe_router_logit_softcapping = 5.0"),
    "weights on inputs": ({"moe_apply_router_weight_on_input": True}, "moe_apply_router_weight_on_input = true"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(VARIANTS["laguna"] | change)


def test_each_layer_has_its_heads() -> None:
    spec = read_spec(VARIANTS["laguna"])
    assert [spec.of_layer(layer).query_width for layer in range(3)] == [192, 128, 64]
    assert [spec.of_layer(layer).gate_width for layer in range(3)] == [6, 4, 2]
    assert read_spec(VARIANTS["laguna"] | {"num_attention_heads_per_layer": [4, 4, 4]}).sizes == ()


def test_a_model_without_windows_may_say_that_they_are_of_nothing() -> None:
    """As Laguna M.1 does, whose layers all have full attention."""
    config = VARIANTS["laguna"] | {"sliding_window": 0, "layer_types": ["full_attention"] * 3}
    assert read_spec(config).windows == (0, 0, 0)
