"""Fields that the configs of vision towers and image processors have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.vision.parts import ACTIVATIONS, RESAMPLINGS, Layers, Pixels, Resampling

Fields = dict[str, Any]

MOST_TILES = 256
"""Tiles of an image, whatever its preprocessor's config asks for."""

MOST_PATCHES = 8192
"""Of an image whose shape is kept: a tower's attention grows with their square."""

_MOST_LAYERS = 256
_LARGEST_SIDE = 4096

HALVES = (0.5, 0.5, 0.5)
CLIP_MEAN, CLIP_DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "image_size": 224,
    "patch_size": 16,
}
CLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "image_size": 224,
    "patch_size": 32,
}
"""Defaults of a tower's fields, from transformers' classes."""


def tower_of(config: Config) -> Config:
    """Return the tower's own config, which takes nothing from the whole."""
    tower = Config(config.block("vision_config"), where="config.json: vision_config")
    if tower.size("num_channels", 3) != 3:
        raise ModelError(f"{tower.where}: num_channels must be 3, got {tower.value('num_channels')!r}")
    return tower


def layers_of(tower: Config, defaults: Mapping[str, Any], **variant: Any) -> Layers:
    """Return the layers of a transformer that the config of a ``tower`` describes, all of which are run.

    ``defaults``: values of fields that the config leaves out. ``variant``: fields of the ``Layers`` in place of what
    the config says. Raises ModelError.
    """
    tower = tower.over(dict(defaults))
    width, heads = tower.size("hidden_size"), tower.size("num_attention_heads")
    count = tower.size("num_hidden_layers")
    if count > _MOST_LAYERS:
        raise ModelError(f"{tower.where}: num_hidden_layers must be at most {_MOST_LAYERS}, got {count}")
    if width % heads:
        raise ModelError(f"{tower.where}: hidden_size {width} is not a multiple of num_attention_heads {heads}")
    fields: Fields = {
        "width": width,
        "taken": (count,),
        "heads": heads,
        "feed_forward": tower.size("intermediate_size"),
        "activation": tower.choice("hidden_act", "gelu", ACTIVATIONS),
        "norm_eps": tower.number("layer_norm_eps", 1e-6),
    }
    return Layers(**fields | variant)


def grid_of(tower: Config, defaults: Mapping[str, Any]) -> tuple[int, int]:
    """Return the pixels of a tile's edge and of a patch's."""
    tower = tower.over(dict(defaults))
    side, patch = tower.size("image_size"), tower.size("patch_size")
    if side > _LARGEST_SIDE or side % patch:
        raise ModelError(
            f"{tower.where}: image_size must be a multiple of patch_size {patch} up to {_LARGEST_SIDE}, got {side}"
        )
    return side, patch


def pixels_of(preprocessor: Config, mean: tuple[float, ...], deviation: tuple[float, ...], resampling: int) -> Pixels:
    """Return what an image processor's config says of pixels. The others are the values where it says nothing;
    ``resampling``: in Pillow's numbers. Raises ModelError."""
    preprocessor.refuse("do_resize", True)
    preprocessor.refuse("do_rescale", True)
    preprocessor.refuse("do_normalize", True)
    return Pixels(
        mean=_channels(preprocessor, "image_mean", mean),
        deviation=_channels(preprocessor, "image_std", deviation, positive=True),
        resampling=_resampling(preprocessor, resampling),
        rescale=preprocessor.number("rescale_factor", 1 / 255),
    )


def _resampling(preprocessor: Config, default: int) -> Resampling:
    value = preprocessor.value("resample", default)
    if not isinstance(value, int) or isinstance(value, bool) or value not in RESAMPLINGS:
        raise ModelError(f"{preprocessor.where}: resample {value!r} is not supported; known: {list(RESAMPLINGS)}")
    return RESAMPLINGS[value]


def _channels(
    preprocessor: Config, key: str, default: tuple[float, ...], *, positive: bool = False
) -> tuple[float, float, float]:
    value = preprocessor.value(key, list(default))
    numbers = value if isinstance(value, list) else []
    if len(numbers) != 3 or not all(
        isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n <= 1 and (n or not positive) for n in numbers
    ):
        raise ModelError(f"{preprocessor.where}: {key} must be three numbers between 0 and 1, got {value!r}")
    red, green, blue = map(float, numbers)
    return red, green, blue


def edge_of(preprocessor: Config, key: str, name: str, default: int) -> int:
    """Return a number of pixels in a block of sizes, such as ``size.longest_edge``."""
    block = Config(preprocessor.block(key), where=f"{preprocessor.where}: {key}")
    value = block.size(name, default)
    if value > 4 * _LARGEST_SIDE:
        raise ModelError(f"{block.where}: {name} must be at most {4 * _LARGEST_SIDE}, got {value}")
    return value


def pixel_limits(preprocessor: Config, least: int, most: int, limit: int, token: int) -> tuple[int, int]:
    """Return the least and the most pixels of an image whose shape is kept. ``limit``: of the most, whatever the config
    allows. ``token``: pixels of one token."""
    block = Config(preprocessor.block("size"), where=f"{preprocessor.where}: size")
    least = preprocessor.size("min_pixels", block.size("shortest_edge", block.size("min_pixels", least)))
    most = preprocessor.size("max_pixels", block.size("longest_edge", block.size("max_pixels", most)))
    if not max(least, token) <= min(most, limit):
        raise ModelError(f"{preprocessor.where}: images of {least:,} to {min(most, limit):,} pixels cannot be made")
    return least, min(most, limit)


def image_id_of(config: Config, *keys: str, default: int | None = None) -> int:
    """Return the id of the token that stands for an image, from the first of these keys that the config has. Raises
    ModelError."""
    for key in keys:
        value = config.value(key)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ModelError(f"config.json: {key} must be a token id, got {value!r}")
            return value
    if default is None:
        raise ModelError(f"config.json: {keys[0]} is missing")
    return default


def require_square(preprocessor: Config, side: int) -> None:
    """Raise ModelError unless images are resized to squares of so many pixels."""
    block = Config(preprocessor.block("size"), where=f"{preprocessor.where}: size")
    if (found := (block.size("height", side), block.size("width", side))) != (side, side):
        raise ModelError(f"{block.where} {found} differs from the tower's image_size {side}")


def taken_layers(config: Config, layers: int) -> tuple[int, ...]:
    """Return the layers after which the stream is taken: 0 is before the first, negative ones count from the last."""
    listed = config.value("vision_feature_layer", -2)
    places = listed if isinstance(listed, list) else [listed]
    if not places or not all(isinstance(place, int) and not isinstance(place, bool) for place in places):
        raise ModelError(f"config.json: vision_feature_layer must be a layer or a list of them, got {listed!r}")
    taken = tuple(place + layers + 1 if place < 0 else place for place in places)
    if not all(0 < place <= layers for place in taken) or list(taken) != sorted(set(taken)):
        raise ModelError(f"config.json: vision_feature_layer must be ascending layers of {layers}, got {listed!r}")
    return taken
