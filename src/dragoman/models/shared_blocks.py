"""Recording of blocks of attention and a feed-forward network that several layers share (Zamba 1 and 2)."""

from __future__ import annotations

from dragoman import kernels
from dragoman.models.attention import AttentionRecorder
from dragoman.models.feed_forward import record_activation
from dragoman.models.layer_buffers import Stream
from dragoman.models.optional_parts import SharedBlocks


class SharedBlockRecorder:
    """Records the blocks of a decoder, with the embeddings that are beside the stream in their inputs.

    Adapters change none of a block's products: a matrix has one name and several places, and files do not say which of
    them a change is for.
    """

    def __init__(self, recorder: AttentionRecorder, shared: SharedBlocks, embeddings: int) -> None:
        """Record the copy of the embeddings."""
        self.recorder, self.shared = recorder, shared
        p, spec = recorder.program, recorder.spec
        self.embeddings, self.beside = p.buffer(spec.width), p.buffer(2 * spec.width)
        self.part, self.result = p.buffer(spec.kv_width), p.buffer(spec.width)
        self.low_rank = p.buffer(shared.rank) if shared.rank else None
        p.copy_columns(self.embeddings, embeddings, 0)

    def record_block(self, layer: int, stream: Stream, widest: int) -> int:
        """Record a layer's block. Returns the buffer of the stream with the block's result added, which is the mixer's
        input before its norm. ``widest``: a buffer for queries, keys and values."""
        recorder, p, owner = self.recorder, self.recorder.program, self.shared.owner(layer)
        spec = recorder.spec
        p.join(self.beside, stream.residual, self.embeddings)
        recorder.norm(self.beside, self.beside, "block_norm", owner)
        mixed = recorder.buffers.narrowed(stream.mixed, spec.query_width)
        self._attend(layer, mixed, widest)
        x = stream.normed
        p.linear(x, mixed, self._matrix("block_attention_out", owner))
        recorder.norm(x, x, "block_feed_forward_norm", owner)
        wide = recorder.buffers.narrowed(stream.wide, (1 + spec.gated) * spec.feed_forward)
        narrow = recorder.buffers.narrowed(stream.narrow, spec.feed_forward) if spec.gated else wide
        bias = recorder.weights.bias
        p.linear(wide, x, self._matrix("block_feed_forward_in", owner), bias=bias("block_feed_forward_in", owner))
        self._add_low_rank(wide, x, "block", layer)
        record_activation(recorder, layer, narrow, wide)
        p.linear(x, narrow, self._matrix("block_feed_forward_out", owner), bias=bias("block_feed_forward_out", owner))
        recorder.linear(self.result, x, "block_result", layer)
        p.add(self.result, stream.residual)
        return self.result

    def _attend(self, layer: int, mixed: int, widest: int) -> None:
        """Record mixed = Attention(rotate(x·Wq), rotate(x·Wk), x·Wv) of the stream and the embeddings."""
        recorder, p, spec = self.recorder, self.recorder.program, self.recorder.spec
        keys, values = spec.query_width, spec.query_width + spec.kv_width
        qkv = recorder.buffers.narrowed(widest, keys)
        self._project(qkv, "block_query", layer)
        for module, end in (("block_key", values), ("block_value", values + spec.kv_width)):
            self._project(self.part, module, layer)
            longer = recorder.buffers.narrowed(widest, end)
            p.join(longer, qkv, self.part)
            qkv = longer
        if rope := spec.rope(layer):
            cos, sin = recorder.tables[rope].cos, recorder.tables[rope].sin
            p.rotate(qkv, 0, spec.heads, spec.head_dim, cos, sin, rope.interleaved)
            p.rotate(qkv, keys, spec.kv_heads, spec.head_dim, cos, sin, rope.interleaved)
        place = recorder.kv_layers[layer]
        p.write_kv(qkv, keys, values, place)
        p.attend(mixed, qkv, 0, spec.heads, place, spec.attention_scales[layer])

    def _project(self, out: int, module: str, layer: int) -> None:
        self.recorder.program.linear(out, self.beside, self._matrix(module, self.shared.owner(layer)))
        if self.shared.attention:
            self._add_low_rank(out, self.beside, module, layer)

    def _add_low_rank(self, out: int, x: int, module: str, layer: int) -> None:
        """Record out += x·A·B, with the layer's own A and B, where there are any."""
        if self.low_rank is None:
            return
        p, owner, place = self.recorder.program, self.shared.owner(layer), self.shared.place(layer)
        p.linear(self.low_rank, x, self._matrix(f"{module}_low_rank_in.{place}", owner))
        p.linear(out, self.low_rank, self._matrix(f"{module}_low_rank_out.{place}", owner), accumulate=True)

    def _matrix(self, module: str, layer: int) -> kernels.PackedMatrix:
        return self.recorder.weights.matrix(module, layer)
