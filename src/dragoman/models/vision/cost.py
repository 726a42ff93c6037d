"""What an image takes to compute: multiplications, and tokens of a prompt that take as many."""

from __future__ import annotations

import math
from typing import NamedTuple

from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import cut_of, tile_sizes

_TEXT_TOKENS = 256  # of a prompt with images, where it is read in one step


class Products(NamedTuple):
    """Multiplications of a tower: by weights, and of attention within a tile or its windows."""

    weights: int
    attention: int


def products(vision: VisionDescription, tiles: int, height: int, width: int) -> Products:
    """Return the multiplications that so many tiles of so many pixels take, up to their embeddings."""
    layers, projection = vision.layers, vision.projection
    patches = (height // vision.patch) * (width // vision.patch)
    rows, tokens = patches + vision.class_token, patches // vision.reduction.factor**2
    if vision.tiling.kind == "canvas":
        tiles, rows = 1, vision.tile_rows
        patches = tokens = rows
    each = 4 * layers.width**2 + (2 + layers.gated) * layers.width * layers.feed_forward
    window = (layers.window // vision.patch) ** 2 or rows
    seen = sum(rows if layer in layers.full_layers else min(rows, window) for layer in range(layers.count))
    ends = vision.reduced_width, projection.inner, projection.out
    first = (1 + projection.gated) * ends[0] * ends[1]
    projected = (1 + vision.stacked) * (first + ends[1] * ends[2] if ends[1] else ends[0] * ends[2])
    projected *= projection.product
    if resampler := vision.resampler:  # of each row keys and values, and the rest of each vector
        keys, queries = 2 * resampler.kv_heads * resampler.head_dim, 2 * resampler.heads * resampler.head_dim
        projected += resampler.layers * projection.out * keys
        network = (2 + resampler.gated) * resampler.feed_forward
        ratio = resampler.vectors / max(1, tokens)
        projected += int(ratio * resampler.layers * projection.out * (queries + network))
    weights = rows * layers.count * each + patches * vision.patch_floats * layers.width + tokens * projected
    return Products(tiles * weights, tiles * rows * seen * 2 * layers.width)


def products_of_image(vision: VisionDescription, width: int, height: int) -> Products:
    """Return the multiplications that an image of so many pixels takes, cut and scaled as the model does. Raises
    ValueError for one that cannot be."""
    cut, side = cut_of(width, height, vision, "auto"), vision.tiling.side
    if vision.tiling.kind in ("mixed", "halves"):
        sizes = tile_sizes(cut.grid, vision)
        each = [products(vision, 1, size.height, size.width) for size in sizes]
        return Products(sum(found.weights for found in each), sum(found.attention for found in each))
    size = (cut.scaled[-1].height, cut.scaled[-1].width) if cut.any_shape else (side, side)
    return products(vision, cut.tiles, *size)


def image_service(vision: VisionDescription, tiles: int, height: int, width: int, parameters: int) -> int:
    """Return how many prompt tokens of a model with so many parameters take as many multiplications as an image."""
    return math.ceil(sum(products(vision, tiles, height, width)) / max(1, parameters))


def least_step_tokens(vision: VisionDescription | None, max_sequences: int) -> int:
    """Return how many tokens a step has room for at the least: an image whose tokens see each other both ways, or a
    prompt with one and some text, beside other sequences."""
    if vision is None or vision.both_ways == "none":
        return 0
    return vision.most_tokens + max_sequences + (_TEXT_TOKENS if vision.both_ways == "prompt" else 0)
