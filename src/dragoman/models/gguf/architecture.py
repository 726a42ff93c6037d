"""Definition of an architecture of GGUF files: how its metadata and tensor names map to those of our families.

An ``Architecture`` converts the metadata of a file to the ``config.json`` that its family reads, and the file's
tensors to those of the family's checkpoint: one table for the keys, one for the names, and the changes of the
numbers. The values of ``general.architecture`` and the keys are those of llama.cpp's ``gguf-py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.config import LARGEST_HEAD, MOST
from dragoman.models.gguf.file import GgufFile
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.pooling import KEY as POOLING
from dragoman.models.gguf.tensors import GgufTensor

Config = dict[str, Any]
Tensors = Mapping[str, GgufTensor]
RowOrder = Callable[[Config, str], NDArray[np.int64] | None]
Adjust = Callable[[Config, GgufTensor], Iterable[GgufTensor]]
ScoreScaling = Callable[[Metadata], Config]

SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
SIZES_WITHOUT_WIDTH = {theirs: ours for theirs, ours in SIZES.items() if theirs != "feed_forward_length"}
"""Where the width of the feed-forward network differs by layer, or there is none for all tokens."""

_BLOCK = re.compile(r"((?:enc\.|dec\.)?blk)\.(\d{1,5})\.(.+)")
_DRAFTS = "nextn_predict_layers"
_SCORES = "rope.scaling.yarn_log_multiplier"
# Keys under the architecture's prefix without effect on the model's results.
_INERT = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout", POOLING)


def family_order(config: Config, module: str) -> None:
    """Return None: rows are stored in the family's order."""


def as_stored(config: Config, tensor: GgufTensor) -> Iterable[GgufTensor]:
    """Return the tensor: its dimensions and numbers are the family's."""
    return (tensor,)


LONGROPE = frozenset({"rope_factors_short.weight", "rope_factors_long.weight"})
"""Tensors of ``longrope``."""


def no_score_scaling(keys: Metadata) -> Config:
    """Return nothing: the amplitude follows from the factor. Raises ModelError where the file has another."""
    keys.refuse(_SCORES, 0.0)
    return {}


def whole_score_scaling(keys: Metadata) -> Config:
    """Return Ministral's ``mscale_all_dim``, as files have it, and the ``mscale`` of rotated parts."""
    if not keys.is_on(_SCORES):  # Devstral, whose amplitude is that of YaRN
        return {}
    return {"mscale": 1.0, "mscale_all_dim": keys.number(_SCORES)}


def tenth_score_scaling(keys: Metadata) -> Config:
    """Return DeepSeek's ``mscale``: files have a tenth of it, and that of rotated parts is the same."""
    mscale = float(str(np.float32(10 * keys.number(_SCORES))))
    return {"mscale": mscale, "mscale_all_dim": mscale}


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """One value of ``general.architecture``.

    Attributes:
        name: the class in ``config.json``, unless ``extra`` returns another.
        names: tensor names, ``blk.N.`` as ``blk.`` (in T5 after ``enc.`` or ``dec.``), to those of the family, with
            ``{layer}`` for the number. Names with ``{expert}`` or ``{part}`` stand for each matrix of a stack, or each
            row of a matrix. A key that is a whole name, with its ``.bias`` or without any ending, stands for the
            family's whole name.
        sizes: metadata keys to config keys.
        extra: the rest of the config.
        row_order: from the config, the stored row of each row of a module (the name after ``blk.N.``).
        adjust: from a tensor under its family's name, the same with the family's dimensions and numbers, or the
            family's tensors that it holds.
        norm_offset: added to norms by the converter, relative to the family's checkpoints. shifted: the ending of the
            family's names of these.
        rotary: it has rotary positions, and keys that scale them.
        score_scaling: with YaRN, how scores are scaled, in the terms of the family's config.
        described: tensors that belong to the config, not to the checkpoint.
        repeated: tensors with nothing that others do not have.
        is_head: it drafts for a model, whose tokens it has, and whose table of embeddings it may lack.
        numbers: tensors of one number that are arrays in the metadata, one number for each layer: their names, and the
            keys without a prefix.
    """

    name: str
    model_type: str
    names: Mapping[str, str]
    extra: Callable[[Metadata, Tensors, Config], Config]
    sizes: Mapping[str, str] = msgspec.field(default_factory=lambda: SIZES)
    row_order: RowOrder = family_order
    adjust: Adjust = as_stored
    norm_offset: float = 0.0
    shifted: str = "norm.weight"
    rotary: bool = True
    score_scaling: ScoreScaling = no_score_scaling
    described: frozenset[str] = frozenset({"rope_freqs.weight"})
    repeated: frozenset[str] = frozenset()
    is_head: bool = False
    numbers: Mapping[str, str] = msgspec.field(default_factory=dict)


def read_config(architecture: Architecture, file: GgufFile, tensors: Tensors) -> Config:
    """Return the ``config.json`` of a file's model. Raises ModelError naming a key with a wrong value or an unknown
    one."""
    keys = Metadata(file, f"{Metadata(file).text('general.architecture')}.")
    config: Config = {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "vocab_size": _vocab_size(architecture, keys, tensors),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    for theirs, ours in architecture.sizes.items():
        config[ours] = keys.size(theirs)
        if config[ours] > (most := MOST.get(ours, config[ours])):
            raise file.fail(theirs, f"{config[ours]} is more than {most:,}")
    keys.has(_DRAFTS)
    if drafts := len(draft_blocks(file)):
        config[architecture.sizes["block_count"]] -= drafts
    if architecture.rotary:
        config["rope_theta"] = keys.number("rope.freq_base", 10_000.0)
        config["rope_scaling"] = _rope_scaling(keys, tensors, architecture.score_scaling)
    config |= architecture.extra(keys, tensors, config)
    for key in _INERT:
        keys.has(key)
    keys.refuse_others()
    return config


def _vocab_size(architecture: Architecture, keys: Metadata, tensors: Tensors) -> int:
    table = tensors.get("token_embd.weight")
    if table is None and architecture.is_head:
        return keys.size("vocab_size")
    if table is None or len(table.shape) != 2:
        raise ModelError(f"{keys.file.path}: tensor token_embd.weight is missing or not a matrix")
    return table.shape[0]


def draft_blocks(file: GgufFile) -> tuple[str, ...]:
    """Return the beginnings of the names of the last blocks' tensors, where these predict further tokens: they are no
    layers of the decoder. Raises ModelError where no other block remains."""
    keys = Metadata(file, f"{Metadata(file).text('general.architecture')}.")
    if not keys.is_on(_DRAFTS):
        return ()
    drafts, blocks = keys.size(_DRAFTS), keys.size("block_count")
    if drafts >= blocks:
        raise file.fail(_DRAFTS, f"{drafts} leaves none of {blocks} blocks")
    return tuple(f"blk.{block}." for block in range(blocks - drafts, blocks))


def family_name(architecture: Architecture, stored: str) -> str | None:
    """Return a tensor's name in the family's checkpoints; None for a tensor of unknown use."""
    whole = _BLOCK.fullmatch(stored)
    if whole and (name := architecture.names.get(f"{whole[1]}.{whole[3]}")):
        return name.replace("{layer}", whole[2])
    module, _, kind = stored.rpartition(".")
    block = _BLOCK.fullmatch(module)
    key = f"{block[1]}.{block[3]}" if block else module
    if key not in architecture.names:
        return None
    return f"{architecture.names[key].replace('{layer}', block[2] if block else '')}.{kind}"


def row_order(architecture: Architecture, config: Config, stored: str) -> NDArray[np.int64] | None:
    """Return the stored row of each row of a tensor in the family's order; None: the orders are equal."""
    block = _BLOCK.fullmatch(stored.rpartition(".")[0])
    return architecture.row_order(config, block[3]) if block else None


def interleaved_rows(config: Config, module: str) -> NDArray[np.int64] | None:
    """Return the rows of queries and keys. llama.cpp rotates neighbours where the families rotate halves, so it
    interleaves them."""
    key = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(module)
    if key is None:
        return None
    head_dim = config["head_dim"]
    halves = np.arange(head_dim).reshape(head_dim // 2, 2).T.reshape(-1)
    rows: NDArray[np.int64] = np.arange(config[key])[:, None] * head_dim + halves
    return rows.reshape(-1)


def _rope_scaling(keys: Metadata, tensors: Tensors, score_scaling: ScoreScaling) -> Config | None:
    """Return the rotary scaling that the keys, or a tensor of divisors, describe."""
    factors = divisors(tensors, "rope_freqs.weight")
    kind = keys.text("rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", 1.0)
    if kind == "none" and keys.has("rope.scale_linear"):  # older files have no type
        kind, factor = "linear", keys.number("rope.scale_linear")
    if factors is not None:
        if kind != "none":
            raise keys.file.fail(
                "rope.scaling.type", f"{kind!r} is not supported together with tensor rope_freqs.weight"
            )
        return {"rope_type": "divided", "divisors": factors} if set(factors) != {1.0} else None
    if kind == "linear" and factor != 1.0:
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn(keys, factor) | score_scaling(keys)
    keys.refuse(_SCORES, 0.0, 1.0)  # of no effect without YaRN
    if kind not in ("none", "linear", "longrope"):
        raise keys.file.fail("rope.scaling.type", f"{kind!r} is not supported; known: none, linear, yarn, longrope")
    return None


def divisors(tensors: Tensors, name: str) -> list[float] | None:
    """Return the divisors of each pair's frequency; None where the file has no such tensor."""
    if name not in tensors:
        return None
    tensor = tensors[name]
    if len(tensor.shape) != 1 or tensor.shape[0] > 4096 or tensor.dtype != "float32":
        raise tensor.fail("is not a vector of float32")
    found = [float(str(divisor)) for divisor in tensor.read()]
    if not all(math.isfinite(divisor) and divisor > 0 for divisor in found):
        raise tensor.fail("holds a number that is not positive")
    return found


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
    elif keys.has("rope.scaling.attn_factor"):  # multiplies the amplitude of the factor
        amplitude = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
        scaling["attention_factor"] = amplitude * keys.number("rope.scaling.attn_factor")
    return scaling


def heads(keys: Metadata, config: Config) -> Config:
    """Return head counts and sizes. Raises ModelError unless whole heads are rotated."""
    head_dim = head_size(keys, config)
    rotated = keys.size("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise keys.file.fail("rope.dimension_count", f"{rotated} is not supported: heads have {head_dim} dimensions")
    kv_heads = keys.size("attention.head_count_kv", config["num_attention_heads"])
    return {"num_key_value_heads": kv_heads, "head_dim": head_dim}


def head_size(keys: Metadata, config: Config) -> int:
    """Return the size of a head. Raises ModelError where values have another, and where heads are wider than any
    attention."""
    width, count = config["hidden_size"], config["num_attention_heads"]
    head_dim = keys.size("attention.key_length", width // count)
    if not 0 < head_dim <= LARGEST_HEAD:
        raise keys.file.fail(
            "attention.key_length", f"heads of {head_dim} numbers are not supported: they have 1 to {LARGEST_HEAD:,}"
        )
    if (value := keys.size("attention.value_length", head_dim)) != head_dim:
        raise keys.file.fail("attention.value_length", f"{value} is not supported: keys have {head_dim} dimensions")
    return head_dim


def partly_rotated(keys: Metadata, config: Config) -> Config:
    """Return head counts and sizes where only the first dimensions of a head are rotated."""
    head_dim = head_size(keys, config)
    rotated = keys.size("rope.dimension_count", head_dim)
    if rotated > head_dim:
        raise keys.file.fail("rope.dimension_count", f"{rotated} is more than the {head_dim} dimensions of a head")
    kv_heads = keys.size("attention.head_count_kv", config["num_attention_heads"])
    return {"num_key_value_heads": kv_heads, "partial_rotary_factor": share_of_head(rotated, head_dim)}


def share_of_head(rotated: int, head_dim: int) -> float:
    """Return the share of a head that is rotated: slightly more than the quotient, where families, which take the
    integer part of the product, would rotate less."""
    return rotated / head_dim if int(rotated / head_dim * head_dim) == rotated else (rotated + 0.5) / head_dim


def by_layer(keys: Metadata, key: str, layers: int, least: int = 1) -> list[int]:
    """Return a size of each layer, at least ``least``: one for all, or an array."""
    value = keys.value(key)
    if not isinstance(value, np.ndarray):
        return [keys.size(key)] * layers
    found = [int(each) for each in keys.numbers(key, layers)]  # type: ignore[union-attr]
    if value.dtype.kind not in "iub" or not all(least <= each < 2**31 for each in found):
        raise keys.file.fail(key, f"must be integers from {least}")
    return found


def rms(keys: Metadata) -> Config:
    """Return the epsilon of RMSNorm under its name in the config."""
    return {"rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon")}


def layer_norm(keys: Metadata, name: str) -> Config:
    """Return the epsilon of LayerNorm under its name in the config."""
    return {name: keys.number("attention.layer_norm_epsilon")}


def layer_types(keys: Metadata, layers: int, period: int) -> list[str]:
    """Return the type of each layer: as the file lists them, or sliding except every ``period``-th."""
    key = "attention.sliding_window_pattern"
    value = keys.value(key)
    if isinstance(value, np.ndarray):
        sliding = [bool(each) for each in keys.numbers(key, layers)]  # type: ignore[union-attr]
    else:
        period = keys.size(key, period)
        sliding = [layer % period < period - 1 for layer in range(layers)]
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def scored_experts(keys: Metadata) -> Config:
    """Return experts in the terms of DeepSeek's configs."""
    scaled = keys.is_on("expert_weights_scale")
    return {
        "n_routed_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "n_shared_experts": keys.count("expert_shared_count"),
        "routed_scaling_factor": keys.number("expert_weights_scale") if scaled else 1.0,
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "n_group": keys.count("expert_group_count") or 1,
        "topk_group": keys.count("expert_group_used_count") or 1,
    }


def growth(keys: Metadata) -> Config:
    """Return how queries grow with their position, in the terms of Mistral's rotary parameters; nothing where the file
    does not say it."""
    if not keys.is_on("attention.temperature_scale"):
        keys.has("attention.temperature_length")
        return {}
    step = keys.size("rope.scaling.original_context_length", keys.size("context_length"))
    keys.refuse("attention.temperature_length", step, 0)
    return {
        "llama_4_scaling_beta": keys.number("attention.temperature_scale"),
        "original_max_position_embeddings": step,
    }


def longrope(keys: Metadata, tensors: Tensors) -> Config:
    """Return LongRoPE's scaling, whose divisors are two tensors; nothing where the file has none."""
    short, long = (divisors(tensors, f"rope_factors_{which}.weight") for which in ("short", "long"))
    if (short is None) != (long is None):
        raise ModelError(f"{keys.file.path}: of rope_factors_short.weight and rope_factors_long.weight one is missing")
    if short is None:
        return {}
    scaling: Config = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    if keys.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = keys.number("rope.scaling.attn_factor")
    return {"rope_scaling": scaling}
