"""Readers of the configs of Gemma's models with images: Gemma 3 and 4, PaliGemma 1 and 2."""

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
    """Return the fields of a ``VisionDescription`` of Gemma 3. Raises ModelError for what is not supported."""
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
    """Return the fields of a ``VisionDescription`` of PaliGemma. Raises ModelError for what is not supported."""
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


_GEMMA4 = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
}
_MOST_GEMMA4_TOKENS = 1120


def read_gemma4(config: Config, preprocessor: Config) -> Fields:
    """Return the fields of a ``VisionDescription`` of Gemma 4. Raises ModelError for what is not supported."""
    tower = tower_of(config).over(_GEMMA4)
    tower = tower.having(
        {"hidden_act": tower.value("hidden_activation"), "layer_norm_eps": tower.number("rms_norm_eps", 1e-6)}
    )
    heads = tower.size("num_attention_heads")
    if (others := tower.size("num_key_value_heads", heads)) != heads:
        raise ModelError(f"{tower.where}: num_key_value_heads {others} differs from num_attention_heads {heads}")
    tower.refuse("attention_bias", False)
    theta = Config(tower.block("rope_parameters"), where=f"{tower.where}: rope_parameters").number("rope_theta", 100.0)
    layers = layers_of(
        tower,
        {},
        norm="rms",
        qkv_bias=False,
        bias=False,
        gated=True,
        head_norm=True,
        norms_around=True,
        clipped=tower.flag("use_clipped_linears", False),
        attention_scale=1.0,
        rotary_theta=theta,
        rotary_halves=True,
    )
    if layers.head_dim % 4 or tower.size("head_dim", 64) != layers.head_dim:
        raise ModelError(f"{tower.where}: heads of {tower.value('head_dim', 64)} numbers are not supported")
    patch, factor = tower.size("patch_size", 16), tower.size("pooling_kernel_size", 3)
    for key, value in {"patch_size": patch, "pooling_kernel_size": factor}.items():
        if preprocessor.size(key, value) != value:
            raise ModelError(f"{preprocessor.where}: {key} differs from the tower's {value}")
    side = patch * factor
    tokens = preprocessor.size("max_soft_tokens", 280)
    if tokens > _MOST_GEMMA4_TOKENS or not 0 < side <= 256:
        raise ModelError(
            f"{preprocessor.where}: max_soft_tokens must be at most {_MOST_GEMMA4_TOKENS}, of {side} x {side} pixels, "
            f"got {tokens}"
        )
    places = tower.size("position_embedding_size", 10 * 1024)
    if places < tokens * factor:
        raise ModelError(f"{tower.where}: position_embedding_size {places} is less than the patches of a long image")
    # Pixels are not normalised by the preprocessor, but are in the tower, from 0 … 1 to -1 … 1.
    plain = {"do_normalize": True, "image_mean": list(HALVES), "image_std": list(HALVES)}
    preprocessor.refuse("do_normalize", False)
    text = config.within("text_config")
    return {
        "layers": layers,
        "patch": patch,
        "patch_bias": False,
        "channels_last": True,
        "positions": "axial",
        "position_side": places,
        "reduction": Reduction(
            kind="average", factor=factor, scale=layers.width**0.5, standardised=tower.flag("standardize", False)
        ),
        "projection": Projection(
            out=text.size("hidden_size", 2304), norm="rms", norm_weight=False, norm_eps=layers.norm_eps
        ),
        "pixels": pixels_of(preprocessor.having(plain), HALVES, HALVES, 3),
        "tiling": Tiling(kind="any", side=side, most=tokens * side**2, filled=True),
        "tags": Tags(
            placeholder="<|image|>",
            image="<|image|>",
            image_id=image_id_of(config, "image_token_id", default=258_880),
            before="<|image>",
            after="<image|>",
        ),
        "both_ways": "image" if text.value("use_bidirectional_attention") == "vision" else "none",
        "both_ways_in_windows": True,
        "padding_id": image_id_of(text, "pad_token_id", default=0),
    }
