"""Architectures of GGUF files of models with images whose text is served: PaddleOCR-VL, HunyuanOCR and Muse Glimmer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dragoman.models.gguf import names
from dragoman.models.gguf.architecture import (
    Architecture,
    Config,
    Tensors,
    heads,
    interleaved_rows,
    layer_types,
    rms,
)
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.tensors import GgufTensor

_MUSE_NAMES = names.GEMMA2 | {"blk.attn_gate": "model.layers.{layer}.self_attn.gate_proj"}
_SCALES = ("q_norm.weight", "k_norm.weight")


def _paddle_ocr(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.has("rope.dimension_sections")  # in texts all positions are equal
    biases = {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}
    return heads(keys, config) | rms(keys) | biases


def _hunyuan_vl(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    """Return Hunyuan's config. The base is that of the config, and not multiplied by what ``alpha`` makes of it."""
    for key in ("rope.dimension_sections", "rope.scaling.original_context_length"):
        keys.has(key)
    found = heads(keys, config) | rms(keys) | {"attention_bias": "blk.0.attn_q.bias" in tensors}
    if keys.is_on("rope.scaling.alpha"):
        found["rope_scaling"] = {"rope_type": "dynamic", "alpha": keys.number("rope.scaling.alpha")}
    return found


def _muse_glimmer(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    """Return Muse Glimmer's config: its factor of scores is in norms of queries, and its second epsilon in no key."""
    kinds = layer_types(keys, config["num_hidden_layers"], 4)
    capped = keys.is_on("final_logit_softcapping")
    scale = tensors.get("blk.0.attn_q_norm.weight")
    if scale is None or len(scale.shape) != 1 or not scale.shape[0]:
        raise keys.file.fail("general.architecture", "needs tensor blk.0.attn_q_norm.weight")
    if not capped:
        raise keys.file.fail("final_logit_softcapping", "is missing")
    return heads(keys, config) | rms(keys) | {
        "qk_scale_factor": float(scale.read()[0]),
        "output_multiplier": keys.number("logit_scale"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
        "sliding_window": keys.size("attention.sliding_window"),
        "layer_types": kinds,
        "layer_rope_theta": [config["rope_theta"] * (kind == "sliding_attention") for kind in kinds],
    }  # fmt: skip


def _without_scales(config: Config, tensor: GgufTensor) -> Iterable[GgufTensor]:
    """Return the tensor, unless it is a norm of heads: all its numbers are then the config's factor, or 1 for keys."""
    if not tensor.name.endswith(_SCALES):
        return (tensor,)
    expected = config["qk_scale_factor"] if tensor.name.endswith(_SCALES[0]) else 1.0
    if not np.all(tensor.read() == np.float32(expected)):
        raise tensor.fail(f"is not {expected:g} throughout, as in all layers")
    return ()


TEXT_PARTS: dict[str, Architecture] = {
    "paddleocr": Architecture(name="LlamaForCausalLM", model_type="llama", names=names.LLAMA, extra=_paddle_ocr),
    "hunyuan_vl": Architecture(
        name="HunYuanDenseV1ForCausalLM", model_type="hunyuan_v1_dense", names=names.HUNYUAN, extra=_hunyuan_vl
    ),
    "muse-glimmer": Architecture(
        name="MuseGlimmerForConditionalGeneration",
        model_type="muse_glimmer",
        names=_MUSE_NAMES,
        extra=_muse_glimmer,
        row_order=interleaved_rows,
        adjust=_without_scales,
        norm_offset=1.0,
        shifted="layernorm.weight",
    ),
}
