"""SmolLM 3: a Llama in which every fourth layer has no positions."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import LLAMA_NAMES, llama_like
from dragoman.models.spec import DecoderSpec


def _read_smollm3(config: Config) -> DecoderSpec:
    config = config.over({"num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True})
    bias = config.flag("attention_bias", False)
    rotated = _rotated_layers(config)
    spec = llama_like(
        config,
        architecture="SmolLM3ForCausalLM",
        theta=2_000_000.0,
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=config.flag("mlp_bias", False),
        windows=_windows(config, rotated),
    )
    return replace(spec, ropes=tuple(spec.rope(layer) if turns else None for layer, turns in enumerate(rotated)))


def _rotated_layers(config: Config) -> tuple[bool, ...]:
    """Return whether each layer has positions. ``no_rope_layers``, despite its name, says 1 for those that have."""
    layers = config.size("num_hidden_layers")
    flags = config.value("no_rope_layers")
    if flags is None:
        interval = config.size("no_rope_layer_interval", 4)
        return tuple((layer + 1) % interval != 0 for layer in range(layers))
    if not isinstance(flags, list) or len(flags) != layers or any(flag not in (0, 1) for flag in flags):
        raise ModelError(f"config.json: no_rope_layers must hold 0 or 1 for each of {layers} layers, got {flags!r}")
    return tuple(map(bool, flags))


def _windows(config: Config, rotated: tuple[bool, ...]) -> tuple[int, ...]:
    if not config.flag("use_sliding_window", False) or config.value("sliding_window") is None:
        config.choices("layer_types", len(rotated), {"full_attention": 0, "sliding_attention": 0})
        return (0,) * len(rotated)
    window = config.size("sliding_window")
    named = config.choices("layer_types", len(rotated), {"full_attention": 0, "sliding_attention": window})
    return tuple(0 if turns else window for turns in rotated) if named is None else named


FAMILIES: dict[str, Family] = {
    "SmolLM3ForCausalLM": Family(
        _read_smollm3,
        LLAMA_NAMES,
        "smollm3",
        base="model.",
        title="SmolLM 3",
        examples=("HuggingFaceTB/SmolLM3-3B",),
    ),
}
