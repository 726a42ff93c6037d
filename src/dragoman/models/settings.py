"""Settings of a model: everything a user can choose except the model itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from dragoman.core.regular_file import FileName
from dragoman.core.user_folders import expand_user, is_in_memory

Precision = Literal["float32", "bfloat16", "int8", "int4"]
KVPrecision = Literal["float32", "bfloat16", "int8", "int4"]
RequestedPrecision = Literal["float32", "bfloat16", "int8", "int4", "auto"]
AskedKVPrecision = Literal["auto", "float32", "bfloat16", "int8", "int4"]
WeightsMemory = Literal["auto", "copy", "map"]
Count = Annotated[int, Meta(ge=1)]
MOST_CALIBRATION_TOKENS = 65536
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8", "int4")


class Describing(TypedDict):
    """Arguments of ``describe`` that are settings."""

    revision: str | None
    token: str | None
    rope: dict[str, object] | None
    mmproj: str


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is loaded. Every default is what most users want.

    Attributes:
        name: what clients call the model; by default the source's own name.
        revision: branch, tag or commit on the hub; by default its main branch.
        mmproj: the projector file of a GGUF model, with which it sees images. auto: the one beside it, if there is one;
            none: it is served as text alone.
        token: for private and gated repositories; by default the hub's own way (HF_TOKEN or a login).
        precision: of the weights; auto: as stored, float16 as bfloat16, quantized ones as near as can be.
        calibrate: tokens of text that the model writes itself, on which weights in int4 are then rounded so that its
            products change least; 0: without. What was packed is a model of its own, which the same number finds again.
            4096 are enough (docs/quantized.md); not for quantized files.
        kv_precision: of keys and values; auto: float32 for weights in float32, else bfloat16. int8 takes 17/32 of
            bfloat16's memory and is faster after long contexts; its error is that of eight bits with a scale for 32
            neighbours of each head. int4 takes 37/128 of it in heads of a multiple of 32, and the newest block of each
            sequence in bfloat16 besides (docs/kv-cache.md); it costs more precision. Not for latent attention.
        max_context: limits prompt and output together, in tokens; by default what the model allows and memory holds.
        kv_bytes: memory for keys and values; by default enough for max_sequences whole contexts, at most 8 GiB
            and half of what the weights leave free, at least one context.
        kv_tokens: the same as a number of tokens, each kept in all layers; kv_bytes wins.
        state_bytes: memory for the states of recurrent layers, of sequences, drafts and snapshots of prefixes; by
            default enough for max_sequences and 76 more, at most 4 GiB and a quarter of what the weights leave free.
        rope_scaling: method that extends positions beyond those of training, in place of the model's config.
        rope_factor: how many times as many positions; given alone it means linear scaling.
        generation_config: how the model's makers recommend to sample, for requests that leave it open. auto: as the
            model's generation_config.json says, or a GGUF file's metadata; none: nothing is recommended; otherwise
            another such file, or a folder that has one.
        max_tokens: most tokens the engine may run in one step.
        max_sequences: most sequences in one step.
        max_logit_rows: most rows of logits in one step.
        max_adapters: most LoRA adapters in memory at one time.
        adapter_bytes: most memory for all adapters together; by default what the machine has left.
        image_cache_bytes: memory for embeddings of images, by their pixels, of a model that sees: an image that comes
            again is not computed again; 0 turns it off.
        weights_memory: how cached weights come into memory. map: the packed cache's file is mapped, at once and shared
            by all processes that serve the model; copy: it is read into private huge pages, as decoding reads small
            pages 15 to 20 % slower; auto: mapped, and, unless the system keeps the file in huge pages, moved into
            private ones while requests are already served.
        cache_folder: of packed weights; by default $DRAGOMAN_CACHE/packed or ~/.cache/dragoman/packed.
        cache_bytes: maximum size of that cache, the least recently used removed first; 0 turns it off. Nothing is kept
            in the default folder of a user's where that is in memory (tmpfs).
    """

    name: str | None = None
    revision: str | None = None
    mmproj: FileName = "auto"
    token: str | None = None
    precision: RequestedPrecision = "auto"
    calibrate: Annotated[int, Meta(ge=0, le=MOST_CALIBRATION_TOKENS)] = 0
    kv_precision: AskedKVPrecision = "auto"
    max_context: Count | None = None
    kv_bytes: Count | None = None
    kv_tokens: Count | None = None
    state_bytes: Count | None = None
    rope_scaling: Literal["linear", "dynamic"] | None = None
    rope_factor: Annotated[float, Meta(ge=1)] | None = None
    generation_config: FileName = "auto"
    max_tokens: Count = 512
    max_sequences: Count = 64
    max_logit_rows: Count = 64
    max_adapters: Annotated[int, Meta(ge=0, le=1024)] = 16
    adapter_bytes: Count | None = None
    image_cache_bytes: Annotated[int, Meta(ge=0)] = 128 << 20
    weights_memory: WeightsMemory = "auto"
    cache_folder: FileName | None = None
    cache_bytes: Annotated[int, Meta(ge=0)] = 64 << 30

    @property
    def kept_bytes(self) -> int:
        """Maximum size of the packed cache; 0: nothing is kept."""
        return 0 if self.cache_folder is None and is_cache_in_memory() else self.cache_bytes

    @property
    def describing(self) -> Describing:
        """What a model is described by, besides its name."""
        return {"revision": self.revision, "token": self.token, "rope": self.rope, "mmproj": self.mmproj}

    @property
    def rope(self) -> dict[str, object] | None:
        """Requested rotary scaling in the config's form; None: the model's own."""
        if self.rope_scaling is None and self.rope_factor is None:
            return None
        return {"rope_type": self.rope_scaling or "linear", "factor": self.rope_factor or 1.0}


def is_cache_in_memory() -> bool:
    """Return whether the default folder, which nobody has named, is in memory: what is kept there for later would be
    taken from the model's own memory, and lost with it."""
    return not os.environ.get("DRAGOMAN_CACHE") and is_in_memory(default_cache_folder())


def default_cache_folder() -> Path:
    """Return ``$DRAGOMAN_CACHE/packed``, or ``packed`` in the user's cache folder for this program."""
    if root := os.environ.get("DRAGOMAN_CACHE"):
        return expand_user(root) / "packed"
    return expand_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dragoman" / "packed"
