"""What an image takes to compute, in tokens of a prompt."""

from __future__ import annotations

import math

from dragoman.models.vision.description import VisionDescription


def image_service(vision: VisionDescription, tiles: int, height: int, width: int, parameters: int) -> int:
    """Return how many prompt tokens of a model with so many parameters take as many multiplications as the embeddings
    of an image of so many tiles do: those of the layers' matrices, and of attention within a tile."""
    layers = vision.layers
    rows = (height // vision.patch) * (width // vision.patch) + vision.class_token
    each = 4 * layers.width**2 + (2 + layers.gated) * layers.width * layers.feed_forward
    seen = min(rows, (layers.window // vision.patch) ** 2) if layers.window else rows
    products = tiles * rows * layers.count * (each + 2 * seen * layers.width)
    return math.ceil(products / max(1, parameters))
