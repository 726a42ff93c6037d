"""GGUF, the file format of llama.cpp: a whole model in one file, or in one split into parts.

``file`` reads a header, ``tensors`` and ``block_types`` what is stored; ``architectures`` and ``names`` say what
llama.cpp's metadata and tensor names mean in the families' terms; ``vocabulary`` makes a tokenizer of the metadata.
``opening`` joins them: a folder in Hugging Face layout that describes the model, and its tensors under the family's
names. What that offers is imported when it is first asked for: most models are none of these.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.models.gguf.opening import (
        describing_folder,
        most_used_dtype,
        open_gguf,
        quantized_types,
        tensor_files,
    )

__all__ = ["describing_folder", "most_used_dtype", "open_gguf", "quantized_types", "tensor_files"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(f"{__name__}.opening"), name)
    return found
