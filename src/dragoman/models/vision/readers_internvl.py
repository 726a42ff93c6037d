"""Readers of the configs of InternVL: as transformers has it, and as its authors first published it."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.vision.config_fields import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    MOST_TILES,
    Fields,
    grid_of,
    image_id_of,
    layers_of,
    pixels_of,
    require_square,
    taken_layers,
    tower_of,
)
from dragoman.models.vision.parts import ACTIVATIONS, Projection, Reduction, Tags, Tiling


def read_internvl(config: Config, preprocessor: Config) -> Fields:
    """Return the fields of a ``VisionDescription`` of InternVL. Raises ModelError for what is not supported."""
    tower = tower_of(config)
    for key in ("image_size", "patch_size"):
        edges = tower.value(key)
        if isinstance(edges, list) and len(edges) == 2 and edges[0] == edges[1]:
            tower = tower.having({key: edges[0]})
    defaults = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 448,
        "patch_size": 14,
    }
    side, patch = grid_of(tower, defaults)
    tower.refuse("use_mask_token", False)
    tower.refuse("use_absolute_position_embeddings", True)
    config.choice("vision_feature_select_strategy", "default", {"default": ""})
    ratio = config.number("downsample_ratio", 0.5)
    factor = round(1 / ratio)
    if abs(factor * ratio - 1) > 1e-6 or side // patch % factor:
        raise ModelError(f"config.json: {side // patch} patches in a row cannot be joined by downsample_ratio {ratio}")
    require_square(preprocessor, side)
    least, most = preprocessor.size("min_patches", 1), preprocessor.size("max_patches", 12)
    if not least <= most < MOST_TILES:
        raise ModelError(f"{preprocessor.where}: max_patches must be {least} to {MOST_TILES - 1}, got {most}")
    out = Config(config.block("text_config"), where="config.json: text_config").size("hidden_size", 4096)
    layers = layers_of(
        tower,
        defaults,
        norm=tower.choice("norm_type", "layer_norm", {"layer_norm": "layer", "rms_norm": "rms"}),
        qkv_bias=tower.flag("attention_bias", False),
        last_norm=not tower.flag("use_mean_pooling", True),
        branch_scales=True,
        joint_head_norm=tower.flag("use_qk_norm", False),
    )
    if (place := config.value("vision_feature_layer", -1)) != -1:
        layers = replace(layers, taken=taken_layers(config.having({"vision_feature_layer": place}), layers.count))
        layers = replace(layers, last_norm=False)
    if layers.joint_head_norm and layers.norm_eps != 1e-6:
        raise ModelError(f"{tower.where}: layer_norm_eps must be 1e-06 with use_qk_norm, got {layers.norm_eps}")
    return {
        "layers": layers,
        "patch": patch,
        "class_token": True,
        "batch_of_one": True,
        "reduction": Reduction(kind="shuffle", factor=factor),
        "projection": Projection(
            out=out,
            inner=out,
            activation=config.choice("projector_hidden_act", "gelu", ACTIVATIONS),
            norm="layer",
            norm_eps=1e-5,
            first_bias=True,
            last_bias=True,
        ),
        "pixels": pixels_of(preprocessor, CLIP_MEAN, CLIP_DEVIATION, 3),
        "tiling": Tiling(kind="closest", side=side, least=least, most=most + 1)
        if most > 1
        else Tiling(kind="one", side=side),
        "tags": Tags(
            placeholder="<IMG_CONTEXT>",
            image="<IMG_CONTEXT>",
            image_id=image_id_of(config, "image_token_id", default=151_667),
            before="<img>",
            after="</img>",
        ),
    }


_IMAGENET_MEAN, _IMAGENET_DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def read_internvl_chat(config: Config, preprocessor: Config) -> Fields:
    """Read the config of a checkpoint of class InternVLChatModel: the same models under other names."""
    tower = Config(config.block("vision_config"), where="config.json: vision_config")
    for key, value in {"pad2square": False, "ps_version": "v2", "use_thumbnail": True}.items():
        if config.value(key, value) != value:
            raise ModelError(f"config.json: {key} = {config.value(key)!r} is not supported")
    side = tower.size("image_size", 448)
    if (forced := config.size("force_image_size", side)) != side:
        raise ModelError(f"config.json: force_image_size {forced} differs from the tower's image_size {side}")
    cut = config.flag("dynamic_image_size", True)
    vision = {
        **tower.values,
        "attention_bias": tower.flag("qkv_bias", True),
        "use_qk_norm": tower.flag("qk_normalization", False),
        "use_mean_pooling": True,  # there is no norm after the layers
    }
    chosen = {"image_mean": _IMAGENET_MEAN, "image_std": _IMAGENET_DEVIATION} | {
        key: value for key, value in preprocessor.values.items() if key not in ("size", "crop_size", "do_center_crop")
    }
    chosen |= {
        "min_patches": config.size("min_dynamic_patch", 1) if cut else 1,
        "max_patches": config.size("max_dynamic_patch", 12) if cut else 1,
    }
    named = config.having(
        {
            "text_config": config.block("llm_config"),
            "vision_config": vision,
            "vision_feature_layer": config.value("select_layer", -1),
        }
    )
    return read_internvl(named, Config(chosen, where=preprocessor.where))
