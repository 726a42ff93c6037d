"""BLOOM: ALiBi in place of positions, and a norm after the embedding."""

from __future__ import annotations

from dragoman.models.alibi import alibi_slopes
from dragoman.models.config import Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.fused_qkv import grouped_rows
from dragoman.models.spec import DecoderSpec, Embedding

_BLOOM_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("transformer.word_embeddings",),
    "embedding_norm": ("transformer.word_embeddings_layernorm",),
    "attention_norm": ("transformer.h.{layer}.input_layernorm",),
    "qkv": ("transformer.h.{layer}.self_attention.query_key_value",),
    "attention_out": ("transformer.h.{layer}.self_attention.dense",),
    "feed_forward_norm": ("transformer.h.{layer}.post_attention_layernorm",),
    "feed_forward_in": ("transformer.h.{layer}.mlp.dense_h_to_4h",),
    "feed_forward_out": ("transformer.h.{layer}.mlp.dense_4h_to_h",),
    "final_norm": ("transformer.ln_f",),
    "head": ("lm_head",),
}


def _read_bloom(config: Config) -> DecoderSpec:
    config.refuse("apply_residual_connection_post_layernorm", False)
    width = config.size("n_embed", config.size("hidden_size", 64))
    heads = config.size("n_head", config.size("num_attention_heads", 8))
    layers = config.size("n_layer", config.size("num_hidden_layers", 2))
    head_dim = even_head_dim(width, heads, "hidden_size", "n_head")
    return DecoderSpec(
        architecture="BloomForCausalLM",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=4 * width,
        context=config.size("seq_length", 2048),  # of training: ALiBi has no limit
        embedding=Embedding(norm=True),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        activation="gelu_tanh",
        gated=False,
        qkv_bias=True,
        attention_out_bias=True,
        feed_forward_bias=True,
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        alibi_slopes=alibi_slopes(heads),
        tied=config.flag("tie_word_embeddings", True),
    )


FAMILIES: dict[str, Family] = {
    "BloomForCausalLM": Family(
        _read_bloom,
        _BLOOM_NAMES,
        "bloom",
        base="transformer.",
        row_order=grouped_rows,
        title="BLOOM",
        examples=("bigscience/bloom-560m", "bigscience/bloomz-1b7"),
        note="The context is that of training, `seq_length`: ALiBi itself has no limit.",
    ),
}
