"""Encoders of the BERT family, which make vectors of texts: BERT, RoBERTa, XLM-RoBERTa, MPNet, NomicBERT, the last
dense and with experts.

Their norms are those of the original transformer, after each branch has joined the stream; each token sees the whole
text. The layers that classifiers have after the pooling are in ``Family.others``.
"""

from __future__ import annotations

import re
from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.llama import ACTIVATIONS
from dragoman.models.families.mixtures import checked
from dragoman.models.pooling import HeadLayer, PooledHead
from dragoman.models.positions import RelativeBias
from dragoman.models.rope_config import read_rope
from dragoman.models.spec import Block, DecoderSpec, Embedding, Experts, Output


def _read(config: Config, architecture: str, *, first_position: int, types: bool, **variant: Any) -> DecoderSpec:
    """Return the spec. ``first_position``: the row of the table of positions that the first token has. ``types``:
    tokens have types."""
    config.refuse("position_embedding_type", "absolute")
    config.refuse("is_decoder", False)
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    head_dim = even_head_dim(width, heads, "hidden_size", "num_attention_heads")
    layers, positions = config.size("num_hidden_layers"), config.size("max_position_embeddings", 512)
    if positions <= first_position:
        raise ModelError(f"config.json: max_position_embeddings must be more than {first_position}, got {positions}")
    fields: dict[str, Any] = {
        "embedding": Embedding(
            positions=True,
            positions_offset=first_position,
            types=config.size("type_vocab_size", 2) if types else 0,
            norm="last",
        ),
        "activation": config.choice("hidden_act", "gelu", ACTIVATIONS),
        "gated": False,
        "qkv_bias": True,
        "attention_out_bias": True,
        "feed_forward_bias": True,
        "norm_eps": config.number("layer_norm_eps", 1e-12),
    }
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=config.size("intermediate_size"),
        context=positions - first_position,
        block=Block(norms="joined"),
        output=Output(norm=False),
        norm="layer",
        norm_bias=True,
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        tied=True,
        causal=False,
        **fields | variant,
    )


def _read_bert(config: Config) -> DecoderSpec:
    return _read(config, "BertModel", first_position=0, types=True)


def _read_roberta(config: Config) -> DecoderSpec:
    # Positions are counted from the one after the padding's.
    return _read(config, "RobertaModel", first_position=config.count("pad_token_id", 1) + 1, types=True)


def _read_xlm_roberta(config: Config) -> DecoderSpec:
    return _read(config, "XLMRobertaModel", first_position=config.count("pad_token_id", 1) + 1, types=True)


def _read_mpnet(config: Config) -> DecoderSpec:
    bias = RelativeBias(buckets=config.size("relative_attention_num_buckets", 32), distance=128)
    return _read(
        config,
        "MPNetModel",
        first_position=config.count("pad_token_id", 1) + 1,
        types=False,
        relative_bias=bias,
    )


def _read_nomic(config: Config) -> DecoderSpec:
    published = {ours: config.value(theirs) for theirs, ours in _NOMIC_KEYS.items()}
    config = config.over({key: value for key, value in published.items() if value is not None})
    config.refuse("prenorm", False)
    config.refuse("parallel_block", False)
    config.refuse("use_rms_norm", False)
    config.refuse("causal", False)
    config.refuse("scale_attn_weights", True)
    config.refuse("rotary_emb_interleaved", False)
    config.refuse("rotary_emb_fraction", 1.0, 1)
    config.refuse("rotary_scaling_factor")
    qkv_bias, bias = config.flag("qkv_proj_bias", False), config.flag("mlp_fc1_bias", False)
    config.refuse("mlp_fc2_bias", bias)
    if config.value("activation_function") is not None:
        activation, gated = config.choice(
            "activation_function", "swiglu", {"swiglu": ("silu", True), "gelu": ("gelu", False)}
        )
    else:
        activation, gated = config.choice("hidden_act", "silu", {"silu": "silu"}), True
    head_dim = config.size("hidden_size") // config.size("num_attention_heads")
    theta = config.number("rotary_emb_base", 1000.0)
    rope = read_rope(config, head_dim, config.size("max_position_embeddings", 2048), theta=theta)
    return _read(
        config,
        "NomicBertModel",
        first_position=0,
        types=True,
        embedding=Embedding(types=config.size("type_vocab_size", 2), norm="last"),
        activation=activation,
        gated=gated,
        experts=_nomic_experts(config),
        qkv_bias=qkv_bias,
        attention_out_bias=qkv_bias,
        feed_forward_bias=bias,
        ropes=(rope,) * config.size("num_hidden_layers"),
    )


def _nomic_experts(config: Config) -> Experts | None:
    """Return the experts of every so-manieth layer, from the second on (https://arxiv.org/abs/2502.07972)."""
    every, layers = config.count("moe_every_n_layers", 0), config.size("num_hidden_layers")
    if not every:
        return None
    config.refuse("num_shared_experts", 0)
    config.refuse("expert_choice_router", False)
    config.refuse("ffn_div", 1)
    dense = tuple(layer for layer in range(layers) if layer % every != 1)
    if len(dense) == layers:
        raise ModelError(f"config.json: moe_every_n_layers {every} leaves none of {layers} layers experts")
    return checked(
        Experts(
            count=config.size("num_experts"),
            active=config.size("moe_top_k", 1),
            feed_forward=config.size("intermediate_size"),
            over_all=not config.flag("moe_normalize_expert_weights", False),
            out_bias=config.flag("experts_bias", True),
            dense_layers=dense,
        )
    )


_NOMIC_KEYS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}
"""Keys of the published configs, and those of transformers."""


def _names(base: str) -> dict[str, tuple[str, ...]]:
    layer = base + "encoder.layer.{layer}."
    return {
        "embedding": (base + "embeddings.word_embeddings",),
        "positions": (base + "embeddings.position_embeddings",),
        "types": (base + "embeddings.token_type_embeddings",),
        "embedding_norm": (base + "embeddings.LayerNorm",),
        "qkv": tuple(f"{layer}attention.self.{part}" for part in ("query", "key", "value")),
        "attention_out": (layer + "attention.output.dense",),
        "attention_out_norm": (layer + "attention.output.LayerNorm",),
        "feed_forward_in": (layer + "intermediate.dense",),
        "feed_forward_out": (layer + "output.dense",),
        "feed_forward_out_norm": (layer + "output.LayerNorm",),
        "head": (),
    }


_MPNET_NAMES = _names("mpnet.") | {
    "qkv": tuple(f"mpnet.encoder.layer.{{layer}}.attention.attn.{part}" for part in "qkv"),
    "attention_out": ("mpnet.encoder.layer.{layer}.attention.attn.o",),
    "attention_out_norm": ("mpnet.encoder.layer.{layer}.attention.LayerNorm",),
    "relative_bias": ("mpnet.encoder.relative_attention_bias",),
}

_NOMIC_LAYER = "nomic_bert.encoder.layers.{layer}."
_NOMIC_NAMES = {
    "embedding": ("nomic_bert.embeddings.word_embeddings",),
    "types": ("nomic_bert.embeddings.token_type_embeddings",),
    "embedding_norm": ("nomic_bert.emb_ln",),
    "qkv": (_NOMIC_LAYER + "attn.Wqkv",),
    "attention_out": (_NOMIC_LAYER + "attn.out_proj",),
    "attention_out_norm": (_NOMIC_LAYER + "norm1",),
    "feed_forward_in": (_NOMIC_LAYER + "mlp.fc12", _NOMIC_LAYER + "mlp.fc11"),
    "feed_forward_out": (_NOMIC_LAYER + "mlp.fc2",),
    "feed_forward_out_norm": (_NOMIC_LAYER + "norm2",),
    "router": (_NOMIC_LAYER + "mlp.router.layer",),
    "expert_in": (_NOMIC_LAYER + "mlp.experts.mlp.w1",),
    "expert_out": (_NOMIC_LAYER + "mlp.experts.mlp.w2",),
    "experts": (_NOMIC_LAYER + "mlp.experts",),
    "head": (),
}
# Old checkpoints call the parameters of norms gamma and beta.
_GAMMA = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
_HEADS = re.compile(
    r"(embeddings\.position_ids|embeddings\.token_type_ids|pooler\..*|cls\..*|lm_head\..*|classifier\..*|qa_outputs\..*)"
)
"""Layers after the hidden states, for training and for classifiers."""


def _head(*layers: tuple[str, bool]) -> PooledHead:
    """Return a head on the first token's vector. ``layers``: names, and whether tanh follows."""
    return PooledHead(
        "cls",
        tuple(HeadLayer(f"{name}.weight", f"{name}.bias", "tanh" if tanh else "identity") for name, tanh in layers),
    )


_NOTE = "An encoder: it makes [vectors of texts](embeddings.md), and generates none."

_TWO_LAYERS = _head(("classifier.dense", True), ("classifier.out_proj", False))


def _others(prefix: str, head: PooledHead | None = None) -> dict[str, PooledHead | None]:
    classifier: dict[str, PooledHead | None] = {} if head is None else {f"{prefix}ForSequenceClassification": head}
    return {f"{prefix}ForMaskedLM": None, **classifier}


FAMILIES: dict[str, Family] = {
    "BertModel": Family(
        _read_bert,
        _names("bert."),
        "bert",
        base="bert.",
        aliases=_GAMMA,
        ignored=_HEADS,
        others=_others("Bert", _head(("bert.pooler.dense", True), ("classifier", False))),
        title="BERT",
        examples=("sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-small-en-v1.5"),
        note=_NOTE,
    ),
    "RobertaModel": Family(
        _read_roberta,
        _names("roberta."),
        "roberta",
        base="roberta.",
        aliases=_GAMMA,
        ignored=_HEADS,
        others=_others("Roberta", _TWO_LAYERS),
        title="RoBERTa",
        examples=("sentence-transformers/all-distilroberta-v1",),
        note=_NOTE,
    ),
    "XLMRobertaModel": Family(
        _read_xlm_roberta,
        _names("roberta."),
        "xlm-roberta",
        base="roberta.",
        ignored=_HEADS,
        others=_others("XLMRoberta", _TWO_LAYERS),
        title="XLM-RoBERTa",
        examples=("BAAI/bge-m3", "BAAI/bge-reranker-v2-m3"),
        note=_NOTE,
    ),
    "MPNetModel": Family(
        _read_mpnet,
        _MPNET_NAMES,
        "mpnet",
        base="mpnet.",
        ignored=_HEADS,
        others=_others("MPNet", _TWO_LAYERS),
        title="MPNet",
        examples=("sentence-transformers/all-mpnet-base-v2",),
        note=_NOTE,
    ),
    "NomicBertModel": Family(
        _read_nomic,
        _NOMIC_NAMES,
        "nomic_bert",
        base="nomic_bert.",
        other_names={"feed_forward_in": (_NOMIC_LAYER + "mlp.fc1",)},  # without a gate
        transposed=frozenset({"expert_out"}),
        ignored=_HEADS,
        others=_others("NomicBert"),
        title="NomicBERT",
        examples=("nomic-ai/nomic-embed-text-v1.5", "nomic-ai/nomic-embed-text-v2-moe"),
        note=_NOTE,
    ),
}
