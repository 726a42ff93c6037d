"""Decoders of known mathematics whose first repositories have code of their own: EXAONE 3, InternLM 2 and 3,
IQuest-Coder, MiniCPM 1 to 4 and MiMo."""

from __future__ import annotations

import math
import re

from msgspec.structs import replace

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.fused_qkv import grouped_rows
from dragoman.models.families.llama import ACTIVATIONS, LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.families.qwen import qwen_windows
from dragoman.models.spec import Block, DecoderSpec, Embedding, Output

_EXAONE_LAYER = "transformer.h.{layer}."
_EXAONE_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("transformer.wte",),
    "attention_norm": (f"{_EXAONE_LAYER}ln_1",),
    "qkv": tuple(f"{_EXAONE_LAYER}attn.attention.{each}_proj" for each in "qkv"),
    "attention_out": (f"{_EXAONE_LAYER}attn.attention.out_proj",),
    "feed_forward_norm": (f"{_EXAONE_LAYER}ln_2",),
    "feed_forward_in": (f"{_EXAONE_LAYER}mlp.c_fc_0", f"{_EXAONE_LAYER}mlp.c_fc_1"),
    "feed_forward_out": (f"{_EXAONE_LAYER}mlp.c_proj",),
    "final_norm": ("transformer.ln_f",),
    "head": ("lm_head",),
}
_INTERNLM2_LAYER = "model.layers.{layer}."
_INTERNLM2_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("model.tok_embeddings",),
    "attention_norm": (f"{_INTERNLM2_LAYER}attention_norm",),
    "qkv": (f"{_INTERNLM2_LAYER}attention.wqkv",),
    "attention_out": (f"{_INTERNLM2_LAYER}attention.wo",),
    "feed_forward_norm": (f"{_INTERNLM2_LAYER}ffn_norm",),
    "feed_forward_in": (f"{_INTERNLM2_LAYER}feed_forward.w1", f"{_INTERNLM2_LAYER}feed_forward.w3"),
    "feed_forward_out": (f"{_INTERNLM2_LAYER}feed_forward.w2",),
    "final_norm": ("model.norm",),
    "head": ("output",),
}


def _read_exaone(config: Config) -> DecoderSpec:
    """Return a Llama under GPT-2's names."""
    named = {"num_hidden_layers": config.value("num_layers", config.value("num_hidden_layers"))}
    return llama_like(
        config.having(named),
        architecture="ExaoneForCausalLM",
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        activation=config.choice("activation_function", "silu", ACTIVATIONS),
    )


def _read_internlm2(config: Config) -> DecoderSpec:
    """Return a Llama with queries, keys and values in one matrix."""
    bias = config.flag("bias", True)
    return llama_like(config, architecture="InternLM2ForCausalLM", qkv_bias=bias, attention_out_bias=bias)


def _read_internlm3(config: Config) -> DecoderSpec:
    """Return a Llama whose config names its biases otherwise; newer versions of transformers rename them."""
    config = config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 32_768})
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    bias = config.flag("bias", config.flag("mlp_bias", False))
    return llama_like(
        config,
        architecture="InternLM3ForCausalLM",
        default_head_dim=128,
        qkv_bias=config.flag("qkv_bias", config.flag("attention_bias", False)),
        attention_out_bias=bias,
        feed_forward_bias=bias,
    )


def _read_iquest(config: Config) -> DecoderSpec:
    """Return a Llama."""
    config = config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 131_072})
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    config.refuse("clip_qkv")
    config.refuse("use_sliding_window", False)
    bias = config.flag("attention_bias", False)
    return llama_like(
        config,
        architecture="IQuestCoderForCausalLM",
        default_head_dim=128,
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=config.flag("mlp_bias", False),
    )


def _read_minicpm(config: Config) -> DecoderSpec:
    """Return a Llama with factors on embeddings, branches and logits. Sparse attention is the same as full attention
    in contexts of up to ``dense_len``: longer ones are not served."""
    config = config.over({"tie_word_embeddings": True})
    width, layers = config.size("hidden_size"), config.size("num_hidden_layers")
    bias = config.flag("attention_bias", False)
    spec = llama_like(
        config,
        architecture="MiniCPMForCausalLM",
        embedding=Embedding(scale=config.number("scale_emb", 1)),
        block=Block(branch_scale=config.number("scale_depth", 1) / math.sqrt(layers)),
        output=Output(scale=config.number("dim_model_base", 1) / width),
        qkv_bias=bias,
        attention_out_bias=bias,
    )
    if not (sparse := config.block("sparse_config")):
        return spec
    dense = Config(sparse, "config.json: sparse_config").size("dense_len", 8192)
    return replace(spec, context=min(spec.context, dense))


def _read_mimo(config: Config) -> DecoderSpec:
    """Return Qwen 2."""
    config.refuse("attention_bias", True)
    return llama_like(config, architecture="MiMoForCausalLM", qkv_bias=True, windows=qwen_windows(config))


FAMILIES: dict[str, Family] = {
    "ExaoneForCausalLM": Family(
        _read_exaone,
        _EXAONE_NAMES,
        "exaone",
        base="transformer.",
        ignored=re.compile(r"(h\.\d+\.attn\.attention\.)?rotary(_emb)?\.inv_freq"),
        title="EXAONE 3 and 3.5",
        examples=("LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct", "LGAI-EXAONE/EXAONE-Deep-7.8B"),
    ),
    "InternLM2ForCausalLM": Family(
        _read_internlm2,
        _INTERNLM2_NAMES,
        "internlm2",
        base="model.",
        other_names={"qkv": LLAMA_NAMES["qkv"]},  # GGUF files
        ignored=re.compile(r"layers\.\d+\.attention\.rotary_emb\.inv_freq"),
        row_order=grouped_rows,
        title="InternLM 2 and 2.5",
        examples=("internlm/internlm2_5-1_8b-chat", "internlm/internlm2_5-7b-chat"),
    ),
    "InternLM3ForCausalLM": Family(
        _read_internlm3,
        LLAMA_NAMES,
        "internlm3",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="InternLM 3",
        examples=("internlm/internlm3-8b-instruct",),
    ),
    "IQuestCoderForCausalLM": Family(
        _read_iquest,
        LLAMA_NAMES,
        "iquestcoder",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="IQuest-Coder",
        examples=("IQuestLab/IQuest-Coder-V1-40B-Instruct",),
    ),
    "MiniCPMForCausalLM": Family(
        _read_minicpm,
        LLAMA_NAMES,
        "minicpm",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="MiniCPM 1, 2 and 4",
        examples=("openbmb/MiniCPM4-0.5B", "openbmb/MiniCPM4-8B", "openbmb/MiniCPM-2B-sft-bf16"),
        note="With `sparse_config`, contexts are as long as its `dense_len`: up to there attention is full.",
    ),
    "MiMoForCausalLM": Family(
        _read_mimo,
        LLAMA_NAMES,
        "mimo",
        base="model.",
        ignored=re.compile(rf"mtp_layers\..*|{ROTARY_BUFFER.pattern}"),
        title="MiMo",
        examples=("XiaomiMiMo/MiMo-7B-RL", "XiaomiMiMo/MiMo-7B-SFT"),
        note="The layers that guess one token more (MTP) are not loaded.",
    ),
}
