"""Computation of a resampler: learned vectors that look at the rows of a tile, layer after layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.settings import Precision
from dragoman.models.vision.parts import Resampler
from dragoman.models.vision.tower_programs import LayerRecorder, TowerWeights, kept_precision, no_rows

Floats = NDArray[np.float32]


class RecordedResampler:
    """The layers as programs, two of each: the one writes keys and values of the rows, the other has the vectors see
    them, which come after these."""

    def __init__(
        self, resampler: Resampler, width: int, weights: TowerWeights, precision: Precision, rows: int
    ) -> None:
        """Record them. ``width``: of rows and vectors. ``rows``: of a tile, at the most."""
        self._vectors = weights.vector("resampler_vectors")
        self._resampler, self._width, self._weights = resampler, width, weights
        blocks = -(-(rows + resampler.vectors) // kernels.BLOCK_TOKENS)
        self._kv = kernels.KVPool(
            layers=1,
            blocks=blocks,
            kv_heads=resampler.kv_heads,
            head_dim=resampler.head_dim,
            precision=kept_precision(precision),
        )
        self._tables = np.arange(blocks, dtype=np.int32)[None]
        layers = range(resampler.layers)
        self._layers = [(self._record_rows(layer, rows), self._record_vectors(layer)) for layer in layers]

    def run(self, rows: Floats) -> Floats:
        """Return the vectors ``[vectors, width]`` that saw the rows ``[rows, width]`` of a tile."""
        found = self._vectors
        for of_rows, of_vectors in self._layers:
            self._run(of_rows, rows, 0)
            found = self._run(of_vectors, found, len(rows))
        return found

    def _run(self, program: kernels.Program, values: Floats, first: int) -> Floats:
        count = len(values)
        each = np.arange(count, dtype=np.int32)
        found = program.run(
            np.zeros(count, np.int32),
            first + each,
            np.array([0, count], np.int32),
            self._tables,
            each if first else each[:1],
            embedding_rows=each,
            embedding_values=values,
        )
        return found.copy()

    def _record_rows(self, layer: int, rows: int) -> kernels.Program:
        """Record keys and values of a tile's rows."""
        p = kernels.Program(max_tokens=rows, max_sequences=1, max_logit_rows=1, kv=self._kv)
        record = self._recorder(p)
        x, normed, wanted = p.buffer(self._width), p.buffer(self._width), p.buffer(self._width)
        wide = self._resampler.kv_heads * self._resampler.head_dim
        key_value = p.buffer(2 * wide)
        p.embed(x, no_rows(self._width))
        record.norm(normed, x, "resampler_context_norm", layer)
        record.linear(key_value, normed, "resampler_key_value", layer)
        self._norm_heads(record, key_value, "resampler_key_norm", layer)
        p.write_kv(key_value, 0, wide, 0)
        p.select_rows(wanted, normed)
        p.logits(wanted)
        return p

    def _record_vectors(self, layer: int) -> kernels.Program:
        """Record x += Attention(norm(x)) · W, and then the feed-forward network; after the last layer a norm."""
        resampler, width = self._resampler, self._width
        count = resampler.vectors
        p = kernels.Program(max_tokens=count, max_sequences=1, max_logit_rows=count, kv=self._kv)
        record = self._recorder(p)
        x, normed, wanted = p.buffer(width), p.buffer(width), p.buffer(width)
        query, wide = resampler.heads * resampler.head_dim, resampler.kv_heads * resampler.head_dim
        queries, mixed, key_value = p.buffer(query), p.buffer(query), p.buffer(2 * wide)
        inner = p.buffer((1 + resampler.gated) * resampler.feed_forward)
        narrow = p.buffer(resampler.feed_forward) if resampler.gated else inner
        p.embed(x, no_rows(width))
        record.norm(normed, x, "resampler_vectors_norm", layer)
        record.linear(queries, normed, "resampler_query", layer)
        record.linear(key_value, normed, "resampler_key_value", layer)
        self._norm_heads(record, queries, "resampler_query_norm", layer)
        self._norm_heads(record, key_value, "resampler_key_norm", layer)
        p.write_kv(key_value, 0, wide, 0)
        p.attend(mixed, queries, 0, resampler.heads, 0, resampler.head_dim**-0.5, causal=False)
        record.linear(x, mixed, "resampler_out", layer, accumulate=True)
        record.norm(normed, x, "resampler_feed_forward_norm", layer)
        record.linear(inner, normed, "resampler_feed_forward_in", layer)
        if resampler.gated:
            assert resampler.activation != "quick_gelu"
            p.gate(narrow, inner, resampler.activation)
        else:
            record.activate(inner, resampler.activation)
        record.linear(x, narrow, "resampler_feed_forward_out", layer, accumulate=True)
        if layer + 1 == resampler.layers:
            record.norm(x, x, "resampler_last_norm")
        p.select_rows(wanted, x)
        p.logits(wanted)
        return p

    def _norm_heads(self, record: LayerRecorder, x: int, module: str, layer: int) -> None:
        """Record the norms of the heads of queries, or of keys, which are the first columns of x."""
        found = self._resampler
        if not found.head_norm:
            return
        heads = found.heads if module == "resampler_query_norm" else found.kv_heads
        weight, bias = self._weights.vector(module, layer), self._weights.bias(module, layer)
        record.program.head_norm(x, 0, heads, found.head_dim, weight, found.norm_eps, bias, found.norm)

    def _recorder(self, p: kernels.Program) -> LayerRecorder:
        return LayerRecorder(p, self._weights, self._resampler.norm, self._resampler.norm_eps)
