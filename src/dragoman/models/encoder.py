"""Encoder of an encoder-decoder model: the same layers, with attention of every token to all others.

It is recorded as a separate program, which a step runs over whole inputs before the decoder's. It has no logits: it
leaves the keys and values for the cross-attention of the decoder's layers in an input's blocks. While it runs, the
keys and values of its own layers are in the memory of the first decoder layer's, one layer after the other.
"""

from __future__ import annotations

from dragoman import kernels
from dragoman.models.decoder import Recorder
from dragoman.models.packing import Weights
from dragoman.models.parameters import product_name
from dragoman.models.spec import DecoderSpec


def build_encoder(
    spec: DecoderSpec, weights: Weights, kv: kernels.KVPool, *, context: int, max_tokens: int, max_sequences: int
) -> kernels.Program:
    """Record the encoder over packed weights; inputs of up to ``context`` tokens can be run."""
    program = kernels.Program(max_tokens=max_tokens, max_sequences=max_sequences, max_logit_rows=1, kv=kv)
    recorder = _EncoderRecorder(spec.encoder_stack, weights.for_encoder(), program, context)
    recorder.record_with_cross_attention(spec, weights)
    return program


class _EncoderRecorder(Recorder):
    def _product(self, module: str, layer: int | None) -> str:
        return product_name(f"encoder_{module}", layer)

    def record_with_cross_attention(self, decoder: DecoderSpec, weights: Weights) -> None:
        """Record the layers, and the keys and values for the decoder's cross-attention, with the decoder's weights."""
        stream, p = self._layers(), self.program
        x = stream.residual
        if self.spec.output.norm:
            self.norm(stream.normed, x, "final_norm")
            x = stream.normed
        pair = p.buffer(2 * decoder.kv_width)
        for layer in range(decoder.layers):
            module = "cross_key_value", layer
            p.linear(pair, x, weights.matrix(*module), bias=weights.bias(*module))
            p.adapt(pair, x, weights.matrix(*module), product_name(*module))
            p.write_kv(pair, 0, decoder.kv_width, layer)
