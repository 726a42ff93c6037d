"""Recording of latent attention, by one formula for prompts and decoded tokens alike.

Keys and values are never expanded: a query is multiplied by its head's matrix of keys, attends to the latents, and the
result is multiplied by the matrix of values. So what a token gets does not depend on how its text was divided into
steps. A prompt costs heads · (2 · rank + rotated) multiplications for each pair of positions. Expanded heads would cost
heads · (plain + rotated + value), a third of that, and the expansion of all positions before each chunk; but they are
rounded otherwise.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.optional_parts import Latent
from dragoman.models.recording import PartRecorder
from dragoman.models.rope import Rope, RotaryTables
from dragoman.models.spec import DecoderSpec


class LatentBuffers(msgspec.Struct, frozen=True):
    """Buffers that all layers use.

    Attributes:
        low: the vector that queries are a product of; -1: the layer's input. query: the queries of all heads.
        absorbed: after the matrix of keys. kept: latent and rotated part of keys. result: the mean of latents.
    """

    low: int
    query: int
    absorbed: int
    kept: int
    result: int


class LatentRecorder(PartRecorder, Protocol):
    """What latent attention needs of the recorder of a decoder."""

    latent_memory: LatentBuffers | None

    @property
    def tables(self) -> dict[Rope, RotaryTables]: ...
    @property
    def kv_layers(self) -> dict[int, int]: ...
    @property
    def query_factors(self) -> NDArray[np.float32] | None: ...
    def linear(self, out: int, x: int, module: str, layer: int | None = None) -> None:
        """Record out = x·W (+ bias)."""


def record_latent_attention(recorder: LatentRecorder, latent: Latent, layer: int, x: int, out: int) -> None:
    """Record a layer's attention on the branch's input x, up to the input of its last product."""
    spec, p, weights = recorder.spec, recorder.program, recorder.weights
    memory = recorder.latent_memory = recorder.latent_memory or _allocate(p, spec, latent)
    if latent.query_rank:
        recorder.linear(memory.low, x, "latent_query_in", layer)
        scale = weights.vector("latent_query_norm", layer)
        p.head_norm(memory.low, 0, 1, latent.query_rank, scale, latent.norm_eps)
    recorder.linear(memory.query, memory.low if latent.query_rank else x, "latent_query", layer)
    recorder.linear(memory.kept, x, "latent_in", layer)
    scale = weights.vector("latent_norm", layer) * np.float32(latent.scale)
    p.head_norm(memory.kept, 0, 1, latent.rank, scale, latent.norm_eps)
    p.head_linear(memory.absorbed, memory.query, weights.matrix("latent_key", layer), spec.heads)
    if rope := spec.rope(layer):
        tables = recorder.tables[rope]
        for buffer, heads in ((memory.absorbed, spec.heads), (memory.kept, 1)):
            p.rotate(buffer, latent.rank, heads, spec.head_dim, tables.cos, tables.sin, rope.interleaved)
    if recorder.query_factors is not None:
        p.scale_by_position(memory.absorbed, 0, spec.query_width, recorder.query_factors)
    place = recorder.kv_layers[layer]
    p.write_kv(memory.kept, 0, 0, place)
    p.attend(memory.result, memory.absorbed, 0, spec.heads, place, spec.attention_scales[layer])
    p.head_linear(out, memory.result, weights.matrix("latent_value", layer), spec.heads)


def _allocate(p: kernels.Program, spec: DecoderSpec, latent: Latent) -> LatentBuffers:
    """Queries are not needed once the result is written; where they fit, they have its memory."""
    result = p.buffer(spec.heads * latent.rank)
    queries = spec.heads * (latent.plain + latent.rotated)
    return LatentBuffers(
        low=p.buffer(latent.query_rank) if latent.query_rank else -1,
        query=p.buffer(queries, over=result if queries <= p.width(result) else None),
        absorbed=p.buffer(spec.query_width),
        kept=p.buffer(spec.head_dim),
        result=result,
    )
