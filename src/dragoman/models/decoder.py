"""The decoder, described once: what happens to a batch of tokens on its way to logits.

Pre-norm blocks of causal attention and a feed-forward network around a residual stream (Vaswani et al. 2017,
https://arxiv.org/abs/1706.03762, with the changes of GPT-2, Llama, Mistral and Qwen as data in the spec). Recorded once
as a program, run by the kernels once per step.
"""

from __future__ import annotations

from dataclasses import dataclass

from dragoman import kernels
from dragoman.models.packing import Weights
from dragoman.models.spec import DecoderSpec


def build_program(
    spec: DecoderSpec,
    weights: Weights,
    kv: kernels.KVPool,
    *,
    context: int,
    max_tokens: int,
    max_sequences: int,
    max_logit_rows: int,
) -> kernels.Program:
    """Record the decoder over packed weights; positions 0 … ``context`` - 1 can be run."""
    program = kernels.Program(max_tokens=max_tokens, max_sequences=max_sequences, max_logit_rows=max_logit_rows, kv=kv)
    return _Recorder(spec, weights, program, context).record()


@dataclass(frozen=True, slots=True)
class _Stream:
    """The buffers a block works in: the residual stream, and what the branches beside it hold."""

    residual: int
    normed: int
    wide: int  # feed-forward, before the activation
    narrow: int  # and after it


class _Recorder:
    def __init__(self, spec: DecoderSpec, weights: Weights, program: kernels.Program, context: int) -> None:
        self.spec, self.weights, self.program = spec, weights, program
        self.context = context
        self.tables = spec.rope.tables(context) if spec.rope else None

    def record(self) -> kernels.Program:
        spec, p = self.spec, self.program
        tokens = self._stream()
        qkv, mixed = p.buffer(spec.qkv_width), p.buffer(spec.query_width)
        p.embed(tokens.residual, self.weights.matrix("embedding"))
        if spec.rope is None:
            p.add_positions(tokens.residual, self.weights.vector("positions")[: self.context])
        for layer in range(spec.layers - 1):
            self._attend(layer, tokens, qkv, mixed)
            self._attention_out(layer, tokens, mixed)
            self._feed_forward(layer, tokens)
        last = spec.layers - 1
        self._attend(last, tokens, qkv, mixed)
        # Behind the last attention no row looks at another: only those whose logits are wanted go on.
        wanted, mixed_wanted = self._stream(), p.buffer(spec.query_width)
        p.select_rows(wanted.residual, tokens.residual)
        p.select_rows(mixed_wanted, mixed)
        self._attention_out(last, wanted, mixed_wanted)
        self._feed_forward(last, wanted)
        self._norm(wanted.normed, wanted.residual, "final_norm")
        logits = p.buffer(spec.vocab_size)
        p.linear(logits, wanted.normed, self.weights.matrix("embedding" if spec.tied else "head"))
        p.logits(logits)
        return p

    def _attend(self, layer: int, stream: _Stream, qkv: int, mixed: int) -> None:
        """mixed = Attention(rotate(norm(x)·Wq), rotate(norm(x)·Wk), norm(x)·Wv)."""
        spec, p = self.spec, self.program
        keys, values = spec.query_width, spec.query_width + spec.kv_width
        self._norm(stream.normed, stream.residual, "attention_norm", layer)
        self._linear(qkv, stream.normed, "qkv", layer)
        if spec.head_norm:
            query_norm, key_norm = (self.weights.vector(name, layer) for name in ("query_norm", "key_norm"))
            p.head_norm(qkv, 0, spec.heads, spec.head_dim, query_norm, spec.norm_eps)
            p.head_norm(qkv, keys, spec.kv_heads, spec.head_dim, key_norm, spec.norm_eps)
        if self.tables:
            p.rotate(qkv, 0, spec.heads, spec.head_dim, *self.tables)
            p.rotate(qkv, keys, spec.kv_heads, spec.head_dim, *self.tables)
        p.write_kv(qkv, keys, values, layer)
        window = spec.windows[layer] if spec.windows[layer] < self.context else 0
        p.attend(mixed, qkv, 0, spec.heads, layer, spec.attention_scales[layer], window=window)

    def _attention_out(self, layer: int, stream: _Stream, mixed: int) -> None:
        """x += mixed·Wo."""
        self._linear(stream.residual, mixed, "attention_out", layer, accumulate=True)

    def _feed_forward(self, layer: int, stream: _Stream) -> None:
        """x += (act(norm(x)·Wgate) * norm(x)·Wup)·Wdown, or without the gate x += act(norm(x)·Wup)·Wdown."""
        self._norm(stream.normed, stream.residual, "feed_forward_norm", layer)
        self._linear(stream.wide, stream.normed, "feed_forward_in", layer)
        if self.spec.gated:
            self.program.gate(stream.narrow, stream.wide, self.spec.activation)
        else:
            self.program.activate(stream.wide, self.spec.activation)
        self._linear(stream.residual, stream.narrow, "feed_forward_out", layer, accumulate=True)

    def _norm(self, out: int, x: int, module: str, layer: int | None = None) -> None:
        weight, bias = self.weights.vector(module, layer), self.weights.bias(module, layer)
        self.program.norm(out, x, weight, bias=bias, eps=self.spec.norm_eps, kind=self.spec.norm)

    def _linear(self, out: int, x: int, module: str, layer: int, accumulate: bool = False) -> None:
        matrix, bias = self.weights.matrix(module, layer), self.weights.bias(module, layer)
        self.program.linear(out, x, matrix, bias=bias, accumulate=accumulate)

    def _stream(self) -> _Stream:
        spec, p = self.spec, self.program
        wide = p.buffer(2 * spec.feed_forward if spec.gated else spec.feed_forward)
        narrow = p.buffer(spec.feed_forward) if spec.gated else wide
        return _Stream(p.buffer(spec.width), p.buffer(spec.width), wide, narrow)
