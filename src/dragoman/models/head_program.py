"""Programs of heads: their layer, and the model with what an EAGLE-3 head reads of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.decoder import Recorder
from dragoman.models.head_spec import EagleSpec, HeadSpec
from dragoman.models.layer_buffers import Stream
from dragoman.models.packing import Weights
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import nearest_bfloat16


class AuxStatesRecorder(Recorder):
    """Records a decoder that also computes, for all rows of a step, what an EAGLE-3 head reads: the auxiliary hidden
    states, joined, normed as the head asks for, and multiplied by its ``fc``.

    Logits are the same to the last bit: what is read is copied from the stream.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Weights,
        program: kernels.Program,
        context: int,
        eagle: EagleSpec,
        eagle_weights: Weights,
    ) -> None:
        """``eagle``, ``eagle_weights``: of the head; the others are the decoder's, as of ``Recorder``."""
        # Before this layer the rows whose logits are wanted are chosen, or within it.
        chosen = min(spec.layers - 1, spec.written_layers)
        super().__init__(spec, weights, program, context, keeps_rows=eagle.aux_layers[-1] > chosen)
        self._eagle, self._eagle_weights = eagle, eagle_weights
        width = spec.width
        whole = program.buffer(len(eagle.aux_layers) * width)
        self._joined = [whole]  # the first state, the first two, and so on, in one memory
        for count in range(len(eagle.aux_layers) - 1, 0, -1):
            self._joined.insert(0, program.buffer(count * width, over=self._joined[0]))
        self._normed = program.buffer(width) if eagle.states_norm == "each" else None
        self._out = program.buffer(eagle.width)

    def record_with_states(self) -> int:
        """Record the decoder. Returns the buffer that after a run has what the head reads: ``[rows, eagle.width]``."""
        x = self._final(self._layers())
        if not self.chooses_rows:
            wanted = self.program.buffer(self.spec.width)
            self.program.select_rows(wanted, x)
            x = wanted
        self._logits(x)
        return self._out

    def _finish_layer(self, layer: int, stream: Stream) -> None:
        super()._finish_layer(layer, stream)
        p, eagle = self.program, self._eagle
        for place, before in enumerate(eagle.aux_layers):
            if before == layer + 1:
                x = self._state(stream, place)
                if place:
                    p.join(self._joined[place], self._joined[place - 1], x)
                else:
                    p.copy_columns(self._joined[0], x, 0)
        if layer + 1 == eagle.aux_layers[-1]:
            states = self._joined[-1]
            if eagle.states_norm == "whole":
                self._norm(states, states, self._eagle_weights.vector("states_norm"))
            p.linear(self._out, states, self._eagle_weights.matrix("states_in"))

    def _state(self, stream: Stream, place: int) -> int:
        """Record one state as the head joins it. Returns its buffer."""
        if self._normed is None:
            return stream.residual
        weights = self._eagle_weights.vector("state_norms").reshape(len(self._joined), -1)
        self._norm(self._normed, stream.residual, weights[place])
        return self._normed

    def _norm(self, out: int, x: int, weight: NDArray[np.float32]) -> None:
        self.program.norm(out, x, weight, bias=None, eps=self._eagle.norm_eps, kind=self._eagle.norm)


class HeadRecorder(Recorder):
    """Records the one layer of a checkpoint's own head, after what makes its input. The hidden state of each row is
    given as its embedding."""

    def _embed(self, stream: Stream) -> None:
        """Record x = [norm(table[token] · scale), norm(hidden)] · W."""
        table, scale = self.weights.matrix("embedding"), self.spec.embedding.scale
        if self.spec.embedding.scale_rounded and table.precision != "float32":
            scale = nearest_bfloat16(scale)
        p, width = self.program, self.spec.width
        hidden, token, joined = p.buffer(width), p.buffer(width), p.buffer(2 * width)
        self._embed_given(hidden, token, scale)
        self.norm(hidden, hidden, "hidden_norm")
        p.join(joined, token, hidden, 0)
        self.linear(stream.residual, joined, "hidden_in")

    def _embed_given(self, hidden: int, token: int, scale: float) -> None:
        """Record hidden = what is given of each row, and token = norm(table[token] · scale)."""
        p, table = self.program, self.weights.matrix("embedding")
        p.embed(hidden, table)  # of which every row is replaced by what is given
        p.copy_columns(token, hidden, 0)
        p.scale(token, 0.0)
        p.add_embeddings(token, table, scale)
        self.norm(token, token, "token_norm")

    def record_head(self) -> int:
        """Record the head. Returns the buffer of what it takes in for its own next guess, of the logits' rows."""
        stream = self._layers()
        normed = self._final(stream)
        self._logits(normed)
        assert isinstance(self.spec, HeadSpec | EagleSpec)
        return normed if self.spec.feeds_normed else stream.residual


class EagleRecorder(HeadRecorder):
    """Records the layer of an EAGLE-3 head. What the model's auxiliary states made of each row is given."""

    def _embed(self, stream: Stream) -> None:
        """Record x = hidden, or norm(hidden), and attention's input [norm(table[token]), norm(hidden)]."""
        p, width = self.program, self.spec.width
        assert isinstance(self.spec, EagleSpec)
        token, hidden = p.buffer(width), p.buffer(width)
        self._attended = p.buffer(2 * width)
        self._embed_given(stream.residual, token, 1.0)
        self.norm(hidden, stream.residual, "hidden_norm")
        if self.spec.stream_normed:
            p.copy_columns(stream.residual, hidden, 0)
        p.join(self._attended, token, hidden)

    def _branch_input(self, stream: Stream, module: str, layer: int) -> int:
        return self._attended if module == "attention_norm" else super()._branch_input(stream, module, layer)
