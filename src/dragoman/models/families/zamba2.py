"""Zamba 2: Mamba-2 in all layers, some of which have blocks of attention that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import ACTIVATIONS, ROTARY_BUFFER
from dragoman.models.families.state_space import PLAIN_FIELDS, mixer_names, read_inner, read_state_space
from dragoman.models.optional_parts import SharedBlocks
from dragoman.models.parameters import parameters
from dragoman.models.rope_config import read_rope
from dragoman.models.spec import Branches, DecoderSpec

_LAYER = "model.layers.{layer}."
_BLOCK = f"{_LAYER}shared_transformer."
_ATTENTION, _NETWORK = f"{_BLOCK}self_attn.", f"{_BLOCK}feed_forward."
_LETTERS = {"query": "q", "key": "k", "value": "v"}
_NAMES: dict[str, tuple[str, ...]] = mixer_names(f"{_LAYER}mamba.") | {
    "embedding": ("model.embed_tokens",),
    "attention_norm": (f"{_LAYER}input_layernorm",),
    "block_norm": (f"{_BLOCK}input_layernorm",),
    **{f"block_{name}": (f"{_ATTENTION}{letter}_proj",) for name, letter in _LETTERS.items()},
    **{
        f"block_{name}_low_rank_{end}": (f"{_ATTENTION}linear_{letter}_adapter_list.{{expert}}.{number}",)
        for name, letter in _LETTERS.items()
        for number, end in enumerate(("in", "out"))
    },
    "block_attention_out": (f"{_ATTENTION}o_proj",),
    "block_feed_forward_norm": (f"{_BLOCK}pre_ff_layernorm",),
    "block_feed_forward_in": (f"{_NETWORK}gate_up_proj",),
    "block_low_rank_in": (f"{_NETWORK}gate_up_proj_adapter_list.{{expert}}.0",),
    "block_low_rank_out": (f"{_NETWORK}gate_up_proj_adapter_list.{{expert}}.1",),
    "block_feed_forward_out": (f"{_NETWORK}down_proj",),
    "block_result": (f"{_LAYER}linear",),
    "final_norm": ("model.final_layernorm",),
    "head": ("lm_head",),
}
_FIELDS = PLAIN_FIELDS | {
    "heads": "n_mamba_heads",
    "head_dim": "mamba_headdim",
    "groups": "mamba_ngroups",
    "state_dim": "mamba_d_state",
    "taps": "mamba_d_conv",
    "bias": "add_bias_linear",
}
KINDS = {"mamba": False, "linear_attention": False, "hybrid": True}
_PUBLISHED_FIRST = (6, 12, 18, 24, 30, 36, 42, 47, 51)
"""Layers with a block where a config of 54 layers lists none."""


def _read_zamba2(config: Config) -> DecoderSpec:
    width, heads = config.size("hidden_size"), config.size("num_attention_heads", 32)
    layers, kv_heads = config.size("num_hidden_layers", 54), config.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"config.json: {heads} query heads cannot share {kv_heads} key-value heads evenly")
    if 2 * width % heads:
        raise ModelError(f"config.json: twice the hidden_size {width} is no multiple of num_attention_heads {heads}")
    config.refuse("use_long_context", False)
    config.refuse("use_shared_mlp_adapter", True)
    config.refuse("tie_word_embeddings", True)  # else no weights are shared at all
    head_dim, positions = 2 * width // heads, config.size("max_position_embeddings", 4096)
    rope, context = None, positions
    if config.flag("use_mem_rope", False):
        rope = read_rope(config, head_dim, positions)
        context = rope.scaling.context(positions)
    shared = _shared_blocks(config, layers)
    if shared.attention and kv_heads != heads:
        raise ModelError("config.json: use_shared_attention_adapter with fewer key-value heads is not supported")
    bias = config.flag("add_bias_linear", False)
    # One pass of transformers over a whole text limits time steps so, its steps of one token do not.
    limits: dict[str, Any] = {"least_step": config.number("time_step_min", 0.001), "most_step": 3.0e38}
    mixer = read_state_space(
        config,
        read_inner(config, "mamba_expand"),
        _FIELDS,
        heads=8,
        state_dim=64,
        convolution_bias=True,
        norm_eps=1e-5,
        **limits,
    )
    only: Branches = "first"
    return DecoderSpec(
        architecture="Zamba2ForCausalLM",
        vocab_size=config.size("vocab_size", 32000),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=config.size("intermediate_size", 4 * width),
        feed_forward_bias=bias,
        context=context,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        activation=config.choice("hidden_act", "gelu", ACTIVATIONS),
        ropes=(rope,) * layers if rope else (),
        windows=(0,) * layers,
        attention_scales=((head_dim / 2) ** -0.5,) * layers,
        mixers=(mixer,) * layers,
        branches=(only,) * layers,
        shared_blocks=shared,
        tied=True,
    )


def copies(spec: DecoderSpec, names: Mapping[str, tuple[str, ...]] = _NAMES) -> frozenset[str]:
    """Return the names of a block's weights in the layers after its first, which some files have once more."""
    shared, found = spec.shared_blocks, set[str]()
    assert shared is not None
    for parameter in parameters(spec):
        if not parameter.module.startswith("block_") or parameter.module == "block_result":
            continue
        for layer in shared.layers:
            if shared.owner(layer) == parameter.layer != layer:
                stored = (name.format(layer=layer, expert=parameter.expert) for name in names[parameter.module])
                found |= {f"{name}.{parameter.kind}" for name in stored}
    return frozenset(found)


def _shared_blocks(config: Config, layers: int) -> SharedBlocks:
    field = "layers_block_type" if config.value("layers_block_type") is not None else "layer_types"
    kinds = config.choices(field, layers, KINDS)
    if kinds is None and layers != 54:
        raise ModelError(f"{config.where}: layers_block_type is missing")
    hybrid = _PUBLISHED_FIRST if kinds is None else tuple(layer for layer, found in enumerate(kinds) if found)
    if not hybrid:
        raise ModelError(f"{config.where}: {field} names no hybrid layer")
    return SharedBlocks(
        layers=hybrid,
        count=config.size("num_mem_blocks", 1),
        rank=config.size("adapter_rank", 128),
        attention=config.flag("use_shared_attention_adapter", False),
    )


FAMILIES: dict[str, Family] = {
    "Zamba2ForCausalLM": Family(
        _read_zamba2,
        _NAMES,
        "zamba2",
        base="model.",
        aliases=((r"\.mamba_decoder\.", "."),),
        ignored=ROTARY_BUFFER,
        unused=copies,
        title="Zamba 2",
        examples=("Zyphra/Zamba2-1.2B-instruct", "Zyphra/Zamba2-2.7B-instruct", "Zyphra/Zamba2-7B-Instruct"),
        note="Layers with Mamba-2 keep a [state](recurrent-state.md); some share blocks of attention, which adapters "
        "do not change.",
    ),
}
