"""LoRA adapters: small low-rank changes of a model's matrices, read from PEFT's files and applied beside the products.

``find_adapter`` reads small files only, downloads what is not here, and needs no kernels; ``load`` (in ``loading``) is
the engine's.
"""

from __future__ import annotations

from dragoman.models.adapters.info import AdapterInfo
from dragoman.models.adapters.source import find_adapter

__all__ = ["AdapterInfo", "find_adapter"]
