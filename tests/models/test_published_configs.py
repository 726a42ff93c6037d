"""Configs as authors publish them: with names in other letters, sizes left out, and numbers that mean nothing."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import VARIANTS, Config

from dragoman.core.errors import ModelError
from dragoman.models.families import FAMILIES, read_spec
from dragoman.models.parameters import parameter_count, seeing
from dragoman.models.rope import Yarn


@pytest.mark.parametrize(
    ("variant", "published"),
    [
        ("mpt", "MPTForCausalLM"),
        ("phi-moe", "PhiMoEForCausalLM"),
        ("llama", "LLaMAForCausalLM"),
        ("ernie4.5", "Ernie4_5_ForCausalLM"),
    ],
)
def test_an_architecture_is_known_by_the_name_that_its_authors_write(variant: str, published: str) -> None:
    config = VARIANTS[variant]
    assert read_spec(config | {"architectures": [published]}) == read_spec(config)


def test_no_two_families_differ_in_the_case_of_their_letters_alone() -> None:
    assert len({name.lower() for name in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("variant", ["ministral3", "mistral4"])
def test_queries_do_not_grow_where_the_config_says_by_nothing(variant: str) -> None:
    """Devstral 2 has the field, and 0 in it."""
    block = VARIANTS[variant]["rope_parameters"]
    zero = VARIANTS[variant] | {"rope_parameters": block | {"llama_4_scaling_beta": 0.0}}
    assert read_spec(zero).query_scale is None
    assert read_spec(zero).ropes == read_spec(VARIANTS[variant]).ropes


def test_yarn_without_scales_of_amplitude_has_its_own() -> None:
    block = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}
    ropes = [
        read_spec(VARIANTS["llama"] | {"rope_scaling": block | {"mscale_all_dim": zero}}).ropes for zero in (0.0, None)
    ]
    assert ropes[0] == ropes[1]
    assert ropes[0][0] is not None
    scaling = ropes[0][0].scaling
    assert isinstance(scaling, Yarn)
    assert scaling.amplitude == pytest.approx(1.4158883)


def test_inner_width_of_mamba_counts_before_its_factor() -> None:
    """Falcon Mamba 7B says 16 of it, where the width is twice that of the model."""
    sizes: Config = {"hidden_size": 4096, "intermediate_size": 8192, "expand": 16, "num_hidden_layers": 64}
    config = {"architectures": ["FalconMambaForCausalLM"], "vocab_size": 65024, "state_size": 16, "time_step_rank": 256}
    assert parameter_count(read_spec(config | sizes | {"tie_word_embeddings": False})) == 7_272_665_088


def test_lfm2_names_its_inner_width_once() -> None:
    config: Config = {"architectures": ["Lfm2ForCausalLM"], "hidden_size": 2048, "block_ff_dim": 12288}
    config |= {"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536}
    config |= {"full_attn_idxs": [2, 5, 8, 10, 12, 14]}
    assert parameter_count(read_spec(config)) == 1_170_340_608


@pytest.mark.parametrize(
    ("architecture", "text", "count"),
    [
        (
            "LlavaNextForConditionalGeneration",
            {"model_type": "granite", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40}
            | {"num_key_value_heads": 8, "vocab_size": 49156, "tie_word_embeddings": True},
            2_533_533_696,
        ),
        (
            "InternVLForConditionalGeneration",
            {"model_type": "qwen3", "intermediate_size": 12288, "num_hidden_layers": 36, "num_key_value_heads": 8}
            | {"head_dim": 128},
            7_568_405_504,
        ),
    ],
)
def test_text_config_leaves_out_what_transformers_has_by_default(
    architecture: str, text: dict[str, Any], count: int
) -> None:
    """Granite Vision says nothing of its 32 heads."""
    spec = read_spec({"architectures": [architecture], "text_config": text})
    assert parameter_count(seeing(spec, None)) == count


def test_a_minimax_reads_the_same_under_its_published_names() -> None:
    """Those of MiniMax Text-01 and M1, whose heads are rotated in part."""
    newer = VARIANTS["minimax"]
    names = {"full_attn": "full_attention", "linear_attn": "linear_attention", "mlp": "mlp"}
    factors = {
        f"layernorm_{published}_{which}": newer[f"{name}_{which}_factor"]
        for name, published in names.items()
        for which in ("alpha", "beta")
    }
    kept = {key: value for key, value in newer.items() if not key.endswith("_factor") and key != "layer_types"}
    older = kept | factors | {"attn_type_list": [0, 1, 0], "postnorm": True, "shared_intermediate_size": 0}
    for architecture in ("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"):
        assert read_spec(older | {"architectures": [architecture]}) == read_spec(newer)
    assert {rope.dim for rope in read_spec(older | {"rotary_dim": 10}).ropes if rope} == {10}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"postnorm": False}, "postnorm = false"),
        ({"shared_intermediate_size": 50}, "shared_intermediate_size = 50"),
        ({"layer_types": None, "attn_type_list": [0, 1]}, "attn_type_list must have 3 numbers"),
        ({"layer_types": None, "attn_type_list": [0, 2, 1]}, "attn_type_list must have 3 numbers"),
        ({"layer_types": ["linear_attention"] * 3}, "layers without full attention"),
        ({"rotary_dim": 22}, "rotary_dim 22 must be even and at most"),
        ({"mlp_alpha_factor": 0}, "mlp_alpha_factor must be a positive number"),
    ],
)
def test_a_minimax_that_is_another_is_refused(change: Config, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(VARIANTS["minimax"] | change)
