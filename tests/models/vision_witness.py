"""What transformers makes of images for the small models: pixels by its image processors, and its models' inputs."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from vision_models import CONFIGS, PREPROCESSORS, description, kind_of

from dragoman.models.vision.geometry import tile_sizes
from dragoman.models.vision.preprocess import normalise, preprocess

torch = pytest.importorskip("torch")

SIZES = ((100, 70), (300, 500), (56, 56), (57, 112), (1, 1), (10, 400), (400, 3), (640, 480), (1, 3000))
PROCESSORS = {"internvl": "got_ocr2", "mistral3": "pixtral", "paligemma": "siglip"}
PROCESSORS |= dict.fromkeys(("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5"), "qwen2_vl")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")
PIXTRAL = ("mistral3", "pixtral")
ALWAYS = {"internvl": {"crop_to_patches": True}, "idefics3": {"return_row_col_info": True}}
ALWAYS["smolvlm"] = ALWAYS["idefics3"]
WHOLE = {
    "idefics3": {"do_image_splitting": False},
    "smolvlm": {"do_image_splitting": False},
    "lfm2_vl": {"do_image_splitting": False},
    "idefics2": {"do_image_splitting": False},
    "internvl": {"crop_to_patches": False},
}
"""What has transformers' processor make one tile of an image."""
CUT = ("idefics2", "idefics3", "smolvlm")


def processor(name: str, **changes: Any) -> Any:
    """The image processor of transformers that resizes by Pillow."""
    config = {key: value for key, value in PREPROCESSORS[name].items() if key != "image_processor_type"}
    kind = PROCESSORS.get(kind_of(name), kind_of(name))
    module = importlib.import_module(f"transformers.models.{kind}.image_processing_pil_{kind}")
    (made,) = (getattr(module, each) for each in module.__all__ if each.endswith("ImageProcessorPil"))
    return made(**config | ALWAYS.get(kind_of(name), {}) | changes)


def their_pixels(name: str, picture: Any, **changes: Any) -> NDArray[np.float32]:
    if kind_of(name) == "lfm2_vl":
        return lfm2_pixels(picture, changes.get("do_image_splitting", True))
    found = processor(name, **changes)(picture, return_tensors="np")
    pixels = np.asarray(found["pixel_values"])
    if kind_of(name) == "idefics2":  # what is beside a tile is 0 after the normalisation
        pixels[np.broadcast_to(np.asarray(found["pixel_attention_mask"])[:, :, None] == 0, pixels.shape)] = -1
    if kind_of(name) == "gemma4":  # patches of pixels, which the model takes from -1 to 1
        places, patch = found["image_position_ids"][0], CONFIGS[name]["vision_config"]["patch_size"]
        columns, rows = places.max(axis=0) + 1
        pixels = 2 * (pixels[0, : rows * columns].reshape(rows, columns, patch, patch, 3) - np.float32(0.5))
        pixels = pixels.transpose(4, 0, 2, 1, 3).reshape(1, 3, rows * patch, columns * patch)
    if kind_of(name) in QWEN:  # patches of two equal frames, in squares of two by two
        ((_, rows, columns),) = found["image_grid_thw"]
        patch = PREPROCESSORS[name].get("patch_size", 14)
        squares = pixels.reshape(rows // 2, columns // 2, 2, 2, 3, 2, patch, patch)
        np.testing.assert_array_equal(squares[..., 0, :, :], squares[..., 1, :, :])
        pixels = squares[..., 0, :, :].transpose(4, 0, 2, 5, 1, 3, 6)
        pixels = pixels.reshape(1, 3, rows * patch, columns * patch)
    return pixels.reshape(-1, *pixels.shape[-3:])


def lfm2_pixels(picture: Any, split: bool) -> NDArray[np.float32]:
    """Tiles as transformers' processor of LFM2-VL makes them, which asks for torchvision: that resizes by torch."""
    levels = torch.tensor(np.asarray(picture)).permute(2, 0, 1)[None]
    rows, columns, *whole = LFM2_SHAPES[picture.width, picture.height]

    def resized(height: int, width: int) -> Any:
        return torch.nn.functional.interpolate(levels, (height, width), mode="bilinear", antialias=True)

    tiles = [resized(*whole)]
    if rows and split:
        large = resized(rows * 64, columns * 64)
        places = [(row * 64, column * 64) for row in range(rows) for column in range(columns)]
        tiles = [large[:, :, top : top + 64, left : left + 64] for top, left in places] + tiles
    height, width = (max(tile.shape[edge] for tile in tiles) for edge in (2, 3))
    found = np.zeros((len(tiles), 3, height, width), np.uint8)
    for tile, place in zip(tiles, found, strict=True):
        place[:, : tile.shape[2], : tile.shape[3]] = tile[0].numpy()
    return normalise(found, description("lfm2_vl").pixels)


LFM2_SHAPES = {
    (100, 70): (0, 0, 48, 80),
    (300, 500): (3, 2, 80, 48),
    (56, 56): (0, 0, 64, 64),
    (57, 112): (0, 0, 96, 48),
    (1, 1): (0, 0, 32, 32),
    (640, 480): (2, 3, 48, 80),
}
"""Of images of LFM2-VL, rows and columns of tiles, and the whole one's height and width, as transformers' processor has
them with torchvision."""


def lfm2_inputs(picture: Any) -> dict[str, Any]:
    """What transformers' model takes of an image: patches of its tiles, as many of each."""
    vision = description("lfm2_vl")
    prepared = preprocess(picture, vision)
    levels, shapes = normalise(prepared.pixels, vision.pixels), tile_sizes(prepared.grid, vision)
    patches = np.zeros((len(shapes), vision.tile_rows, 3 * 64), np.float32)
    mask = np.zeros(patches.shape[:2], np.int64)
    for tile, size, rows, seen in zip(levels, shapes, patches, mask, strict=True):
        height, width = size.height // 8, size.width // 8
        flat = tile[:, : size.height, : size.width].reshape(3, height, 8, width, 8).transpose(1, 3, 2, 4, 0)
        rows[: height * width] = flat.reshape(height * width, -1)
        seen[: height * width] = 1
    sizes = torch.tensor([(size.height // 8, size.width // 8) for size in shapes])
    return {
        "pixel_values": torch.tensor(patches),
        "pixel_attention_mask": torch.tensor(mask),
        "spatial_shapes": sizes,
    }


def sizes_of(name: str) -> list[tuple[int, int]]:
    """The sizes of images that a model takes."""
    if kind_of(name) == "lfm2_vl":
        return list(LFM2_SHAPES)
    if kind_of(name) == "idefics2":
        return [size for size in SIZES if min(size) > 1]
    if kind_of(name) in PIXTRAL:  # transformers makes images of no height
        return [size for size in SIZES if max(size) <= 300 * min(size)]
    return [size for size in SIZES if kind_of(name) not in QWEN or max(size) <= 200 * min(size)]


def their_inputs(name: str, picture: Any) -> dict[str, Any]:
    """What transformers' model takes of an image."""
    if kind_of(name) == "lfm2_vl":
        return lfm2_inputs(picture)
    if kind_of(name) == "idefics2":
        return dict(processor(name)(picture, return_tensors="pt"))
    pixels = torch.tensor(their_pixels(name, picture))
    inputs = {"pixel_values": pixels[None] if kind_of(name) in (*CUT, "llava_next") else pixels}
    if kind_of(name) in QWEN:
        prepared = processor(name)(picture, return_tensors="pt")
        return {key: prepared[key] for key in ("pixel_values", "image_grid_thw")}
    if kind_of(name) == "gemma4":
        prepared = processor(name)(picture, return_tensors="pt")
        return {key: prepared[key] for key in ("pixel_values", "image_position_ids")}
    if kind_of(name) in PIXTRAL:
        inputs["image_sizes"] = torch.tensor([pixels.shape[2:]])
    if kind_of(name) == "llava_next":
        inputs["image_sizes"] = torch.tensor([[picture.height, picture.width]])
    return inputs
