"""What one decoder is: its sizes and its variants as data, and the list of parameters that follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dragoman.models.rope import Rope

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
NormKind = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder-only transformer with pre-norm blocks, as far as its mathematics goes.

    Attributes:
        architecture: the class name in the checkpoint's ``config.json``.
        width: size of the residual stream. feed_forward: width between the two halves of the feed-forward network.
        context: most positions the model can attend to, rope scaling included.
        head_norm: RMS norm of each query and key head before the rotation (Qwen3).
        rope: rotary positions; None: learned positions, a table of ``context`` rows added to the embeddings (GPT-2).
        windows: for each layer how many positions, its own included, a token sees; 0: all of them.
        attention_scales: for each layer the factor of query · key.
        gated: the feed-forward network is ``down(act(gate(x)) * up(x))``; otherwise ``down(act(up(x)))``.
        tied: the output projection is the embedding table.
    """

    architecture: str
    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    context: int
    norm: NormKind = "rms"
    norm_eps: float
    activation: Activation = "silu"
    gated: bool = True
    qkv_bias: bool = False
    attention_out_bias: bool = False
    feed_forward_bias: bool = False
    head_norm: bool = False
    rope: Rope | None = None
    windows: tuple[int, ...]
    attention_scales: tuple[float, ...]
    tied: bool = False

    @property
    def query_width(self) -> int:
        """All query heads side by side."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """All key heads (or all value heads) side by side."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Queries, keys and values side by side: what one fused projection makes."""
        return self.query_width + 2 * self.kv_width

    @property
    def parameter_count(self) -> int:
        """Numbers in all parameters, a tied table counted once."""
        return sum(math.prod(p.shape) for p in parameters(self))


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor the program needs, under the canonical name of its module.

    Attributes:
        module: ``embedding``, ``qkv`` …: a key of a family's weight-name map. layer: None outside the layers.
        shape: ``[outputs, inputs]`` of a matrix, ``[size]`` of a vector, ``[positions, width]`` of learned positions.
        parts: how many rows each fused projection (query, key, value; gate, up) gives; one entry if nothing is fused.
        matrix: multiplied, so packed for the kernels; otherwise kept as float32.
    """

    module: str
    kind: Literal["weight", "bias"]
    layer: int | None
    shape: tuple[int, ...]
    parts: tuple[int, ...]
    matrix: bool

    @property
    def name(self) -> str:
        """``layers.3.qkv.weight``, ``final_norm.bias`` …: its name in the packed cache."""
        place = "" if self.layer is None else f"layers.{self.layer}."
        return f"{place}{self.module}.{self.kind}"


def parameters(spec: DecoderSpec) -> tuple[Parameter, ...]:
    """Every parameter of the decoder, in the order the program reads them."""
    found = [_matrix("embedding", None, (spec.vocab_size,), spec.width)]
    if spec.rope is None:
        found.append(Parameter("positions", "weight", None, (spec.context, spec.width), (spec.context,), False))
    for layer in range(spec.layers):
        found += _layer_parameters(spec, layer)
    found += _norm(spec, "final_norm", None)
    if not spec.tied:
        found.append(_matrix("head", None, (spec.vocab_size,), spec.width))
    return tuple(found)


def _layer_parameters(spec: DecoderSpec, layer: int) -> list[Parameter]:
    qkv = (spec.query_width, spec.kv_width, spec.kv_width)
    inward = (spec.feed_forward, spec.feed_forward) if spec.gated else (spec.feed_forward,)
    found = _norm(spec, "attention_norm", layer)
    found += _linear("qkv", layer, qkv, spec.width, spec.qkv_bias)
    if spec.head_norm:
        found += [_vector(name, "weight", layer, (spec.head_dim,)) for name in ("query_norm", "key_norm")]
    found += _linear("attention_out", layer, (spec.width,), spec.query_width, spec.attention_out_bias)
    found += _norm(spec, "feed_forward_norm", layer)
    found += _linear("feed_forward_in", layer, inward, spec.width, spec.feed_forward_bias)
    found += _linear("feed_forward_out", layer, (spec.width,), spec.feed_forward, spec.feed_forward_bias)
    return found


def _linear(module: str, layer: int, parts: tuple[int, ...], inputs: int, bias: bool) -> list[Parameter]:
    found = [_matrix(module, layer, parts, inputs)]
    if bias:
        found.append(_vector(module, "bias", layer, parts))
    return found


def _norm(spec: DecoderSpec, module: str, layer: int | None) -> list[Parameter]:
    found = [_vector(module, "weight", layer, (spec.width,))]
    if spec.norm == "layer":
        found.append(_vector(module, "bias", layer, (spec.width,)))
    return found


def _matrix(module: str, layer: int | None, parts: tuple[int, ...], inputs: int) -> Parameter:
    return Parameter(module, "weight", layer, (sum(parts), inputs), parts, True)


def _vector(module: str, kind: Literal["weight", "bias"], layer: int | None, parts: tuple[int, ...]) -> Parameter:
    return Parameter(module, kind, layer, (sum(parts),), parts, False)
