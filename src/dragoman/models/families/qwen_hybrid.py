"""Qwen3-Next, Qwen 3.5 and 3.6: most layers are gated delta rules, the others attention with a gated output."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.models.config import Config
from dragoman.models.families.family import Family, HeadNames
from dragoman.models.families.llama import HEAD_NORM_NAMES, LLAMA_NAMES, llama_like
from dragoman.models.families.mixtures import QWEN2_MOE_NAMES, QWEN_STACKS, qwen_experts
from dragoman.models.optional_parts import AttentionGate
from dragoman.models.parameter import Parameter
from dragoman.models.recurrent import MOST_TAPS, DeltaRule
from dragoman.models.spec import DecoderSpec, Experts, HeadNorm
from dragoman.models.vision.parameters import qwen3_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MIXER = "model.layers.{layer}.linear_attn."
_SHARED_NAMES = HEAD_NORM_NAMES | {
    "mixer_convolution": (f"{_MIXER}conv1d",),
    "mixer_rate": (f"{_MIXER}A_log",),
    "mixer_step_bias": (f"{_MIXER}dt_bias",),
    "mixer_scale": (f"{_MIXER}norm",),
    "mixer_out": (f"{_MIXER}out_proj",),
}
_APART = {
    "mixer_in": (f"{_MIXER}in_proj_qkv", f"{_MIXER}in_proj_z"),
    "mixer_gates": (f"{_MIXER}in_proj_b", f"{_MIXER}in_proj_a"),
}
_FUSED = {"mixer_in": (f"{_MIXER}in_proj_qkvz",), "mixer_gates": (f"{_MIXER}in_proj_ba",)}
_MTP = HeadNames(
    layer="mtp.layers.0.",
    joined="mtp.fc",
    token_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    final_norm="mtp.norm",
    feeds_normed=True,
)
# Positions of images, which text does not have.
_IMAGE_POSITIONS = ("mrope_section", "mrope_interleaved", "xdrope_section")
_DEFAULTS = {"num_key_value_heads": 4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6}


def _read_qwen3_next(config: Config) -> DecoderSpec:
    config = config.over(_DEFAULTS | {"num_key_value_heads": 2, "norm_topk_prob": True})
    shared = config.size("shared_expert_intermediate_size", 512)
    experts = qwen_experts(config, 512, 10, shared=shared, shared_gated=True)
    return _hybrid(config, architecture="Qwen3NextForCausalLM", experts=experts)


def _read_qwen3_5(config: Config) -> DecoderSpec:
    return _hybrid(config.over(_DEFAULTS), architecture="Qwen3_5ForCausalLM")


def _read_qwen3_5_moe(config: Config) -> DecoderSpec:
    config = config.over(_DEFAULTS | {"num_key_value_heads": 2, "moe_intermediate_size": 512})
    config = config.over({"intermediate_size": config.size("moe_intermediate_size")})
    shared = config.size("shared_expert_intermediate_size", 512)
    experts: Experts = qwen_experts(config, 256, 8, shared=shared, shared_gated=True)
    return _hybrid(config, architecture="Qwen3_5MoeForCausalLM", experts=replace(experts, over_all=False))


def _read_qwen3_5_with_images(config: Config) -> DecoderSpec:
    """Return the text decoder of the models with a vision tower."""
    return replace(_read_qwen3_5(config.within("text_config")), architecture="Qwen3_5ForConditionalGeneration")


def _read_qwen3_5_moe_with_images(config: Config) -> DecoderSpec:
    return replace(_read_qwen3_5_moe(config.within("text_config")), architecture="Qwen3_5MoeForConditionalGeneration")


def _hybrid(config: Config, **variant: Any) -> DecoderSpec:
    config.choice("hidden_act", "silu", {"silu": "silu", "swish": "silu"})  # of the convolutions too
    bias = config.flag("attention_bias", False)
    return llama_like(
        without_image_positions(config),
        default_head_dim=256,
        partial=0.25,
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=HeadNorm(),
        attention_gate=AttentionGate(),
        mixers=_mixers(config),
        **variant,
    )


def without_image_positions(config: Config) -> Config:
    """Return the config with the rotation of text: of three equal positions it is the usual one."""
    values = dict(config.values)
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(values.get(name), dict):
            values[name] = {key: value for key, value in values[name].items() if key not in _IMAGE_POSITIONS}
    return Config(values, config.where, config.accessed)


def _mixers(config: Config) -> tuple[DeltaRule | None, ...]:
    layers, taps = config.size("num_hidden_layers"), config.size("linear_conv_kernel_dim", 4)
    rule = DeltaRule(
        key_heads=config.size("linear_num_key_heads", 16),
        value_heads=config.size("linear_num_value_heads", 32),
        key_dim=config.size("linear_key_head_dim", 128),
        value_dim=config.size("linear_value_head_dim", 128),
        taps=taps,
    )
    if not 2 <= taps <= MOST_TAPS:
        raise ModelError(f"{config.where}: linear_conv_kernel_dim must be 2 to {MOST_TAPS}, got {taps}")
    if rule.value_heads % rule.key_heads:
        raise ModelError(
            f"{config.where}: {rule.value_heads} value heads cannot share {rule.key_heads} key heads evenly"
        )
    named = config.choices("layer_types", layers, {"full_attention": None, "linear_attention": rule})
    if named is None:
        every = config.size("full_attention_interval", 4)
        named = tuple(rule if (layer + 1) % every else None for layer in range(layers))
    if None not in named:
        raise ModelError(f"{config.where}: layer_types without full_attention are not supported")
    return named


def _row_order(spec: DecoderSpec, parameter: Parameter) -> NDArray[np.intp] | None:
    """Return the order of the rows: a head's query and gate are stored together, and in Qwen3-Next everything of a key
    head."""
    if parameter.module == "qkv":
        heads = np.arange(2 * spec.query_width).reshape(spec.heads, 2, spec.head_dim)
        others = np.arange(2 * spec.query_width, sum(parameter.parts))
        return np.concatenate([heads[:, 0].ravel(), heads[:, 1].ravel(), others])
    if spec.architecture != "Qwen3NextForCausalLM" or parameter.module not in ("mixer_in", "mixer_gates"):
        return None
    assert parameter.layer is not None
    rule = spec.mixer(parameter.layer)
    assert isinstance(rule, DeltaRule)
    group = rule.value_heads // rule.key_heads
    values = group * rule.value_dim
    ends = [rule.key_dim, 2 * rule.key_dim, 2 * rule.key_dim + values] if parameter.module == "mixer_in" else [group]
    stored = np.arange(sum(parameter.parts)).reshape(rule.key_heads, -1)
    return np.concatenate([part.ravel() for part in np.split(stored, ends, axis=1)])


def _family(read: Any, names: dict[str, tuple[str, ...]], model_type: str, **more: Any) -> Family:
    return Family(
        read,
        names | _SHARED_NAMES | (_FUSED if model_type == "qwen3_next" else _APART),
        model_type,
        base="model.",
        row_order=_row_order,
        norm_offset=1.0,
        aliases=((r"^(model\.)?visual\.", "model.visual."), (r"^model\.language_model\.", "model.")),
        ignored=re.compile(r"(visual|mtp)\..*"),
        head=_MTP,
        **more,
    )


_NOTE = "Layers with the gated delta rule keep a [state](recurrent-state.md)."
_SEES = f"It [sees images](vision.md). Video is not read. {_NOTE}"

FAMILIES: dict[str, Family] = {
    "Qwen3NextForCausalLM": _family(
        _read_qwen3_next,
        QWEN2_MOE_NAMES,
        "qwen3_next",
        other_names=QWEN_STACKS,
        title="Qwen3-Next",
        examples=("Qwen/Qwen3-Next-80B-A3B-Instruct",),
        note=_NOTE,
    ),
    "Qwen3_5ForCausalLM": _family(
        _read_qwen3_5,
        LLAMA_NAMES,
        "qwen3_5_text",
        title="Qwen 3.5 and 3.6, text part",
        examples=("Qwen/Qwen3.5-4B",),
        note=f"As transformers saves the text part alone. {_NOTE}",
    ),
    "Qwen3_5MoeForCausalLM": _family(
        _read_qwen3_5_moe,
        QWEN2_MOE_NAMES,
        "qwen3_5_moe_text",
        other_names=QWEN_STACKS,
        title="Qwen 3.5 and 3.6 MoE, text part",
        examples=("Qwen/Qwen3.5-35B-A3B",),
        note=f"As transformers saves the text part alone. {_NOTE}",
    ),
    "Qwen3_5ForConditionalGeneration": _family(
        _read_qwen3_5_with_images,
        LLAMA_NAMES | qwen3_names("model.visual."),
        "qwen3_5",
        title="Qwen 3.5 and 3.6",
        examples=("Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-0.8B"),
        note=_SEES,
    ),
    "Qwen3_5MoeForConditionalGeneration": _family(
        _read_qwen3_5_moe_with_images,
        QWEN2_MOE_NAMES | qwen3_names("model.visual."),
        "qwen3_5_moe",
        other_names=QWEN_STACKS,
        title="Qwen 3.5 and 3.6 MoE",
        examples=("Qwen/Qwen3.5-35B-A3B",),
        note=_SEES,
    ),
}
