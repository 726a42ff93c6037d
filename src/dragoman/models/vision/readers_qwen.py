"""Readers of the configs of Qwen's models with images: Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen 3.5."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

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
    """Return the fields of a ``VisionDescription`` of Qwen2-VL and 2.5. Raises ModelError for what is not supported."""
    tower = tower_of(config.having({"vision_config": _without_channels(config)}))
    newer = config.value("model_type") == "qwen2_5_vl"
    text = config.within("text_config")
    out = text.size("hidden_size", 8192)
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
    fields = _any_shape(config, preprocessor, tower, layers, out, patch=14)
    if newer:
        if tower.size("out_hidden_size", 3584) != out:
            raise ModelError(f"{tower.where}: out_hidden_size differs from the decoder's hidden_size {out}")
        layers = _windows(layers, tower, fields["tiling"].side)
    pairs = text.size("hidden_size") // text.size("num_attention_heads") // 2
    return fields | {
        "layers": layers,
        "patch_bias": False,
        "positions": "none",
        "rotary_sections": _sections(text, pairs, [16, 24, 24]),
    }


def read_qwen3(config: Config, preprocessor: Config) -> Fields:
    """Read Qwen3-VL, dense or with experts."""
    text = config.within("text_config")
    head_dim = 128
    if config.value("model_type") == "qwen3_vl_moe":
        head_dim = text.size("hidden_size", 2048) // text.size("num_attention_heads", 16)
    sections = _sections(text, text.size("head_dim", head_dim) // 2, [24, 20, 20])
    return _read_newer(config, preprocessor, sections, tower_indexes=True)


def read_qwen3_5(config: Config, preprocessor: Config) -> Fields:
    """Read Qwen 3.5, a part of whose heads is rotated."""
    text = config.within("text_config")
    scaling = Config(text.block("rope_parameters") or text.block("rope_scaling"), where="config.json: rope_parameters")
    share = scaling.number("partial_rotary_factor", text.number("partial_rotary_factor", 0.25))
    sections = _sections(text, int(text.size("head_dim", 256) * min(share, 1.0)) // 2, [11, 11, 10])
    return _read_newer(config, preprocessor, sections, tower_indexes=False)


def _read_newer(config: Config, preprocessor: Config, sections: tuple[int, ...], *, tower_indexes: bool) -> Fields:
    """Return the fields of the tower of Qwen3-VL and Qwen 3.5. ``tower_indexes``: its config lists the layers whose
    outputs are stacked."""
    tower = tower_of(config.having({"vision_config": _without_channels(config)}))
    out = config.within("text_config").size(
        "hidden_size", 2048 if config.value("model_type") == "qwen3_vl_moe" else 4096
    )
    if (width := tower.size("out_hidden_size", 3584)) != out:
        raise ModelError(f"{tower.where}: out_hidden_size {width} differs from the decoder's hidden_size {out}")
    tower = tower.having(
        {
            "num_hidden_layers": tower.size("depth", 27),
            "num_attention_heads": tower.size("num_heads", 16),
            "layer_norm_eps": 1e-6,
        }
    )
    defaults = {"hidden_size": 1152, "intermediate_size": 4304, "hidden_act": "gelu_pytorch_tanh"}
    theta = Config(tower.block("rope_parameters"), where=f"{tower.where}: rope_parameters").number("rope_theta", 1e4)
    layers = layers_of(tower, defaults, rotary_theta=theta, last_norm=True)
    stacked = _stacked(tower, layers.count) if tower_indexes else ()
    table = tower.size("num_position_embeddings", 2304)
    if (side := math.isqrt(table)) ** 2 != table:
        raise ModelError(f"{tower.where}: num_position_embeddings must be a square, got {table}")
    return _any_shape(config, preprocessor, tower, layers, out, patch=16) | {
        "layers": replace(layers, taken=(*stacked, layers.count)),
        "positions": "interpolated",
        "position_side": side,
        "stacked": len(stacked),
        "rotary_sections": sections,
        "rotary_interleaved": True,
    }


def _any_shape(config: Config, preprocessor: Config, tower: Config, layers: Layers, out: int, *, patch: int) -> Fields:
    """Return the fields that all of Qwen's models share. ``patch``: the usual edge of one."""
    patch, factor = tower.size("patch_size", patch), tower.size("spatial_merge_size", 2)
    frames = tower.size("temporal_patch_size", 2)
    for key, value in {"patch_size": patch, "merge_size": factor, "temporal_patch_size": frames}.items():
        if preprocessor.size(key, value) != value:
            raise ModelError(f"{preprocessor.where}: {key} differs from the tower's {value}")
    side = patch * factor
    if not 0 < side <= 256:
        raise ModelError(f"{tower.where}: patches of {patch} pixels, {factor} by {factor}, are too large")
    if layers.head_dim % 4:
        raise ModelError(f"{tower.where}: heads of {layers.head_dim} numbers cannot be rotated in two dimensions")
    least, most = pixel_limits(preprocessor, 56 * 56, 28 * 28 * 1280, MOST_PATCHES * patch**2, side**2)
    inner = layers.width * factor**2
    return {
        "patch": patch,
        "frames": frames,
        "reduction": Reduction(kind="shuffle", factor=factor),
        "projection": Projection(out=out, inner=inner, activation="gelu", first_bias=True, last_bias=True),
        "pixels": pixels_of(preprocessor, CLIP_MEAN, CLIP_DEVIATION, 3),
        "tiling": Tiling(kind="any", side=side, least=least, most=most),
        "tags": Tags(
            placeholder="<|image_pad|>",
            image="<|image_pad|>",
            image_id=image_id_of(config, "image_token_id", default=151_655),
        ),
    }


def _stacked(tower: Config, layers: int) -> tuple[int, ...]:
    """Return the layers whose outputs are stacked, counted from 1."""
    listed = tower.value("deepstack_visual_indexes", [8, 16, 24])
    whole = isinstance(listed, list) and all(type(each) is int and 0 <= each < layers - 1 for each in listed)
    if not whole or listed != sorted(set(listed)):
        raise ModelError(
            f"{tower.where}: deepstack_visual_indexes must list some of the first {layers - 1} layers, got {listed!r}"
        )
    return tuple(each + 1 for each in listed)


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


def _sections(text: Config, pairs: int, usual: list[int]) -> tuple[int, ...]:
    """Return how many of the decoder's pairs are rotated by time, rows and columns."""
    scaling = text.block("rope_scaling") or text.block("rope_parameters")
    sections = scaling.get("mrope_section", usual)
    whole = isinstance(sections, list) and len(sections) == 3 and all(type(n) is int and n > 0 for n in sections)
    if not whole or sum(sections) != pairs:
        raise ModelError(f"config.json: mrope_section must divide {pairs} pairs in three, got {sections!r}")
    return tuple(sections)
