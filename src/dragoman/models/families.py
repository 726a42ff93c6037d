"""The families of decoders: for each, how its config reads and what its checkpoint calls each weight.

A family is one entry of ``FAMILIES``. ``docs/adding-a-model.md`` walks through adding one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.rope import Rope, read_scaling
from dragoman.models.spec import Activation, DecoderSpec

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True, slots=True)
class Family:
    """One way that checkpoints are written.

    Attributes:
        read: from config to spec; raises ModelError on what the family may have and the decoder cannot do.
        names: canonical module → its names in the checkpoint; several are stacked along the outputs, in this order.
        model_type: what a config without ``architectures`` calls it.
        base: prefix of all names but the head's. Checkpoints saved without the head leave it out.
        transposed: modules whose matrices are stored ``[inputs, outputs]``.
        ignored: names, without base, of tensors that are no weights (buffers of old versions).
    """

    read: Callable[[Config], DecoderSpec]
    names: Mapping[str, tuple[str, ...]]
    model_type: str
    base: str
    transposed: frozenset[str] = frozenset()
    ignored: re.Pattern[str] = re.compile(r"(?!)")


def find_family(values: dict[str, Any]) -> Family:
    """The family of a config; ModelError naming the architecture and the known ones otherwise."""
    return FAMILIES[_architecture(values)]


def read_spec(values: dict[str, Any]) -> DecoderSpec:
    """The decoder that a ``config.json`` describes. Raises ModelError where it asks for what is not there."""
    config = Config(values)
    for key, harmless in _REFUSED.items():
        config.refuse(key, *harmless)
    return find_family(values).read(config)


def _architecture(values: dict[str, Any]) -> str:
    declared = values.get("architectures")
    names = declared if isinstance(declared, list) else []
    for name in names:
        if name in FAMILIES:
            return str(name)
    if not names and (name := _BY_MODEL_TYPE.get(str(values.get("model_type")))):
        return name
    asked = ", ".join(map(str, names)) or f"model_type {values.get('model_type')!r}"
    raise ModelError(f"architecture {asked} is not supported; known: {', '.join(FAMILIES)}")


# Features that other readers of config.json honour for any architecture, with the values that turn them off.
_REFUSED: dict[str, tuple[object, ...]] = {
    "quantization_config": ({},),
    "compression_config": ({},),
    "auto_map": ({},),  # code of the repository's own, which may compute anything
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "partial_rotary_factor": (1, 1.0),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "num_local_experts": (0,),
    "num_experts": (0,),
}


def _llama_like(config: Config, *, default_head_dim: int | None = None, **variant: Any) -> DecoderSpec:
    """What Llama, Mistral and Qwen share; ``variant`` holds the fields of the spec in which they differ."""
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    layers = config.size("num_hidden_layers")
    head_dim = config.size("head_dim", default_head_dim or width // heads)
    kv_heads = config.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"config.json: {heads} query heads cannot share {kv_heads} key-value heads evenly")
    if head_dim % 2:
        raise ModelError(f"config.json: head_dim {head_dim} is odd and cannot be rotated in pairs")
    positions = config.size("max_position_embeddings", 2048)
    rope = _read_rope(config, head_dim, positions)
    fields: dict[str, Any] = {
        "vocab_size": config.size("vocab_size"),
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "feed_forward": config.size("intermediate_size"),
        "context": rope.scaling.context(positions),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "activation": config.choice("hidden_act", "silu", ACTIVATIONS),
        "rope": rope,
        "windows": (0,) * layers,
        "attention_scales": (head_dim**-0.5,) * layers,
        "tied": config.flag("tie_word_embeddings", False),
    }
    return DecoderSpec(**fields | variant)


def _read_rope(config: Config, head_dim: int, positions: int) -> Rope:
    block = config.block("rope_scaling") or config.block("rope_parameters")
    if any(isinstance(value, dict) for value in block.values()):
        raise ModelError("config.json: rotary parameters for each layer type are not supported")
    theta = Config({"rope_theta": block.get("rope_theta")} if "rope_theta" in block else config.values)
    original = config.values.get("original_max_position_embeddings")
    return Rope(theta.number("rope_theta", 10_000.0), head_dim, read_scaling(block, positions, original))


def _read_llama(config: Config) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    return _llama_like(
        config,
        architecture="LlamaForCausalLM",
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=config.flag("mlp_bias", False),
    )


def _read_mistral(config: Config) -> DecoderSpec:
    config.refuse("layer_types")  # alternating attention is Ministral's, another family
    sliding = config.values.get("sliding_window", 4096)
    window = 0 if sliding is None else config.size("sliding_window", 4096)
    windows = (window,) * config.size("num_hidden_layers")
    return _llama_like(config, architecture="MistralForCausalLM", windows=windows)


def _read_qwen2(config: Config) -> DecoderSpec:
    return _llama_like(config, architecture="Qwen2ForCausalLM", qkv_bias=True, windows=_qwen_windows(config))


def _read_qwen3(config: Config) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    return _llama_like(
        config,
        architecture="Qwen3ForCausalLM",
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=True,
        default_head_dim=128,
        windows=_qwen_windows(config),
    )


def _qwen_windows(config: Config) -> tuple[int, ...]:
    """Which layers slide: ``layer_types`` where given, else those from ``max_window_layers`` on."""
    layers = config.size("num_hidden_layers")
    if not config.flag("use_sliding_window", False) or config.values.get("sliding_window", 4096) is None:
        return (0,) * layers
    window = config.size("sliding_window", 4096)
    types = config.values.get("layer_types")
    if types is None:
        first = config.values.get("max_window_layers", 28)
        if not isinstance(first, int) or first < 0:
            raise ModelError(f"config.json: max_window_layers must be a count of layers, got {first!r}")
        return tuple(window if layer >= first else 0 for layer in range(layers))
    meanings = {"full_attention": 0, "sliding_attention": window}
    if not isinstance(types, list) or len(types) != layers or any(kind not in meanings for kind in types):
        raise ModelError(
            f"config.json: layer_types must name {layers} layers, each {' or '.join(meanings)}, got {types!r}"
        )
    return tuple(meanings[kind] for kind in types)


def _read_gpt2(config: Config) -> DecoderSpec:
    width, heads, layers = config.size("n_embd"), config.size("n_head"), config.size("n_layer")
    if width % heads:
        raise ModelError(f"config.json: n_embd {width} is not a multiple of n_head {heads}")
    head_dim = width // heads
    scale = head_dim**-0.5 if config.flag("scale_attn_weights", True) else 1.0
    by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    return DecoderSpec(
        architecture="GPT2LMHeadModel",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=config.size("n_inner", 4 * width),
        context=config.size("n_positions", 1024),
        norm="layer",
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        activation=config.choice("activation_function", "gelu_new", ACTIVATIONS),
        gated=False,
        qkv_bias=True,
        attention_out_bias=True,
        feed_forward_bias=True,
        windows=(0,) * layers,
        attention_scales=tuple(scale / (layer + 1) if by_layer else scale for layer in range(layers)),
        tied=config.flag("tie_word_embeddings", True),
    )


_LLAMA_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens",),
    "attention_norm": ("model.layers.{layer}.input_layernorm",),
    "qkv": (
        "model.layers.{layer}.self_attn.q_proj",
        "model.layers.{layer}.self_attn.k_proj",
        "model.layers.{layer}.self_attn.v_proj",
    ),
    "query_norm": ("model.layers.{layer}.self_attn.q_norm",),
    "key_norm": ("model.layers.{layer}.self_attn.k_norm",),
    "attention_out": ("model.layers.{layer}.self_attn.o_proj",),
    "feed_forward_norm": ("model.layers.{layer}.post_attention_layernorm",),
    "feed_forward_in": ("model.layers.{layer}.mlp.gate_proj", "model.layers.{layer}.mlp.up_proj"),
    "feed_forward_out": ("model.layers.{layer}.mlp.down_proj",),
    "final_norm": ("model.norm",),
    "head": ("lm_head",),
}

_GPT2_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("transformer.wte",),
    "positions": ("transformer.wpe",),
    "attention_norm": ("transformer.h.{layer}.ln_1",),
    "qkv": ("transformer.h.{layer}.attn.c_attn",),
    "attention_out": ("transformer.h.{layer}.attn.c_proj",),
    "feed_forward_norm": ("transformer.h.{layer}.ln_2",),
    "feed_forward_in": ("transformer.h.{layer}.mlp.c_fc",),
    "feed_forward_out": ("transformer.h.{layer}.mlp.c_proj",),
    "final_norm": ("transformer.ln_f",),
    "head": ("lm_head",),
}

_ROTARY_BUFFER = re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
_CAUSAL_MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(_read_llama, _LLAMA_NAMES, "llama", base="model.", ignored=_ROTARY_BUFFER),
    "MistralForCausalLM": Family(_read_mistral, _LLAMA_NAMES, "mistral", base="model.", ignored=_ROTARY_BUFFER),
    "Qwen2ForCausalLM": Family(_read_qwen2, _LLAMA_NAMES, "qwen2", base="model.", ignored=_ROTARY_BUFFER),
    "Qwen3ForCausalLM": Family(_read_qwen3, _LLAMA_NAMES, "qwen3", base="model.", ignored=_ROTARY_BUFFER),
    "GPT2LMHeadModel": Family(
        _read_gpt2,
        _GPT2_NAMES,
        "gpt2",
        base="transformer.",
        transposed=frozenset({"qkv", "attention_out", "feed_forward_in", "feed_forward_out"}),  # its Conv1D layers
        ignored=_CAUSAL_MASK_BUFFER,
    ),
}

_BY_MODEL_TYPE = {family.model_type: architecture for architecture, family in FAMILIES.items()}
