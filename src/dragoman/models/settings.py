"""What a user may choose about a model, beside which one."""

from __future__ import annotations

from typing import Literal

import msgspec

Precision = Literal["float32", "bfloat16", "int8", "int4"]
AskedPrecision = Literal["float32", "bfloat16", "int8", "int4", "auto"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8", "int4")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is loaded. Every default is what most users want.

    Attributes:
        name: what clients call the model; None: the source's own name.
        revision: branch, tag or commit on the hub. token: for private and gated repositories; None: the hub's own way
            (``HF_TOKEN`` or a login).
        precision: of the weights; ``auto``: as stored, float16 as bfloat16.
        max_context: limits prompt and output together, in tokens; None: what the model allows and memory holds.
        kv_bytes: memory for keys and values; None: enough for ``max_sequences`` whole contexts, at most half of what
            the weights leave free and 8 GiB, at least one context.
        max_tokens, max_sequences, max_logit_rows: the largest step the engine may ask for.
        weights_memory: ``copy`` holds the weights in huge pages of memory of our own; ``map`` leaves them in the packed
            cache's file, shared by all processes that serve the model, at 15-20 % less speed in decoding.
        cache_folder: of packed weights; None: ``$DRAGOMAN_CACHE/packed`` or ``~/.cache/dragoman/packed``.
        cache_bytes: most bytes kept there, the longest unused removed first; 0 turns the cache off.
    """

    name: str | None = None
    revision: str | None = None
    token: str | None = None
    precision: AskedPrecision = "auto"
    max_context: int | None = None
    kv_bytes: int | None = None
    max_tokens: int = 512
    max_sequences: int = 64
    max_logit_rows: int = 64
    weights_memory: Literal["copy", "map"] = "copy"
    cache_folder: str | None = None
    cache_bytes: int = 64 << 30
