"""The decoder, described once: the operations from a batch of tokens to logits.

Layers of causal attention and a feed-forward network around a residual stream (Vaswani et al. 2017,
https://arxiv.org/abs/1706.03762); the variants of later families are data in the spec. It is recorded once as a
program, which the kernels run once per step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from dragoman import kernels
from dragoman.models.attention import record_attention
from dragoman.models.branches import Parts, TokenInputs
from dragoman.models.feed_forward import record_activation, record_experts, record_router_input
from dragoman.models.image_layers import record_image_layers
from dragoman.models.latent_attention import LatentBuffers, record_latent_attention
from dragoman.models.layer_buffers import LayerBuffers, Stream
from dragoman.models.mixers import record_mixer
from dragoman.models.packing import Weights
from dragoman.models.parameters import product_name
from dragoman.models.positions import sinusoids
from dragoman.models.recording import StepLimits
from dragoman.models.recurrent import Mixer
from dragoman.models.rope import RotaryTables
from dragoman.models.shared_blocks import SharedBlockRecorder
from dragoman.models.spec import DecoderSpec, Experts
from dragoman.models.tensors import nearest_bfloat16
from dragoman.models.vision.places import rotary_axes

if TYPE_CHECKING:
    from dragoman.models.positions import Float32

_NEVER = -1e30
"""Logit of a token that only prompts have."""


def build_program(
    spec: DecoderSpec, weights: Weights, kv: kernels.KVPool, limits: StepLimits, states: kernels.StatePool | None = None
) -> kernels.Program:
    """Record the decoder over packed weights. ``states``: of a decoder some of whose layers keep one."""
    program = limits.program(kv, states)
    Recorder(spec, weights, program, limits.context).record()
    return program


def build_hidden_program(
    spec: DecoderSpec, weights: Weights, kv: kernels.KVPool, limits: StepLimits, states: kernels.StatePool | None = None
) -> kernels.Program:
    """Record the same layers up to the hidden states after the last norm, which any row of a step may have, whatever
    ``max_logit_rows`` the limits have."""
    program = replace(limits, max_logit_rows=limits.max_tokens).program(kv, states)
    Recorder(spec, weights, program, limits.context).record_hidden()
    return program


class Recorder:
    """Records layers, one operation after the other.

    Attributes:
        causal: as in the spec. Where it is False, every row continues after the last layer, and the keys and values of
            a layer are not needed once the next one computes its own.
    """

    def __init__(
        self, spec: DecoderSpec, weights: Weights, program: kernels.Program, context: int, *, keeps_rows: bool = False
    ) -> None:
        """``keeps_rows``: every row continues after the last layer of a decoder too."""
        self.spec, self.weights, self.program = spec, weights, program
        self.context = context
        self.causal = spec.causal
        self.chooses_rows = spec.causal and not keeps_rows
        self.query: int | None = None  # buffer of cross-attention's queries
        self.kv_layers = {layer: place for place, layer in enumerate(spec.kv_layers)}
        self.image_memory: tuple[int, ...] = ()
        self.latent_memory: LatentBuffers | None = None
        self.mixer_memory: dict[Mixer, tuple[int, ...]] = {}  # buffers of each kind of layer with a state
        self.tables = {rope: RotaryTables(rope, context) for rope in set(spec.ropes) if rope is not None}
        self.query_factors = spec.query_scale.table(context) if spec.query_scale else None
        self.rotary_axes = rotary_axes(spec.vision) if spec.vision and spec.vision.rotary_sections else None
        self.token_inputs: TokenInputs | None = None
        self.parts: Parts | None = None
        self.shared_blocks: SharedBlockRecorder | None = None
        self.buffers = LayerBuffers(spec, program)
        for tables in self.tables.values():
            program.before_positions(tables.reach)

    def record(self) -> None:
        """Record a decoder: layers and logits."""
        self._logits(self._final(self._layers()))

    def record_with_hidden(self) -> int:
        """Record a decoder. Returns the buffer that has the hidden states of all rows after a run."""
        hidden, wanted = self._final(self._layers()), self.program.buffer(self.spec.width)
        self.program.select_rows(wanted, hidden)
        self._logits(wanted)
        return hidden

    def record_hidden(self) -> None:
        """Record a decoder or an encoder up to the hidden states after the last norm, in place of logits."""
        x = self._final(self._layers())
        if not self.causal:
            wanted = self.program.buffer(self.spec.width)
            self.program.select_rows(wanted, x)
            x = wanted
        self.program.logits(x)

    def _layers(self) -> Stream:
        """Record all layers. Returns the stream after the last one, with the rows that continue to the logits."""
        spec = self.spec
        stream = self.buffers.stream()
        qkv = self.buffers.qkv(stream)
        self._embed(stream)
        if spec.layer_inputs:
            self.token_inputs = TokenInputs(self, spec.layer_inputs, stream.residual)
        if spec.altup:
            self.parts = Parts(self, spec.altup, stream.residual)
        if spec.shared_blocks:
            self.shared_blocks = SharedBlockRecorder(self, spec.shared_blocks, stream.residual)
        selected = False
        ends_in_cross_attention = spec.layers in spec.cross_attention_layers
        for layer in range(spec.layers):
            if layer == spec.written_layers and self.chooses_rows and spec.encoder is None:
                # From here on rows depend on others only through the cache.
                (stream, _), selected = self._select(stream, [], layer), True
                qkv = self.buffers.qkv(stream)
            record_image_layers(self, layer, stream)
            if self.parts:
                self.parts.predict(layer, stream.residual)
            x, results = stream.normed, []
            if spec.has_branch("first", layer):
                if self.shared_blocks and layer in self.shared_blocks.shared.layers:
                    together = self.shared_blocks.record_block(layer, stream, qkv)
                    self.norm(stream.normed, together, "attention_norm", layer)
                else:
                    x = self._branch_input(stream, "attention_norm", layer)
                if self.parts:
                    self.parts.record_low_rank(layer, x)
                results = self._mix_tokens(layer, stream, x, qkv)
            if spec.encoder is not None:
                self._join_all(layer, stream, results)
                self._cross_attend(layer, stream, self._branch_input(stream, "cross_norm", layer))
                results = [(stream.mixed, "cross_out")]
            if layer == spec.layers - 1 and self.chooses_rows and not selected and not ends_in_cross_attention:
                # From here on no row depends on another: only those whose logits are needed continue.
                stream, results = self._select(stream, results, layer)
            if not spec.block.parallel:
                self._join_all(layer, stream, results)
                if self.parts:
                    self.parts.join_low_rank(stream.residual)
                if spec.has_branch("second", layer):
                    self._feed_forward(layer, stream, self._branch_input(stream, "feed_forward_norm", layer))
            else:
                x = stream.normed
                if not spec.block.shared_norm:
                    x = self._branch_input(stream, "feed_forward_norm", layer)
                self._join_all(layer, stream, results)
                self._feed_forward(layer, stream, x)
            self._finish_layer(layer, stream)
        if ends_in_cross_attention:
            record_image_layers(self, spec.layers, stream)
            stream, _ = self._select(stream, [], spec.layers)
        if self.parts:
            self.parts.merge(stream.residual)
        return stream

    def _finish_layer(self, layer: int, stream: Stream) -> None:
        """Record what follows the two branches: experts of the layer before, the layer's own input, and its factor."""
        x = stream.residual
        if layer and (before := self.spec.routed(layer - 1)) and before.delayed:
            assert stream.routed is not None
            self.program.add(x, stream.routed)
        if self.parts:
            x = self.parts.correct(layer, x)
        if self.token_inputs:
            added = self.token_inputs.record_branch(layer, x)
            if self.parts:
                self.parts.add(added)
            else:
                self.program.add(x, added)
        if self.spec.vision and layer < self.spec.vision.stacked:
            self.program.add_given(x, layer + 1)
        if self.spec.layer_scale:
            self.program.scale(x, float(self.weights.vector("layer_scale", layer)[0]))

    def _embed(self, stream: Stream) -> None:
        """Record x = norm(norm(table[token] · scale) (· projection) + positions)."""
        embedding, p = self.spec.embedding, self.program
        table, scale = self.weights.matrix("embedding"), embedding.scale
        if embedding.scale_rounded and table.precision != "float32":
            scale = nearest_bfloat16(scale)
        x = stream.residual if embedding.width is None else p.buffer(embedding.width)
        p.embed(x, table, scale=scale)
        if embedding.norm is True:
            self.norm(x, x, "embedding_norm")
        if embedding.norm == "plain":
            p.norm(x, x, np.ones(p.width(x), np.float32), eps=self.spec.norm_eps, kind=self.spec.norm)
        if embedding.width is not None:
            self.linear(stream.residual, x, "embedding_in")
        if embedding.positions or embedding.types:
            p.add_positions(stream.residual, self._positions())
        if embedding.norm == "last":
            self.norm(stream.residual, stream.residual, "embedding_norm")

    def _positions(self) -> Float32:
        embedding = self.spec.embedding
        first = embedding.positions_offset
        if embedding.sinusoidal:
            return sinusoids(self.context, self.spec.width, first, whole=embedding.sinusoidal == "whole")
        found = self.weights.vector("positions")[first : first + self.context] if embedding.positions else None
        if not embedding.types:
            assert found is not None
            return found
        # A single text is of the first type. The second text's tokens get embeddings that make up for the difference.
        return np.broadcast_to(self.weights.vector("types")[0], (self.context, self.spec.width)) + (
            np.float32(0) if found is None else found
        )

    def _mix_tokens(self, layer: int, stream: Stream, x: int, qkv: int) -> list[tuple[int, str]]:
        """Record a layer's attention and its mixer, without their last products. Returns the inputs of these, each with
        its module."""
        results = []
        if self.spec.attends(layer):
            if self.spec.latent is None:
                mixed = record_attention(self, layer, stream, x, qkv)
            else:
                mixed = stream.mixed
                record_latent_attention(self, self.spec.latent, layer, x, mixed)
            results.append((mixed, "attention_out"))
        if self.spec.mixer(layer) is not None:
            results.append((record_mixer(self, layer, x), "mixer_out"))
        return results

    def _cross_attend(self, layer: int, stream: Stream, x: int) -> None:
        """Record mixed = Attention(x·Wq, K, V), with the keys and values that the encoder left for its input."""
        spec, p = self.spec, self.program
        if self.query is None:
            self.query = p.buffer(spec.query_width)
        self.linear(self.query, x, "cross_query", layer)
        p.cross_attend(stream.mixed, self.query, 0, spec.heads, layer, spec.attention_scales[layer])

    def _feed_forward(self, layer: int, stream: Stream, x: int) -> None:
        """Record the branch (act(x·Wgate) * x·Wup)·Wdown, or without a gate act(x·Wup)·Wdown; or a mixture of these."""
        experts = self.spec.routed(layer)
        if experts and experts.delayed:
            assert stream.routed is not None
            record_experts(self, layer, stream.routed, x, experts)
        elif experts and not experts.beside:
            self._route(layer, stream, x, experts)
            return
        spec = self.spec.of_layer(layer)
        wide = self.buffers.narrowed(stream.wide, (1 + spec.gated) * spec.feed_forward)
        narrow = self.buffers.narrowed(stream.narrow, spec.feed_forward) if spec.gated else wide
        self.linear(wide, x, "feed_forward_in", layer)
        record_activation(self, layer, narrow, wide)
        if spec.block.inner_norms:
            self.norm(narrow, narrow, "feed_forward_inner_norm", layer)
        if experts and experts.beside:
            self._route_beside(layer, stream, narrow, experts)
        else:
            self._join(layer, stream, narrow, "feed_forward_out")

    def _route_beside(self, layer: int, stream: Stream, narrow: int, experts: Experts) -> None:
        """Record the branch norm(narrow·W) + norm(experts(norm(residual))), with another norm for the router."""
        assert stream.branch is not None
        assert stream.routing is not None
        assert stream.routed is not None
        self.linear(stream.branch, narrow, "feed_forward_out", layer)
        self.norm(stream.branch, stream.branch, "dense_out_norm", layer)
        self.norm(stream.normed, stream.residual, "expert_norm", layer)
        record_router_input(self, layer, stream.routing, stream.residual)
        record_experts(self, layer, stream.routed, stream.normed, experts, routing=stream.routing)
        self.norm(stream.routed, stream.routed, "expert_out_norm", layer)
        self.program.add(stream.branch, stream.routed)
        self._finish_branch(layer, stream, "feed_forward_out")

    def _route(self, layer: int, stream: Stream, x: int, experts: Experts) -> None:
        """Record the branch as the weighted sum of the feed-forward networks that the router chooses for each row."""
        out = stream.residual if stream.branch is None else stream.branch
        record_experts(self, layer, out, x, experts, accumulate=stream.branch is None)
        if experts.out_norm:
            self.norm(out, out, "expert_out_norm", layer)
        if experts.out_factor != 1.0:
            self.program.scale(out, experts.out_factor)
        if (bias := self.weights.bias("experts", layer)) is not None:
            self.program.add_positions(out, np.broadcast_to(bias, (self.context, self.spec.width)))  # the same at each
        self._finish_branch(layer, stream, "feed_forward_out")

    def _logits(self, x: int) -> None:
        """Record softcap(scale · (head · x + bias)) of the final hidden states."""
        spec, p = self.spec, self.program
        if spec.embedding.width is not None:
            projected = p.buffer(spec.embedding.width)
            self.linear(projected, x, "embedding_out")
            x = projected
        table = self.weights.matrix("embedding" if spec.tied else "head")
        whole = p.buffer(spec.vocab_size)
        logits = whole if table.shape[0] == spec.vocab_size else p.buffer(table.shape[0], over=whole)
        p.linear(logits, x, table, bias=self.weights.bias("head"))
        p.adapt(logits, x, table, self._product("head", None))
        if spec.output.scale != 1.0:
            p.scale(logits, spec.output.scale)
        if spec.output.softcap:
            p.soft_cap(logits, spec.output.softcap)
        if logits != whole:
            never = p.buffer(spec.vocab_size - table.shape[0])
            p.copy_columns(never, logits, 0)
            p.clip_columns(never, 0, p.width(never), _NEVER, _NEVER)
            p.join(whole, logits, never)
        p.logits(whole)

    def _final(self, stream: Stream) -> int:
        """Record the last norm, where there is one. Returns the buffer of the final hidden states."""
        if not self.spec.output.norm:
            return stream.residual
        self.norm(stream.normed, stream.residual, "final_norm")
        return stream.normed

    def _branch_input(self, stream: Stream, module: str, layer: int) -> int:
        """Return the input of a branch: the residual stream, normed where the norms come before."""
        is_first = module == "attention_norm"
        if self.spec.norms(layer) == "stream":
            self.norm(stream.residual, stream.residual, module, layer)
            return stream.residual
        if self.spec.norms(layer) not in ("before", "around") or (is_first and not self.spec.has_first_norm(layer)):
            return stream.residual
        self.norm(stream.normed, stream.residual, module, layer)
        return stream.normed

    def _join_all(self, layer: int, stream: Stream, results: list[tuple[int, str]]) -> None:
        for x, module in results:
            self._join(layer, stream, x, module)

    def _join(self, layer: int, stream: Stream, x: int, module: str) -> None:
        """Record residual += scale · norm(x·W), or residual = norm(residual + x·W)."""
        if stream.branch is None:
            self.linear(stream.residual, x, module, layer, accumulate=True)
        else:
            self.linear(stream.branch, x, module, layer)
        self._finish_branch(layer, stream, module)

    def _finish_branch(self, layer: int, stream: Stream, module: str) -> None:
        """Record the end of a branch, after its last product, which was already added to the stream if it joins
        directly."""
        norm = "attention_out_norm" if module == "mixer_out" else f"{module}_norm"
        if stream.branch is not None:
            if self.spec.norms(layer) in ("after", "around"):
                self.norm(stream.branch, stream.branch, norm, layer, eps=self.spec.block.out_norm_eps)
            if (kept := self.spec.block.kept(module)) != 1.0:
                self.program.scale(stream.residual, kept)
            self.program.add(stream.residual, stream.branch, self.spec.block.scale(module))
        if self.spec.norms(layer) == "joined":
            self.norm(stream.residual, stream.residual, norm, layer)

    def norm(self, out: int, x: int, module: str, layer: int | None = None, eps: float | None = None) -> None:
        """Record out = norm(x). ``eps``: where it differs from that of the spec."""
        unweighted = np.ones(self.program.width(x), np.float32)
        weight = self.weights.vector(module, layer) if self.spec.norm_weight else unweighted
        bias = self.weights.bias(module, layer)
        eps = self.spec.norm_eps if eps is None else eps
        self.program.norm(out, x, weight, bias=bias, eps=eps, kind=self.spec.norm)

    def linear(self, out: int, x: int, module: str, layer: int | None = None, accumulate: bool = False) -> None:
        """Record out (+)= x·W (+ bias), and what adapters change in it."""
        matrix, bias = self.weights.matrix(module, layer), self.weights.bias(module, layer)
        self.program.linear(out, x, matrix, bias=bias, accumulate=accumulate)
        self.program.adapt(out, x, matrix, self._product(module, layer))

    def state_part(self, layer: int, number: int) -> int:
        """Return the place in the pool's slots of one part of a layer's state."""
        mixers = self.spec.mixers[:layer]
        return sum(len(mixer.state) for mixer in mixers if mixer is not None) + number

    def mixer_buffers(self, mixer: Mixer, *widths: int) -> tuple[int, ...]:
        """Return buffers that all layers of one kind use for what lies between their projections."""
        if mixer not in self.mixer_memory:
            self.mixer_memory[mixer] = (*map(self.program.buffer, widths), self.program.buffer(mixer.inner))
        return self.mixer_memory[mixer][:-1]

    def image_buffers(self) -> tuple[int, int]:
        """Return buffers that layers which look at images use for queries, and for what they add to the stream."""
        if not self.image_memory:
            self.image_memory = (self.program.buffer(self.spec.query_width), self.program.buffer(self.spec.width))
        return self.image_memory[0], self.image_memory[1]

    def mixer_out(self, mixer: Mixer) -> int:
        """Return the buffer of the output projection's input, after ``mixer_buffers``."""
        return self.mixer_memory[mixer][-1]

    def _product(self, module: str, layer: int | None) -> str:
        """Return the name that adapters use for the product with a module's matrix."""
        return product_name(module, layer)

    def _select(
        self, stream: Stream, results: list[tuple[int, str]], layer: int
    ) -> tuple[Stream, list[tuple[int, str]]]:
        """Copy the rows whose logits are needed into separate buffers: before a layer, where there are no ``results``,
        or after its first branch."""
        p, wanted, selected = self.program, self.buffers.stream(), []
        p.select_rows(wanted.residual, stream.residual)
        for x, module in results:
            width = p.width(x)
            out = p.buffer(width) if module == "mixer_out" else self.buffers.narrowed(wanted.mixed, width)
            p.select_rows(out, x)
            selected.append((out, module))
        if results and self.spec.block.shared_norm:
            p.select_rows(wanted.normed, stream.normed)
        delayed = self.spec.experts is not None and self.spec.experts.delayed
        if delayed and stream.routed is not None and wanted.routed is not None:
            p.select_rows(wanted.routed, stream.routed)
        if self.token_inputs:
            self.token_inputs.select(layer)
        if self.parts:
            self.parts.select(within_layer=bool(results))
        return wanted, selected
