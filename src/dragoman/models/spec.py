"""What one decoder is: its sizes and its variants as data, and the list of parameters that follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from dragoman.models.positions import RelativeBias
from dragoman.models.rope import Rope

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
NormKind = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """How tokens enter the residual stream: x = norm(norm(table[token] · scale) (· projection) + positions).

    Attributes:
        scale: factor on the table's rows (Granite; the root of the width: Gemma).
        scale_rounded: the factor is rounded to bfloat16 unless the table is float32, as Gemma was trained.
        norm: a norm behind it (BLOOM), or behind all (``last``: BART). No table has both.
        width: of the table, where it differs from the residual stream's: then projections without bias lead into the
            stream and, before the head, out of it again (OPT-350m). None: the stream's.
        positions: learned positions are added, from a table of ``context`` rows (GPT-2).
        positions_offset: rows of that table before position 0's, never used (OPT: 2).
        sinusoidal: its rows are computed, not learned: sines in the first half, cosines in the second (Pegasus).
    """

    scale: float = 1.0
    scale_rounded: bool = False
    norm: bool | Literal["last"] = False
    width: int | None = None
    positions: bool = False
    positions_offset: int = 0
    sinusoidal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Where the two branches of a layer, attention and feed-forward, are normed and join the residual stream.

    Attributes:
        norms: of a branch's input (``before``), of its output (``after``: OLMo 2), of both (``around``: Gemma 2), or of
            the residual stream once the branch has joined it (``joined``: OPT-350m). Those of inputs are the modules
            ``attention_norm`` and ``feed_forward_norm``, the others ``attention_out_norm`` and
            ``feed_forward_out_norm``.
        parallel: both branches start from the same stream and join it together; else the second starts from the
            first's result.
        shared_norm: parallel branches have one norm, ``attention_norm``, for their inputs (Phi-2); else each its own
            (GPT-NeoX).
        branch_scale: factor on a branch when it joins (Granite).
    """

    norms: Literal["before", "after", "around", "joined"] = "before"
    parallel: bool = False
    shared_norm: bool = False
    branch_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.parallel and self.norms not in ("before", "around"):
            raise ValueError("parallel branches start from norms of their inputs")
        if self.shared_norm and not self.parallel:
            raise ValueError("only parallel branches can share a norm")

    @property
    def joins_directly(self) -> bool:
        """A branch's last product is added to the residual stream as it is."""
        return self.norms in ("before", "joined") and self.branch_scale == 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorm:
    """Norm of queries and keys before the rotation.

    Attributes:
        over: each head, all with one weight (``head``: Qwen3) or each with its own (``own``: StableLM), or all heads
            as one vector (``all``: OLMo 2).
    """

    kind: NormKind = "rms"
    over: Literal["head", "own", "all"] = "head"
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A routed feed-forward network: each token goes through the few experts that a router chooses for it.

    Attributes:
        count: how many there are. active: how many are chosen for each token. feed_forward: their inner width.
        over_all: the weight of a chosen one is its share of the softmax over all (Qwen2-MoE), so that the weights do
            not add up to 1; else of the softmax over the chosen ones (Mixtral).
        shared: inner width of one more expert that every token goes through; 0: there is none.
        shared_gated: its weight is the sigmoid of a logit of its own (Qwen2-MoE); else 1 (Granite).
        dense_layers: those with one network for all tokens instead, of the decoder's own inner width.
    """

    count: int
    active: int
    feed_forward: int
    over_all: bool = False
    shared: int = 0
    shared_gated: bool = False
    dense_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How the residual stream becomes logits: softcap(scale · (head · norm(x) + bias)).

    Attributes:
        norm: a norm before the head; all have it but decoders whose layers end with one.
        scale: factor on the logits (Cohere, Granite).
        softcap: cap · tanh(logits / cap) of the logits (Gemma 2); 0: none.
    """

    norm: bool = True
    bias: bool = False
    scale: float = 1.0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """The encoder beside a decoder that looks at what it makes of an input. All else is as in the decoder.

    The table of tokens is one for both. The decoder's layers have a third branch between the two, cross-attention.

    Attributes:
        context: most tokens of an input.
    """

    layers: int
    feed_forward: int
    context: int
    embedding: Embedding = Embedding()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A transformer that says one token after the other, as far as its mathematics goes.

    Attributes:
        architecture: the class name in the checkpoint's ``config.json``.
        width: size of the residual stream. feed_forward: width between the two halves of the feed-forward network.
        context: most positions the model can attend to, rope scaling included.
        norm, norm_eps, norm_weight, norm_bias: of all norms but those of heads, whose kind and bias are their own.
        gated: the feed-forward network is ``down(act(gate(x)) * up(x))``; otherwise ``down(act(up(x)))``.
        experts: the feed-forward networks are mixtures of experts, gated and activated as said above, without biases.
        ropes: for each layer its rotary positions, None where it has none; empty: none anywhere.
        windows: for each layer how many positions, its own included, a token sees; 0: all of them.
        attention_scales: for each layer the factor of query · key.
        attention_softcap: cap · tanh(scores / cap) of the scaled scores (Gemma 2); 0: none.
        alibi_slopes: for each head what a score loses per position of distance (Press et al. 2021, ALiBi,
            https://arxiv.org/abs/2108.12409); empty: nothing.
        relative_bias: a bias of scores by distance (T5), in the decoder's attention to itself and in the encoder's.
        tied: the output projection is the embedding table.
        encoder: None: the decoder stands alone.
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
    embedding: Embedding = Embedding()
    block: Block = Block()
    output: Output = Output()
    norm: NormKind = "rms"
    norm_eps: float
    norm_weight: bool = True
    norm_bias: bool = False
    activation: Activation = "silu"
    gated: bool = True
    qkv_bias: bool = False
    attention_out_bias: bool = False
    feed_forward_bias: bool = False
    experts: Experts | None = None
    head_norm: HeadNorm | None = None
    ropes: tuple[Rope | None, ...] = ()
    windows: tuple[int, ...]
    attention_scales: tuple[float, ...]
    attention_softcap: float = 0.0
    alibi_slopes: tuple[float, ...] = ()
    relative_bias: RelativeBias | None = None
    tied: bool = False
    encoder: EncoderSpec | None = None

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
    def embedding_width(self) -> int:
        """Size of a token's embedding, and of what the head reads."""
        return self.embedding.width or self.width

    @property
    def encoder_stack(self) -> DecoderSpec:
        """The encoder as a stack of layers of its own, whose modules are called ``encoder_…``."""
        assert self.encoder is not None
        layers = self.encoder.layers
        return replace(
            self,
            layers=layers,
            feed_forward=self.encoder.feed_forward,
            context=self.encoder.context,
            embedding=self.encoder.embedding,
            windows=(0,) * layers,
            attention_scales=self.attention_scales[:1] * layers,
            output=Output(norm=self.output.norm),
            tied=True,
            encoder=None,
        )

    @property
    def parameter_count(self) -> int:
        """Numbers in all parameters, a tied table counted once."""
        return sum(math.prod(p.shape) for p in parameters(self))

    def rope(self, layer: int) -> Rope | None:
        """The rotary positions of a layer."""
        return self.ropes[layer] if self.ropes else None

    def routed(self, layer: int) -> Experts | None:
        """The experts of a layer; None where it has one network for all tokens."""
        return None if self.experts is None or layer in self.experts.dense_layers else self.experts

    def served_within(self, context: int) -> DecoderSpec:
        """The same decoder with what depends on the longest sequence decided for one of ``context`` tokens."""
        return replace(self, ropes=tuple(rope and rope.served_within(context) for rope in self.ropes))


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor the program needs, under the canonical name of its module.

    Attributes:
        module: ``embedding``, ``qkv`` …: a key of a family's weight-name map. layer: None outside the layers.
        shape: ``[outputs, inputs]`` of a matrix, ``[size]`` of a vector, ``[positions, width]`` of learned positions.
        parts: how many rows each fused projection (query, key, value; gate, up) or head's norm gives; one entry if
            nothing is fused.
        matrix: multiplied, so packed for the kernels; otherwise kept as float32.
        expert: whose it is, where a layer has several.
    """

    module: str
    kind: Literal["weight", "bias"]
    layer: int | None
    shape: tuple[int, ...]
    parts: tuple[int, ...]
    matrix: bool
    expert: int | None = None

    @property
    def name(self) -> str:
        """``layers.3.qkv.weight``, ``layers.3.expert_in.7.weight``, ``final_norm.bias`` …: as in the packed cache."""
        place = "" if self.layer is None else f"layers.{self.layer}."
        module = self.module if self.expert is None else f"{self.module}.{self.expert}"
        return f"{place}{module}.{self.kind}"


def parameters(spec: DecoderSpec) -> tuple[Parameter, ...]:
    """Every parameter of the decoder, in the order the program reads them."""
    embedding = spec.embedding
    found = [_matrix("embedding", None, (spec.vocab_size,), spec.embedding_width)]
    if spec.encoder is not None:
        found += [replace(p, module=f"encoder_{p.module}") for p in parameters(spec.encoder_stack)[1:]]
    if embedding.norm:
        found += _norm(spec, "embedding_norm", None, spec.embedding_width)
    if embedding.width is not None:
        found.append(_matrix("embedding_in", None, (spec.width,), embedding.width))
    if embedding.positions and not embedding.sinusoidal:
        rows = spec.context + embedding.positions_offset
        found.append(Parameter("positions", "weight", None, (rows, spec.width), (rows,), False))
    if spec.relative_bias is not None and not spec.relative_bias.by_layer:
        found.append(_relative_bias(spec, spec.relative_bias, None))
    for layer in range(spec.layers):
        found += _layer_parameters(spec, layer)
    if spec.output.norm:
        found += _norm(spec, "final_norm", None)
    if embedding.width is not None:
        found.append(_matrix("embedding_out", None, (embedding.width,), spec.width))
    if not spec.tied:
        found.append(_matrix("head", None, (spec.vocab_size,), spec.embedding_width))
    if spec.output.bias:
        found.append(_vector("head", "bias", None, (spec.vocab_size,)))
    return tuple(found)


def _layer_parameters(spec: DecoderSpec, layer: int) -> list[Parameter]:
    qkv = (spec.query_width, spec.kv_width, spec.kv_width)
    before = spec.block.norms in ("before", "around")
    after = spec.block.norms != "before"
    found = _norm(spec, "attention_norm", layer) if before else []
    found += _linear("qkv", layer, qkv, spec.width, spec.qkv_bias)
    if spec.head_norm:
        found += _head_norms(spec, spec.head_norm, layer)
    if spec.relative_bias is not None and spec.relative_bias.by_layer:
        found.append(_relative_bias(spec, spec.relative_bias, layer))
    found += _linear("attention_out", layer, (spec.width,), spec.query_width, spec.attention_out_bias)
    if after:
        found += _norm(spec, "attention_out_norm", layer)
    if spec.encoder is not None:
        found += _cross_parameters(spec, layer)
    if before and not spec.block.shared_norm:
        found += _norm(spec, "feed_forward_norm", layer)
    if experts := spec.routed(layer):
        found += _expert_parameters(spec, experts, layer)
    else:
        found += _linear("feed_forward_in", layer, _inward(spec, spec.feed_forward), spec.width, spec.feed_forward_bias)
        found += _linear("feed_forward_out", layer, (spec.width,), spec.feed_forward, spec.feed_forward_bias)
    if after:
        found += _norm(spec, "feed_forward_out_norm", layer)
    return found


def _expert_parameters(spec: DecoderSpec, experts: Experts, layer: int) -> list[Parameter]:
    logits = (experts.count, 1) if experts.shared_gated else (experts.count,)
    found = [_matrix("router", layer, logits, spec.width)]
    for expert in range(experts.count):
        found.append(_matrix("expert_in", layer, _inward(spec, experts.feed_forward), spec.width, expert))
        found.append(_matrix("expert_out", layer, (spec.width,), experts.feed_forward, expert))
    if experts.shared:
        found.append(_matrix("shared_expert_in", layer, _inward(spec, experts.shared), spec.width))
        found.append(_matrix("shared_expert_out", layer, (spec.width,), experts.shared))
    return found


def _inward(spec: DecoderSpec, feed_forward: int) -> tuple[int, ...]:
    return (feed_forward, feed_forward) if spec.gated else (feed_forward,)


def _cross_parameters(spec: DecoderSpec, layer: int) -> list[Parameter]:
    """Of the branch that looks at the encoder's input. Keys and values are made once, behind the encoder."""
    found = _norm(spec, "cross_norm", layer) if spec.block.norms in ("before", "around") else []
    found += _linear("cross_query", layer, (spec.query_width,), spec.width, spec.qkv_bias)
    found += _linear("cross_key_value", layer, (spec.kv_width, spec.kv_width), spec.width, spec.qkv_bias)
    found += _linear("cross_out", layer, (spec.width,), spec.query_width, spec.attention_out_bias)
    if spec.block.norms != "before":
        found += _norm(spec, "cross_out_norm", layer)
    return found


def _relative_bias(spec: DecoderSpec, bias: RelativeBias, layer: int | None) -> Parameter:
    return Parameter("relative_bias", "weight", layer, (bias.buckets, spec.heads), (bias.buckets,), False)


def _head_norms(spec: DecoderSpec, norm: HeadNorm, layer: int) -> list[Parameter]:
    kinds: tuple[Literal["weight", "bias"], ...] = ("weight", "bias") if norm.bias else ("weight",)
    heads = {"query_norm": spec.heads, "key_norm": spec.kv_heads}
    found = []
    for module, count in heads.items():
        parts = {"head": (spec.head_dim,), "own": (spec.head_dim,) * count, "all": (count * spec.head_dim,)}[norm.over]
        found += [_vector(module, kind, layer, parts) for kind in kinds]
    return found


def _linear(module: str, layer: int, parts: tuple[int, ...], inputs: int, bias: bool) -> list[Parameter]:
    found = [_matrix(module, layer, parts, inputs)]
    if bias:
        found.append(_vector(module, "bias", layer, parts))
    return found


def _norm(spec: DecoderSpec, module: str, layer: int | None, width: int | None = None) -> list[Parameter]:
    found = [_vector(module, "weight", layer, (width or spec.width,))] if spec.norm_weight else []
    if spec.norm_bias:
        found.append(_vector(module, "bias", layer, (width or spec.width,)))
    return found


def _matrix(
    module: str, layer: int | None, parts: tuple[int, ...], inputs: int, expert: int | None = None
) -> Parameter:
    return Parameter(module, "weight", layer, (sum(parts), inputs), parts, True, expert)


def _vector(module: str, kind: Literal["weight", "bias"], layer: int | None, parts: tuple[int, ...]) -> Parameter:
    return Parameter(module, kind, layer, (sum(parts),), parts, False)


def product_name(module: str, layer: int | None) -> str:
    """What adapters call the product with a module's matrix: ``layers.3.qkv``, ``head``."""
    return module if layer is None else f"layers.{layer}.{module}"
