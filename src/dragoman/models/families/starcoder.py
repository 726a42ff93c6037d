"""StarCoder 1 (GPT-BigCode) and 2: LayerNorm, biases everywhere, no gate; the first is a GPT-2 whose query heads share
one key-value head."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.fused_qkv import grouped_rows
from dragoman.models.families.gpt2 import CAUSAL_MASK_BUFFER, GPT2_NAMES, read_gpt2
from dragoman.models.families.llama import LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.spec import DecoderSpec

_STARCODER2_NAMES: dict[str, tuple[str, ...]] = LLAMA_NAMES | {
    "feed_forward_in": ("model.layers.{layer}.mlp.c_fc",),
    "feed_forward_out": ("model.layers.{layer}.mlp.c_proj",),
}


def _read_starcoder2(config: Config) -> DecoderSpec:
    config = config.over(
        {"hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096, "tie_word_embeddings": True}
    )
    layers, bias = config.size("num_hidden_layers"), config.flag("use_bias", True)
    return llama_like(
        config,
        architecture="Starcoder2ForCausalLM",
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("norm_epsilon", 1e-5),
        gated=False,
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=bias,
        windows=(config.window(),) * layers,
    )


def _read_bigcode(config: Config) -> DecoderSpec:
    config.refuse("scale_attn_by_inverse_layer_idx", False)
    shared = config.flag("multi_query", True)
    spec = read_gpt2(config.over({"activation_function": "gelu_pytorch_tanh"}))
    return replace(spec, architecture="GPTBigCodeForCausalLM", kv_heads=1 if shared else spec.heads)


FAMILIES: dict[str, Family] = {
    "GPTBigCodeForCausalLM": Family(
        _read_bigcode,
        GPT2_NAMES,
        "gpt_bigcode",
        base="transformer.",
        ignored=CAUSAL_MASK_BUFFER,
        row_order=grouped_rows,
        title="StarCoder, SantaCoder (GPT-BigCode)",
        examples=("bigcode/gpt_bigcode-santacoder", "bigcode/starcoder", "bigcode/tiny_starcoder_py"),
    ),
    "Starcoder2ForCausalLM": Family(
        _read_starcoder2,
        _STARCODER2_NAMES,
        "starcoder2",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="StarCoder 2",
        examples=("bigcode/starcoder2-3b", "bigcode/starcoder2-7b"),
    ),
}
