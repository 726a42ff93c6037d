"""Configs of models with images from the metadata of projector files, by the kind of their projectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from dragoman.models.gguf.architecture import Config
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.tensors import GgufTensor

Stored = Mapping[str, GgufTensor]


class WholeConfig(msgspec.Struct, frozen=True):
    """What a projector adds to the config of a decoder.

    Attributes:
        config: fields of the whole. preprocessor: the image processor's.
        image_tokens: names of the token of an image: the first that the vocabulary has. Those after the first are any
            that texts do not have, for older files, which lack the token.
    """

    config: Config
    preprocessor: Config
    image_tokens: tuple[str, ...]


Found = WholeConfig | None
"""None: the projector does not go with the decoder."""


def _tower(keys: Metadata, activation: str) -> Config:
    """Return the fields that towers have in common. ``activation``: where the file says nothing but GELU."""
    silu, gelu = keys.flag("use_silu", False), keys.flag("use_gelu", False)
    return {
        "hidden_size": keys.size("vision.embedding_length"),
        "intermediate_size": keys.size("vision.feed_forward_length"),
        "num_hidden_layers": keys.size("vision.block_count"),
        "num_attention_heads": keys.size("vision.attention.head_count"),
        "layer_norm_eps": keys.number("vision.attention.layer_norm_epsilon"),
        "patch_size": keys.size("vision.patch_size"),
        "hidden_act": "silu" if silu else activation if gelu else "quick_gelu",
    }


def _channels(keys: Metadata) -> Config:
    """Return means and deviations as they were before they were float32."""
    found: Config = {}
    for theirs, ours in (("vision.image_mean", "image_mean"), ("vision.image_std", "image_std")):
        values = keys.numbers(theirs, 3)
        if values is not None:
            found[ours] = [float(str(np.float32(value))) for value in values]
    return found


def _gemma3(keys: Metadata, stored: Stored, model: Metadata, text: Config) -> Found:
    if text["model_type"] != "gemma3_text":
        return None
    tower, side = _tower(keys, "gelu_pytorch_tanh"), keys.size("vision.image_size")
    short = side // tower["patch_size"] // keys.size("vision.projector.scale_factor", 4)
    return WholeConfig(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "vision_config": tower | {"image_size": side},
            "mm_tokens_per_image": max(short, 1) ** 2,
        },
        _channels(keys) | {"size": {"height": side, "width": side}},
        ("<image_soft_token>", "<pad>"),
    )


def _idefics3(keys: Metadata, stored: Stored, model: Metadata, text: Config) -> Found:
    if text["model_type"] != "llama":
        return None
    side = keys.size("vision.image_size")
    edges = {
        "size": {"longest_edge": keys.size("vision.preproc_image_size", 4 * side)},
        "max_image_size": {"longest_edge": side},
    }
    return WholeConfig(
        {
            "architectures": ["SmolVLMForConditionalGeneration"],
            "model_type": "smolvlm",
            "vision_config": _tower(keys, "gelu_pytorch_tanh") | {"image_size": side},
            "scale_factor": keys.size("vision.projector.scale_factor", 2),
        },
        _channels(keys) | edges,
        ("<image>",),
    )


def _sections(model: Metadata) -> list[int] | None:
    """Return the pairs of heads that are rotated by time, rows and columns."""
    arch = model.text("general.architecture")
    value = model.value(f"{arch}.rope.dimension_sections")
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or len(value) < 3 or value[3:].any():
        return None
    return [int(each) for each in value[:3]]


def _qwen(keys: Metadata, model: Metadata, text: Config, whole: Config, tower: Config) -> Found:
    sections = _sections(model)
    if sections is None:
        return None
    scaling = dict(text.get("rope_scaling") or {"rope_type": "default"}) | {"mrope_section": sections}
    common = _tower(keys, "gelu_pytorch_tanh" if "position_side" in tower else "gelu")
    keys.has("vision.image_size")
    width = common["hidden_size"]
    usual = {"depth": common["num_hidden_layers"], "num_heads": common["num_attention_heads"]}
    vision = {"patch_size": common["patch_size"], "hidden_size": width, "out_hidden_size": text["hidden_size"]} | usual
    vision |= {key: value for key, value in tower.items() if key != "position_side"}
    if "mlp_ratio" not in tower:
        vision |= {"intermediate_size": common["intermediate_size"], "hidden_act": common["hidden_act"]}
    limits = {"min_pixels": "vision.image_min_pixels", "max_pixels": "vision.image_max_pixels"}
    sizes = {ours: keys.size(theirs) for ours, theirs in limits.items() if keys.has(theirs)}
    sizes |= {"patch_size": vision["patch_size"], "merge_size": vision["spatial_merge_size"]}
    return WholeConfig(
        whole | {"vision_config": vision, "text_config": text | {"rope_scaling": scaling}},
        _channels(keys) | sizes,
        ("<|image_pad|>",),
    )


def _qwen2vl(keys: Metadata, stored: Stored, model: Metadata, text: Config) -> Found:
    if text["model_type"] != "qwen2":
        return None
    width = keys.size("vision.embedding_length")
    whole = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}
    keys.has("vision.feed_forward_length")
    tower = {"embed_dim": width, "mlp_ratio": 4, "spatial_merge_size": keys.size("vision.spatial_merge_size", 2)}
    return _qwen(keys, model, text, whole, tower | {"hidden_size": text["hidden_size"]})


def _qwen25vl(keys: Metadata, stored: Stored, model: Metadata, text: Config) -> Found:
    if text["model_type"] != "qwen2":
        return None
    every, layers = keys.size("vision.n_wa_pattern"), keys.size("vision.block_count")
    whole = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl"}
    tower = {
        "window_size": keys.size("vision.window_size", 112),
        "fullatt_block_indexes": [layer for layer in range(layers) if (layer + 1) % every == 0],
        "spatial_merge_size": keys.size("vision.spatial_merge_size", 2),
    }
    return _qwen(keys, model, text, whole, tower)


def _qwen3vl(keys: Metadata, stored: Stored, model: Metadata, text: Config) -> Found:
    kinds = {"qwen3": ("Qwen3VL", "qwen3_vl"), "qwen3_moe": ("Qwen3VLMoe", "qwen3_vl_moe")}
    if text["model_type"] not in kinds:
        return None
    name, kind = kinds[text["model_type"]]
    layers = keys.size("vision.block_count")
    flags = keys.numbers("vision.is_deepstack_layers", layers)
    table = stored.get("v.position_embd.weight")
    whole = {"architectures": [f"{name}ForConditionalGeneration"], "model_type": kind}
    tower = {
        "deepstack_visual_indexes": [] if flags is None else [int(layer) for layer in np.flatnonzero(flags)],
        "num_position_embeddings": 1 if table is None else table.shape[0],
        "spatial_merge_size": keys.size("vision.spatial_merge_size", 2),
        "position_side": 0,
    }
    return _qwen(keys, model, text, whole, tower)


def _pixtral(keys: Metadata, stored: Stored, model: Metadata, text: Config) -> Found:
    merged = "mm.patch_merger.weight" in stored
    kinds = {"llama": "mistral", "mistral": "mistral", "ministral3": "ministral3"} if merged else {"llama": "llama"}
    if text["model_type"] not in kinds:
        return None
    tower = _tower(keys, "gelu")
    tower |= {"model_type": "pixtral", "head_dim": tower["hidden_size"] // tower["num_attention_heads"]}
    factor = keys.size("vision.spatial_merge_size", 2 if merged else 1)
    kind = "Mistral3" if merged else "Llava"
    decoder: Config = {"model_type": kinds[text["model_type"]]}
    if decoder["model_type"] == "mistral":
        decoder["sliding_window"] = text.get("sliding_window")
    return WholeConfig(
        {
            "architectures": [f"{kind}ForConditionalGeneration"],
            "model_type": kind.lower(),
            "vision_config": tower,
            "text_config": text | decoder,
            "spatial_merge_size": factor,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "multimodal_projector_bias": "mm.1.bias" in stored,
            "projector_hidden_act": "gelu",
        },
        _channels(keys) | {"size": {"longest_edge": keys.size("vision.image_size")}},
        ("[IMG]",),
    )


def _internvl(keys: Metadata, stored: Stored, model: Metadata, text: Config) -> Found:
    if text["model_type"] not in ("qwen2", "qwen3", "llama"):
        return None
    side, factor = keys.size("vision.image_size"), keys.size("vision.projector.scale_factor", 2)
    rms = "v.blk.0.ln1.bias" not in stored
    tower = _tower(keys, "gelu") | {
        "image_size": side,
        "norm_type": "rms_norm" if rms else "layer_norm",
        "use_qk_norm": "v.blk.0.attn_q_norm.weight" in stored,
        "attention_bias": "v.blk.0.attn_q.bias" in stored or "v.blk.0.attn_qkv.bias" in stored,
    }
    tiles = {
        "min_patches": keys.size("vision.preproc_min_tiles", 1),
        "max_patches": keys.size("vision.preproc_max_tiles", 12),
        "size": {"height": side, "width": side},
    }
    return WholeConfig(
        {
            "architectures": ["InternVLForConditionalGeneration"],
            "model_type": "internvl",
            "vision_config": tower,
            "downsample_ratio": 1 / factor,
        },
        _channels(keys) | tiles,
        ("<IMG_CONTEXT>",),
    )


def _llava(keys: Metadata, stored: Stored, model: Metadata, text: Config) -> Found:
    """Return LLaVA 1.5, or 1.6 where the file has sizes of canvases. Layers after the one that is taken are left out of
    the file."""
    if text["model_type"] not in ("llama", "mistral", "qwen2", "qwen3"):
        return None
    side, pairs = keys.size("vision.image_size"), keys.value("vision.image_grid_pinpoints")
    first = "v.pre_ln.weight" in stored
    tower = _tower(keys, "gelu_pytorch_tanh") | {
        "model_type": "clip_vision_model" if first else "siglip_vision_model",
        "image_size": side,
    }
    keys.refuse("vision.feature_layer")
    keys.refuse("vision.mm_patch_merge_type", "flat", "spatial_unpad")
    keys.has("vision.image_crop_resolution")
    keys.has("vision.image_aspect_ratio")
    next_ = isinstance(pairs, np.ndarray) and "model.image_newline" in stored
    canvases: dict[str, Any] = {}
    if next_ and isinstance(pairs, np.ndarray):
        flat = [int(each) for each in pairs]
        canvases = {"image_grid_pinpoints": [[h, w] for w, h in zip(flat[::2], flat[1::2], strict=False)]}
    kind = "LlavaNext" if next_ else "Llava"
    sizes = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    return WholeConfig(
        canvases
        | {
            "architectures": [f"{kind}ForConditionalGeneration"],
            "model_type": "llava_next" if next_ else "llava",
            "vision_config": tower,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default" if first else "full",
            "multimodal_projector_bias": "mm.0.bias" in stored,
            "projector_hidden_act": "gelu",
        },
        _channels(keys) | sizes,
        ("<image>", "<unk>"),
    )


CONFIGS: dict[str, Callable[[Metadata, Stored, Metadata, Config], Found]] = {
    "gemma3": _gemma3,
    "idefics3": _idefics3,
    "qwen2vl_merger": _qwen2vl,
    "qwen2.5vl_merger": _qwen25vl,
    "qwen3vl_merger": _qwen3vl,
    "pixtral": _pixtral,
    "internvl": _internvl,
    "mlp": _llava,
}
"""By ``clip.projector_type``."""
