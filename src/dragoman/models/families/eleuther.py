"""GPT-NeoX with Pythia, GPT-J and CodeGen: parallel branches and partial rotary positions; and Persimmon, which is
alike."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.models.config import Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.fused_qkv import grouped_rows
from dragoman.models.families.llama import ACTIVATIONS, ROTARY_BUFFER
from dragoman.models.parameter import Parameter
from dragoman.models.rope import Rope
from dragoman.models.rope_config import read_rope
from dragoman.models.spec import Block, DecoderSpec, HeadNorm, Output

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NEOX_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("gpt_neox.embed_in",),
    "attention_norm": ("gpt_neox.layers.{layer}.input_layernorm",),
    "qkv": ("gpt_neox.layers.{layer}.attention.query_key_value",),
    "attention_out": ("gpt_neox.layers.{layer}.attention.dense",),
    "feed_forward_norm": ("gpt_neox.layers.{layer}.post_attention_layernorm",),
    "feed_forward_in": ("gpt_neox.layers.{layer}.mlp.dense_h_to_4h",),
    "feed_forward_out": ("gpt_neox.layers.{layer}.mlp.dense_4h_to_h",),
    "final_norm": ("gpt_neox.final_layer_norm",),
    "head": ("embed_out",),
}
_NEOX_BUFFER = re.compile(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)")

_GPTJ_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("transformer.wte",),
    "attention_norm": ("transformer.h.{layer}.ln_1",),
    "qkv": tuple(f"transformer.h.{{layer}}.attn.{part}_proj" for part in "qkv"),
    "attention_out": ("transformer.h.{layer}.attn.out_proj",),
    "feed_forward_in": ("transformer.h.{layer}.mlp.fc_in",),
    "feed_forward_out": ("transformer.h.{layer}.mlp.fc_out",),
    "final_norm": ("transformer.ln_f",),
    "head": ("lm_head",),
}
_GPTJ_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias|embed_positions)")

_CODEGEN_NAMES = _GPTJ_NAMES | {"qkv": ("transformer.h.{layer}.attn.qkv_proj",)}
_CODEGEN_GROUPS = 4
"""Parts in which CodeGen's matrices of queries, values and keys are stored, each with a share of all three."""

_PERSIMMON_LAYER = "model.layers.{layer}."
_PERSIMMON_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens",),
    "attention_norm": (f"{_PERSIMMON_LAYER}input_layernorm",),
    "qkv": (f"{_PERSIMMON_LAYER}self_attn.query_key_value",),
    "query_norm": (f"{_PERSIMMON_LAYER}self_attn.q_layernorm",),
    "key_norm": (f"{_PERSIMMON_LAYER}self_attn.k_layernorm",),
    "attention_out": (f"{_PERSIMMON_LAYER}self_attn.dense",),
    "feed_forward_norm": (f"{_PERSIMMON_LAYER}post_attention_layernorm",),
    "feed_forward_in": (f"{_PERSIMMON_LAYER}mlp.dense_h_to_4h",),
    "feed_forward_out": (f"{_PERSIMMON_LAYER}mlp.dense_4h_to_h",),
    "final_norm": ("model.final_layernorm",),
    "head": ("lm_head",),
}


def _read_gpt_neox(config: Config) -> DecoderSpec:
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    layers = config.size("num_hidden_layers")
    head_dim = even_head_dim(width, heads, "hidden_size", "num_attention_heads")
    positions = config.size("max_position_embeddings", 2048)
    theta, partial = config.number("rotary_emb_base", 10_000.0), config.number("rotary_pct", 0.25)
    rope = read_rope(config, head_dim, positions, theta=theta, partial=partial)
    bias = config.flag("attention_bias", True)
    return DecoderSpec(
        architecture="GPTNeoXForCausalLM",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=config.size("intermediate_size"),
        context=rope.scaling.context(positions),
        block=Block(parallel=config.flag("use_parallel_residual", True)),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_eps", 1e-5),
        activation=config.choice("hidden_act", "gelu", ACTIVATIONS),
        gated=False,
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=True,
        ropes=(rope,) * layers,
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        tied=config.flag("tie_word_embeddings", False),
    )


def _read_gptj(config: Config) -> DecoderSpec:
    width, heads, layers = config.size("n_embd"), config.size("n_head"), config.size("n_layer")
    head_dim = even_head_dim(width, heads, "n_embd", "n_head")
    rotated = config.size("rotary_dim", 64)
    if rotated > head_dim or rotated % 2:
        raise ModelError(f"config.json: rotary_dim {rotated} must be even and at most a head's {head_dim}")
    return DecoderSpec(
        architecture="GPTJForCausalLM",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=config.size("n_inner", 4 * width),
        context=config.size("n_positions", 2048),
        block=Block(parallel=True, shared_norm=True),
        output=Output(bias=True),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        activation=config.choice("activation_function", "gelu_new", ACTIVATIONS),
        gated=False,
        feed_forward_bias=True,
        ropes=(Rope(10_000.0, rotated, interleaved=True),) * layers,
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        tied=config.flag("tie_word_embeddings", False),
    )


def _read_codegen(config: Config) -> DecoderSpec:
    """Return GPT-J with queries, keys and values in one matrix."""
    spec = _read_gptj(config)
    if spec.heads % _CODEGEN_GROUPS:
        raise ModelError(f"config.json: n_head {spec.heads} is not a multiple of {_CODEGEN_GROUPS}")
    return replace(spec, architecture="CodeGenForCausalLM")


def _codegen_rows(spec: DecoderSpec, parameter: Parameter) -> NDArray[np.intp] | None:
    """Return the stored row of each row: each of the groups has queries, values and keys."""
    if parameter.module != "qkv":
        return None
    queries, values, keys = np.arange(spec.qkv_width).reshape(_CODEGEN_GROUPS, 3, -1).swapaxes(0, 1)
    return np.concatenate([queries.ravel(), keys.ravel(), values.ravel()])


def _read_persimmon(config: Config) -> DecoderSpec:
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    layers = config.size("num_hidden_layers")
    head_dim = even_head_dim(width, heads, "hidden_size", "num_attention_heads")
    positions = config.size("max_position_embeddings", 16_384)
    rope = read_rope(config, head_dim, positions, partial=0.5)
    return DecoderSpec(
        architecture="PersimmonForCausalLM",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=config.size("intermediate_size"),
        context=rope.scaling.context(positions),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_eps", 1e-5),
        activation=config.choice("hidden_act", "relu2", ACTIVATIONS),
        gated=False,
        qkv_bias=True,
        attention_out_bias=True,
        feed_forward_bias=True,
        head_norm=HeadNorm(kind="layer", bias=True) if config.flag("qk_layernorm", True) else None,
        ropes=(rope,) * layers,
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        tied=config.flag("tie_word_embeddings", False),
    )


FAMILIES: dict[str, Family] = {
    "GPTNeoXForCausalLM": Family(
        _read_gpt_neox,
        _NEOX_NAMES,
        "gpt_neox",
        base="gpt_neox.",
        ignored=_NEOX_BUFFER,
        row_order=grouped_rows,
        title="GPT-NeoX, Pythia",
        examples=("EleutherAI/pythia-1.4b", "EleutherAI/gpt-neox-20b", "databricks/dolly-v2-3b"),
    ),
    "GPTJForCausalLM": Family(
        _read_gptj,
        _GPTJ_NAMES,
        "gptj",
        base="transformer.",
        ignored=_GPTJ_BUFFER,
        title="GPT-J",
        examples=("EleutherAI/gpt-j-6b",),
    ),
    "CodeGenForCausalLM": Family(
        _read_codegen,
        _CODEGEN_NAMES,
        "codegen",
        base="transformer.",
        ignored=re.compile(r"h\.\d+\.attn\.(causal_mask|bias|masked_bias|embed_positions)"),
        row_order=_codegen_rows,
        title="CodeGen",
        examples=("Salesforce/codegen-350M-mono", "Salesforce/codegen-2B-multi"),
    ),
    "PersimmonForCausalLM": Family(
        _read_persimmon,
        _PERSIMMON_NAMES,
        "persimmon",
        base="model.",
        ignored=ROTARY_BUFFER,
        row_order=grouped_rows,
        title="Persimmon",
        examples=("adept/persimmon-8b-chat", "adept/persimmon-8b-base"),
    ),
}
