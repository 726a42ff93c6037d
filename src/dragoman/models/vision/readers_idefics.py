"""Reader of the configs of Idefics 1; those of Idefics 2 and 3 are in ``readers.py``."""

from __future__ import annotations

from dragoman.core.errors import ModelError
from dragoman.models.config import LARGEST_HEAD, Config, token_ids
from dragoman.models.vision.config_fields import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    Fields,
    edge_of,
    grid_of,
    image_id_of,
    layers_of,
    pixels_of,
    tower_of,
)
from dragoman.models.vision.parts import Projection, Reduction, Resampler, Tags, Tiling

_AROUND = "<fake_token_around_image>"
_TOWER = {
    "hidden_size": 768,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "hidden_act": "gelu",
    "image_size": 224,
    "patch_size": 14,
    "layer_norm_eps": 1e-5,
}


def cross_attention_layers(config: Config) -> tuple[int, ...]:
    """Return for each cross-attention layer the number of the decoder's layers before it. Raises ModelError."""
    layers, interval = config.size("num_hidden_layers", 32), config.size("cross_layer_interval", 1)
    if layers % interval:
        raise ModelError(
            f"{config.where}: num_hidden_layers {layers} is not a multiple of cross_layer_interval {interval}"
        )
    return tuple(range(0, layers, interval))


def read_idefics(config: Config, preprocessor: Config) -> Fields:
    """Return the fields of a ``VisionDescription``. Raises ModelError for what is not supported."""
    tower = tower_of(config)
    tower = tower.having({"hidden_size": tower.value("embed_dim", tower.value("hidden_size"))})
    side, patch = grid_of(tower, _TOWER)
    _require_side(preprocessor, side)
    layers = layers_of(tower, _TOWER, first_norm=True)
    ends = token_ids({"eos_token_id": config.value("eos_token_id", 2)}, "eos_token_id")
    return {
        "layers": layers,
        "patch": patch,
        "patch_bias": False,
        "class_token": True,
        "class_kept": True,
        "reduction": Reduction(),
        "projection": Projection(out=layers.width, product=False),
        "resampler": _resampler(config, layers.width) if config.flag("use_resampler", False) else None,
        "pixels": pixels_of(preprocessor, CLIP_MEAN, CLIP_DEVIATION, 3),
        "tiling": Tiling(kind="one", side=side),
        "cross_attention_layers": cross_attention_layers(config),
        "cross_attention_alone": True,
        "cross_attention_until": ends[0] if ends else None,
        "tags": Tags(
            placeholder="<image>",
            image="<image>",
            image_id=image_id_of(config, "image_token_id"),
            before=_AROUND,
            after=_AROUND,
            once=_AROUND,
            strips=True,
        ),
    }


def _resampler(config: Config, width: int) -> Resampler:
    block = Config(config.block("perceiver_config"), where="config.json: perceiver_config")
    heads, head_dim, depth, vectors = (
        block.size(f"resampler_{key}", usual)
        for key, usual in (("n_heads", 16), ("head_dim", 96), ("depth", 6), ("n_latents", 64))
    )
    if heads > 256 or head_dim > LARGEST_HEAD or depth > 64 or vectors > 4096:
        raise ModelError(f"{block.where}: {heads} heads of {head_dim} numbers, {depth} layers are not supported")
    return Resampler(
        vectors=vectors,
        layers=depth,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        feed_forward=4 * width,
        activation="relu",
        gated=False,
        norm="layer",
        norm_eps=1e-5,
        head_norm=block.flag("qk_layer_norms_perceiver", False),
    )


def _require_side(preprocessor: Config, side: int) -> None:
    """Raise ModelError unless images are resized to squares of so many pixels: ``image_size`` is the older name."""
    found = preprocessor.size("image_size", side)
    if preprocessor.value("image_size") is None:
        found = edge_of(preprocessor, "size", "height", side)
        if edge_of(preprocessor, "size", "width", found) != found:
            raise ModelError(f"{preprocessor.where}: size must be a square")
    if found != side:
        raise ModelError(f"{preprocessor.where}: images of {found} pixels differ from the tower's image_size {side}")
