"""Readers of the configs of Qwen's models with images: Qwen2-VL and Qwen2.5-VL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.vision.config_fields import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    MOST_PATCHES,
    Fields,
    image_id_of,
    layers_of,
    pixel_limits,
    pixels_of,
    tower_of,
)
from dragoman.models.vision.parts import Layers, Projection, Reduction, Tags, Tiling


def read_qwen2(config: Config, preprocessor: Config) -> Fields:
    tower = tower_of(config.having({"vision_config": _without_channels(config)}))
    newer = config.value("model_type") == "qwen2_5_vl"
    text = config.within("text_config")
    out = text.size("hidden_size", 8192)
    patch, factor = tower.size("patch_size", 14), tower.size("spatial_merge_size", 2)
    frames = tower.size("temporal_patch_size", 2)
    for key, value in {"patch_size": patch, "merge_size": factor, "temporal_patch_size": frames}.items():
        if preprocessor.size(key, value) != value:
            raise ModelError(f"{preprocessor.where}: {key} differs from the tower's {value}")
    side = patch * factor
    if not 0 < side <= 256:
        raise ModelError(f"{tower.where}: patches of {patch} pixels, {factor} by {factor}, are too large")
    least, most = pixel_limits(preprocessor, 56 * 56, 28 * 28 * 1280, MOST_PATCHES * patch**2, side**2)
    width = tower.size("hidden_size", 3584) if newer else tower.size("embed_dim", 1280)
    tower = tower.having(
        {
            "hidden_size": width,
            "num_hidden_layers": tower.size("depth", 32),
            "num_attention_heads": tower.size("num_heads", 16),
            "intermediate_size": tower.size("intermediate_size", 3420) if newer else 4 * width,
            "layer_norm_eps": 1e-6,
        }
    )
    tower.refuse("mlp_ratio", 4)
    layers = layers_of(
        tower,
        {"hidden_act": "silu" if newer else "quick_gelu"},
        norm="rms" if newer else "layer",
        gated=newer,
        rotary_theta=10_000.0,
        last_norm=True,
    )
    if layers.head_dim % 4:
        raise ModelError(f"{tower.where}: heads of {layers.head_dim} numbers cannot be rotated in two dimensions")
    if newer:
        if tower.size("out_hidden_size", 3584) != out:
            raise ModelError(f"{tower.where}: out_hidden_size differs from the decoder's hidden_size {out}")
        layers = _windows(layers, tower, side)
    return {
        "layers": layers,
        "patch": patch,
        "patch_bias": False,
        "frames": frames,
        "positions": "none",
        "reduction": Reduction(kind="shuffle", factor=factor),
        "projection": Projection(out=out, inner=width * factor**2, activation="gelu", first_bias=True, last_bias=True),
        "pixels": pixels_of(preprocessor, CLIP_MEAN, CLIP_DEVIATION, 3),
        "tiling": Tiling(kind="any", side=side, least=least, most=most),
        "tags": Tags(
            placeholder="<|image_pad|>",
            image="<|image_pad|>",
            image_id=image_id_of(config, "image_token_id", default=151_655),
        ),
        "rotary_sections": _sections(text),
    }


def _without_channels(config: Config) -> dict[str, Any]:
    """Return the tower's block with the usual name for the number of channels."""
    block = dict(config.block("vision_config"))
    channels = block.pop("in_channels", block.pop("in_chans", None))
    return block if channels is None else block | {"num_channels": channels}


def _windows(layers: Layers, tower: Config, side: int) -> Layers:
    window = tower.size("window_size", 112)
    full = tower.value("fullatt_block_indexes", [7, 15, 23, 31])
    if window % side:
        raise ModelError(f"{tower.where}: window_size {window} is not a multiple of {side} pixels")
    if not isinstance(full, list) or not all(isinstance(layer, int) and 0 <= layer < layers.count for layer in full):
        raise ModelError(f"{tower.where}: fullatt_block_indexes must list some of {layers.count} layers, got {full!r}")
    return replace(layers, window=window, full_layers=tuple(full))


def _sections(text: Config) -> tuple[int, ...]:
    """Return the pairs of the decoder's heads that are rotated by time, rows and columns."""
    scaling = text.block("rope_scaling") or text.block("rope_parameters")
    head_dim = text.size("hidden_size") // text.size("num_attention_heads")
    sections = scaling.get("mrope_section", [16, 24, 24])
    whole = isinstance(sections, list) and len(sections) == 3 and all(isinstance(n, int) and n > 0 for n in sections)
    if not whole or sum(sections) != head_dim // 2:
        raise ModelError(f"config.json: mrope_section must divide {head_dim // 2} pairs in three, got {sections!r}")
    return tuple(sections)
