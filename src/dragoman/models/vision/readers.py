"""Readers of the configs of models with images, by ``model_type``: from ``config.json`` and the preprocessor's config
to the fields of a ``VisionDescription``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import LARGEST_HEAD, Config
from dragoman.models.vision.config_fields import (
    CLIP,
    CLIP_DEVIATION,
    CLIP_MEAN,
    HALVES,
    MOST_PATCHES,
    MOST_TILES,
    SIGLIP,
    Fields,
    edge_of,
    grid_of,
    image_id_of,
    layers_of,
    pixels_of,
    taken_layers,
    tower_of,
)
from dragoman.models.vision.parts import ACTIVATIONS, Projection, Reduction, Resampler, Tags, Tiling
from dragoman.models.vision.readers_gemma import read_gemma3, read_gemma4, read_paligemma
from dragoman.models.vision.readers_idefics import read_idefics
from dragoman.models.vision.readers_internvl import read_internvl, read_internvl_chat
from dragoman.models.vision.readers_lfm2 import read_lfm2
from dragoman.models.vision.readers_mllama import read_mllama
from dragoman.models.vision.readers_qwen import read_qwen2, read_qwen3, read_qwen3_5

PREPROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files of a repository that say how images are prepared."""

UNNAMED_IMAGE_TOKENS = {"idefics": "<image>", "internvl_chat": "<IMG_CONTEXT>"}
"""By ``model_type``: image tokens whose ids only the tokenizer knows."""


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


def _read_idefics3(config: Config, preprocessor: Config) -> Fields:
    tower = tower_of(config)
    defaults = {
        "hidden_size": 1152,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "image_size": 224,
        "patch_size": 32,
    }
    side, patch = grid_of(tower, defaults)
    factor = config.size("scale_factor", 2)
    if side // patch % factor:
        raise ModelError(f"config.json: {side // patch} patches in a row cannot be joined {factor} by {factor}")
    tile = edge_of(preprocessor, "max_image_size", "longest_edge", side)
    if tile != side:
        raise ModelError(f"{preprocessor.where}: max_image_size {tile} differs from the tower's image_size {side}")
    longest = edge_of(preprocessor, "size", "longest_edge", 4 * side)
    split = preprocessor.flag("do_image_splitting", True)
    # Twice: the longer edge is scaled to `longest`, the other to no more; 4,096 pixels are the most of either.
    most = -(-min(longest, 4096) // side)
    if most**2 >= MOST_TILES:
        raise ModelError(f"{preprocessor.where}: size {longest} makes more than {MOST_TILES} tiles of {side} pixels")
    text = Config(config.block("text_config"), where="config.json: text_config")
    around = "<fake_token_around_image>"
    return {
        "layers": layers_of(tower, defaults, last_norm=True),
        "patch": patch,
        "reduction": Reduction(kind="shuffle", factor=factor),
        "projection": Projection(out=text.size("hidden_size")),
        "pixels": pixels_of(preprocessor, HALVES, HALVES, 1),
        "tiling": Tiling(kind="split", side=side, longest=longest, most=most**2 + 1)
        if split
        else Tiling(kind="one", side=side, longest=longest),
        "tags": Tags(
            placeholder="<image>",
            image="<image>",
            image_id=image_id_of(config, "image_token_id", default=128257),
            after=around,
            tile=f"{around}<row_{{row}}_col_{{column}}>",
            row_end="\n",
            rows_end="\n",
            whole=f"{around}<global-img>",
        ),
    }


def _read_idefics2(config: Config, preprocessor: Config) -> Fields:
    tower = tower_of(config)
    defaults = SIGLIP | {"patch_size": 32}
    side, patch = grid_of(tower, defaults)
    text = Config({"model_type": "mistral"} | config.block("text_config"), where="config.json: text_config")
    out = text.size("hidden_size", 4096)
    block = Config(config.block("perceiver_config"), where="config.json: perceiver_config")
    eps = block.number("rms_norm_eps", 1e-6)
    if block.size("hidden_size", 4096) != out:  # as transformers has it
        eps = text.number("rms_norm_eps", 1e-6)
    heads, kv_heads = block.size("resampler_n_heads", 16), block.size("num_key_value_heads", 4)
    head_dim, depth, vectors = (
        block.size(f"resampler_{key}", usual) for key, usual in (("head_dim", 96), ("depth", 3), ("n_latents", 64))
    )
    if heads % kv_heads or heads > 256 or head_dim > LARGEST_HEAD or depth > 64 or vectors > 4096:
        raise ModelError(f"{block.where}: {heads} heads of {head_dim} numbers, {depth} layers are not supported")
    least, longest = (
        edge_of(preprocessor, "size", "shortest_edge", 378),
        edge_of(preprocessor, "size", "longest_edge", 980),
    )
    if not patch <= least <= longest or (longest // patch) ** 2 > MOST_PATCHES:
        raise ModelError(
            f"{preprocessor.where}: size must have edges of {patch} pixels and more, got {least}, {longest}"
        )
    activation = text.choice("hidden_act", "silu", ACTIVATIONS)
    around = "<fake_token_around_image>"
    return {
        "layers": layers_of(tower, defaults, last_norm=True),
        "patch": patch,
        "positions": "bucketed",
        "position_side": side // patch,
        "reduction": Reduction(),
        "projection": Projection(
            out=out, inner=text.size("intermediate_size", 14336), activation=activation, gated=True
        ),
        "resampler": Resampler(
            vectors=vectors,
            layers=depth,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            feed_forward=4 * out,
            activation=block.choice("hidden_act", "silu", ACTIVATIONS),
            norm_eps=eps,
        ),
        "pixels": pixels_of(preprocessor, HALVES, HALVES, 2),
        "tiling": Tiling(
            kind="halves",
            side=patch,
            longest=longest,
            least_edge=least,
            most=5 if preprocessor.flag("do_image_splitting", False) else 1,
        ),
        "tags": Tags(
            placeholder="<image>",
            image="<image>",
            image_id=image_id_of(config, "image_token_id", default=32_001),
            tile=around,
            whole=around,
            after=around,
            once=around,
        ),
    }


def _read_llava(config: Config, preprocessor: Config) -> Fields:
    if config.block("vision_config").get("model_type") == "pixtral":
        config.choice("vision_feature_select_strategy", "default", {"full": ""})
        return _pixtral(config, preprocessor, 1, merged=False)
    fields, side = _clip(config, preprocessor)
    preprocessor.refuse("do_pad", False)
    preprocessor.refuse("do_center_crop", True)
    for key, edges in {"size": ("shortest_edge",), "crop_size": ("height", "width")}.items():
        for edge in edges:
            _require_edge(preprocessor, key, edge, side)
    return fields | {"tiling": Tiling(kind="crop", side=side)}


def _read_llava_next(config: Config, preprocessor: Config) -> Fields:
    fields, side = _clip(config, preprocessor)
    preprocessor.refuse("do_center_crop", True, False)
    sizes = config.value("image_grid_pinpoints", _PINPOINTS)
    if preprocessor.value("image_grid_pinpoints", sizes) != sizes:
        raise ModelError(f"{preprocessor.where}: image_grid_pinpoints differ from those of config.json")
    canvases = tuple(_canvas(size, side) for size in sizes) if isinstance(sizes, list) else ()
    if not canvases:
        raise ModelError(f"config.json: image_grid_pinpoints must list sizes, got {sizes!r}")
    for key in ("size", "crop_size"):
        for edge in preprocessor.block(key):
            _require_edge(preprocessor, key, edge, side)
    most = max(rows * columns for rows, columns in canvases)
    return fields | {"tiling": Tiling(kind="fit", side=side, canvases=canvases, most=most + 1)}


_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def _canvas(size: object, side: int) -> tuple[int, int]:
    """Return the rows and columns of tiles of one of ``image_grid_pinpoints``."""
    edges = size if isinstance(size, list) and len(size) == 2 else [0, 0]
    if not all(
        isinstance(edge, int) and not isinstance(edge, bool) and edge > 0 and edge % side == 0 for edge in edges
    ):
        raise ModelError(
            f"config.json: image_grid_pinpoints must be heights and widths of {side}-pixel tiles, got {size}"
        )
    rows, columns = edges[0] // side, edges[1] // side
    if rows * columns >= MOST_TILES:
        raise ModelError(f"config.json: image_grid_pinpoints {size} have more than {MOST_TILES} tiles")
    return rows, columns


def _require_edge(preprocessor: Config, key: str, edge: str, side: int) -> None:
    if (found := edge_of(preprocessor, key, edge, side)) != side:
        raise ModelError(f"{preprocessor.where}: {key} {found} differs from the tower's image_size {side}")


def _clip(config: Config, preprocessor: Config) -> tuple[Fields, int]:
    """Return the fields that LLaVA and LLaVA-NeXT share, and the pixels of a tile's edge."""
    tower = tower_of(config)
    kind = tower.choice(
        "model_type", "clip_vision_model", {"clip_vision_model": "clip", "siglip_vision_model": "siglip"}
    )
    defaults = CLIP if kind == "clip" else SIGLIP
    side, patch = grid_of(tower, defaults)
    text = Config(config.block("text_config"), where="config.json: text_config")
    out, bias = text.size("hidden_size", 4096), config.flag("multimodal_projector_bias", True)
    # The first row is dropped where it is the class token.
    config.choice("vision_feature_select_strategy", "default", {"default" if kind == "clip" else "full": ""})
    layers = layers_of(tower, defaults, first_norm=kind == "clip")
    fields = {
        "layers": replace(layers, taken=taken_layers(config, layers.count)),
        "patch": patch,
        "patch_bias": kind == "siglip",
        "class_token": kind == "clip",
        "reduction": Reduction(),
        "projection": Projection(
            out=out,
            inner=out,
            activation=config.choice("projector_hidden_act", "gelu", ACTIVATIONS),
            first_bias=bias,
            last_bias=bias,
            factor=text.number("embedding_multiplier", 1.0),
        ),
        "pixels": pixels_of(preprocessor, CLIP_MEAN, CLIP_DEVIATION, 3),
        "tags": Tags(
            placeholder="<image>",
            image="<image>",
            image_id=image_id_of(config, "image_token_index", "image_token_id", default=32000),
        ),
    }
    return fields, side


def _read_mistral3(config: Config, preprocessor: Config) -> Fields | None:
    if config.block("vision_config").get("model_type", "pixtral") != "pixtral":
        return None
    return _pixtral(config, preprocessor, config.size("spatial_merge_size", 2), merged=True)


def _pixtral(config: Config, preprocessor: Config, factor: int, *, merged: bool) -> Fields:
    """Return the fields of a model with Pixtral's tower. ``merged``: as in Mistral 3, there is a norm after the tower,
    and a product that joins the patches of a token."""
    defaults = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "patch_size": 14,
        "layer_norm_eps": 1e-5,
    }
    tower = tower_of(config).over(defaults)
    patch = tower.size("patch_size")
    side = patch * factor
    if not 0 < side <= 256:
        raise ModelError(f"{tower.where}: patches of {patch} pixels, {factor} by {factor}, are too large")
    text = config.within("text_config")
    out, bias = text.size("hidden_size", 5120), config.flag("multimodal_projector_bias", not merged)
    layers = layers_of(
        tower,
        defaults,
        norm="rms",
        qkv_bias=False,
        bias=False,
        gated=True,
        rotary_theta=_axial_theta(tower),
        rotary_shared=False,
        first_norm=True,
        last_norm=merged,
        last_eps=text.number("rms_norm_eps", 1e-5),
    )
    if layers.head_dim % 4 or tower.size("head_dim", layers.head_dim) != layers.head_dim:
        raise ModelError(f"{tower.where}: heads of {tower.value('head_dim')} numbers are not supported")
    taken = taken_layers(config.over({"vision_feature_layer": -1 if merged else -2}), layers.count)
    if len(taken) > 1:
        raise ModelError(f"config.json: vision_feature_layer must be one layer, got {list(taken)}")
    longest = edge_of(preprocessor, "size", "longest_edge", 1540 if merged else 1024)
    return {
        "layers": replace(layers, taken=taken),
        "patch": patch,
        "patch_bias": False,
        "positions": "none",
        "reduction": Reduction(kind="unfold" if factor > 1 else "none", factor=factor),
        "projection": Projection(
            out=out,
            inner=out,
            activation=config.choice("projector_hidden_act", "gelu", ACTIVATIONS),
            merged=merged,
            first_bias=bias,
            last_bias=bias,
        ),
        "pixels": pixels_of(preprocessor, CLIP_MEAN, CLIP_DEVIATION, 3),
        "tiling": Tiling(kind="any", side=side, longest=longest, most=MOST_PATCHES * patch**2),
        "tags": Tags(
            placeholder="[IMG]",
            image="[IMG]",
            image_id=image_id_of(config, "image_token_index", "image_token_id", default=10),
            row_end="[IMG_BREAK]",
            after="[IMG_END]",
        ),
    }


def _axial_theta(tower: Config) -> float:
    block = Config(tower.block("rope_parameters"), where=f"{tower.where}: rope_parameters")
    return block.number("rope_theta", tower.number("rope_theta", 10_000.0))


READERS: dict[str, Callable[[Config, Config], Fields | None]] = {
    "gemma3": read_gemma3,
    "gemma4": read_gemma4,
    "idefics": read_idefics,
    "idefics2": _read_idefics2,
    "idefics3": _read_idefics3,
    "lfm2-vl": read_lfm2,
    "lfm2_vl": read_lfm2,
    "internvl": read_internvl,
    "internvl_chat": read_internvl_chat,
    "llava": _read_llava,
    "llava_next": _read_llava_next,
    "mistral3": _read_mistral3,
    "mllama": read_mllama,
    "paligemma": read_paligemma,
    "qwen2_5_vl": read_qwen2,
    "qwen2_vl": read_qwen2,
    "qwen3_5": read_qwen3_5,
    "qwen3_5_moe": read_qwen3_5,
    "qwen3_vl": read_qwen3,
    "qwen3_vl_moe": read_qwen3,
    "smolvlm": _read_idefics3,
}
"""By the ``model_type`` of the whole config."""
