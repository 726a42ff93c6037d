"""Reader of the configs of Llama 3.2 Vision (Mllama)."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.vision.config_fields import (
    MOST_PATCHES,
    Fields,
    grid_of,
    image_id_of,
    layers_of,
    pixels_of,
    require_square,
    tower_of,
)
from dragoman.models.vision.parts import Projection, Reduction, Tags, Tiling, grids_of

IMAGE_TOKENS = 8
"""Rows of the decoder's table of tokens for images."""

_MEAN, _DEVIATION = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_TAKEN = [3, 7, 15, 23, 30]
_LOOKING = [3, 8, 13, 18, 23, 28, 33, 38]
_TOWER = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "hidden_act": "gelu",
    "image_size": 448,
    "patch_size": 14,
}


def read_mllama(config: Config, preprocessor: Config) -> Fields:
    """Return the fields of a ``VisionDescription`` of Llama 3.2 Vision. Raises ModelError for what is not supported."""
    tower = tower_of(config)
    tower = tower.having({"num_attention_heads": tower.value("attention_heads", 16)})
    side, patch = grid_of(tower, _TOWER)
    most = tower.size("max_num_tiles", 4)
    rows = (side // patch) ** 2 + 1
    if rows % 8 == 0 or most * rows > MOST_PATCHES:
        raise ModelError(f"{tower.where}: {most} tiles of {rows - 1} patches are not supported")
    grids = [list(grid) for grid in grids_of(most)]
    if tower.value("supported_aspect_ratios", grids) != grids:
        raise ModelError(f"{tower.where}: supported_aspect_ratios must be all grids of up to {most} tiles")
    if (found := preprocessor.size("max_image_tiles", most)) != most:
        raise ModelError(f"{preprocessor.where}: max_image_tiles {found} differs from the tower's max_num_tiles {most}")
    require_square(preprocessor, side)
    preprocessor.refuse("do_pad", True)
    layers = layers_of(
        tower,
        _TOWER,
        norm_eps=tower.number("norm_eps", 1e-5),
        last_eps=1e-5,
        qkv_bias=False,
        first_norm=True,
        last_norm=True,
    )
    stage, more = layers.count, tower.size("num_global_layers", 8)
    listed = tower.value("intermediate_layers_indices", _TAKEN)
    if not isinstance(listed, list) or not all(type(each) is int and 0 <= each < stage for each in listed):
        raise ModelError(f"{tower.where}: intermediate_layers_indices must list some of {stage} layers, got {listed!r}")
    taken = (*(each + 1 for each in listed), stage + more)
    if list(taken) != sorted({*taken}) or tower.size("vision_output_dim", 7680) != layers.width * len(taken):
        raise ModelError(
            f"{tower.where}: vision_output_dim must be that of all intermediate_layers_indices, ascending, and the last"
        )
    text = config.within("text_config")
    crossed = text.value("cross_attention_layers", _LOOKING)
    looking = sorted(crossed) if isinstance(crossed, list) else []
    kept = text.size("num_hidden_layers", 40) - len(looking)
    if not looking or len(looking) > kept:
        raise ModelError(f"{text.where}: cross_attention_layers must be at most half of all layers, got {crossed!r}")
    return {
        "layers": replace(layers, taken=taken, first_stage=stage),
        "patch": patch,
        "patch_bias": False,
        "class_token": True,
        "reduction": Reduction(),
        "projection": Projection(out=text.size("hidden_size", 4096), last_bias=True),
        "pixels": pixels_of(preprocessor, _MEAN, _DEVIATION, 2),
        "tiling": Tiling(kind="canvas", side=side, most=most),
        "unspoken": IMAGE_TOKENS,
        "cross_attention_layers": tuple(layer - place for place, layer in enumerate(looking)),
        "tags": Tags(
            placeholder="<|image|>",
            image="<|image|>",
            image_id=image_id_of(config, "image_token_index", "image_token_id", default=128_256),
        ),
    }
