"""What a config.json may say: every supported variant is read, everything else is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from small_models import SCALED, VARIANTS, make_models

from dragoman.core.errors import ModelError
from dragoman.models.families import FAMILIES, read_spec
from dragoman.models.spec import parameters


@pytest.mark.parametrize("name", VARIANTS)
def test_spec_asks_for_as_many_numbers_as_the_checkpoint_has(name: str) -> None:
    shapes = make_models.tensor_shapes(VARIANTS[name]).values()
    assert read_spec(VARIANTS[name]).parameter_count == sum(int(make_models.np.prod(shape)) for shape in shapes)


def _llama(width: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
    } | more


PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama 2 7B": (_llama(4096, 32, 32, 32, 11008, 32000, rope_scaling=None, pretraining_tp=1), 6_738_415_616),
    "Llama 3.1 8B": (_llama(4096, 32, 32, 8, 14336, 128256, rope_theta=500000.0), 8_030_261_248),
    "Mistral 7B": (
        _llama(4096, 32, 32, 8, 14336, 32000, architectures=["MistralForCausalLM"], sliding_window=4096),
        7_241_732_096,
    ),
    "Qwen2.5 7B": (
        _llama(3584, 28, 28, 4, 18944, 152064, architectures=["Qwen2ForCausalLM"], use_sliding_window=False),
        7_615_616_512,
    ),
    "Qwen3 0.6B": (
        _llama(1024, 28, 16, 8, 3072, 151936, architectures=["Qwen3ForCausalLM"], head_dim=128, sliding_window=None)
        | {"tie_word_embeddings": True},
        596_049_920,
    ),
    "GPT-2": (
        {"architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
        124_439_808,
    ),
}


@pytest.mark.parametrize(("config", "count"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_models_have_their_published_number_of_parameters(config: dict[str, Any], count: int) -> None:
    assert read_spec(config).parameter_count == count


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_of_a_family_has_a_name_in_its_checkpoints(family: str) -> None:
    spec = read_spec(next(config for config in VARIANTS.values() if config["architectures"] == [family]))
    untied = dataclasses.replace(spec, tied=False)
    assert {parameter.module for parameter in parameters(untied)} == set(FAMILIES[family].names) - (
        {"query_norm", "key_norm"} if not spec.head_norm else set()
    )


def test_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ModelError, match=r"MambaForCausalLM is not supported; known: LlamaForCausalLM, .*GPT2LMHeadModel"
    ):
        read_spec({"architectures": ["MambaForCausalLM"], "model_type": "mamba"})


def test_model_type_stands_in_for_a_missing_architecture() -> None:
    config = {key: value for key, value in VARIANTS["qwen2"].items() if key != "architectures"}
    assert read_spec(config).architecture == "Qwen2ForCausalLM"


def test_rope_parameters_block_of_newer_configs_is_read() -> None:
    old = VARIANTS["llama"] | {"rope_theta": 777.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = VARIANTS["llama"] | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0}}
    assert read_spec(old).ropes == read_spec(new).ropes


def test_scaling_extends_the_context() -> None:
    contexts = {name: read_spec(config).context for name, config in SCALED.items()}
    assert set(contexts.values()) == {256}


def test_whole_context_window_of_mistral_defaults_as_transformers_does() -> None:
    config = {key: value for key, value in VARIANTS["mistral"].items() if key != "sliding_window"}
    assert read_spec(config).windows == (4096,) * 3


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "code of its own": ("llama", {"auto_map": {"AutoModelForCausalLM": "x.Y"}}, "auto_map"),
    "partial rotation": ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "unknown activation": ("llama", {"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
    "unknown scaling": ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope'"),
    "multimodal rope": ("qwen2", {"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}, "'mrope'"),
    "unknown key of a scaling": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "warp": 1}}, "warp"),
    "incomplete scaling": ("llama", {"rope_scaling": {"type": "linear"}}, "factor"),
    "factor that is no number": ("llama", {"rope_scaling": {"type": "linear", "factor": "2"}}, "factor must be"),
    "rope for each layer type": ("qwen3", {"rope_parameters": {"full_attention": {}}}, "each layer type"),
    "alternating attention": ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types"),
    "unknown layer type": (
        "qwen2",
        {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 3},
        "layer_types must name",
    ),
    "too few layer types": ("qwen2", {"use_sliding_window": True, "layer_types": ["full_attention"]}, "3 layers"),
    "cross-attention": ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    "encoder": ("gpt2", {"is_encoder_decoder": True}, "is_encoder_decoder"),
    "heads that do not divide": ("llama", {"num_attention_heads": 5}, "5 query heads cannot share 2"),
    "width that does not divide": ("gpt2", {"n_head": 5}, "n_embd 48 is not a multiple of n_head 5"),
    "odd head": ("llama", {"head_dim": 15}, "head_dim 15 is odd"),
    "missing size": ("llama", {"hidden_size": None}, "hidden_size is missing"),
    "negative size": ("llama", {"vocab_size": -1}, "vocab_size must be a positive integer, got -1"),
    "size that is a flag": ("llama", {"num_hidden_layers": True}, "num_hidden_layers must be"),
    "flag that is a word": ("llama", {"attention_bias": "yes"}, "attention_bias must be true or false"),
    "experts": ("llama", {"num_local_experts": 8}, "num_local_experts"),
}


@pytest.mark.parametrize(("base", "change", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_refused_by_name(base: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        read_spec(VARIANTS[base] | change)
