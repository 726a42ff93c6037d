"""BART and related families: mBART, Pegasus, Blenderbot, Blenderbot-small. They differ in norms and positions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.llama import ACTIVATIONS
from dragoman.models.spec import Block, DecoderSpec, Embedding, EncoderSpec, Output

Norms = Literal["before", "joined"]
EmbeddingNorm = bool | Literal["last"]


def _names(norms: Norms) -> dict[str, tuple[str, ...]]:
    encoder, decoder = _stack_names("encoder", norms), _stack_names("decoder", norms)
    across = "model.decoder.layers.{layer}.encoder_attn"
    return {
        "embedding": ("model.shared",),
        **{f"encoder_{module}": names for module, names in encoder.items()},
        **decoder,
        "cross_norm" if norms == "before" else "cross_out_norm": (across + "_layer_norm",),
        "cross_query": (across + ".q_proj",),
        "cross_key_value": (across + ".k_proj", across + ".v_proj"),
        "cross_out": (across + ".out_proj",),
        "head": ("lm_head",),
        "head.bias": ("final_logits_bias",),
    }


def _stack_names(side: str, norms: Norms) -> dict[str, tuple[str, ...]]:
    layer = f"model.{side}.layers.{{layer}}."
    attention, feed_forward = (f"{branch}{'' if norms == 'before' else '_out'}_norm" for branch in _BRANCHES)
    return {
        "positions": (f"model.{side}.embed_positions",),
        "embedding_norm": (f"model.{side}.layernorm_embedding",),
        attention: (layer + "self_attn_layer_norm",),
        "qkv": tuple(f"{layer}self_attn.{part}_proj" for part in "qkv"),
        "attention_out": (layer + "self_attn.out_proj",),
        feed_forward: (layer + "final_layer_norm",),
        "feed_forward_in": (layer + "fc1",),
        "feed_forward_out": (layer + "fc2",),
        "final_norm": (f"model.{side}.layer_norm",),
    }


_BRANCHES = ("attention", "feed_forward")
_COPIES = re.compile(r"(encoder|decoder)\.(embed_tokens\.weight|version)")
_COPIES_AND_SINUSOIDS = re.compile(r"(encoder|decoder)\.(embed_tokens\.weight|embed_positions\.weight|version)")


def _read(
    config: Config,
    architecture: str,
    *,
    norms: Norms,
    positions: Embedding,
    encoder_norm: EmbeddingNorm = False,
    decoder_norm: EmbeddingNorm = False,
) -> DecoderSpec:
    """Return the spec. ``positions``: kind of the embeddings' positions. ``encoder_norm``, ``decoder_norm``: of the
    embeddings."""
    config.flag("is_encoder_decoder", True)
    width, heads = config.size("d_model"), config.size("decoder_attention_heads")
    head_dim = even_head_dim(width, heads, "d_model", "decoder_attention_heads")
    if config.size("encoder_attention_heads") != heads:
        raise ModelError("config.json: encoder_attention_heads must be decoder_attention_heads: both share blocks")
    layers, context = config.size("decoder_layers"), config.size("max_position_embeddings", 1024)
    scale = width**0.5 if config.flag("scale_embedding", False) else 1.0
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=config.size("decoder_ffn_dim"),
        context=context,
        embedding=_embedding(positions, scale, decoder_norm),
        block=Block(norms=norms),
        output=Output(norm=norms == "before", bias=True),
        norm="layer",
        norm_bias=True,
        norm_eps=1e-5,
        activation=config.choice("activation_function", "gelu", ACTIVATIONS),
        gated=False,
        qkv_bias=True,
        attention_out_bias=True,
        feed_forward_bias=True,
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        tied=config.flag("tie_word_embeddings", True),
        encoder=EncoderSpec(
            layers=config.size("encoder_layers"),
            feed_forward=config.size("encoder_ffn_dim"),
            context=context,
            embedding=_embedding(positions, scale, encoder_norm),
        ),
    )


def _embedding(positions: Embedding, scale: float, norm: EmbeddingNorm) -> Embedding:
    return replace(positions, scale=scale, norm=norm)


_LEARNED = Embedding(positions=True)
_LEARNED_FROM_TWO = Embedding(positions=True, positions_offset=2)
_SINUSOIDAL = Embedding(positions=True, sinusoidal=True)


def _read_bart(config: Config) -> DecoderSpec:
    return _read(
        config,
        "BartForConditionalGeneration",
        norms="joined",
        positions=_LEARNED_FROM_TWO,
        encoder_norm="last",
        decoder_norm="last",
    )


def _read_mbart(config: Config) -> DecoderSpec:
    return _read(
        config,
        "MBartForConditionalGeneration",
        norms="before",
        positions=_LEARNED_FROM_TWO,
        encoder_norm="last",
        decoder_norm="last",
    )


def _read_pegasus(config: Config) -> DecoderSpec:
    return _read(config, "PegasusForConditionalGeneration", norms="before", positions=_SINUSOIDAL)


def _read_blenderbot(config: Config) -> DecoderSpec:
    return _read(config, "BlenderbotForConditionalGeneration", norms="before", positions=_LEARNED)


def _read_blenderbot_small(config: Config) -> DecoderSpec:
    # The decoder's norm comes before the positions are added, the encoder's after: the models were trained so.
    return _read(
        config,
        "BlenderbotSmallForConditionalGeneration",
        norms="joined",
        positions=_LEARNED,
        encoder_norm="last",
        decoder_norm=True,
    )


def _family(
    read: Callable[[Config], DecoderSpec],
    model_type: str,
    norms: Norms,
    ignored: re.Pattern[str] = _COPIES,
    *,
    start: int | None,
    last: int = 2,
    title: str,
    examples: tuple[str, ...],
) -> Family:
    """Return a family. ``start``, ``last``: defaults of the decoder's first token and of that at its maximum length."""
    token_ids = {"forced_eos_token_id": last} | ({} if start is None else {"decoder_start_token_id": start})
    return Family(
        read,
        _names(norms),
        model_type,
        base="model.",
        ignored=ignored,
        token_ids=token_ids,
        title=title,
        examples=examples,
    )


FAMILIES: dict[str, Family] = {
    "BartForConditionalGeneration": _family(
        _read_bart, "bart", "joined", start=2, title="BART", examples=("facebook/bart-large-cnn",)
    ),
    "MBartForConditionalGeneration": _family(
        _read_mbart, "mbart", "before", start=None, title="mBART", examples=("facebook/mbart-large-50",)
    ),
    "PegasusForConditionalGeneration": _family(
        _read_pegasus,
        "pegasus",
        "before",
        _COPIES_AND_SINUSOIDS,
        start=0,
        last=1,
        title="Pegasus",
        examples=("google/pegasus-xsum",),
    ),
    "BlenderbotForConditionalGeneration": _family(
        _read_blenderbot,
        "blenderbot",
        "before",
        start=1,
        title="Blenderbot",
        examples=("facebook/blenderbot-400M-distill",),
    ),
    "BlenderbotSmallForConditionalGeneration": _family(
        _read_blenderbot_small,
        "blenderbot-small",
        "joined",
        start=1,
        title="Blenderbot-small",
        examples=("facebook/blenderbot_small-90M",),
    ),
}
