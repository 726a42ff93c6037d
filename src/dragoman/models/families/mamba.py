"""Mamba, Mamba-2 and Falcon Mamba: every layer is one branch with a state, and there is no attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.state_space import (
    PLAIN_FIELDS,
    mixer_names,
    read_inner,
    read_selective_scan,
    read_state_space,
    scan_names,
)
from dragoman.models.recurrent import Mixer
from dragoman.models.spec import Branches, DecoderSpec

_LAYER = "backbone.layers.{layer}."
_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("backbone.embeddings",),
    "attention_norm": (f"{_LAYER}norm",),
    "final_norm": ("backbone.norm_f",),
    "head": ("lm_head",),
}
_CONTEXT = 1 << 20
"""Positions of a model whose config has no limit of them, and whose memory does not grow with the text."""


def _read_mamba(config: Config) -> DecoderSpec:
    mixer = read_selective_scan(config, _read_inner(config), PLAIN_FIELDS)
    return _recurrent(config, mixer, architecture="MambaForCausalLM", tied=config.flag("tie_word_embeddings", True))


def _read_falcon_mamba(config: Config) -> DecoderSpec:
    eps = config.number("mixer_rms_eps", 1e-6)
    mixer = read_selective_scan(config, _read_inner(config), PLAIN_FIELDS, norm="plain", norm_eps=eps)
    tied = config.flag("tie_word_embeddings", True)
    return _recurrent(config, mixer, architecture="FalconMambaForCausalLM", tied=tied)


def _read_mamba2(config: Config) -> DecoderSpec:
    inner = read_inner(config, "expand")
    mixer = read_state_space(config, inner, PLAIN_FIELDS, groups=8, state_dim=128)
    return _recurrent(config, mixer, architecture="Mamba2ForCausalLM", tied=config.flag("tie_word_embeddings", False))


def _read_inner(config: Config) -> int:
    """Return the inner width: ``intermediate_size`` where it is given. Falcon Mamba has another ``expand`` besides."""
    if config.value("intermediate_size") is not None:
        return config.size("intermediate_size")
    return read_inner(config, "expand")


def _recurrent(config: Config, mixer: Mixer, **variant: Any) -> DecoderSpec:
    config.choice("hidden_act", "silu", {"silu": "silu", "swish": "silu"})
    layers = config.size("num_hidden_layers", 32)
    only: Branches = "first"
    return DecoderSpec(
        vocab_size=config.size("vocab_size"),
        width=config.size("hidden_size"),
        layers=layers,
        heads=0,
        kv_heads=0,
        head_dim=0,
        feed_forward=0,
        context=_CONTEXT,
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        windows=(0,) * layers,
        attention_scales=(1.0,) * layers,
        mixers=(mixer,) * layers,
        branches=(only,) * layers,
        **variant,
    )


def _family(
    read: Callable[[Config], DecoderSpec], names: dict[str, tuple[str, ...]], model_type: str, **more: Any
) -> Family:
    return Family(
        read,
        _NAMES | names,
        model_type,
        base="backbone.",
        aliases=((r"^backbone\.embedding\.", "backbone.embeddings."),),
        note="No layer has attention: a sequence's [state](recurrent-state.md) is all of its memory.",
        **more,
    )


FAMILIES: dict[str, Family] = {
    "MambaForCausalLM": _family(
        _read_mamba,
        scan_names(f"{_LAYER}mixer."),
        "mamba",
        title="Mamba",
        examples=("state-spaces/mamba-130m-hf", "state-spaces/mamba-2.8b-hf"),
    ),
    "FalconMambaForCausalLM": _family(
        _read_falcon_mamba,
        scan_names(f"{_LAYER}mixer."),
        "falcon_mamba",
        title="Falcon Mamba",
        examples=("tiiuae/falcon-mamba-7b-instruct",),
    ),
    "Mamba2ForCausalLM": _family(
        _read_mamba2,
        mixer_names(f"{_LAYER}mixer."),
        "mamba2",
        title="Mamba-2",
        examples=("mistralai/Mamba-Codestral-7B-v0.1",),
    ),
}
