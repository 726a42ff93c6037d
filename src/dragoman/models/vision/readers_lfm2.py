"""Reader of the configs of LFM2-VL."""

from __future__ import annotations

import math

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.vision.config_fields import (
    HALVES,
    MOST_PATCHES,
    MOST_TILES,
    SIGLIP,
    Fields,
    image_id_of,
    layers_of,
    pixels_of,
    tower_of,
)
from dragoman.models.vision.parts import ACTIVATIONS, Projection, Reduction, Tags, Tiling


def read_lfm2(config: Config, preprocessor: Config) -> Fields:
    """Return the fields of a ``VisionDescription`` of LFM2-VL. Raises ModelError for what is not supported."""
    tower = tower_of(config)
    tower.choice("model_type", "siglip2_vision_model", {"siglip2_vision_model": ""})
    config.refuse("vision_feature_layer", -1)
    patch, factor = tower.size("patch_size", 16), config.size("downsample_factor", 2)
    for key, value in {"encoder_patch_size": patch, "downsample_factor": factor}.items():
        if preprocessor.size(key, value) != value:
            raise ModelError(f"{preprocessor.where}: {key} differs from the model's {value}")
    token = patch * factor
    if not 0 < token <= 256:
        raise ModelError(f"{tower.where}: patches of {patch} pixels, {factor} by {factor}, are too large")
    table = tower.size("num_patches", 256)
    if (side := math.isqrt(table)) ** 2 != table:
        raise ModelError(f"{tower.where}: num_patches must be a square, got {table}")
    text = config.within("text_config")
    bias = config.flag("projector_bias", True)
    return {
        "layers": layers_of(tower, SIGLIP, last_norm=True),
        "patch": patch,
        "channels_last": True,
        "positions": "resampled",
        "position_side": side,
        "reduction": Reduction(kind="shuffle", factor=factor),
        "projection": Projection(
            out=text.size("hidden_size", 2560),
            inner=config.size("projector_hidden_size", 2560),
            activation=config.choice("projector_hidden_act", "gelu", ACTIVATIONS),
            norm="layer" if config.flag("projector_use_layernorm", True) else None,
            norm_eps=1e-5,
            first_bias=bias,
            last_bias=bias,
        ),
        "pixels": pixels_of(preprocessor, HALVES, HALVES, 2),
        "tiling": _tiling(preprocessor, token),
        "tags": Tags(
            placeholder="<image>",
            image="<image>",
            image_id=image_id_of(config, "image_token_id", "image_token_index", default=396),
            before="<|image_start|>",
            after="<|image_end|>",
            tile="<|img_row_{row}_col_{column}|>",
            whole="<|img_thumbnail|>",
        ),
    }


def _tiling(preprocessor: Config, token: int) -> Tiling:
    least, most = preprocessor.size("min_image_tokens", 64), preprocessor.size("max_image_tokens", 256)
    if not least <= most <= MOST_PATCHES // 4:
        raise ModelError(f"{preprocessor.where}: max_image_tokens must be {least} to {MOST_PATCHES // 4}, got {most}")
    split = preprocessor.flag("do_image_splitting", True)
    preprocessor.refuse("use_thumbnail", True)
    preprocessor.refuse("do_pad", True)
    side = preprocessor.size("tile_size", 512)
    if side % token or side > 2048:
        raise ModelError(f"{preprocessor.where}: tile_size must be a multiple of {token} up to 2048, got {side}")
    fewest, tiles = preprocessor.size("min_tiles", 2), preprocessor.size("max_tiles", 10)
    if split and not 2 <= fewest <= tiles < MOST_TILES:
        raise ModelError(f"{preprocessor.where}: {fewest} to {tiles} tiles are not 2 to {MOST_TILES - 1}")
    tolerance = preprocessor.number("max_pixels_tolerance", 2.0)
    return Tiling(
        kind="mixed",
        side=side,
        least=fewest,
        most=tiles if split else 1,
        whole_side=token,
        whole_least=least * token**2,
        whole_most=most * token**2,
        cut_above=most * token**2 * tolerance if split else math.inf,
    )
