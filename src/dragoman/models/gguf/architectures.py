"""What llama.cpp's metadata and tensor names mean in the terms of our families.

An ``Architecture`` turns the metadata of a file into the ``config.json`` that its family reads, and the file's tensors
into those of the family's checkpoint: one table for the keys, one for the names, and what was done to the numbers.
The values of ``general.architecture`` and the keys are those of llama.cpp's ``gguf-py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.gguf.file import GgufFile
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.names import GPT2, LLAMA
from dragoman.models.gguf.tensors import GgufTensor

Config = dict[str, Any]
Tensors = Mapping[str, GgufTensor]
RowOrder = Callable[[Config, str], NDArray[np.int64] | None]

_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_BLOCK = re.compile(r"blk\.(\d{1,5})\.(.+)")
# Under the architecture's prefix, but without effect on what the model computes.
_INERT = ("vocab_size", "rope.scaling.finetuned", "use_parallel_residual", "tensor_data_layout")


def _in_order(config: Config, module: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One value of ``general.architecture``.

    Attributes:
        name: the class in ``config.json``; ``with_experts``: the one where the file has experts.
        names: tensor names, ``blk.N.`` as ``blk.``, to those of the family, ``{layer}`` for the number.
        sizes: metadata keys to config keys.
        extra: the rest of the config.
        row_order: from the config, the stored row of each row of a module (the name behind ``blk.N.``).
        norm_offset: what norms have more than in the family's checkpoints.
        rotary: has rotary positions, and keys that scale them.
        described: tensors that are part of the config, not of the checkpoint.
    """

    name: str
    model_type: str
    names: Mapping[str, str]
    extra: Callable[[Metadata, Tensors, Config], Config]
    sizes: Mapping[str, str] = field(default_factory=lambda: _SIZES)
    row_order: RowOrder = _in_order
    norm_offset: float = 0.0
    rotary: bool = True
    described: frozenset[str] = frozenset({"rope_freqs.weight"})


def find_architecture(file: GgufFile) -> tuple[str, Architecture]:
    """The architecture of a file and its name there. Raises ModelError naming the known ones."""
    metadata = Metadata(file)
    kind = metadata.text("general.type", "model")
    if kind != "model":
        raise file.fail("general.type", f"is {kind!r}: it is not a model that can be served")
    name = metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        raise file.fail("general.architecture", f"{name!r} is not supported; known: {', '.join(ARCHITECTURES)}")
    return name, ARCHITECTURES[name]


def read_config(file: GgufFile, tensors: Tensors) -> Config:
    """The ``config.json`` of a file's model. Raises ModelError naming the key at fault, or one of no known meaning."""
    name, architecture = find_architecture(file)
    keys = Metadata(file, f"{name}.")
    if "token_embd.weight" not in tensors or len(tensors["token_embd.weight"].shape) != 2:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing, or no matrix")
    config: Config = {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    config |= {ours: keys.size(theirs) for theirs, ours in architecture.sizes.items()}
    if architecture.rotary:
        config["rope_theta"] = keys.number("rope.freq_base", 10_000.0)
        config["rope_scaling"] = _rope_scaling(keys, tensors)
    config |= architecture.extra(keys, tensors, config)
    for key in _INERT:
        keys.has(key)
    keys.refuse_others()
    return config


def family_name(architecture: Architecture, stored: str) -> str | None:
    """A tensor's name in the family's checkpoints; None for one of no known use."""
    module, _, kind = stored.rpartition(".")
    block = _BLOCK.fullmatch(module)
    key = f"blk.{block[2]}" if block else module
    if key not in architecture.names:
        return None
    return f"{architecture.names[key].format(layer=block[1] if block else '')}.{kind}"


def row_order(architecture: Architecture, config: Config, stored: str) -> NDArray[np.int64] | None:
    """For a tensor, the stored row of each row as the family has it; None: they are the same."""
    block = _BLOCK.fullmatch(stored.rpartition(".")[0])
    return architecture.row_order(config, block[2]) if block else None


def _rope_scaling(keys: Metadata, tensors: Tensors) -> Config | None:
    """The rotary scaling that the keys describe, or a tensor of divisors."""
    divisors = _divisors(tensors, "rope_freqs.weight")
    keys.refuse("rope.scaling.yarn_log_multiplier", 0.0)
    kind = keys.text("rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", 1.0)
    if kind == "none" and keys.has("rope.scale_linear"):  # before there were types
        kind, factor = "linear", keys.number("rope.scale_linear")
    if divisors is not None:
        if kind != "none":
            raise keys.file.fail("rope.scaling.type", f"{kind!r} is not supported beside tensor rope_freqs.weight")
        return {"rope_type": "divided", "divisors": divisors} if set(divisors) != {1.0} else None
    if kind == "linear" and factor != 1.0:
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn(keys, factor)
    if kind not in ("none", "linear", "longrope"):
        raise keys.file.fail("rope.scaling.type", f"{kind!r} is not supported; known: none, linear, yarn, longrope")
    return None


def _divisors(tensors: Tensors, name: str) -> list[float] | None:
    """What each pair's frequency is divided by; None where the file has no such tensor."""
    if name not in tensors:
        return None
    tensor = tensors[name]
    if len(tensor.shape) != 1 or tensor.shape[0] > 4096 or tensor.dtype != "float32":
        raise tensor.fail("is not a vector of float32")
    divisors = [float(str(divisor)) for divisor in tensor.read()]
    if not all(math.isfinite(divisor) and divisor > 0 for divisor in divisors):
        raise tensor.fail("holds a number that is not positive")
    return divisors


def _yarn(keys: Metadata, factor: float) -> Config:
    keys.refuse("rope.scaling.yarn_ext_factor", 1.0, -1.0)
    scaling: Config = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.size("rope.scaling.original_context_length"),
    }
    for theirs, ours in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if keys.has(f"rope.scaling.{theirs}"):
            scaling[ours] = keys.number(f"rope.scaling.{theirs}")
    if keys.has("rope.scaling.yarn_attn_factor"):
        scaling["attention_factor"] = keys.number("rope.scaling.yarn_attn_factor")
    elif keys.has("rope.scaling.attn_factor"):  # multiplies what the factor gives
        amplitude = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
        scaling["attention_factor"] = amplitude * keys.number("rope.scaling.attn_factor")
    return scaling


def _heads(keys: Metadata, config: Config) -> Config:
    """Head counts and sizes; the rotated part of a head must be all of it."""
    head_dim = _head_dim(keys, config)
    rotated = keys.size("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise keys.file.fail("rope.dimension_count", f"{rotated} is not supported: heads have {head_dim} dimensions")
    kv_heads = keys.size("attention.head_count_kv", config["num_attention_heads"])
    return {"num_key_value_heads": kv_heads, "head_dim": head_dim}


def _head_dim(keys: Metadata, config: Config) -> int:
    head_dim = keys.size("attention.key_length", config["hidden_size"] // config["num_attention_heads"])
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise keys.file.fail("attention.value_length", f"differs from the keys' {head_dim}")
    return head_dim


def _partly_rotated(keys: Metadata, config: Config) -> Config:
    """The same where only the first dimensions of a head are rotated."""
    head_dim = _head_dim(keys, config)
    rotated = keys.size("rope.dimension_count", head_dim)
    kv_heads = keys.size("attention.head_count_kv", config["num_attention_heads"])
    # A hair more than the quotient: families take the whole part of the product.
    factor = rotated / head_dim if int(rotated / head_dim * head_dim) == rotated else (rotated + 0.5) / head_dim
    return {"num_key_value_heads": kv_heads, "partial_rotary_factor": factor}


def _rms(keys: Metadata) -> Config:
    return {"rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon")}


def _llama(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.sliding_window", 0)
    if keys.has("expert_count") and keys.size("expert_count"):
        return _mixtral(keys, tensors, config)
    found = _heads(keys, config) | _rms(keys)
    found["attention_bias"] = "blk.0.attn_q.bias" in tensors
    found["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    return found


def _mixtral(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return (
        _heads(keys, config)
        | _rms(keys)
        | {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": keys.size("expert_count"),
            "num_experts_per_tok": keys.size("expert_used_count"),
        }
    )


def _qwen2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return _heads(keys, config) | _rms(keys) | {"use_sliding_window": False}


def _qwen3(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return _qwen2(keys, tensors, config) | {"attention_bias": "blk.0.attn_q.bias" in tensors}


def _gpt2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.head_count_kv", config["n_head"])
    return {"layer_norm_epsilon": keys.number("attention.layer_norm_epsilon"), "activation_function": "gelu_new"}


def _llama_rows(config: Config, module: str) -> NDArray[np.int64] | None:
    """llama.cpp rotates neighbours where the families rotate halves, so rows of queries and keys are interleaved."""
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(module)
    if heads is None:
        return None
    head_dim = config["head_dim"]
    halves = np.arange(head_dim).reshape(head_dim // 2, 2).T.reshape(-1)
    rows: NDArray[np.int64] = np.arange(config[heads])[:, None] * head_dim + halves
    return rows.reshape(-1)


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        name="LlamaForCausalLM", model_type="llama", names=LLAMA, extra=_llama, row_order=_llama_rows
    ),
    "qwen2": Architecture(name="Qwen2ForCausalLM", model_type="qwen2", names=LLAMA, extra=_qwen2),
    "qwen3": Architecture(name="Qwen3ForCausalLM", model_type="qwen3", names=LLAMA, extra=_qwen3),
    "gpt2": Architecture(
        name="GPT2LMHeadModel",
        model_type="gpt2",
        names=GPT2,
        extra=_gpt2,
        sizes={
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "block_count": "n_layer",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
        },
        rotary=False,
    ),
}
