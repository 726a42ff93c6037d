"""Small models of every family, odd in every way a real one may be, and how to drive a loaded one."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import transformers_checkpoint
from earlier_variants import EARLIER, EARLIER_RARELY_JUDGED
from hybrid_variants import HYBRIDS
from latent_variants import LATENT
from newcomer_variants import NEWCOMERS, RARELY_JUDGED
from newer_variants import NEWER, ONLY_THOROUGH
from numpy.typing import NDArray
from variants import MADE_BY_TRANSFORMERS, Config

from dragoman.models import describe
from dragoman.models.batch import Batch, rows_of_slot
from dragoman.models.checkpoint import Checkpoint
from dragoman.models.families import FAMILIES
from dragoman.models.source import find_weights, open_files

_MAKER = Path(__file__).parents[2] / "benchmarks" / "make_models.py"
_spec = importlib.util.spec_from_file_location("make_models", _MAKER)
assert _spec is not None
assert _spec.loader is not None
make_models = importlib.util.module_from_spec(_spec)
sys.modules["make_models"] = make_models
_spec.loader.exec_module(make_models)

_MADE_HERE = ("llama", "mistral", "qwen2", "qwen3", "gpt2")

_LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 131,  # no multiple of 16
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
_MISTRAL = _LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
_QWEN2 = _LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
_QWEN3 = _LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 24}
_MIXTRAL = _LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "intermediate_size": 50,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rope_theta": 1000.0,
}
_QWEN2_MOE = _QWEN2 | {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 72,
    "num_experts": 6,
    "num_experts_per_tok": 3,
}
_QWEN3_MOE = _LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 24,
    "moe_intermediate_size": 33,
    "num_experts": 7,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
_OLMOE = _LLAMA | {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "intermediate_size": 40,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}
_GPT2: Config = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "vocab_size": 131,
}


def _scaled(**block: Any) -> Config:
    return _LLAMA | {"max_position_embeddings": 64, "rope_scaling": block}


VARIANTS: dict[str, Config] = (
    {
        "llama": _LLAMA,
        "llama-tied": _LLAMA | {"tie_word_embeddings": True, "num_key_value_heads": 4, "vocab_size": 160},
        "llama-one-kv-head": _LLAMA
        | {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 50},  # head_dim 10
        "llama-biases": _LLAMA | {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "intermediate_size": 50},
        "llama-gelu": _LLAMA | {"hidden_act": "gelu", "rope_theta": 500.0},
        "mistral": _MISTRAL,
        "mistral-window": _MISTRAL | {"sliding_window": 20, "head_dim": 32},
        "qwen2": _QWEN2,
        "qwen2-window": _QWEN2 | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
        "qwen2-layer-types": _QWEN2
        | {
            "use_sliding_window": True,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
        },
        "qwen3": _QWEN3,
        "qwen3-biases": _QWEN3 | {"attention_bias": True, "tie_word_embeddings": True, "head_dim": 10},
        "mixtral": _MIXTRAL,
        "mixtral-window": _MIXTRAL | {"sliding_window": 20, "num_local_experts": 3, "num_experts_per_tok": 1},
        "qwen2-moe": _QWEN2_MOE,
        "qwen2-moe-dense-layers": _QWEN2_MOE
        | {"decoder_sparse_step": 2, "norm_topk_prob": True, "qkv_bias": False, "num_hidden_layers": 4}
        | {"mlp_only_layers": [3], "tie_word_embeddings": True},
        "qwen3-moe": _QWEN3_MOE,
        "qwen3-moe-window": _QWEN3_MOE
        | {"norm_topk_prob": False, "attention_bias": True, "use_sliding_window": True, "sliding_window": 20}
        | {"mlp_only_layers": [1]},
        "olmoe": _OLMOE,
        "olmoe-biases": _OLMOE | {"norm_topk_prob": True, "attention_bias": True, "num_key_value_heads": 4},
        "gpt2": _GPT2,
        "gpt2-untied": _GPT2
        | {"tie_word_embeddings": False, "n_inner": 70, "n_head": 2, "activation_function": "relu"},
        "gpt2-scales": _GPT2 | {"scale_attn_by_inverse_layer_idx": True, "n_embd": 40},  # head_dim 10
    }
    | MADE_BY_TRANSFORMERS
    | NEWER
    | HYBRIDS
    | LATENT
    | NEWCOMERS
    | EARLIER
)

JUDGED = {
    name: config
    for name, config in VARIANTS.items()
    if name not in ONLY_THOROUGH | RARELY_JUDGED | EARLIER_RARELY_JUDGED or os.environ.get("DRAGOMAN_THOROUGH")
}
"""Variants that are held against transformers in every run."""

SCALED: dict[str, Config] = {
    "linear": _scaled(rope_type="linear", factor=4.0),
    "dynamic": _scaled(type="dynamic", factor=4.0),
    "llama3": _scaled(
        rope_type="llama3",
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )
    | {"max_position_embeddings": 256},
    "yarn": _scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
    "yarn-all": _scaled(
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=64,
        beta_fast=16,
        beta_slow=2,
        mscale=0.7,
        mscale_all_dim=0.4,
        truncate=False,
    ),
    "yarn-attention": _scaled(rope_type="yarn", factor=4.0, attention_factor=1.3),
}


def maker_of(config: Config) -> Callable[..., None]:
    """Return what writes a model of this kind as its repositories have it."""
    return make_models.make_model if config["model_type"] in _MADE_HERE else transformers_checkpoint.make_model


def make_folder(root: Path, config: Config, dtype: str = "F32", seed: int = 1, **options: Any) -> Path:
    """Write a small random model, its weights large enough for logits that differ clearly."""
    folder = root / f"{config['model_type']}-{dtype}"
    make = maker_of(config)
    make(folder, config | {"eos_token_id": 2, "bos_token_id": 1}, dtype=dtype, seed=seed, std=0.15, **options)
    return folder


def parameter_count(config: Config) -> int:
    """How many numbers a checkpoint of the config holds."""
    if config["model_type"] not in _MADE_HERE:
        return transformers_checkpoint.parameter_count(config)
    return sum(int(np.prod(shape)) for shape in make_models.tensor_shapes(config).values())


def checkpoint_of(folder: Path) -> Checkpoint:
    """The folder's weights, unpacked."""
    described = describe(folder)
    files = open_files(find_weights(described.source))
    return Checkpoint(files, FAMILIES[described.spec.architecture], described.spec)


def prompt(vocab: int, length: int = 45, seed: int = 0) -> NDArray[np.int32]:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, vocab, length).astype(np.int32)


def run_rows(
    model: Any,
    token_ids: NDArray[np.int32],
    start: int = 0,
    *,
    only_last: bool = False,
    blocks: NDArray[np.int64] | None = None,
    adapter: int = -1,
) -> NDArray[np.float32]:
    """Logits of ``token_ids`` from position ``start``; their sequence owns ``blocks``, or all in falling order, and
    runs with the adapter in the slot ``adapter``."""
    count = len(token_ids)
    if blocks is None:
        used = np.arange(-(-(start + count) // model.block_size))
        tables = np.stack([(pool.blocks - 1 - used % pool.blocks).astype(np.int32)[None] for pool in model.pools])
    else:
        tables = blocks.astype(np.int32)[None]
    rows = np.array([count - 1] if only_last else range(count), dtype=np.int32)
    batch = Batch(
        token_ids=token_ids,
        positions=np.arange(start, start + count, dtype=np.int32),
        row_starts=np.array([0, count], np.int32),
        block_tables=tables,
        logit_rows=rows,
        adapters=np.array([adapter], np.int32) if adapter >= 0 else None,
    )
    if model.num_states:
        batch = batch._replace(state_slots=np.zeros(1, np.int32), state_rows=rows_of_slot(count, 0))
    return np.array(model.run(batch))


def run_greedy(model: Any, token_ids: NDArray[np.int32], count: int) -> list[int]:
    """``count`` most likely tokens after the prompt, one step each."""
    made: list[int] = []
    logits = run_rows(model, token_ids, only_last=True)
    while True:
        made.append(int(logits[0].argmax()))
        if len(made) == count:
            return made
        logits = run_rows(model, np.array(made[-1:], np.int32), len(token_ids) + len(made) - 1, only_last=True)
