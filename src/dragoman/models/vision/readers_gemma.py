"""Readers of the configs of Gemma's models with images: Gemma 3, PaliGemma 1 and 2."""

from __future__ import annotations

import math

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.vision.config_fields import (
    HALVES,
    SIGLIP,
    Fields,
    grid_of,
    image_id_of,
    layers_of,
    pixels_of,
    require_square,
    tower_of,
)
from dragoman.models.vision.parts import Projection, Reduction, Tags, Tiling


def read_gemma3(config: Config, preprocessor: Config) -> Fields:
    tower = tower_of(config)
    side, patch = grid_of(tower, SIGLIP)
    tokens = config.size("mm_tokens_per_image", 256)
    short = math.isqrt(tokens)
    if short**2 != tokens or side // patch % short:
        raise ModelError(f"config.json: {side // patch} patches in a row cannot be averaged to {tokens} tokens")
    preprocessor.refuse("do_pan_and_scan", False)
    require_square(preprocessor, side)
    text = Config(config.block("text_config"), where="config.json: text_config")
    return {
        "layers": layers_of(tower, SIGLIP, last_norm=True),
        "patch": patch,
        "reduction": Reduction(kind="average", factor=side // patch // short),
        "projection": Projection(
            out=text.size("hidden_size", 2304), norm="rms", norm_eps=tower.number("layer_norm_eps", 1e-6)
        ),
        "pixels": pixels_of(preprocessor, HALVES, HALVES, 2),
        "tiling": Tiling(kind="one", side=side),
        "tags": Tags(
            placeholder="<start_of_image>",
            image="<image_soft_token>",
            image_id=image_id_of(config, "image_token_index", "image_token_id", default=262_144),
            before="\n\n<start_of_image>",
            after="<end_of_image>\n\n",
        ),
        "both_ways": "image",
    }


def read_paligemma(config: Config, preprocessor: Config) -> Fields:
    tower = tower_of(config)
    side, patch = grid_of(tower, SIGLIP)
    require_square(preprocessor, side)
    tokens = (side // patch) ** 2
    if (listed := preprocessor.size("image_seq_length", tokens)) != tokens:
        raise ModelError(f"{preprocessor.where}: image_seq_length {listed} differs from the tower's {tokens} patches")
    out = Config(config.block("text_config"), where="config.json: text_config").size("hidden_size", 2048)
    if (width := config.size("projection_dim", 2048)) != out:
        raise ModelError(f"config.json: projection_dim {width} differs from the decoder's hidden_size {out}")
    return {
        "layers": layers_of(tower, SIGLIP, last_norm=True),
        "patch": patch,
        "reduction": Reduction(),
        "projection": Projection(out=out, last_bias=True),
        "pixels": pixels_of(preprocessor, HALVES, HALVES, 3),
        "tiling": Tiling(kind="one", side=side),
        "tags": Tags(
            placeholder="<image>",
            image="<image>",
            image_id=image_id_of(config, "image_token_index", "image_token_id", default=256_000),
            text_start="<bos>",
            text_end="\n",
        ),
        "both_ways": "prompt",
    }
