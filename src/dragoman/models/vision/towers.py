"""Choice of the tower for a description."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.models.settings import Precision
from dragoman.models.vision.canvas_tower import CanvasTower
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.tower import VisionTower

Tower = VisionTower | CanvasTower


def build_tower(weights: Mapping[str, object], vision: VisionDescription, precision: Precision) -> Tower:
    """Record a tower over packed weights. ``precision``: of the model, which decides that of the tower's keys and
    values."""
    kind = CanvasTower if vision.tiling.kind == "canvas" else VisionTower
    return kind(weights, vision, precision)
