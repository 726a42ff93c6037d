"""Recording of what layers have besides attention and a feed-forward network: inputs of their own, and a stream of
several parts."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from dragoman.models.optional_parts import AltUp, LayerInputs
from dragoman.models.parameters import LAYER_TABLE
from dragoman.models.recording import PartRecorder
from dragoman.models.tensors import nearest_bfloat16

_LEAST = 1e-5  # of a mean square that is divided by


class BranchRecorder(PartRecorder, Protocol):
    """What a branch needs of the recorder of a decoder."""

    def linear(self, out: int, x: int, module: str, layer: int | None = None, accumulate: bool = False) -> None:
        """Record out (+)= x·W (+ bias)."""


class TokenInputs:
    """The inputs of all layers that are made of tokens and their embeddings, and the branch that takes them in."""

    def __init__(self, recorder: BranchRecorder, inputs: LayerInputs, embeddings: int) -> None:
        """Record i = (norm(x · projection) + table[token] · sqrt(width)) / sqrt(2), all layers' one after the other."""
        self.recorder, self.width = recorder, inputs.width
        spec, weights, p = recorder.spec, recorder.weights, recorder.program
        table = weights.matrix(LAYER_TABLE)
        scale = math.sqrt(inputs.width)
        if table.precision != "float32":
            scale = nearest_bfloat16(scale)
        self.all = p.buffer(spec.layers * inputs.width)
        recorder.linear(self.all, embeddings, "layer_inputs")
        # Before this norm the product is divided by the root of the stream's width: so its eps is multiplied by it.
        norm = weights.vector("layer_inputs_norm") * math.sqrt(0.5)
        p.head_norm(self.all, 0, spec.layers, inputs.width, norm, spec.norm_eps * spec.width)
        p.add_embeddings(self.all, table, scale * math.sqrt(0.5))
        self.offset = 0  # of the first layer in ``all``
        self.gate, self.out = p.buffer(inputs.width), p.buffer(spec.width)

    def select(self, layer: int) -> None:
        """Record the copy of the inputs from ``layer`` on, of the rows whose logits are needed; the others end."""
        p, width = self.recorder.program, (self.recorder.spec.layers - layer) * self.width
        rest, wanted = p.buffer(width), p.buffer(width)
        p.copy_columns(rest, self.all, layer * self.width)
        p.select_rows(wanted, rest)
        self.all, self.offset = wanted, layer
        self.gate, self.out = p.buffer(self.width), p.buffer(self.recorder.spec.width)

    def record_branch(self, layer: int, x: int) -> int:
        """Record norm((act(x · gate) · input) · out). Returns its buffer."""
        p, spec = self.recorder.program, self.recorder.spec
        assert spec.activation != "xielu"
        self.recorder.linear(self.gate, x, "layer_input_gate", layer)
        p.activate(self.gate, spec.activation)
        p.multiply(self.gate, 0, self.gate, 0, self.all, (layer - self.offset) * self.width, self.width, "plain")
        self.recorder.linear(self.out, self.gate, "layer_input_out", layer)
        p.norm(self.out, self.out, self.recorder.weights.vector("layer_input_norm", layer), eps=spec.norm_eps)
        return self.out


class Parts:
    """A stream of several parts: what predicts and corrects those that a layer does not compute."""

    def __init__(self, recorder: BranchRecorder, altup: AltUp, embeddings: int) -> None:
        """Record the parts: the embeddings x, and products of them with the magnitude of x."""
        self.recorder, self.altup = recorder, altup
        p, width = recorder.program, recorder.spec.width
        others = p.buffer((altup.parts - 1) * width)
        recorder.linear(others, embeddings, "part_in")
        p.match_magnitude(others, embeddings, _LEAST)
        self._take_buffers()
        p.join(self.stream, embeddings, others)

    def _take_buffers(self) -> None:
        p, altup, width = self.recorder.program, self.altup, self.recorder.spec.width
        self.stream, self.predicted = p.buffer(altup.parts * width), p.buffer(altup.parts * width)
        self.one, self.low_rank, self.narrow = p.buffer(width), p.buffer(width), p.buffer(altup.rank)
        self.shares, self.corrections = p.buffer(altup.parts), p.buffer(altup.parts)
        self.factors = p.buffer(altup.parts**2)

    def predict(self, layer: int, active: int) -> None:
        """Record the prediction of all parts from all, and active = that of the part which the layer computes."""
        p, at = self.recorder.program, self.altup.active * self.recorder.spec.width
        p.copy_columns(self.one, self.stream, at)
        self._share(layer, self.one)
        self.recorder.linear(self.factors, self.shares, "part_prediction", layer)
        p.predict_parts(self.predicted, self.stream, self.factors)
        self.stream, self.predicted = self.predicted, self.stream
        p.copy_columns(active, self.stream, at)

    def record_low_rank(self, layer: int, x: int) -> None:
        """Record x + norm((x · in) · out) of attention's input x."""
        recorder, p = self.recorder, self.recorder.program
        recorder.linear(self.narrow, x, "low_rank_in", layer)
        recorder.linear(self.low_rank, self.narrow, "low_rank_out", layer)
        norm = recorder.weights.vector("low_rank_norm", layer)
        p.norm(self.low_rank, self.low_rank, norm, eps=recorder.spec.norm_eps)
        p.add(self.low_rank, x)

    def join_low_rank(self, x: int) -> None:
        """Record x = (x + what ``record_low_rank`` gave) / sqrt(2)."""
        self.recorder.program.add(x, self.low_rank)
        self.recorder.program.scale(x, math.sqrt(0.5))

    def correct(self, layer: int, computed: int) -> int:
        """Record the correction of all parts by what the layer computed. Returns the buffer of the corrected part."""
        p, weights = self.recorder.program, self.recorder.weights
        self._share(layer, computed)
        factors = self.corrections
        self.recorder.linear(factors, self.shares, "part_correction", layer)
        p.correct_parts(self.stream, computed, factors, self.altup.active)
        p.copy_columns(self.one, self.stream, self.altup.active * self.recorder.spec.width)
        if self.altup.scaled:
            p.scale_columns(self.one, weights.vector("part_scale", layer))
        return self.one

    def add(self, x: int) -> None:
        """Record the sum of x and each part but the first."""
        self.recorder.program.add_to_parts(self.stream, x, 1)

    def select(self, *, within_layer: bool) -> None:
        """Record the copy of the rows whose logits are needed; the others end. ``within_layer``: between attention and
        the feed-forward network."""
        p, stream, low_rank = self.recorder.program, self.stream, self.low_rank
        self._take_buffers()
        p.select_rows(self.stream, stream)
        if within_layer:
            p.select_rows(self.low_rank, low_rank)

    def merge(self, out: int) -> None:
        """Record out = the mean of the first part, and of products of the others with its magnitude."""
        p, width = self.recorder.program, self.recorder.spec.width
        p.copy_columns(out, self.stream, 0)
        first = p.buffer(width)
        p.copy_columns(first, self.stream, 0)
        for part in range(1, self.altup.parts):
            p.copy_columns(self.one, self.stream, part * width)
            self.recorder.linear(self.low_rank, self.one, f"part_out.{part - 1}")
            p.match_magnitude(self.low_rank, first, _LEAST)
            p.add(out, self.low_rank)
        p.scale(out, 1 / self.altup.parts)

    def _share(self, layer: int, x: int) -> None:
        """Record shares = tanh(norm(x) / width · router)."""
        recorder, p = self.recorder, self.recorder.program
        norm = recorder.weights.vector("part_router_norm", layer) / np.float32(recorder.spec.width)
        p.norm(self.one, x, norm, eps=recorder.spec.norm_eps)  # in place where x is the part itself
        recorder.linear(self.shares, self.one, "part_router", layer)
        p.soft_cap(self.shares, 1.0)
