"""Shapes of published models with recurrent layers, inputs of layers or many experts: configs, and the tensors of a
checkpoint of each, as transformers names them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.make_models import make_model

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

MXFP4_BLOCK = 32
"""Numbers of a block of MXFP4, which are 16 bytes and a scale."""

_QWEN35: Config = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "max_position_embeddings": 262144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
_GRANITE4: Config = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "vocab_size": 100352,
    "num_local_experts": 0,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "mamba_n_heads": 48,
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "position_embedding_type": "nope",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.25,
    "logits_scaling": 4.0,
    "tie_word_embeddings": True,
}


def _mamba_but(layers: int, attention: tuple[int, ...]) -> list[str]:
    return ["attention" if layer in attention else "mamba" for layer in range(layers)]


RECURRENT_SHAPES: dict[str, Config] = {
    "qwen3.5-0.8b": _QWEN35
    | {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24, "linear_num_value_heads": 16}
    | {"num_attention_heads": 8, "num_key_value_heads": 2},
    "qwen3.5-4b": _QWEN35
    | {"hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32, "linear_num_value_heads": 32}
    | {"num_attention_heads": 16, "num_key_value_heads": 4},
    "lfm2-1.2b": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "conv_L_cache": 3,
        "conv_bias": False,
        "norm_eps": 1e-5,
        "vocab_size": 65536,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 128000,
        "tie_word_embeddings": True,
    },
    "granite4-350m-h": _GRANITE4
    | {"hidden_size": 768, "intermediate_size": 2048, "shared_intermediate_size": 2048, "num_hidden_layers": 32}
    | {"layer_types": _mamba_but(32, (10, 13, 17, 27)), "mamba_d_head": 32, "attention_multiplier": 0.015625},
    "granite4-1b-h": _GRANITE4
    | {"hidden_size": 1536, "intermediate_size": 4096, "shared_intermediate_size": 4096, "num_hidden_layers": 40}
    | {"layer_types": _mamba_but(40, (5, 15, 25, 35)), "mamba_d_head": 64, "attention_multiplier": 0.0078125},
    "gemma4-e2b": {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
        "sliding_window": 512,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 256,
        "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144,
        "final_logit_softcapping": 30.0,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    "gpt-oss-4-layers": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 4,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "vocab_size": 201088,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    },
}


def make_recurrent_model(folder: Path, config: Config) -> None:
    """Write a model with random weights."""
    make_model(folder, config, shapes=TENSORS[config["model_type"]](config))


def _qwen35(c: Config) -> Shapes:
    width, dim = c["hidden_size"], c["linear_value_head_dim"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    heads, values = c["linear_num_value_heads"], c["linear_num_value_heads"] * dim
    shapes = _ends(c, "model.norm")
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        if (layer + 1) % c["full_attention_interval"]:
            mixer = f"{at}linear_attn."
            shapes |= {
                f"{mixer}in_proj_qkv.weight": (2 * keys + values, width),
                f"{mixer}in_proj_z.weight": (values, width),
                f"{mixer}in_proj_b.weight": (heads, width),
                f"{mixer}in_proj_a.weight": (heads, width),
                f"{mixer}conv1d.weight": (2 * keys + values, 1, c["linear_conv_kernel_dim"]),
                f"{mixer}A_log": (heads,),
                f"{mixer}dt_bias": (heads,),
                f"{mixer}norm.weight": (dim,),
                f"{mixer}out_proj.weight": (width, values),
            }
        else:
            shapes |= _attention(c, at, query_parts=2) | _head_norms(at, c["head_dim"], "q_norm", "k_norm")
        shapes |= _norms(at, width, "input_layernorm", "post_attention_layernorm")
        shapes |= _gated(f"{at}mlp.", width, c["intermediate_size"])
    return shapes


def _lfm2(c: Config) -> Shapes:
    width = c["hidden_size"]
    shapes = _ends(c, "model.embedding_norm")
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        if layer in c["full_attn_idxs"]:
            head = width // c["num_attention_heads"]
            shapes |= _attention(c, at, out="out_proj") | _head_norms(at, head, "q_layernorm", "k_layernorm")
        else:
            shapes |= {
                f"{at}conv.in_proj.weight": (3 * width, width),
                f"{at}conv.conv.weight": (width, 1, c["conv_L_cache"]),
                f"{at}conv.out_proj.weight": (width, width),
            }
        shapes |= _norms(at, width, "operator_norm", "ffn_norm")
        shapes |= _gated(f"{at}feed_forward.", width, c["intermediate_size"], ("w1", "w3", "w2"))
    return shapes


def _granite4(c: Config) -> Shapes:
    width, inner, heads = c["hidden_size"], c["shared_intermediate_size"], c["mamba_n_heads"]
    mixed = heads * c["mamba_d_head"]
    convolved = mixed + 2 * c["mamba_n_groups"] * c["mamba_d_state"]
    shapes = _ends(c, "model.norm")
    for layer, kind in enumerate(c["layer_types"]):
        at = f"model.layers.{layer}."
        if kind == "attention":
            shapes |= _attention(c, at)
        else:
            shapes |= {
                f"{at}mamba.in_proj.weight": (mixed + convolved + heads, width),
                f"{at}mamba.conv1d.weight": (convolved, 1, c["mamba_d_conv"]),
                f"{at}mamba.conv1d.bias": (convolved,),
                f"{at}mamba.norm.weight": (mixed,),
                f"{at}mamba.out_proj.weight": (width, mixed),
            } | {f"{at}mamba.{name}": (heads,) for name in ("A_log", "dt_bias", "D")}
        shapes |= _norms(at, width, "input_layernorm", "post_attention_layernorm")
        shapes[f"{at}shared_mlp.input_linear.weight"] = (2 * inner, width)
        shapes[f"{at}shared_mlp.output_linear.weight"] = (width, inner)
    return shapes


def _gemma4(c: Config) -> Shapes:
    width, layers, own = c["hidden_size"], c["num_hidden_layers"], c["hidden_size_per_layer_input"]
    shapes = _ends(c, "model.norm") | {
        "model.embed_tokens_per_layer.weight": (c["vocab_size_per_layer_input"], layers * own),
        "model.per_layer_model_projection.weight": (layers * own, width),
        "model.per_layer_projection_norm.weight": (own,),
    }
    for layer, kind in enumerate(c["layer_types"]):
        at, shared = f"model.layers.{layer}.", layer >= layers - c["num_kv_shared_layers"]
        head = c["head_dim"] if kind == "sliding_attention" else c["global_head_dim"]
        attention = _attention(c | {"head_dim": head}, at) | _head_norms(at, head, "q_norm", "k_norm")
        unused = ("k_proj.weight", "v_proj.weight", "k_norm.weight")  # in layers that use those of others
        shapes |= {name: shape for name, shape in attention.items() if not (shared and name.endswith(unused))}
        around = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm")
        shapes |= _norms(at, width, *around, "post_feedforward_layernorm", "post_per_layer_input_norm")
        shapes |= _gated(f"{at}mlp.", width, c["intermediate_size"] * (2 if shared and c["use_double_wide_mlp"] else 1))
        shapes[f"{at}per_layer_input_gate.weight"] = (own, width)
        shapes[f"{at}per_layer_projection.weight"] = (width, own)
        shapes[f"{at}layer_scalar"] = (1,)
    return shapes


def _gpt_oss(c: Config) -> Shapes:
    width, inner, experts = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    shapes = _ends(c, "model.norm")
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes |= _attention(c, at, bias=True) | _norms(at, width, "input_layernorm", "post_attention_layernorm")
        shapes |= {
            f"{at}self_attn.sinks": (c["num_attention_heads"],),
            f"{at}mlp.router.weight": (experts, width),
            f"{at}mlp.router.bias": (experts,),
        }
        for name, rows, columns in (("gate_up_proj", 2 * inner, width), ("down_proj", width, inner)):
            shapes |= {
                f"{at}mlp.experts.{name}_blocks": (experts, rows, columns // MXFP4_BLOCK, MXFP4_BLOCK // 2),
                f"{at}mlp.experts.{name}_scales": (experts, rows, columns // MXFP4_BLOCK),
                f"{at}mlp.experts.{name}_bias": (experts, rows),
            }
    return shapes


def _ends(c: Config, norm: str) -> Shapes:
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], c["hidden_size"]), f"{norm}.weight": (c["hidden_size"],)}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], c["hidden_size"])
    return shapes


def _attention(c: Config, at: str, *, query_parts: int = 1, out: str = "o_proj", bias: bool = False) -> Shapes:
    width, heads = c["hidden_size"], c["num_attention_heads"]
    head: int = c.get("head_dim") or width // heads
    rows = {"q_proj": query_parts * heads * head, "k_proj": c["num_key_value_heads"] * head}
    rows["v_proj"] = rows["k_proj"]
    shapes: Shapes = {f"{at}self_attn.{name}.weight": (count, width) for name, count in rows.items()}
    shapes[f"{at}self_attn.{out}.weight"] = (width, heads * head)
    if bias:
        shapes |= {f"{at}self_attn.{name}.bias": (count,) for name, count in (rows | {out: width}).items()}
    return shapes


def _head_norms(at: str, size: int, *names: str) -> Shapes:
    return {f"{at}self_attn.{name}.weight": (size,) for name in names}


def _norms(at: str, size: int, *names: str) -> Shapes:
    return {f"{at}{name}.weight": (size,) for name in names}


def _gated(
    at: str, width: int, inner: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> Shapes:
    gate, up, down = (f"{at}{name}.weight" for name in names)
    return {gate: (inner, width), up: (inner, width), down: (width, inner)}


TENSORS: dict[str, Callable[[Config], Shapes]] = {
    "qwen3_5_text": _qwen35,
    "lfm2": _lfm2,
    "granitemoehybrid": _granite4,
    "gemma4_text": _gemma4,
    "gpt_oss": _gpt_oss,
}
"""Names and shapes of a checkpoint's tensors, by ``model_type``."""
