"""Buffers of a decoder's layers: the residual stream, and the values of the branches."""

from __future__ import annotations

import msgspec
import numpy as np

from dragoman import kernels
from dragoman.models.spec import DecoderSpec


class Stream(msgspec.Struct, frozen=True):
    """Buffers of a layer: the residual stream, and the values of the branches."""

    residual: int
    normed: int  # input of a branch
    mixed: int  # output of attention, before its projection
    wide: int  # feed-forward before the activation
    narrow: int  # feed-forward after the activation
    branch: int | None  # output of a branch that does not join the stream directly
    routing: int | None = None  # a router's input where it is not its experts'
    routed: int | None = None  # output of experts that are beside a network, or join the stream later


class LayerBuffers:
    """Allocates the buffers that layers use, sharing memory where one is unused before the other is written."""

    def __init__(self, spec: DecoderSpec, program: kernels.Program) -> None:
        self.spec, self.program = spec, program
        self._narrow: dict[tuple[int, int], int] = {}
        self._parts: dict[tuple[str, int], int] = {}
        self._constants: dict[tuple[int, int, int, bool], kernels.PackedMatrix] = {}

    def stream(self) -> Stream:
        """Allocate buffers, sharing memory where one is unused before the other is written: 27 MB of 68 for Llama 3.2
        1B."""
        spec, p = self.spec, self.program
        feed_forward = self._widest("feed_forward")
        wide = p.buffer(max(1, 2 * feed_forward if spec.gated else feed_forward))
        narrow = p.buffer(feed_forward, over=wide) if spec.gated and feed_forward else wide
        experts = spec.experts
        branch = None if spec.joins_directly else p.buffer(spec.width)
        residual, normed = p.buffer(spec.width), p.buffer(spec.width)
        # With parallel branches, the feed-forward network has the same input as attention.
        mixed = normed
        if spec.attention_layers:
            over = None if spec.block.parallel or spec.mixers_beside else normed
            mixed = self._buffer(self._widest("mixed_width"), over=over)
        routing = p.buffer(spec.width) if experts and experts.beside else None
        routed = p.buffer(spec.width) if experts and (experts.beside or experts.delayed) else None
        return Stream(residual, normed, mixed, wide, narrow, branch, routing, routed)

    def qkv(self, stream: Stream) -> int:
        """Return the buffer of queries, keys and values, as wide as the widest layer's."""
        spec = self.spec
        if not spec.attention_layers or spec.latent is not None:
            return stream.wide
        return self._buffer(self._widest("projected_width"), over=stream.wide)

    def part(self, name: str, width: int) -> int:
        """Return a buffer of this width that all layers use for a part of attention's mathematics, by its name."""
        if (name, width) not in self._parts:
            self._parts[name, width] = self.program.buffer(width)
        return self._parts[name, width]

    def head_matrix(self, heads: int, rows: int, columns: int, *, ones: bool = False) -> kernels.PackedMatrix:
        """Return a constant matrix for ``head_linear``, which all layers use: it shortens each head, or adds zeros to
        it; with ``ones`` it adds up the numbers of each."""
        key = (heads, rows, columns, ones)
        if key not in self._constants:
            block = np.ones((rows, columns), np.float32) if ones else np.eye(rows, columns, dtype=np.float32)
            self._constants[key] = kernels.pack(np.tile(block, (heads, 1)), "float32")
        return self._constants[key]

    def narrowed(self, buffer: int, width: int) -> int:
        """Return a buffer of this width in the memory of one that is at least as wide."""
        if self.program.width(buffer) == width:
            return buffer
        if (buffer, width) not in self._narrow:
            self._narrow[buffer, width] = self.program.buffer(width, over=buffer)
        return self._narrow[buffer, width]

    def _widest(self, name: str) -> int:
        """Return the largest of a size over all layers."""
        widths: list[int] = [getattr(self.spec.of_layer(layer), name) for layer in range(self.spec.layers)]
        return max(widths)

    def _buffer(self, width: int, over: int | None) -> int:
        """Allocate a buffer in the memory of another, if it fits there."""
        fits = over is not None and width <= self.program.width(over)
        return self.program.buffer(width, over if fits else None)
