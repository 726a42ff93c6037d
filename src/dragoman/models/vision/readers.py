"""Readers of the configs of models with images, by ``model_type``: from ``config.json`` and the preprocessor's config
to the fields of a ``VisionDescription``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.vision.parts import (
    ACTIVATIONS,
    RESAMPLINGS,
    Layers,
    Pixels,
    Projection,
    Reduction,
    Resampling,
    Tags,
    Tiling,
)

Fields = dict[str, Any]

_MOST_LAYERS = 256
_LARGEST_SIDE = 4096
_MOST_TILES = 256

PREPROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files of a repository that say how images are prepared."""


def preprocessor_of(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the image processor's config among the contents of ``PREPROCESSOR_FILES``; the second has it as a
    block."""
    if (found := files.get(PREPROCESSOR_FILES[0])) is not None:
        return dict(found)
    block = files.get(PREPROCESSOR_FILES[1], {}).get("image_processor", {})
    return dict(block) if isinstance(block, Mapping) else {}


def read_vision(config: dict[str, Any], preprocessor: dict[str, Any]) -> Fields | None:
    """Return the fields of a description; None for a config without ``vision_config``, or of a family whose images are
    not served. Raises ModelError naming the field of a tower that cannot be computed."""
    reader = READERS.get(str(config.get("model_type")))
    if reader is None or config.get("vision_config") is None:
        return None
    whole = Config(config)
    whole.block("vision_config")
    return reader(whole, Config(preprocessor, where=PREPROCESSOR_FILES[0]))


def _tower(config: Config) -> Config:
    """Return the tower's own config, which takes nothing from the whole."""
    tower = Config(config.block("vision_config"), where="config.json: vision_config")
    if tower.size("num_channels", 3) != 3:
        raise ModelError(f"{tower.where}: num_channels must be 3, got {tower.value('num_channels')!r}")
    return tower


def _layers(tower: Config, defaults: Mapping[str, Any], **variant: Any) -> Layers:
    tower = tower.over(dict(defaults))
    width, heads = tower.size("hidden_size"), tower.size("num_attention_heads")
    count = tower.size("num_hidden_layers")
    if count > _MOST_LAYERS:
        raise ModelError(f"{tower.where}: num_hidden_layers must be at most {_MOST_LAYERS}, got {count}")
    if width % heads:
        raise ModelError(f"{tower.where}: hidden_size {width} is not a multiple of num_attention_heads {heads}")
    fields: Fields = {
        "width": width,
        "count": count,
        "heads": heads,
        "feed_forward": tower.size("intermediate_size"),
        "activation": tower.choice("hidden_act", "gelu", ACTIVATIONS),
        "norm_eps": tower.number("layer_norm_eps", 1e-6),
    }
    return Layers(**fields | variant)


def _grid(tower: Config, defaults: Mapping[str, Any]) -> tuple[int, int]:
    """Return the pixels of a tile's edge and of a patch's."""
    tower = tower.over(dict(defaults))
    side, patch = tower.size("image_size"), tower.size("patch_size")
    if side > _LARGEST_SIDE or side % patch:
        raise ModelError(
            f"{tower.where}: image_size must be a multiple of patch_size {patch} up to {_LARGEST_SIDE}, got {side}"
        )
    return side, patch


def _pixels(preprocessor: Config, mean: tuple[float, ...], deviation: tuple[float, ...], resampling: int) -> Pixels:
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


def _edge(preprocessor: Config, key: str, name: str, default: int) -> int:
    """Return a number of pixels in a block of sizes, such as ``size.longest_edge``."""
    block = Config(preprocessor.block(key), where=f"{preprocessor.where}: {key}")
    value = block.size(name, default)
    if value > 4 * _LARGEST_SIDE:
        raise ModelError(f"{block.where}: {name} must be at most {4 * _LARGEST_SIDE}, got {value}")
    return value


def _image_id(config: Config, *keys: str, default: int | None = None) -> int:
    for key in keys:
        value = config.value(key)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ModelError(f"config.json: {key} must be a token id, got {value!r}")
            return value
    if default is None:
        raise ModelError(f"config.json: {keys[0]} is missing")
    return default


def _square(preprocessor: Config, side: int) -> None:
    """Raise ModelError unless images are resized to squares of so many pixels."""
    block = Config(preprocessor.block("size"), where=f"{preprocessor.where}: size")
    if (found := (block.size("height", side), block.size("width", side))) != (side, side):
        raise ModelError(f"{block.where} {found} differs from the tower's image_size {side}")


_HALVES = (0.5, 0.5, 0.5)
_SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "image_size": 224,
    "patch_size": 16,
}
"""Defaults of a tower's fields, from transformers' classes."""


def _read_idefics3(config: Config, preprocessor: Config) -> Fields:
    tower = _tower(config)
    defaults = {
        "hidden_size": 1152,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "image_size": 224,
        "patch_size": 32,
    }
    side, patch = _grid(tower, defaults)
    factor = config.size("scale_factor", 2)
    if side // patch % factor:
        raise ModelError(f"config.json: {side // patch} patches in a row cannot be joined {factor} by {factor}")
    tile = _edge(preprocessor, "max_image_size", "longest_edge", side)
    if tile != side:
        raise ModelError(f"{preprocessor.where}: max_image_size {tile} differs from the tower's image_size {side}")
    longest = _edge(preprocessor, "size", "longest_edge", 4 * side)
    split = preprocessor.flag("do_image_splitting", True)
    # Twice: the longer edge is scaled to `longest`, the other to no more; 4,096 pixels are the most of either.
    most = -(-min(longest, 4096) // side)
    if most**2 >= _MOST_TILES:
        raise ModelError(f"{preprocessor.where}: size {longest} makes more than {_MOST_TILES} tiles of {side} pixels")
    text = Config(config.block("text_config"), where="config.json: text_config")
    around = "<fake_token_around_image>"
    return {
        "layers": _layers(tower, defaults, last_norm=True),
        "patch": patch,
        "reduction": Reduction(kind="shuffle", factor=factor),
        "projection": Projection(out=text.size("hidden_size")),
        "pixels": _pixels(preprocessor, _HALVES, _HALVES, 1),
        "tiling": Tiling(kind="split", side=side, longest=longest, most=most**2 + 1)
        if split
        else Tiling(kind="one", side=side, longest=longest),
        "tags": Tags(
            placeholder="<image>",
            image="<image>",
            image_id=_image_id(config, "image_token_id", default=128257),
            after=around,
            tile=f"{around}<row_{{row}}_col_{{column}}>",
            row_end="\n",
            rows_end="\n",
            whole=f"{around}<global-img>",
        ),
    }


def _read_gemma3(config: Config, preprocessor: Config) -> Fields:
    tower = _tower(config)
    side, patch = _grid(tower, _SIGLIP)
    tokens = config.size("mm_tokens_per_image", 256)
    short = math.isqrt(tokens)
    if short**2 != tokens or side // patch % short:
        raise ModelError(f"config.json: {side // patch} patches in a row cannot be averaged to {tokens} tokens")
    preprocessor.refuse("do_pan_and_scan", False)
    _square(preprocessor, side)
    text = Config(config.block("text_config"), where="config.json: text_config")
    return {
        "layers": _layers(tower, _SIGLIP, last_norm=True),
        "patch": patch,
        "reduction": Reduction(kind="average", factor=side // patch // short),
        "projection": Projection(
            out=text.size("hidden_size", 2304), norm="rms", norm_eps=tower.number("layer_norm_eps", 1e-6)
        ),
        "pixels": _pixels(preprocessor, _HALVES, _HALVES, 2),
        "tiling": Tiling(kind="one", side=side),
        "tags": Tags(
            placeholder="<start_of_image>",
            image="<image_soft_token>",
            image_id=_image_id(config, "image_token_index", "image_token_id", default=262_144),
            before="\n\n<start_of_image>",
            after="<end_of_image>\n\n",
        ),
        "both_ways": "image",
    }


READERS: dict[str, Callable[[Config, Config], Fields]] = {
    "gemma3": _read_gemma3,
    "idefics3": _read_idefics3,
    "smolvlm": _read_idefics3,
}
"""By the ``model_type`` of the whole config."""
