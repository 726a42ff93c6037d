"""Layers of a decoder that look at images (Mllama): their parameters, and their operations.

They are between the decoder's other layers. What they look at are keys and values that were computed once from the
embeddings of the images that a token sees, in blocks of their own; layer number n has its keys and values in the memory
of the decoder's layer n. Sequences that see no image go past them.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.feed_forward import record_activation
from dragoman.models.layer_buffers import LayerBuffers, Stream
from dragoman.models.packing import Weights
from dragoman.models.spec import DecoderSpec
from dragoman.models.vision.tower_programs import no_rows

_CHUNK = 512  # rows of embeddings that are made keys and values at once


class Recorder(Protocol):
    """What these layers need of the recorder of a decoder."""

    @property
    def spec(self) -> DecoderSpec: ...
    @property
    def weights(self) -> Weights: ...
    @property
    def program(self) -> kernels.Program: ...
    @property
    def buffers(self) -> LayerBuffers: ...
    def image_buffers(self) -> tuple[int, int]:
        """Return buffers for queries, and for what is added to the stream."""

    def norm(self, out: int, x: int, module: str, layer: int | None = None) -> None:
        """Record out = norm(x)."""


def record_image_layers(recorder: Recorder, place: int, stream: Stream) -> None:
    """Record the layers that come before the decoder's layer number ``place``."""
    spec = recorder.spec
    for number, before in enumerate(spec.vision.looked_at if spec.vision else ()):
        if before == place:
            _record(recorder, number, stream)


def _record(recorder: Recorder, number: int, stream: Stream) -> None:
    """Record x += tanh(a) · Attention(norm(x)) and x += tanh(b) · FeedForward(norm(x)), for rows that see an image."""
    spec, p, weights = recorder.spec, recorder.program, recorder.weights
    query, branch = recorder.image_buffers()

    def join(x: int, module: str) -> None:
        p.linear(branch, x, weights.matrix(f"image_{module}", number))
        p.clear_without_text(branch)
        p.add(stream.residual, branch, math.tanh(weights.vector(f"image_{module}_gate", number)[0]))

    with p.optional():
        recorder.norm(stream.normed, stream.residual, "image_norm", number)
        p.linear(query, stream.normed, weights.matrix("image_query", number))
        norm = weights.vector("image_query_norm", number)
        p.head_norm(query, 0, spec.heads, spec.head_dim, norm, spec.norm_eps)
        mixed = recorder.buffers.narrowed(stream.mixed, spec.query_width)
        p.cross_attend(mixed, query, 0, spec.heads, number, spec.head_dim**-0.5)
        p.clear_without_text(mixed)
        join(mixed, "out")
        recorder.norm(stream.normed, stream.residual, "image_feed_forward_norm", number)
        wide = recorder.buffers.narrowed(stream.wide, 2 * spec.feed_forward)
        narrow = recorder.buffers.narrowed(stream.narrow, spec.feed_forward)
        p.linear(wide, stream.normed, weights.matrix("image_feed_forward_in", number))
        record_activation(recorder, 0, narrow, wide)
        join(narrow, "feed_forward_out")


class ImageWriter:
    """Makes keys and values of images' embeddings, for the layers that look at them."""

    def __init__(self, spec: DecoderSpec, weights: Weights, kv: kernels.KVPool) -> None:
        """Record it over packed weights."""
        assert spec.vision is not None
        self._program = p = kernels.Program(max_tokens=_CHUNK, max_sequences=1, max_logit_rows=1, kv=kv)
        x, pair = p.buffer(spec.width), p.buffer(2 * spec.kv_width)
        p.embed(x, no_rows(spec.width))
        for number in range(len(spec.vision.looked_at)):
            p.linear(pair, x, weights.matrix("image_key_value", number))
            norm = weights.vector("image_key_norm", number)
            p.head_norm(pair, 0, spec.kv_heads, spec.head_dim, norm, spec.norm_eps)
            p.write_kv(pair, 0, spec.kv_width, number)

    def write(self, values: NDArray[np.float32], blocks: NDArray[np.int32]) -> None:
        """Write the keys and values of embeddings ``[rows, width]`` into blocks of their own."""
        for first in range(0, len(values), _CHUNK):
            rows = values[first : first + _CHUNK]
            each = np.arange(len(rows), dtype=np.int32)
            self._program.run(
                np.zeros(len(rows), np.int32),
                first + each,
                np.array([0, len(rows)], np.int32),
                blocks[None],
                np.empty(0, np.int32),
                embedding_rows=each,
                embedding_values=rows,
            )
