"""Small models that see, and requests with images for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.core.images import ImageTiles, PlacedImage
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.preprocess import normalise, preprocess

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from vision_models import image

GREEDY = SamplingParams(temperature=0)


def tiles_of(vision: VisionDescription, width: int, height: int, seed: int = 0) -> ImageTiles:
    """A picture of noise, cut for a tower."""
    found = preprocess(image(width, height, seed), vision)
    tiles, _, high, wide = found.pixels.shape
    return ImageTiles.of(
        pixels=found.pixels.tobytes(),
        tiles=tiles,
        height=high,
        width=wide,
        rows=found.grid.rows,
        columns=found.grid.columns,
        image_height=height,
        image_width=width,
        tokens=found.tokens,
        embeddings=found.embeddings,
        service=10,
    )


def request_with(
    vision: VisionDescription, *parts: ImageTiles | tuple[int, ...], name: str = "ours", **fields: Any
) -> EngineRequest:
    """A request whose prompt is of images and tokens."""
    prompt: list[int] = []
    placed = []
    for part in parts:
        if isinstance(part, ImageTiles):
            start = len(prompt)
            prompt += [vision.tags.image_id] * part.embeddings
            placed.append(PlacedImage(start=start, end=len(prompt), tiles=part))
        else:
            prompt += part
    fields = {"seeds": (1,), "max_tokens": 24, "sampling": GREEDY} | fields
    return EngineRequest(request_id=name, prompt=tuple(prompt), images=tuple(placed), **fields)


def theirs_of(name: str, vision: VisionDescription, request: EngineRequest) -> dict[str, Any]:
    """What transformers' model takes of a request with one image. That its own processor makes the same pixels is shown
    elsewhere."""
    import torch

    tiles = request.images[0].tiles
    pixels = np.frombuffer(tiles.pixels, np.uint8).reshape(tiles.tiles, 3, tiles.height, tiles.width)
    levels = normalise(pixels, vision.pixels)
    ids = torch.tensor(request.prompt)[None].long()
    found = {"input_ids": ids, "pixel_values": torch.tensor(levels)}
    is_image = (ids == vision.tags.image_id).long()
    if name == "smolvlm":
        found["pixel_values"] = found["pixel_values"][None]
    if name == "gemma3":
        found["token_type_ids"] = is_image
    if name == "paligemma":
        found["token_type_ids"] = torch.zeros_like(is_image)
    if name == "qwen2_vl":  # patches of two equal frames, in squares of two by two
        rows, columns = tiles.height // 14, tiles.width // 14
        squares = levels[0].reshape(3, rows // 2, 2, 14, columns // 2, 2, 14).transpose(1, 4, 2, 5, 0, 3, 6)
        both = np.repeat(squares[:, :, :, :, :, None], 2, axis=5)
        found["pixel_values"] = torch.tensor(both.reshape(rows * columns, -1))
        found["image_grid_thw"] = torch.tensor([[1, rows, columns]])
        found["mm_token_type_ids"] = is_image
    return found
