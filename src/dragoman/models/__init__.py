"""Models: the decoder described once, its variants as data, and how weights become a model that can run.

``describe`` and ``plan`` read small files only and need no kernels; ``load`` is the engine's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.models.adapters import AdapterInfo, find_adapter
from dragoman.models.description import EncoderInfo, ModelDescription, ModelInfo, describe
from dragoman.models.memory import MemoryPlan, plan
from dragoman.models.progress import Progress, nobody
from dragoman.models.settings import ModelSettings
from dragoman.models.source import embedded_path

if TYPE_CHECKING:
    from dragoman.models.model import Model

__all__ = [
    "AdapterInfo",
    "EncoderInfo",
    "MemoryPlan",
    "ModelDescription",
    "ModelInfo",
    "ModelSettings",
    "describe",
    "embedded_path",
    "find_adapter",
    "load",
    "plan",
]


def load(source: str | Path | None = None, settings: ModelSettings | None = None, progress: Progress = nobody) -> Model:
    """Load a model: a folder, a hub id, or None for the embedded one. Raises ModelError; see ``models.loading``."""
    from dragoman.models import loading  # here: only the engine process needs the native kernels

    return loading.load(source, settings, progress)
