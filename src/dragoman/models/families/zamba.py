"""Zamba: Mamba with several heads in all layers, some of which have one block of attention that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import ACTIVATIONS
from dragoman.models.families.state_space import read_inner, read_selective_scan, scan_names
from dragoman.models.families.zamba2 import KINDS, copies
from dragoman.models.optional_parts import SharedBlocks
from dragoman.models.parameter import Parameter
from dragoman.models.recurrent import SelectiveScan
from dragoman.models.spec import Branches, DecoderSpec
from dragoman.models.tensors import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LAYER = "model.layers.{layer}."
_BLOCK = f"{_LAYER}shared_transf."
_ATTENTION, _NETWORK = f"{_BLOCK}self_attn.", f"{_BLOCK}feed_forward."
_STACKS = {".mamba.x_proj_weight": ".mamba.x_proj", ".mamba.dt_proj_weight": ".mamba.dt_proj"}
"""Names of stacks with a matrix for each head, and the beginnings of the names of these here."""

_NAMES: dict[str, tuple[str, ...]] = scan_names(f"{_LAYER}mamba.") | {
    "mixer_selection": (f"{_LAYER}mamba.x_proj.{{expert}}",),
    "mixer_steps": (f"{_LAYER}mamba.dt_proj.{{expert}}",),
    "mixer_step_bias": (f"{_LAYER}mamba.dt_proj_bias",),
    "embedding": ("model.embed_tokens",),
    "attention_norm": (f"{_LAYER}input_layernorm",),
    "block_norm": (f"{_BLOCK}input_layernorm",),
    "block_query": (f"{_ATTENTION}q_proj",),
    "block_key": (f"{_ATTENTION}k_proj",),
    "block_value": (f"{_ATTENTION}v_proj",),
    "block_attention_out": (f"{_ATTENTION}o_proj",),
    "block_feed_forward_norm": (f"{_BLOCK}pre_ff_layernorm",),
    "block_feed_forward_in": (f"{_NETWORK}gate_proj", f"{_NETWORK}up_proj"),
    "block_feed_forward_out": (f"{_NETWORK}down_proj",),
    "block_result": (f"{_LAYER}linear",),
    "final_norm": ("model.final_layernorm",),
    "head": ("lm_head",),
}
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 3712,
    "intermediate_size": 14_848,
    "num_hidden_layers": 76,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


def _read_zamba(config: Config) -> DecoderSpec:
    config = config.over(_DEFAULTS)
    width, heads, kv_heads = map(config.size, ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    layers = config.size("num_hidden_layers")
    if heads % kv_heads:
        raise ModelError(f"config.json: {heads} query heads cannot share {kv_heads} key-value heads evenly")
    head_dim = config.size("attention_head_dim", config.value("head_dim") or max(1, 2 * width // heads))
    config.refuse("attention_hidden_size", 2 * width)
    config.refuse("tie_word_embeddings", True)  # else no weights are shared at all
    config.choice("hidden_mamba_act", "silu", {"silu": "silu", "swish": "silu"})
    only: Branches = "first"
    return DecoderSpec(
        architecture="ZambaForCausalLM",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=config.size("intermediate_size"),
        context=config.size("max_position_embeddings"),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        activation=config.choice("hidden_act", "gelu", ACTIVATIONS),
        windows=(0,) * layers,
        attention_scales=((head_dim / 2) ** -0.5,) * layers,
        mixers=(_read_mixer(config),) * layers,
        branches=(only,) * layers,
        shared_blocks=SharedBlocks(layers=_read_hybrid(config, layers), count=1, rank=0),
        tied=True,
    )


def _read_mixer(config: Config) -> SelectiveScan:
    inner, heads = read_inner(config, "mamba_expand"), config.size("n_mamba_heads", 2)
    if inner % heads:
        raise ModelError(f"config.json: the inner width {inner} is no multiple of n_mamba_heads {heads}")
    return read_selective_scan(config, inner, heads=heads)


def _read_hybrid(config: Config, layers: int) -> tuple[int, ...]:
    """Return the layers with a block."""
    field = "layers_block_type" if config.value("layers_block_type") is not None else "layer_types"
    kinds = config.choices(field, layers, KINDS)
    if kinds is None:
        period, offset = config.size("attn_layer_period", 6), config.count("attn_layer_offset", 4)
        kinds = tuple(layer == 2 or (layer > 2 and (layer - 3) % period == offset) for layer in range(layers))
    hybrid = tuple(layer for layer in range(layers) if kinds[layer])
    if not hybrid:
        raise ModelError(f"{config.where}: {field} names no hybrid layer")
    return hybrid


def _divide_heads(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors with the matrices of each head by themselves."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        for end, start in _STACKS.items():
            if not name.endswith(end):
                continue
            heads = spec.mixers[0].heads if isinstance(spec.mixers[0], SelectiveScan) else 1
            if len(tensor.shape) != 3 or tensor.shape[0] != heads:
                raise tensor.fail(f"its shape {list(tensor.shape)} is not that of {heads} matrices")
            del found[name]
            for head in range(heads):
                found[f"{name.removesuffix(end)}{start}.{head}.weight"] = tensor.matrix(head)
    return found


def _inputs_first(spec: DecoderSpec, parameter: Parameter) -> NDArray[np.intp] | None:
    """Return the stored row of each row of the first product: rows of inputs and of gates alternate."""
    if parameter.module != "mixer_in":
        return None
    rows = np.arange(parameter.shape[0])
    return np.concatenate([rows[::2], rows[1::2]])


def _copies(spec: DecoderSpec) -> frozenset[str]:
    return copies(spec, _NAMES)


FAMILIES: dict[str, Family] = {
    "ZambaForCausalLM": Family(
        _read_zamba,
        _NAMES,
        "zamba",
        base="model.",
        aliases=((r"\.mamba_decoder\.", "."),),
        divide=_divide_heads,
        row_order=_inputs_first,
        unused=_copies,
        title="Zamba",
        examples=("Zyphra/Zamba-7B-v1",),
        note="Layers with Mamba keep a [state](recurrent-state.md); some share a block of attention, which adapters do "
        "not change.",
    ),
}
