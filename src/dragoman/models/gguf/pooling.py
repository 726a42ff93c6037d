"""Pooling of a model from its GGUF file's metadata, as sentence-transformers describes one."""

from __future__ import annotations

from typing import Any

from dragoman.models.gguf.file import GgufFile
from dragoman.models.gguf.metadata import Metadata

KEY = "pooling_type"

RANK = 4
"""The pooling of classifiers."""

_UNPOOLED = 0
_KINDS = {1: "mean", 2: "cls", 3: "lasttoken", RANK: "rank"}
"""llama.cpp's numbers."""

_MODULES = "sentence_transformers.models."


def pooling_files(file: GgufFile, *, ranks: bool) -> dict[str, Any]:
    """Return the files that name the pooling, by their paths; none where the metadata names none.

    ``ranks``: it is a classifier or a reranker, whose pooling follows from that. Raises ModelError for a kind that
    llama.cpp does not have.
    """
    prefix = Metadata(file).text("general.architecture") + "."
    kind = Metadata(file, prefix).value(KEY)
    if kind is None or kind == _UNPOOLED or (ranks and kind == RANK):
        return {}
    if not isinstance(kind, int) or kind not in _KINDS:
        raise file.fail(prefix + KEY, f"is {kind!r}, which is no known pooling")
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    return {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": _MODULES + name} for i, (path, name) in enumerate(modules)
        ],
        "1_Pooling/config.json": {"pooling_mode": _KINDS[kind]},
    }
