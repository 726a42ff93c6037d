"""Families that only their repositories' code computes: transformers' models of the same mathematics, with their
numbers under the published names, are the witness."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from small_models import VARIANTS, Config, make_folder, prompt, run_greedy, run_rows
from text_part_variants import UNMADE
from transformers_reference import assert_close, load_reference, reference_confirms

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec

SETTINGS = models.ModelSettings(precision="float32", max_tokens=256, max_logit_rows=256, max_sequences=1)
Tensors = dict[str, NDArray[Any]]


def renamed(tensors: Tensors, names: dict[str, str]) -> Tensors:
    """The tensors under other names: each pattern is replaced in turn."""
    found = {}
    for name, tensor in tensors.items():
        for pattern, replacement in names.items():
            name = re.sub(pattern, replacement, name)
        found[name] = tensor
    return found


def exaone(tensors: Tensors, config: Config) -> Tensors:
    return renamed(
        tensors,
        {
            r"^model\.embed_tokens": "transformer.wte",
            r"^model\.norm": "transformer.ln_f",
            r"^model\.layers": "transformer.h",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            r"self_attn\.o_proj": "self_attn.out_proj",
            "self_attn": "attn.attention",
            "gate_proj": "c_fc_0",
            "up_proj": "c_fc_1",
            "down_proj": "c_proj",
        },
    )


def internlm2(tensors: Tensors, config: Config) -> Tensors:
    found = renamed(
        tensors,
        {
            "embed_tokens": "tok_embeddings",
            "^lm_head": "output",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
            r"self_attn\.o_proj": "attention.wo",
            r"mlp\.gate_proj": "feed_forward.w1",
            r"mlp\.up_proj": "feed_forward.w3",
            r"mlp\.down_proj": "feed_forward.w2",
        },
    )
    kv_heads = config["num_key_value_heads"]
    for layer in range(config["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            names = [f"model.layers.{layer}.self_attn.{each}_proj.{kind}" for each in "qkv"]
            if names[0] not in found:
                continue
            parts = [found.pop(name) for name in names]
            groups = [part.reshape(kv_heads, -1, *part.shape[1:]) for part in parts]
            fused = np.concatenate(groups, axis=1)
            found[f"model.layers.{layer}.attention.wqkv.{kind}"] = fused.reshape(-1, *fused.shape[2:])
    return found


def mimo(tensors: Tensors, config: Config) -> Tensors:
    return tensors | {"model.mtp_layers.0.input_proj.weight": np.ones((4, 8), np.float32)}


def mimo_v2_5(tensors: Tensors, config: Config) -> Tensors:
    """One matrix for queries, keys and values, and parts for other senses."""
    found = renamed(tensors, {r"self_attn\.sinks": "self_attn.attention_sink_bias"})
    for layer in range(config["num_hidden_layers"]):
        attention = f"model.layers.{layer}.self_attn."
        found[f"{attention}qkv_proj.weight"] = np.concatenate(
            [found.pop(f"{attention}{each}_proj.weight") for each in "qkv"]
        )
    others = ("model.mtp.layers.0.eh_proj", "visual.merger.norm", "audio_encoder.norm", "speech_embeddings.0")
    return found | {f"{name}.weight": np.ones(4, np.float32) for name in others}


def ling(tensors: Tensors, config: Config) -> Tensors:
    found = renamed(
        tensors,
        {
            "embed_tokens": "word_embeddings",
            "e_score_correction_bias": "expert_bias",
            r"self_attn\.o_proj": "attention.dense",
            r"self_attn\.([qk])_norm": r"attention.\1_layernorm",
            r"\.q_layernorm": ".query_layernorm",
            r"\.k_layernorm": ".key_layernorm",
        },
    )
    for layer in range(config["num_hidden_layers"]):
        if f"model.layers.{layer}.self_attn.q_proj.weight" not in found:
            continue
        parts = [found.pop(f"model.layers.{layer}.self_attn.{each}_proj.weight") for each in "qkv"]
        found[f"model.layers.{layer}.attention.query_key_value.weight"] = np.concatenate(parts)
    return found


def phi4_multimodal(tensors: Tensors, config: Config) -> Tensors:
    adapter = np.ones((4, 64), np.float32)
    return renamed(tensors, {r"_proj\.weight": "_proj.base_layer.weight"}) | {
        "model.layers.0.self_attn.qkv_proj.lora_A.speech.weight": adapter,
        "model.embed_tokens_extend.image_embed.img_projection.0.weight": adapter,
    }


def nemotron_omni(tensors: Tensors, config: Config) -> Tensors:
    others = {"vision_model.radio_model.a.weight": np.ones((4, 4), np.float32), "mlp1.0.weight": np.ones(4, np.float32)}
    return {f"language_model.{name}": tensor for name, tensor in tensors.items()} | others


def minicpm(tensors: Tensors, config: Config) -> Tensors:
    return tensors


_ROPE: Config = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_ROPE |= {"original_max_position_embeddings": 32}
_GLM = VARIANTS["glm4-moe"] | {"attention_bias": False, "n_group": 3, "topk_group": 2}
MIMO_V2_5 = VARIANTS["mimo-v2"] | {
    "num_key_value_heads": 2,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "attention_value_scale": 0.612,
}

# Of each family: transformers' config, the change to its tensors.
CASES: dict[str, tuple[Config, Callable[[Tensors, Config], Tensors]]] = {
    "exaone": (VARIANTS["llama"] | {"rope_scaling": _ROPE, "hidden_act": "silu"}, exaone),
    "internlm2": (VARIANTS["llama"] | {"attention_bias": True}, internlm2),
    "minicpm": (
        VARIANTS["granite"]
        | {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / 3**0.5, "attention_multiplier": 0.25}
        | {"logits_scaling": 2.0, "tie_word_embeddings": True},
        minicpm,
    ),
    "phi4-multimodal": (VARIANTS["phi3"], phi4_multimodal),
    "nemotron-omni": (VARIANTS["nemotron-h"], nemotron_omni),
    "mimo": (VARIANTS["qwen2"], mimo),
    "mimo-v2.5": (MIMO_V2_5, mimo_v2_5),
    "ling": (_GLM | {"num_hidden_layers": 2}, ling),
}


@pytest.mark.parametrize("name", CASES)
def test_published_names_have_the_numbers_of_a_known_decoder(name: str, tmp_path: Path) -> None:
    theirs_config, change = CASES[name]
    folder = make_folder(tmp_path, theirs_config)
    theirs = load_reference(folder)
    [file] = folder.glob("*.safetensors")
    save_file(change(load_file(file), theirs_config), file)
    (folder / "config.json").write_text(json.dumps(UNMADE[name]))
    ours = models.load(folder, SETTINGS)
    ids = prompt(theirs_config["vocab_size"])
    expected = reference_confirms(theirs, ids, run_greedy(ours, ids, 64))
    assert_close(run_rows(ours, ids), expected, 1e-4)


def test_one_expert_is_none() -> None:
    """Hunyuan's dense models have the field."""
    assert read_spec(VARIANTS["hunyuan"] | {"num_experts": 1}) == read_spec(VARIANTS["hunyuan"])
    with pytest.raises(ModelError, match="num_experts"):
        read_spec(VARIANTS["hunyuan"] | {"num_experts": 2})


def test_sparse_attention_is_served_where_it_is_full() -> None:
    sparse = UNMADE["minicpm"] | {"sparse_config": {"kernel_size": 32, "dense_len": 100}}
    assert read_spec(sparse).context == 100
    assert read_spec(UNMADE["minicpm"]).context == 256


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("ling", "score_function", "softmax"),
        ("ling", "use_qk_norm", False),
        ("ling", "moe_shared_expert_intermediate_size", 7),
        ("mimo", "attention_bias", False),
        ("minicpm", "num_experts", 8),
        ("exaone", "activation_function", "tanh"),
    ],
)
def test_other_mathematics_are_refused_by_name(name: str, field: str, value: object) -> None:
    with pytest.raises(ModelError, match=field):
        read_spec(UNMADE[name] | {field: value})
