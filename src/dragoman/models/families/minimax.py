"""MiniMax Text-01 and M1: lightning attention in most layers, whose stream is normed before each branch and scaled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import llama_like
from dragoman.models.families.mixtures import MIXTRAL_NAMES, MIXTRAL_STACKS, checked
from dragoman.models.parameter import Parameter
from dragoman.models.recurrent import LightningAttention
from dragoman.models.spec import Block, DecoderSpec, Experts

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MIXER = "model.layers.{layer}.self_attn."
_NAMES = MIXTRAL_NAMES | {
    "mixer_in": (f"{_MIXER}qkv_proj",),
    "mixer_scale": (f"{_MIXER}norm",),
    "mixer_opening": (f"{_MIXER}output_gate",),
    "mixer_out": (f"{_MIXER}out_proj",),
}
_DECAYS = re.compile(r"layers\.\d+\.self_attn\.(slope_rate|(query|key|diagonal)_decay)")
"""Tensors that follow from the config."""
_FACTORS = {
    "attention": ("full_attn", "layernorm_full_attention"),
    "mixer": ("linear_attn", "layernorm_linear_attention"),
    "feed_forward": ("mlp", "layernorm_mlp"),
}
"""Branches, and what the names of their factors begin with: as transformers has them, and as published."""
_DEFAULTS: dict[str, Any] = {"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5}


def _read_minimax(config: Config) -> DecoderSpec:
    config = config.over(_DEFAULTS)
    config.refuse("postnorm", True)
    config.refuse("shared_intermediate_size", 0)
    config.size("block_size", 256)  # of products for prompts elsewhere: of no effect
    layers, heads = config.size("num_hidden_layers"), config.size("num_attention_heads")
    head_dim = config.size("head_dim", config.size("hidden_size") // heads)
    window = config.window()
    mixers = _read_mixers(config, LightningAttention(heads=heads, dim=head_dim), layers)
    experts = Experts(
        count=config.size("num_local_experts", config.size("num_experts", 8)),
        active=config.size("num_experts_per_tok", 2),
        feed_forward=config.size("intermediate_size"),
    )
    rotated = config.size("rotary_dim", head_dim)
    if rotated > head_dim or rotated % 2:
        raise ModelError(f"config.json: rotary_dim {rotated} must be even and at most the size of a head, {head_dim}")
    return llama_like(
        config,
        architecture="MiniMaxForCausalLM",
        theta=1_000_000.0,
        partial=None if rotated == head_dim else rotated / head_dim,
        block=_read_block(config),
        experts=checked(experts),
        mixers=mixers,
        windows=tuple(0 if mixer else window for mixer in mixers) or (window,) * layers,
    )


def _read_mixers(config: Config, mixer: LightningAttention, layers: int) -> tuple[LightningAttention | None, ...]:
    """Return what each layer is, as ``layer_types`` lists them, or ``attn_type_list``, in which 1 is full attention."""
    found = config.choices("layer_types", layers, {"full_attention": None, "linear_attention": mixer})
    kinds = config.switches("attn_type_list", layers)
    if found is None and kinds is not None:
        found = tuple(None if is_full else mixer for is_full in kinds)
    if found is None:
        found = tuple(mixer if layer % 2 else None for layer in range(layers))
    if None not in found:
        raise ModelError(f"{config.where}: layers without full attention are not supported")
    return found if any(found) else ()


def _read_block(config: Config) -> Block:
    factors: dict[str, Any] = {}
    for branch, (ours, published) in _FACTORS.items():
        for key, name in (("kept", "alpha"), ("factor", "beta")):
            default = config.number(f"{published}_{name}", 1.0)
            factors[f"{branch}_{key}"] = config.number(f"{ours}_{name}_factor", default)
    return Block(norms="stream", **factors)


def _heads_together(spec: DecoderSpec, parameter: Parameter) -> NDArray[np.intp] | None:
    """Return the stored row of each row of a layer's first product: stored are query, key and value of each head."""
    if parameter.module != "mixer_in" or parameter.layer is None:
        return None
    mixer = spec.mixer(parameter.layer)
    assert isinstance(mixer, LightningAttention)
    return np.arange(3 * mixer.inner).reshape(mixer.heads, 3, mixer.dim).swapaxes(0, 1).reshape(-1)


FAMILIES: dict[str, Family] = {
    "MiniMaxForCausalLM": Family(
        _read_minimax,
        _NAMES,
        "minimax",
        base="model.",
        aliases=((r"\.mlp\.", ".block_sparse_moe."),),
        other_names=MIXTRAL_STACKS,
        row_order=_heads_together,
        ignored=_DECAYS,
        title="MiniMax Text-01 and M1",
        examples=("MiniMaxAI/MiniMax-Text-01-hf", "MiniMaxAI/MiniMax-M1-40k-hf"),
        note="Layers with lightning attention keep a [state](recurrent-state.md).",
        others={"MiniMaxText01ForCausalLM": None, "MiniMaxM1ForCausalLM": None},
    ),
}
