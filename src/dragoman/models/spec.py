"""Specification of one decoder: its sizes and variants as data. The list of parameters follows from it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from dragoman.models.optional_parts import (
    AltUp,
    AttentionGate,
    ImageLayers,
    Latent,
    LayerInputs,
    LayerSizes,
    SharedBlocks,
)
from dragoman.models.positions import QueryScale, RelativeBias
from dragoman.models.recurrent import Mixer
from dragoman.models.rope import Rope
from dragoman.models.vision.description import VisionDescription

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu", "xielu"]
Scores = Literal["softmax", "sigmoid", "sparse_mixer"]
NormKind = Literal["rms", "layer"]
Norms = Literal["before", "after", "around", "joined", "stream"]
Branches = Literal["both", "first", "second"]


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of tokens into the residual stream: x = norm(norm(table[token] · scale) (· projection) + positions).

    Attributes:
        scale: factor on the table's rows (Granite; Gemma: the root of the width).
        scale_rounded: the factor is rounded to bfloat16 unless the table is float32, as Gemma was trained.
        norm: a norm after the table's rows (BLOOM; ``plain``, without weight: Muse Glimmer), or after the sum
            (``last``: BART). No model has both.
        width: of the table, where it differs from the residual stream's: then projections without bias lead into the
            stream and, before the head, back to it (OPT-350m). None: the stream's.
        positions: learned positions are added, from a table of ``context`` rows (GPT-2).
        positions_offset: rows of that table before position 0's, never used (OPT: 2).
        sinusoidal: its rows are computed, not learned: sines in the first half, cosines in the second (Pegasus). Of
            ``whole`` ones the last pair is as slow as a pair after the last is otherwise (XGLM).
        types: rows of a table of which one more is added to each token: the first, or the second for the tokens of the
            second of two texts (BERT); 0: there is none.
        unspoken: rows at the end of the tokens' table, of tokens that have no logits (Mllama's images).
        added: rows at its end that are stored in a table of their own, as those of the head are (Idefics).
    """

    scale: float = 1.0
    scale_rounded: bool = False
    norm: bool | Literal["plain", "last"] = False
    width: int | None = None
    positions: bool = False
    positions_offset: int = 0
    sinusoidal: bool | Literal["whole"] = False
    types: int = 0
    unspoken: int = 0
    added: int = 0


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Norms of a layer's two branches, attention and feed-forward, and how they join the residual stream.

    Attributes:
        norms: of a branch's input (``before``), of its output (``after``: OLMo 2), of both (``around``: Gemma 2), or of
            the residual stream after the branch has joined it (``joined``: OPT-350m), or of the stream before the
            branch, which joins what the norm gives (``stream``: MiniMax Text-01). Those of inputs are the modules
            ``attention_norm`` and ``feed_forward_norm``, the others ``attention_out_norm`` and
            ``feed_forward_out_norm``.
        parallel: both branches start from the same stream and join it together; else the second starts from the
            first's result.
        shared_norm: parallel branches share one norm, ``attention_norm``, for their inputs (Phi-2); else each has one
            (GPT-NeoX).
        first_norm: the first branch of the first layer has a norm of its input, too (ModernBERT: none).
        mixer_norms: of layers with a mixer, where they have others (OLMo-Hybrid).
        branch_scale: factor on a branch when it joins (Granite).
        attention_factor, mixer_factor, feed_forward_factor: one more factor on this branch (Falcon-H1).
        attention_kept, mixer_kept, feed_forward_kept: factor on the stream that this branch joins (MiniMax Text-01).
        out_norm_eps: of the norms of outputs, where it differs from the others' (Muse Glimmer).
        inner_norms: of each branch's value before its last product (BitNet): ``attention_inner_norm`` and
            ``feed_forward_inner_norm``.
    """

    norms: Norms = "before"
    parallel: bool = False
    shared_norm: bool = False
    first_norm: bool = True
    mixer_norms: Norms | None = None
    branch_scale: float = 1.0
    attention_factor: float = 1.0
    mixer_factor: float = 1.0
    feed_forward_factor: float = 1.0
    attention_kept: float = 1.0
    mixer_kept: float = 1.0
    feed_forward_kept: float = 1.0
    out_norm_eps: float | None = None
    inner_norms: bool = False

    def __post_init__(self) -> None:
        if self.parallel and self.norms not in ("before", "around"):
            raise ValueError("parallel branches start from norms of their inputs")
        if self.shared_norm and not self.parallel:
            raise ValueError("only parallel branches can share a norm")

    @property
    def joins_directly(self) -> bool:
        """Whether every branch's last product is added to the residual stream unchanged."""
        unchanged = {self.norms, self.mixer_norms or self.norms} <= {"before", "joined"}
        return unchanged and self.branch_scale == 1.0 and set(self._factors.values()) == {1.0}

    def scale(self, branch: str) -> float:
        """Return the factor on a branch when it joins, by the module of its last product."""
        return self.branch_scale * self._factors.get(branch, 1.0)

    def kept(self, branch: str) -> float:
        """Return the factor on the stream that a branch joins, by the module of its last product."""
        kept = {"attention_out": self.attention_kept, "mixer_out": self.mixer_kept}
        return kept.get(branch, self.feed_forward_kept)

    @property
    def _factors(self) -> dict[str, float]:
        return {
            "attention_out": self.attention_factor,
            "mixer_out": self.mixer_factor,
            "feed_forward_out": self.feed_forward_factor,
        }


class HeadNorm(msgspec.Struct, frozen=True, kw_only=True):
    """Norm of queries and keys, before their rotation.

    Attributes:
        over: each head, all with one weight (``head``: Qwen3) or each with a separate one (``own``: StableLM), or all
            heads as one vector (``all``: OLMo 2).
        rotated: after the rotation instead (Hunyuan). weighted: with a learned weight; else without one (Llama 4).
        layers: those that have it; None: all.
    """

    kind: NormKind = "rms"
    over: Literal["head", "own", "all"] = "head"
    bias: bool = False
    rotated: bool = False
    weighted: bool = True
    layers: tuple[int, ...] | None = None


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """A routed feed-forward network: a router chooses a few experts for each token.

    Attributes:
        count: number of experts. active: number chosen for each token. feed_forward: their inner width.
        over_all: the weight of a chosen expert is its score over all (Qwen2-MoE), so the weights do not add up to 1;
            else its share of the chosen ones' scores (Mixtral).
        scores: of the logits: softmax, sigmoid (DeepSeek V3), or the two softmaxes of Phi-3.5-MoE, over the experts
            whose logits are less than ``margin`` (relative) below the largest.
        choice_bias: a learned number is added to each score for the choice alone (``router_choice``).
        groups, active_groups, group_top: experts are chosen from the groups whose ``group_top`` best add up to most.
        least: lower limit of the sum that weights are divided by. factor: of the weights.
        scale_inputs: weights multiply what goes into the experts (Llama 4). bias: router and experts have biases.
        shared: inner width of one more expert that every token passes; 0: there is none.
        shared_gated: its weight is the sigmoid of a separate logit (Qwen2-MoE); else 1 (Granite).
        dense_layers: layers with one network for all tokens instead, of the decoder's inner width.
        beside: layers have that network too; both start from the stream, each with norms before and after it, and are
            added (Gemma 4). The router has a norm of its own, and the weights of experts have learned factors.
        identities: further experts after the others, which have no matrices: their result is what goes in.
        delayed: layers have that network too, of the same input; experts join after the next layer (LongCat-Flash).
        out_norm: a norm of the result, the shared expert's included (A.X-K1). out_bias: a vector on it (NomicBERT).
        out_factor: of it: a half is the mean of the shared expert's and of the others' (Command A+).
    """

    count: int
    active: int
    feed_forward: int
    over_all: bool = False
    scores: Scores = "softmax"
    choice_bias: bool = False
    groups: int = 1
    active_groups: int = 1
    group_top: int = 1
    least: float = 0.0
    factor: float = 1.0
    margin: float = 0.0
    scale_inputs: bool = False
    bias: bool = False
    shared: int = 0
    shared_gated: bool = False
    dense_layers: tuple[int, ...] = ()
    beside: bool = False
    identities: int = 0
    delayed: bool = False
    out_norm: bool = False
    out_bias: bool = False
    out_factor: float = 1.0


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """From the residual stream to logits: softcap(scale · (head · norm(x) + bias)).

    Attributes:
        norm: a norm before the head; absent only in decoders whose layers end with one.
        scale: factor on the logits (Cohere, Granite).
        softcap: cap · tanh(logits / cap) of the logits (Gemma 2); 0: none.
    """

    norm: bool = True
    bias: bool = False
    scale: float = 1.0
    softcap: float = 0.0


class EncoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The encoder whose output a decoder attends to. Everything not listed is as in the decoder.

    Both share the token table. The decoder's layers have a third branch between the other two: cross-attention.

    Attributes:
        context: maximum number of tokens of an input.
    """

    layers: int
    feed_forward: int
    context: int
    embedding: Embedding = Embedding()


class DecoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Architecture of a transformer that generates token by token.

    Attributes:
        architecture: the class name in the checkpoint's ``config.json``.
        width: size of the residual stream.
        feed_forward: width between the two halves of the feed-forward network; 0: no layer has one.
        heads, kv_heads, head_dim: of attention; 0: no layer has it.
        context: maximum number of positions the model can attend to, rope scaling included.
        norm, norm_eps, norm_weight, norm_bias: of all norms except those of heads, which have their own kind and bias.
        gated: the feed-forward network is ``down(act(gate(x)) * up(x))``; otherwise ``down(act(up(x)))``.
        experts: the feed-forward networks are mixtures of experts, gated and activated as above, without biases.
        ropes: rotary positions of each layer, None for a layer without; empty: no layer has any.
        qkv_clip: queries, keys and values are limited to ± this (MPT, DBRX); 0: they are not.
        query_scale: queries have a factor that grows with their position.
        windows: for each layer the number of positions, its own included, that a token sees to each side that it sees;
            0: all of them.
        chunks: for each layer the size of chunks of positions, of which a token sees its own only (Llama 4); 0: there
            are none; empty: in no layer.
        sinks: each head has one more score in its softmax, which weighs no value (gpt-oss); or layers where it does.
        narrow_values: size of a head's value where it is less than its key's: kept with zeros after it; 0: it is not.
        value_scale: factor of values (MiMo-V2-Flash).
        attention_scales: factor of query · key for each layer. attention_softcap: cap · tanh(scores / cap) of these
            scores (Gemma 2); 0: none.
        alibi_slopes: for each head, how much a score falls per position of distance (Press et al. 2021, ALiBi,
            https://arxiv.org/abs/2108.12409); empty: no ALiBi.
        relative_bias: a bias of scores by distance (T5), in self-attention of the decoder and of the encoder.
        mixers: for each layer what takes attention's place and keeps a state (``recurrent``), None for attention;
            empty: all layers have attention.
        mixers_beside: mixers do not take attention's place: both have the same input, and both results join the stream
            (Falcon-H1).
        branches: for each layer which of its two branches there are, attention or a mixer, and the feed-forward network
            (Nemotron-H); empty: all layers have both.
        gate_factor: of the feed-forward network's gate, before its activation (Falcon-H1).
        attention_gate: attention's output is gated.
        latent: latent attention in all layers; ``kv_heads`` is then 1, and ``head_dim`` the size of what is kept.
        sizes: of each layer, where layers differ: ``of_layer`` is the decoder with those of one.
        kv_sources: for each layer that whose keys and values it uses, an earlier one's or its own; empty: its own.
        keys_as_values: layers whose values are their keys, before norm and rotation (Gemma 4).
        value_norm: values have a norm without weight, of each head.
        layer_inputs: each layer has a further input. layer_scale: the stream has a learned factor after each layer.
        altup: the stream has several parts. shared_blocks: layers with a mixer have a further block before it.
        tied: the output projection is the embedding table. encoder: None: a decoder-only model.
        causal: a token sees those before it. Otherwise it sees all of its text (BERT): such a model has no logits, and
            is run over whole texts.
        vision: what it sees images with; None: it sees none.
        image_layers: how its layers are that look at images; None: it has none.
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
    qkv_clip: float = 0.0
    query_scale: QueryScale | None = None
    windows: tuple[int, ...]
    chunks: tuple[int, ...] = ()
    sinks: bool | tuple[int, ...] = False
    narrow_values: int = 0
    value_scale: float = 1.0
    attention_scales: tuple[float, ...]
    attention_softcap: float = 0.0
    alibi_slopes: tuple[float, ...] = ()
    relative_bias: RelativeBias | None = None
    mixers: tuple[Mixer | None, ...] = ()
    mixers_beside: bool = False
    branches: tuple[Branches, ...] = ()
    gate_factor: float = 1.0
    attention_gate: AttentionGate | None = None
    latent: Latent | None = None
    sizes: tuple[LayerSizes, ...] = ()
    kv_sources: tuple[int, ...] = ()
    keys_as_values: tuple[int, ...] = ()
    value_norm: bool = False
    layer_inputs: LayerInputs | None = None
    layer_scale: bool = False
    altup: AltUp | None = None
    shared_blocks: SharedBlocks | None = None
    tied: bool = False
    encoder: EncoderSpec | None = None
    causal: bool = True
    vision: VisionDescription | None = None
    image_layers: ImageLayers | None = None

    @property
    def cross_attention_layers(self) -> tuple[int, ...]:
        """For each cross-attention layer the number of the decoder's other layers before it: those that look at images,
        or whose networks are passed without one."""
        if self.image_layers is None:
            return ()
        return self.image_layers.before or (self.vision.cross_attention_layers if self.vision else ())

    @property
    def query_width(self) -> int:
        """Total width of the query heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Total width of the key heads (or of the value heads)."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Width of queries, keys and values together: the output of one fused projection."""
        return self.query_width + 2 * self.kv_width

    @property
    def gate_width(self) -> int:
        """Width of what gates attention's output."""
        gate = self.attention_gate
        return 0 if gate is None else self.heads if gate.by_head else self.query_width

    @property
    def projected_width(self) -> int:
        """Width of queries, gates, keys and values together."""
        return self.qkv_width + self.gate_width

    @property
    def value_dim(self) -> int:
        """Size of a KV head's value."""
        return self.head_dim if self.latent is None else self.latent.rank

    @property
    def mixed_width(self) -> int:
        """Width of attention's result, before its projection."""
        return self.heads * ((self.narrow_values or self.head_dim) if self.latent is None else self.latent.value)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers with attention, in a branch or in a block that they share."""
        shared = self.shared_blocks.layers if self.shared_blocks else ()
        return tuple(layer for layer in range(self.layers) if self.attends(layer) or layer in shared)

    @property
    def kept_layers(self) -> tuple[int, ...]:
        """Layers that have memory for keys and values: of an encoder's, which are kept one at a time, the first."""
        return self.kv_layers if self.causal else self.kv_layers[:1]

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """Layers that compute keys and values."""
        return tuple(layer for layer in self.attention_layers if self.kv_source(layer) == layer)

    @property
    def written_layers(self) -> int:
        """Number of layers after which no keys, values or states are computed: those after them read the cache only."""
        return 1 + max((*self.kv_layers, *(layer for layer in range(self.layers) if self.mixer(layer))), default=-1)

    @property
    def state_parts(self) -> tuple[int, ...]:
        """Numbers in each part of a sequence's state, layer by layer; empty: no layer has a state."""
        return tuple(size for mixer in self.mixers if mixer is not None for size in mixer.state)

    @property
    def embedding_width(self) -> int:
        """Width of a token's embedding, and of the head's input."""
        return self.embedding.width or self.width

    @property
    def joins_directly(self) -> bool:
        """Whether branches are added to the stream as they are made: experts are not, where they read or change it."""
        experts = self.experts
        apart = experts and (self.block.norms == "joined" or experts.out_norm or experts.out_factor != 1.0)
        return self.block.joins_directly and not apart

    @property
    def encoder_stack(self) -> DecoderSpec:
        """The encoder as a separate stack of layers, whose modules are called ``encoder_…``."""
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
            vision=None,
            image_layers=None,
            causal=False,
        )

    def of_layer(self, layer: int) -> DecoderSpec:
        """Return the decoder with the sizes of one layer as those of all."""
        if not self.sizes:
            return self
        own = self.sizes[layer]
        return replace(
            self,
            heads=own.heads or self.heads,
            kv_heads=own.kv_heads,
            head_dim=own.head_dim,
            feed_forward=own.feed_forward,
            sizes=(),
        )

    def kv_source(self, layer: int) -> int:
        """Return the layer whose keys and values a layer uses."""
        return self.kv_sources[layer] if self.kv_sources else layer

    def mixer(self, layer: int) -> Mixer | None:
        """Return what takes attention's place in a layer; None where it has attention."""
        return self.mixers[layer] if self.mixers else None

    def attends(self, layer: int) -> bool:
        """Return whether a layer has attention."""
        return self.has_branch("first", layer) and (self.mixers_beside or self.mixer(layer) is None)

    def has_branch(self, branch: Branches, layer: int) -> bool:
        """Return whether a layer has its first branch, or its second."""
        return not self.branches or self.branches[layer] in ("both", branch)

    def norms(self, layer: int) -> Norms:
        """Return the norms of a layer's branches."""
        other = self.block.mixer_norms
        return other if other is not None and self.mixer(layer) is not None else self.block.norms

    def has_first_norm(self, layer: int) -> bool:
        """Return whether a layer's first branch has a norm of its input."""
        return self.norms(layer) in ("before", "around", "stream") and (layer > 0 or self.block.first_norm)

    def rope(self, layer: int) -> Rope | None:
        """Return the rotary positions of a layer; None where it has none."""
        return self.ropes[layer] if self.ropes else None

    def head_normed(self, layer: int) -> HeadNorm | None:
        """Return the norm of a layer's queries and keys; None where it has none."""
        norm = self.head_norm
        return norm if norm is None or norm.layers is None or layer in norm.layers else None

    def has_sinks(self, layer: int) -> bool:
        """Return whether the heads of a layer have one more score."""
        return self.sinks if isinstance(self.sinks, bool) else layer in self.sinks

    def routed(self, layer: int) -> Experts | None:
        """Return the experts of a layer; None where it has one network for all tokens."""
        return None if self.experts is None or layer in self.experts.dense_layers else self.experts

    def served_within(self, context: int) -> DecoderSpec:
        """Return the decoder with everything that depends on the longest sequence fixed for ``context`` tokens."""
        return replace(self, ropes=tuple(rope and rope.served_within(context) for rope in self.ropes))
