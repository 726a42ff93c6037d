"""Muse Glimmer, whose text is served: embeddings, queries and keys are normed without weights, norms after branches
have an epsilon of their own, and every fourth layer, from the last on, sees all positions and has no rotation."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.gemma import GEMMA2_NAMES
from dragoman.models.families.llama import ACTIVATIONS, ROTARY_BUFFER, llama_like
from dragoman.models.families.nested_text_parts import NOTE
from dragoman.models.optional_parts import AttentionGate
from dragoman.models.spec import Block, DecoderSpec, Embedding, HeadNorm, Output

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 202_048,
    "hidden_size": 6656,
    "intermediate_size": 19_968,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "sliding_window": 2048,
}
_ATTENTION = "model.layers.{layer}.self_attn."
_NAMES = GEMMA2_NAMES | {"qkv": tuple(f"{_ATTENTION}{name}_proj" for name in ("q", "gate", "k", "v"))}


def _read_muse_glimmer(config: Config) -> DecoderSpec:
    text = config.within("text_config").over(_DEFAULTS)
    text.refuse("attention_bias", False)
    layers, window = text.size("num_hidden_layers"), text.size("sliding_window")
    sees_all = [(layers - 1 - layer) % 4 == 0 for layer in range(layers)]
    windows = text.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    bases = text.value("layer_rope_theta")
    if bases is not None and (not isinstance(bases, list) or len(bases) != layers):
        raise ModelError(f"{text.where}: layer_rope_theta must list {layers} numbers, got {bases!r:.80}")
    # Of a layer's base only whether it is 0 has an effect, as in transformers.
    rotated = [bool(base) for base in bases] if bases is not None else [not every for every in sees_all]
    spec = llama_like(
        text,
        architecture="MuseGlimmerForConditionalGeneration",
        embedding=Embedding(norm="plain"),
        block=Block(norms="around", out_norm_eps=text.number("post_norm_eps", 1e-8)),
        output=Output(
            scale=text.number("output_multiplier", 26**-0.5), softcap=text.number("final_logit_softcapping", 20.0)
        ),
        activation=text.choice("hidden_activation", "silu", ACTIVATIONS),
        head_norm=HeadNorm(weighted=False),
        attention_gate=AttentionGate(),
        windows=tuple(0 if every else window for every in sees_all) if windows is None else windows,
    )
    scale = text.number("qk_scale_factor", 3.87) * spec.head_dim**-0.5
    ropes = tuple(rope if turned else None for rope, turned in zip(spec.ropes, rotated, strict=True))
    return replace(spec, ropes=ropes, attention_scales=(scale,) * layers)


FAMILIES: dict[str, Family] = {
    "MuseGlimmerForConditionalGeneration": Family(
        _read_muse_glimmer,
        _NAMES,
        "muse_glimmer",
        base="model.",
        aliases=((r"^model\.language_model\.", "model."),),
        ignored=re.compile(rf"vision_(tower|adapter|projection)\..*|{ROTARY_BUFFER.pattern}"),
        norm_offset=1.0,
        whole_norms=frozenset({"final_norm"}),
        title="Muse Glimmer",
        examples=("meta-models/Muse-Glimmer-30B",),
        note=NOTE,
    ),
}
