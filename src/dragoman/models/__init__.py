"""Models: the decoder described once, its variants as data, and the packing of weights into a model that runs.

``describe`` and ``plan`` read small files only and need no kernels; ``load`` is the engine's. The package's names
are imported on first access: commands that never read a model need only the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.core.lazy_imports import lazy_names

if TYPE_CHECKING:
    from dragoman.models.adapters import AdapterInfo, find_adapter
    from dragoman.models.adapters.modules import adapter_bytes
    from dragoman.models.description import EncoderInfo, ModelDescription, ModelInfo, PackedFile, describe
    from dragoman.models.draft import plan_draft, plan_eagle, plan_head
    from dragoman.models.eagle import EagleChoice
    from dragoman.models.loading import load
    from dragoman.models.memory import MEASURED_BYTES, MemoryPlan, available_memory, plan
    from dragoman.models.memory_share import first_plan
    from dragoman.models.parameters import parameter_count
    from dragoman.models.settings import ModelSettings
    from dragoman.models.source import embedded_path

__all__ = [
    "MEASURED_BYTES",
    "AdapterInfo",
    "EagleChoice",
    "EncoderInfo",
    "MemoryPlan",
    "ModelDescription",
    "ModelInfo",
    "ModelSettings",
    "PackedFile",
    "adapter_bytes",
    "available_memory",
    "describe",
    "embedded_path",
    "find_adapter",
    "first_plan",
    "load",
    "parameter_count",
    "plan",
    "plan_draft",
    "plan_eagle",
    "plan_head",
]

_MODULES = {
    "AdapterInfo": "adapters",
    "EagleChoice": "eagle",
    "EncoderInfo": "description",
    "MemoryPlan": "memory",
    "ModelDescription": "description",
    "ModelInfo": "description",
    "PackedFile": "description",
    "ModelSettings": "settings",
    "adapter_bytes": "adapters.modules",
    "MEASURED_BYTES": "memory",
    "available_memory": "memory",
    "first_plan": "memory_share",
    "describe": "description",
    "embedded_path": "source",
    "find_adapter": "adapters",
    "load": "loading",
    "parameter_count": "parameters",
    "plan": "memory",
    "plan_draft": "draft",
    "plan_eagle": "draft",
    "plan_head": "draft",
}

__getattr__ = lazy_names(__name__, _MODULES)
