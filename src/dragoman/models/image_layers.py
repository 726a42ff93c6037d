"""Gated cross-attention layers of a decoder, which look at images (Flamingo: Alayrac et al. 2022,
https://arxiv.org/abs/2204.14198): Mllama's, and Idefics' (Laurençon et al. 2023, https://arxiv.org/abs/2306.16527).

They are between the decoder's other layers. What they look at are keys and values that were computed once from the
embeddings of the images that a token sees, in blocks of their own; layer number n has its keys and values in the memory
of the decoder's layer n. Tokens that see no image go past them (Mllama), or past their attention alone (Idefics).
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
from dragoman.models.recording import PartRecorder
from dragoman.models.spec import DecoderSpec
from dragoman.models.vision.tower_programs import no_rows

_CHUNK = 512  # rows of embeddings that are made keys and values at once


class ImageLayerRecorder(PartRecorder, Protocol):
    """What these layers need of the recorder of a decoder."""

    @property
    def buffers(self) -> LayerBuffers: ...
    def image_buffers(self) -> tuple[int, int]:
        """Return buffers for queries, and for what is added to the stream."""

    def norm(self, out: int, x: int, module: str, layer: int | None = None) -> None:
        """Record out = norm(x)."""


def record_image_layers(recorder: ImageLayerRecorder, place: int, stream: Stream) -> None:
    """Record the layers that come before the decoder's layer number ``place``."""
    spec = recorder.spec
    for number, before in enumerate(spec.cross_attention_layers):
        if before != place:
            continue
        if _passed_by_all(spec):
            if spec.vision is not None:
                with recorder.program.optional():
                    _record_attention(recorder, number, stream)
            _record_network(recorder, number, stream)
        else:
            with recorder.program.optional():
                _record_attention(recorder, number, stream)
                _record_network(recorder, number, stream)


def _record_attention(recorder: ImageLayerRecorder, number: int, stream: Stream) -> None:
    """Record x += tanh(a) · Attention(norm(x)), for rows that see an image."""
    spec, p, weights = recorder.spec, recorder.program, recorder.weights
    query, _ = recorder.image_buffers()
    recorder.norm(stream.normed, stream.residual, "image_norm", number)
    p.linear(query, stream.normed, weights.matrix("image_query", number))
    assert spec.image_layers is not None
    if spec.image_layers.head_norm:
        norm = weights.vector("image_query_norm", number)
        p.head_norm(query, 0, spec.heads, spec.head_dim, norm, spec.norm_eps)
    mixed = recorder.buffers.narrowed(stream.mixed, spec.query_width)
    p.cross_attend(mixed, query, 0, spec.heads, number, spec.head_dim**-0.5)
    p.clear_without_text(mixed)
    _join(recorder, mixed, "out", number, stream, seeing=True)


def _record_network(recorder: ImageLayerRecorder, number: int, stream: Stream) -> None:
    """Record x += tanh(b) · FeedForward(norm(x)), for rows that see an image or for all."""
    spec, p = recorder.spec, recorder.program
    recorder.norm(stream.normed, stream.residual, "image_feed_forward_norm", number)
    wide = recorder.buffers.narrowed(stream.wide, (1 + spec.gated) * spec.feed_forward)
    narrow = recorder.buffers.narrowed(stream.narrow, spec.feed_forward)
    p.linear(wide, stream.normed, recorder.weights.matrix("image_feed_forward_in", number))
    record_activation(recorder, 0, narrow, wide)
    _join(recorder, narrow, "feed_forward_out", number, stream, seeing=not _passed_by_all(spec))


def _join(recorder: ImageLayerRecorder, x: int, module: str, number: int, stream: Stream, *, seeing: bool) -> None:
    """Record what a branch adds to the stream. ``seeing``: to rows that see an image alone."""
    p, (_, branch) = recorder.program, recorder.image_buffers()
    p.linear(branch, x, recorder.weights.matrix(f"image_{module}", number))
    if seeing:
        p.clear_without_text(branch)
    gate = recorder.weights.vector(f"image_{module}_gate", number)
    if len(gate) > 1:
        p.scale_columns(branch, np.tanh(gate))
        p.add(stream.residual, branch)
    else:
        p.add(stream.residual, branch, math.tanh(gate[0]))


def _passed_by_all(spec: DecoderSpec) -> bool:
    """Return whether tokens that see no image pass the networks of these layers too."""
    return spec.image_layers is not None and bool(spec.image_layers.before)


class ImageWriter:
    """Makes keys and values of images' embeddings, for the layers that look at them."""

    def __init__(self, spec: DecoderSpec, weights: Weights, kv: kernels.KVPool) -> None:
        """Record it over packed weights."""
        assert spec.vision is not None
        assert spec.image_layers is not None
        self._program = p = kernels.Program(max_tokens=_CHUNK, max_sequences=1, max_logit_rows=1, kv=kv)
        width = spec.vision.embedding_floats
        x, pair = p.buffer(width), p.buffer(2 * spec.kv_width)
        p.embed(x, no_rows(width))
        for number in range(len(spec.vision.cross_attention_layers)):
            p.linear(pair, x, weights.matrix("image_key_value", number))
            if spec.image_layers.head_norm:
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
