"""Architectures of GGUF files that differ from Llama in a point or two: Apertus, Baichuan, BitNet b1.58, Nemotron 4,
Jais 2, OLMo 1, GLM-4 of 2024, GPT-J, EXAONE 3, InternLM 2 and MiniCPM."""

from __future__ import annotations

import math

from dragoman.models.gguf import names
from dragoman.models.gguf.architecture import (
    LONGROPE,
    Architecture,
    Config,
    Tensors,
    head_size,
    heads,
    interleaved_rows,
    layer_norm,
    longrope,
    partly_rotated,
    rms,
)
from dragoman.models.gguf.metadata import Metadata

_LAYER = "model.layers.{layer}."
_UNGATED_NAMES = {name: stored for name, stored in names.LLAMA.items() if name != "blk.ffn_gate"}
_APERTUS_NAMES = _UNGATED_NAMES | {
    "blk.attn_norm": f"{_LAYER}attention_layernorm",
    "blk.ffn_norm": f"{_LAYER}feedforward_layernorm",
}
_APERTUS_NUMBERS = {
    f"{_LAYER}mlp.act_fn.{theirs}": f"xielu.{theirs}" for theirs in ("alpha_p", "alpha_n", "beta", "eps")
}
_BITNET_NAMES = names.LLAMA | {
    "blk.attn_sub_norm": f"{_LAYER}self_attn.attn_sub_norm",
    "blk.ffn_sub_norm": f"{_LAYER}mlp.ffn_sub_norm",
}
_CHATGLM_NAMES = names.LLAMA | {
    "blk.attn_qkv": f"{_LAYER}self_attn.qkv_proj",  # of the models' own repositories; newer ones have three matrices
    "blk.ffn_up": f"{_LAYER}mlp.gate_up_proj",
}
_GPTJ_LAYER = "transformer.h.{layer}."
_GPTJ_NAMES = {
    "token_embd": "transformer.wte",
    "blk.attn_norm": f"{_GPTJ_LAYER}ln_1",
    "blk.attn_q": f"{_GPTJ_LAYER}attn.q_proj",
    "blk.attn_k": f"{_GPTJ_LAYER}attn.k_proj",
    "blk.attn_v": f"{_GPTJ_LAYER}attn.v_proj",
    "blk.attn_output": f"{_GPTJ_LAYER}attn.out_proj",
    "blk.ffn_up": f"{_GPTJ_LAYER}mlp.fc_in",
    "blk.ffn_down": f"{_GPTJ_LAYER}mlp.fc_out",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_EXAONE_LAYER = "transformer.h.{layer}."
_EXAONE_NAMES = {
    "token_embd": "transformer.wte",
    "blk.attn_norm": f"{_EXAONE_LAYER}ln_1",
    "blk.attn_q": f"{_EXAONE_LAYER}attn.attention.q_proj",
    "blk.attn_k": f"{_EXAONE_LAYER}attn.attention.k_proj",
    "blk.attn_v": f"{_EXAONE_LAYER}attn.attention.v_proj",
    "blk.attn_output": f"{_EXAONE_LAYER}attn.attention.out_proj",
    "blk.ffn_norm": f"{_EXAONE_LAYER}ln_2",
    "blk.ffn_gate": f"{_EXAONE_LAYER}mlp.c_fc_0",
    "blk.ffn_up": f"{_EXAONE_LAYER}mlp.c_fc_1",
    "blk.ffn_down": f"{_EXAONE_LAYER}mlp.c_proj",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_INTERNLM2_NAMES = names.LLAMA | {
    "token_embd": "model.tok_embeddings",
    "blk.attn_norm": f"{_LAYER}attention_norm",
    "blk.attn_output": f"{_LAYER}attention.wo",
    "blk.ffn_norm": f"{_LAYER}ffn_norm",
    "blk.ffn_gate": f"{_LAYER}feed_forward.w1",
    "blk.ffn_up": f"{_LAYER}feed_forward.w3",
    "blk.ffn_down": f"{_LAYER}feed_forward.w2",
    "output": "output",
}
_GPTJ_SIZES = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
}
_OLMO_EPSILON = 1e-5
_BAICHUAN_13B_LAYERS = 40  # files say nothing else of ALiBi


def _biases(tensors: Tensors) -> Config:
    return {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}


def _apertus(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    biases = {"attention_bias": "blk.0.attn_q.bias" in tensors}
    rope = config["rope_scaling"] or {"rope_type": "default"}  # a config without one has Llama 3's
    return heads(keys, config) | rms(keys) | biases | {"rope_scaling": rope}


def _baichuan(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = heads(keys, config) | rms(keys)
    if config["num_hidden_layers"] == _BAICHUAN_13B_LAYERS:
        found |= {"max_position_embeddings": None, "model_max_length": config["max_position_embeddings"]}
    return found


def _bitnet(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    # Only files of the first models, whose gates have SiLU, do not say it.
    return heads(keys, config) | rms(keys) | {"hidden_act": keys.text("hidden_act", "silu")}


def _nemotron(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = partly_rotated(keys, config) | layer_norm(keys, "norm_eps") | _biases(tensors)
    return found | {"head_dim": head_size(keys, config)}


def _jais2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return heads(keys, config) | layer_norm(keys, "layer_norm_eps") | _biases(tensors)


def _olmo(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    if (epsilon := keys.number("attention.layer_norm_epsilon")) != _OLMO_EPSILON:
        raise keys.file.fail("attention.layer_norm_epsilon", f"{epsilon:g} is not supported: it is {_OLMO_EPSILON:g}")
    limit = keys.number("attention.clamp_kqv") if keys.is_on("attention.clamp_kqv") else None
    return heads(keys, config) | {"clip_qkv": limit}


def _chatglm(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    bias = "blk.0.attn_qkv.bias" in tensors or "blk.0.attn_q.bias" in tensors
    found = partly_rotated(keys, config) | rms(keys)
    return found | {"head_dim": head_size(keys, config), "attention_bias": bias}


def _gptj(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.head_count_kv", config["n_head"])
    keys.refuse("rope.freq_base", 10_000.0)
    return layer_norm(keys, "layer_norm_epsilon") | {"rotary_dim": keys.size("rope.dimension_count")}


def _exaone(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = heads(keys, config) | rms(keys)
    return found | {"layer_norm_epsilon": found["rms_norm_eps"]}


def _internlm2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return heads(keys, config) | rms(keys) | {"bias": "blk.0.attn_q.bias" in tensors}


def _minicpm(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    root, width = math.sqrt(config["num_hidden_layers"]), config["hidden_size"]
    original = keys.size("rope.scaling.original_context_length", config["max_position_embeddings"])
    # Files of the first models say none of the three.
    return heads(keys, config) | rms(keys) | longrope(keys, tensors) | {
        "original_max_position_embeddings": original,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "scale_emb": keys.number("embedding_scale", 12.0),
        "scale_depth": root * keys.number("residual_scale", 1.4 / root),
        "dim_model_base": width / keys.number("logit_scale", width / 256),
    }  # fmt: skip


LLAMA_VARIANTS: dict[str, Architecture] = {
    "apertus": Architecture(
        name="ApertusForCausalLM",
        model_type="apertus",
        names=_APERTUS_NAMES,
        extra=_apertus,
        numbers=_APERTUS_NUMBERS,
    ),
    "baichuan": Architecture(
        name="BaichuanForCausalLM",
        model_type="baichuan",
        names=names.LLAMA,
        extra=_baichuan,
        row_order=interleaved_rows,  # also in the larger ones, which do not rotate
    ),
    "bitnet": Architecture(name="BitNetForCausalLM", model_type="bitnet", names=_BITNET_NAMES, extra=_bitnet),
    "nemotron": Architecture(
        name="NemotronForCausalLM", model_type="nemotron", names=_UNGATED_NAMES, extra=_nemotron, norm_offset=1.0
    ),
    "jais2": Architecture(name="Jais2ForCausalLM", model_type="jais2", names=_UNGATED_NAMES, extra=_jais2),
    "olmo": Architecture(
        name="OlmoForCausalLM", model_type="olmo", names=names.LLAMA, extra=_olmo, row_order=interleaved_rows
    ),
    "chatglm": Architecture(name="GlmForCausalLM", model_type="glm", names=_CHATGLM_NAMES, extra=_chatglm),
    "gptj": Architecture(
        name="GPTJForCausalLM", model_type="gptj", names=_GPTJ_NAMES, extra=_gptj, sizes=_GPTJ_SIZES, rotary=False
    ),
    "exaone": Architecture(name="ExaoneForCausalLM", model_type="exaone", names=_EXAONE_NAMES, extra=_exaone),
    "internlm2": Architecture(
        name="InternLM2ForCausalLM",
        model_type="internlm2",
        names=_INTERNLM2_NAMES,
        extra=_internlm2,
        row_order=interleaved_rows,
    ),
    "minicpm": Architecture(
        name="MiniCPMForCausalLM",
        model_type="minicpm",
        names=names.LLAMA,
        extra=_minicpm,
        row_order=interleaved_rows,
        described=LONGROPE,
    ),
}
