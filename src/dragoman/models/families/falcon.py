"""Falcon: parallel branches and few key-value heads; the RefinedWeb variant has ALiBi and sequential branches."""

from __future__ import annotations

from dragoman.core.errors import ModelError
from dragoman.models.alibi import alibi_slopes
from dragoman.models.config import Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.fused_qkv import grouped_rows
from dragoman.models.families.llama import ACTIVATIONS
from dragoman.models.rope_config import read_rope
from dragoman.models.spec import Block, DecoderSpec
from dragoman.models.tensors import nearest_bfloat16

_FALCON_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("transformer.word_embeddings",),
    "attention_norm": ("transformer.h.{layer}.input_layernorm",),
    "qkv": ("transformer.h.{layer}.self_attention.query_key_value",),
    "attention_out": ("transformer.h.{layer}.self_attention.dense",),
    "feed_forward_norm": ("transformer.h.{layer}.post_attention_layernorm",),
    "feed_forward_in": ("transformer.h.{layer}.mlp.dense_h_to_4h",),
    "feed_forward_out": ("transformer.h.{layer}.mlp.dense_4h_to_h",),
    "final_norm": ("transformer.ln_f",),
    "head": ("lm_head",),
}
# Norms of the two branches, where they are separate.
_ALIASES = ((r"\.ln_attn\.", ".input_layernorm."), (r"\.ln_mlp\.", ".post_attention_layernorm."))


def _read_falcon(config: Config) -> DecoderSpec:
    width = config.size("n_embed", config.size("hidden_size"))
    heads, layers = config.size("num_attention_heads"), config.size("num_hidden_layers")
    head_dim, kv_heads = even_head_dim(width, heads, "hidden_size", "num_attention_heads"), _kv_heads(config, heads)
    bias, alibi = config.flag("bias", False), config.flag("alibi", False)
    positions = config.size("max_position_embeddings", 2048)
    rope = None if alibi else read_rope(config, head_dim, positions)
    scale = head_dim**-0.5
    # The original code rounds the slopes, and scales them like the products that they are added to.
    slopes = tuple(nearest_bfloat16(slope) * scale for slope in alibi_slopes(heads)) if alibi else ()
    return DecoderSpec(
        architecture="FalconForCausalLM",
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=config.size("ffn_hidden_size", 4 * width),
        context=positions if rope is None else rope.scaling.context(positions),
        block=_block(config),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        activation=config.choice("activation", "gelu", ACTIVATIONS),
        gated=False,
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=bias,
        ropes=(rope,) * layers if rope else (),
        windows=(0,) * layers,
        attention_scales=(scale,) * layers,
        alibi_slopes=slopes,
        tied=config.flag("tie_word_embeddings", True),
    )


def _kv_heads(config: Config, heads: int) -> int:
    if not config.flag("new_decoder_architecture", False):
        return 1 if config.flag("multi_query", True) else heads
    kv_heads = config.size("num_kv_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"config.json: {heads} query heads cannot share {kv_heads} key-value heads evenly")
    return kv_heads


def _block(config: Config) -> Block:
    if not config.flag("new_decoder_architecture", False):
        config.refuse("num_ln_in_parallel_attn", 1)
        parallel = config.flag("parallel_attn", True)
        return Block(parallel=parallel, shared_norm=parallel)
    config.refuse("parallel_attn", True)
    norms = config.size("num_ln_in_parallel_attn", 2)
    if norms > 2:
        raise ModelError(f"config.json: num_ln_in_parallel_attn must be 1 or 2, got {norms}")
    return Block(parallel=True, shared_norm=norms == 1)


FAMILIES: dict[str, Family] = {
    "FalconForCausalLM": Family(
        _read_falcon,
        _FALCON_NAMES,
        "falcon",
        base="transformer.",
        aliases=_ALIASES,
        row_order=grouped_rows,
        title="Falcon",
        examples=("tiiuae/falcon-7b-instruct", "tiiuae/falcon-40b", "tiiuae/falcon-11B", "tiiuae/falcon-rw-1b"),
        note=(
            "With `alibi`, scores fall linearly with the distance. transformers rounds each product of slope and "
            "position to bfloat16, which moves far positions together: the further back, the more the two differ."
        ),
    ),
}
