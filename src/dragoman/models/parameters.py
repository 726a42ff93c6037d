"""Parameters of a decoder: the list of tensors that follows from its spec, each with its canonical name."""

from __future__ import annotations

import math
from typing import Literal

from msgspec.structs import replace

from dragoman.models.head_spec import EagleSpec, HeadSpec
from dragoman.models.optional_parts import AltUp, Latent, SharedBlocks
from dragoman.models.parameter import Parameter
from dragoman.models.positions import RelativeBias
from dragoman.models.recurrent import (
    DeltaRule,
    GatedUnit,
    KeyedDeltaRule,
    LightningAttention,
    Mixer,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from dragoman.models.spec import DecoderSpec, Experts, HeadNorm
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.parameters import is_vision, vision_parameters

XIELU = ("xielu_positive", "xielu_negative", "xielu_linear", "xielu_least")
"""Modules of a trained activation, one number each."""

LAYER_TABLE = "layer_embedding"
"""Module of the table of layers' inputs, of which only the rows of a step's tokens are read."""


def parameters(spec: DecoderSpec) -> tuple[Parameter, ...]:
    """Return every parameter of the decoder, in the order the program reads them."""
    if isinstance(spec, HeadSpec):
        return _head_parameters(spec)
    if isinstance(spec, EagleSpec):
        return _eagle_parameters(spec)
    embedding = spec.embedding
    table = (spec.vocab_size - embedding.added, embedding.added) if embedding.added else (spec.vocab_size,)
    found = [_matrix("embedding", None, table, spec.embedding_width)]
    if spec.encoder is not None:
        found += [replace(p, module=f"encoder_{p.module}") for p in parameters(spec.encoder_stack)[1:]]
    if embedding.norm and embedding.norm != "plain":
        found += _norm(spec, "embedding_norm", None, spec.embedding_width)
    if embedding.width is not None:
        found.append(_matrix("embedding_in", None, (spec.width,), embedding.width))
    if embedding.positions and not embedding.sinusoidal:
        rows = spec.context + embedding.positions_offset
        found.append(Parameter("positions", "weight", None, (rows, spec.width), (rows,), False))
    if embedding.types:
        found.append(Parameter("types", "weight", None, (embedding.types, spec.width), (embedding.types,), False))
    if spec.relative_bias is not None and not spec.relative_bias.by_layer:
        found.append(_relative_bias(spec, spec.relative_bias, None))
    if spec.altup:
        others = spec.altup.parts - 1
        found.append(_matrix("part_in", None, (spec.width,) * others, spec.width))
        found += [_matrix("part_out", None, (spec.width,), spec.width, part) for part in range(others)]
    if inputs := spec.layer_inputs:
        found.append(_matrix("layer_inputs", None, (spec.layers * inputs.width,), spec.width))
        found += _norm(spec, "layer_inputs_norm", None, inputs.width)
    for layer in range(spec.layers):
        found += _layer_parameters(spec, layer)
    for number in range(len(spec.cross_attention_layers)):
        found += _image_layer_parameters(spec, number)
    if spec.output.norm:
        found += _norm(spec, "final_norm", None)
    if embedding.width is not None:
        found.append(_matrix("embedding_out", None, (embedding.width,), spec.width))
    if not spec.tied:
        table = table if embedding.added else (spec.vocab_size - embedding.unspoken,)
        found.append(_matrix("head", None, table, spec.embedding_width))
    if spec.output.bias:
        found.append(_vector("head", "bias", None, (spec.vocab_size,)))
    if spec.vision is not None:
        found += vision_parameters(spec.vision)
    if inputs := spec.layer_inputs:  # last: it may stay in the file
        shape = (inputs.vocab * spec.layers, inputs.width)
        stored = (inputs.vocab, spec.layers * inputs.width)
        found.append(Parameter(LAYER_TABLE, "weight", None, shape, shape[:1], True, stored=stored))
    return tuple(found)


def seeing(spec: DecoderSpec, vision: VisionDescription | None) -> DecoderSpec:
    """Return the decoder with what it sees images with, and the tokens that it has for them; None: without."""
    unspoken = vision.unspoken if vision is not None else 0
    return replace(
        spec,
        vision=vision,
        vocab_size=spec.vocab_size - spec.embedding.unspoken + unspoken,
        embedding=replace(spec.embedding, unspoken=unspoken),
    )


def _head_parameters(spec: HeadSpec) -> tuple[Parameter, ...]:
    """Return the parameters of a head, without the tables that are its decoder's."""
    found = [*_norm(spec, "hidden_norm", None), *_norm(spec, "token_norm", None)]
    found.append(_matrix("hidden_in", None, (spec.width,), 2 * spec.width))
    return (*found, *_layer_parameters(spec, 0), *_norm(spec, "final_norm", None))


def _eagle_parameters(spec: EagleSpec) -> tuple[Parameter, ...]:
    """Return the parameters of an EAGLE-3 head, whose attention has token and hidden state beside each other as its
    input."""
    states = len(spec.aux_layers) * spec.target_width
    found = [_matrix("embedding", None, (spec.target_vocab,), spec.width)] if spec.own_embedding else []
    if spec.states_norm == "whole":
        found += _norm(spec, "states_norm", None, states)
    if spec.states_norm == "each":
        found.append(_vector("state_norms", "weight", None, (spec.target_width,) * len(spec.aux_layers)))
    found.append(_matrix("states_in", None, (spec.width,), states))
    found += [*_norm(spec, "hidden_norm", None), *_norm(spec, "token_norm", None)]
    for parameter in _layer_parameters(spec, 0):
        if parameter.name == "layers.0.qkv.weight":
            found.append(_matrix("qkv", 0, parameter.parts, 2 * spec.width))
        elif parameter.module != "attention_norm":
            found.append(parameter)
    return (*found, *_norm(spec, "final_norm", None), _matrix("head", None, (spec.vocab_size,), spec.width))


def parameter_count(spec: DecoderSpec) -> int:
    """Return the number of elements of all parameters, a tied table counted once."""
    return sum(math.prod(parameter.shape) for parameter in parameters(spec))


def _layer_parameters(decoder: DecoderSpec, layer: int) -> list[Parameter]:
    spec = decoder.of_layer(layer)
    shared = spec.shared_blocks
    block = _block_parameters(spec, shared, layer) if shared and layer in shared.layers else []
    first = _first_branch_parameters(spec, layer) if spec.has_branch("first", layer) else []
    second = _second_branch_parameters(spec, layer) if spec.has_branch("second", layer) else []
    return block + first + second + _further_parameters(spec, layer)


def _image_layer_parameters(spec: DecoderSpec, number: int) -> list[Parameter]:
    """Return the parameters of a layer that looks at images; keys and values are computed once of each image. Without a
    tower it is the network alone."""
    options, found = spec.image_layers, list[Parameter]()
    assert options is not None
    gates = ["image_feed_forward_out_gate"]
    if spec.vision is not None:
        found += [
            *_norm(spec, "image_norm", number),
            _matrix("image_query", number, (spec.query_width,), spec.width),
            _matrix("image_key_value", number, (spec.kv_width, spec.kv_width), spec.vision.embedding_floats),
            _matrix("image_out", number, (spec.width,), spec.query_width),
        ]
        gates.insert(0, "image_out_gate")
    found += [
        *_norm(spec, "image_feed_forward_norm", number),
        _matrix("image_feed_forward_in", number, _inward(spec, spec.feed_forward), spec.width),
        _matrix("image_feed_forward_out", number, (spec.width,), spec.feed_forward),
    ]
    if spec.vision is not None and options.head_norm:
        found += [_vector(f"image_{name}_norm", "weight", number, (spec.head_dim,)) for name in ("query", "key")]
    wide = spec.width if options.wide_gates else 1
    stored = (1, 1, wide) if options.wide_gates else None
    return found + [replace(_vector(gate, "weight", number, (wide,)), stored=stored) for gate in gates]


def is_of_images(parameter: Parameter, spec: DecoderSpec) -> bool:
    """Return whether a parameter is only used for images, or for tokens that see one."""
    if spec.image_layers and spec.image_layers.before and parameter.module.startswith("image_feed_forward"):
        return False
    return is_vision(parameter) or parameter.module.startswith("image_")


def _first_branch_parameters(spec: DecoderSpec, layer: int) -> list[Parameter]:
    found = _norm(spec, "attention_norm", layer) if spec.has_first_norm(layer) else []
    if spec.attends(layer):
        found += _attention_parameters(spec, layer)
    if mixer := spec.mixer(layer):
        found += _mixer_parameters(spec, mixer, layer)
    if spec.norms(layer) not in ("before", "stream"):
        found += _norm(spec, "attention_out_norm", layer)
    return found + (_cross_parameters(spec, layer) if spec.encoder is not None else [])


def _second_branch_parameters(spec: DecoderSpec, layer: int) -> list[Parameter]:
    found = []
    if spec.norms(layer) in ("before", "around", "stream") and not spec.block.shared_norm:
        found += _norm(spec, "feed_forward_norm", layer)
    experts = spec.routed(layer)
    if experts:
        found += _expert_parameters(spec, experts, layer)
    if experts and experts.out_norm:
        found += _norm(spec, "expert_out_norm", layer)
    if experts is None or experts.beside or experts.delayed:
        found += _linear("feed_forward_in", layer, _inward(spec, spec.feed_forward), spec.width, spec.feed_forward_bias)
        if spec.activation == "xielu":
            found += [Parameter(module, "weight", layer, (1,), (1,), False) for module in XIELU]
        if spec.block.inner_norms:
            found += _norm(spec, "feed_forward_inner_norm", layer, spec.feed_forward)
        found += _linear("feed_forward_out", layer, (spec.width,), spec.feed_forward, spec.feed_forward_bias)
    if spec.norms(layer) not in ("before", "stream"):
        found += _norm(spec, "feed_forward_out_norm", layer)
    return found


def _further_parameters(spec: DecoderSpec, layer: int) -> list[Parameter]:
    """Return the parameters of what a layer has besides its two branches."""
    found = []
    if spec.altup:
        found += _altup_parameters(spec, spec.altup, layer)
    if inputs := spec.layer_inputs:
        found.append(_matrix("layer_input_gate", layer, (inputs.width,), spec.width))
        found.append(_matrix("layer_input_out", layer, (spec.width,), inputs.width))
        found += _norm(spec, "layer_input_norm", layer)
    if spec.layer_scale:
        found.append(_vector("layer_scale", "weight", layer, (1,)))
    return found


def _altup_parameters(spec: DecoderSpec, altup: AltUp, layer: int) -> list[Parameter]:
    found = [_matrix("part_router", layer, (altup.parts,), spec.width), *_norm(spec, "part_router_norm", layer)]
    found.append(_matrix("part_prediction", layer, (altup.parts**2,), altup.parts))
    found.append(_matrix("part_correction", layer, (altup.parts,), altup.parts))
    found.append(_vector("part_scale", "weight", layer, (spec.width,)))
    found.append(_matrix("low_rank_in", layer, (altup.rank,), spec.width))
    found.append(_matrix("low_rank_out", layer, (spec.width,), altup.rank))
    return found + _norm(spec, "low_rank_norm", layer)


def _block_parameters(spec: DecoderSpec, shared: SharedBlocks, layer: int) -> list[Parameter]:
    """Return what a layer with a shared block has of it: in its first layer the block; in each the products of low
    rank, numbered by layer, and the matrix that leads to the mixer."""
    owner, place, beside = shared.owner(layer), shared.place(layer), 2 * spec.width
    widths = {"block_query": spec.query_width, "block_key": spec.kv_width, "block_value": spec.kv_width}
    wide, found = sum(_inward(spec, spec.feed_forward)), list[Parameter]()
    if owner == layer:
        found += _norm(spec, "block_norm", layer, beside)
        found += [_matrix(module, layer, (width,), beside) for module, width in widths.items()]
        found.append(_matrix("block_attention_out", layer, (spec.width,), spec.query_width))
        found += _norm(spec, "block_feed_forward_norm", layer)
        bias = spec.feed_forward_bias
        found += _linear("block_feed_forward_in", layer, _inward(spec, spec.feed_forward), spec.width, bias)
        found += _linear("block_feed_forward_out", layer, (spec.width,), spec.feed_forward, bias)
    for module, width in widths.items() if shared.attention else ():
        found.append(_matrix(f"{module}_low_rank_in", owner, (shared.rank,), beside, place))
        found.append(_matrix(f"{module}_low_rank_out", owner, (width,), shared.rank, place))
    if shared.rank:
        found.append(_matrix("block_low_rank_in", owner, (shared.rank,), spec.width, place))
        found.append(_matrix("block_low_rank_out", owner, (wide,), shared.rank, place))
    return [*found, _matrix("block_result", layer, (spec.width,), spec.width)]


def uses(parameter: Parameter, spec: DecoderSpec) -> int:
    """Return how often a token is multiplied by a parameter: those of a shared block are used by several layers."""
    shared, is_of_block = spec.shared_blocks, parameter.module.startswith("block_")
    if shared is None or not is_of_block or parameter.expert is not None or parameter.module == "block_result":
        return 1
    assert parameter.layer is not None
    return shared.uses(parameter.layer)


def attention_module(spec: DecoderSpec, layer: int) -> str:
    """Return the module of a layer's projection to queries and what it computes of keys and values."""
    if spec.kv_source(layer) != layer:
        return "query"
    return "query_key" if layer in spec.keys_as_values else "qkv"


def _attention_parameters(spec: DecoderSpec, layer: int) -> list[Parameter]:
    if spec.latent is not None:
        return _latent_parameters(spec, spec.latent, layer)
    apart = spec.attention_gate is not None and spec.attention_gate.by_head
    query = (spec.query_width, spec.gate_width) if apart else (spec.query_width + spec.gate_width,)
    module = attention_module(spec, layer)
    keys_and_values = (spec.kv_width, spec.kv_heads * (spec.narrow_values or spec.head_dim))
    widths = query + keys_and_values[: {"query": 0, "query_key": 1, "qkv": 2}[module]]
    found = _linear(module, layer, widths, spec.width, spec.qkv_bias)
    if (norm := spec.head_normed(layer)) and norm.weighted:
        found += _head_norms(spec, norm, layer)
    if spec.has_sinks(layer):
        found.append(Parameter("sinks", "weight", layer, (spec.heads,), (spec.heads,), False))
    if spec.relative_bias is not None and spec.relative_bias.by_layer:
        found.append(_relative_bias(spec, spec.relative_bias, layer))
    if spec.block.inner_norms:
        found += _norm(spec, "attention_inner_norm", layer, spec.query_width)
    return found + _linear("attention_out", layer, (spec.width,), spec.mixed_width, spec.attention_out_bias)


def _latent_parameters(spec: DecoderSpec, latent: Latent, layer: int) -> list[Parameter]:
    """Return the parameters of latent attention; of the matrix that makes keys, each head's part is transposed."""
    found, inputs = [], spec.width
    if latent.query_rank:
        inputs = latent.query_rank
        found += _linear("latent_query_in", layer, (inputs,), spec.width, spec.qkv_bias)
        found.append(_vector("latent_query_norm", "weight", layer, (inputs,)))
    found.append(_matrix("latent_query", layer, (spec.heads * (latent.plain + latent.rotated),), inputs))
    found += _linear("latent_in", layer, (latent.rank + latent.rotated,), spec.width, spec.qkv_bias)
    found.append(_vector("latent_norm", "weight", layer, (latent.rank,)))
    found.append(_matrix("latent_key", layer, (spec.heads * latent.rank,), latent.plain))
    found.append(_matrix("latent_value", layer, (spec.mixed_width,), latent.rank))
    return found + _linear("attention_out", layer, (spec.width,), spec.mixed_width, spec.attention_out_bias)


def _mixer_parameters(spec: DecoderSpec, mixer: Mixer, layer: int) -> list[Parameter]:
    """Return the parameters of a layer with a state; weights of a convolution are ``[columns, 1, taps]``."""
    if isinstance(mixer, ShortConvolution):
        found = _linear("mixer_in", layer, (3 * mixer.width,), spec.width, mixer.bias)
        found += _convolution((mixer.width,), mixer.taps, mixer.bias, layer)
        return found + _linear("mixer_out", layer, (spec.width,), mixer.inner, mixer.bias)
    if isinstance(mixer, StateSpace):
        return _state_space_parameters(spec, mixer, layer)
    if isinstance(mixer, SelectiveScan):
        return _selective_scan_parameters(spec, mixer, layer)
    if isinstance(mixer, GatedUnit):
        return _gated_unit_parameters(spec, mixer, layer)
    if isinstance(mixer, KeyedDeltaRule):
        return _keyed_delta_rule_parameters(spec, mixer, layer)
    if isinstance(mixer, LightningAttention):
        found = [_matrix("mixer_in", layer, (mixer.inner,) * 3, spec.width)]
        if mixer.rotated:
            found += [_vector(module, "weight", layer, (mixer.dim,)) for module in ("query_norm", "key_norm")]
        found.append(_vector("mixer_scale", "weight", layer, (mixer.inner,)))
        found.append(_matrix("mixer_opening", layer, (mixer.inner,), spec.width))
        return found + _linear("mixer_out", layer, (spec.width,), mixer.inner, False)
    return _delta_rule_parameters(spec, mixer, layer)


def _state_space_parameters(spec: DecoderSpec, mixer: StateSpace, layer: int) -> list[Parameter]:
    found = _linear("mixer_in", layer, (mixer.projected,), spec.width, mixer.bias)
    found += _convolution((mixer.convolved,), mixer.taps, mixer.convolution_bias, layer)
    modules = ("mixer_rate", "mixer_step_bias", "mixer_skip")
    found += [_vector(module, "weight", layer, (mixer.heads,)) for module in modules]
    if mixer.norm is not None:
        found.append(_vector("mixer_scale", "weight", layer, (mixer.inner,)))
    return found + _linear("mixer_out", layer, (spec.width,), mixer.inner, mixer.out_bias)


def _selective_scan_parameters(spec: DecoderSpec, mixer: SelectiveScan, layer: int) -> list[Parameter]:
    heads, size = mixer.heads, mixer.head_dim
    numbers = range(heads) if heads > 1 else (None,)
    found = _linear("mixer_in", layer, (2 * mixer.inner,), spec.width, mixer.bias)
    found += _convolution((mixer.inner,), mixer.taps, mixer.convolution_bias, layer)
    found += [_matrix("mixer_selection", layer, (mixer.selection,), size, head) for head in numbers]
    if mixer.norm == "weighted":
        sizes = {"mixer_rank_norm": mixer.rank, "mixer_b_norm": mixer.state_dim, "mixer_c_norm": mixer.state_dim}
        found += [_vector(module, "weight", layer, (width,)) for module, width in sizes.items()]
    found += [_matrix("mixer_steps", layer, (size,), mixer.rank, head) for head in numbers]
    found.append(_vector("mixer_step_bias", "weight", layer, (size,) * heads))
    rate = Parameter("mixer_rate", "weight", layer, (mixer.inner, mixer.state_dim), (mixer.inner,), False)
    found.append(replace(rate, stored=(heads, size, mixer.state_dim)) if heads > 1 else rate)
    found.append(_vector("mixer_skip", "weight", layer, (size,) * heads))
    return found + _linear("mixer_out", layer, (spec.width,), mixer.inner, mixer.bias)


def _delta_rule_parameters(spec: DecoderSpec, mixer: DeltaRule, layer: int) -> list[Parameter]:
    heads = mixer.value_heads
    convolved = (mixer.keys, mixer.keys, mixer.inner) if mixer.apart else (mixer.convolved,)
    found = _linear("mixer_in", layer, (*convolved, mixer.inner), spec.width, False)
    found += _linear("mixer_gates", layer, (heads, heads), spec.width, False)
    found += _convolution(convolved, mixer.taps, False, layer)
    found += [_vector(module, "weight", layer, (heads,)) for module in ("mixer_rate", "mixer_step_bias")]
    found.append(_vector("mixer_scale", "weight", layer, (mixer.value_dim,)))
    return found + _linear("mixer_out", layer, (spec.width,), mixer.inner, False)


def _keyed_delta_rule_parameters(spec: DecoderSpec, mixer: KeyedDeltaRule, layer: int) -> list[Parameter]:
    heads, dim, inner = mixer.heads, mixer.dim, mixer.inner
    found = _linear("mixer_in", layer, (inner, inner, inner), spec.width, False)
    found.append(_matrix("mixer_gates", layer, (dim, heads), spec.width))
    found.append(_matrix("mixer_decays", layer, (inner,), dim))
    found += _convolution((inner, inner, inner), mixer.taps, False, layer)
    found.append(replace(_vector("mixer_rate", "weight", layer, (heads,)), stored=(1, 1, heads, 1)))
    found.append(_vector("mixer_step_bias", "weight", layer, (inner,)))
    found.append(_vector("mixer_scale", "weight", layer, (dim,)))
    found.append(_matrix("mixer_opening_in", layer, (dim,), spec.width))
    found.append(_matrix("mixer_opening", layer, (inner,), dim))
    return found + _linear("mixer_out", layer, (spec.width,), inner, False)


def _gated_unit_parameters(spec: DecoderSpec, mixer: GatedUnit, layer: int) -> list[Parameter]:
    inner, block = mixer.inner, mixer.inner // mixer.blocks
    found = _linear("mixer_in", layer, (inner, inner), spec.width, True)
    found += _convolution((inner,), mixer.taps, True, layer)
    for module in ("mixer_input_gate", "mixer_decay_gate"):
        found.append(replace(_matrix(module, layer, (inner,), block), stored=(mixer.blocks, block, block)))
        found.append(_vector(module, "bias", layer, (block,) * mixer.blocks))
    found.append(_vector("mixer_rate", "weight", layer, (inner,)))
    return found + _linear("mixer_out", layer, (spec.width,), inner, True)


def _convolution(parts: tuple[int, ...], taps: int, bias: bool, layer: int) -> list[Parameter]:
    found = [Parameter("mixer_convolution", "weight", layer, (sum(parts), 1, taps), parts, False)]
    return [*found, _vector("mixer_convolution", "bias", layer, parts)] if bias else found


def _expert_parameters(spec: DecoderSpec, experts: Experts, layer: int) -> list[Parameter]:
    selectable = experts.count + experts.identities
    logits = (selectable, 1) if experts.shared_gated else (selectable,)
    found = [_matrix("router", layer, logits, spec.width)]
    if experts.bias:
        found.append(_vector("router", "bias", layer, logits))
    if experts.beside:
        found += [_vector("router_scale", "weight", layer, (spec.width,))]
        found += [_vector("expert_scale", "weight", layer, (experts.count,))]
        for module in ("dense_out_norm", "expert_norm", "expert_out_norm"):
            found += _norm(spec, module, layer)
    if experts.choice_bias:
        found.append(Parameter("router_choice", "bias", layer, (selectable,), (selectable,), False))
    inward = _inward(spec, experts.feed_forward)
    for expert in range(experts.count):
        found.append(_matrix("expert_in", layer, inward, spec.width, expert))
        found.append(_matrix("expert_out", layer, (spec.width,), experts.feed_forward, expert))
        if experts.bias:
            found.append(replace(_vector("expert_in", "bias", layer, inward), expert=expert))
            found.append(replace(_vector("expert_out", "bias", layer, (spec.width,)), expert=expert))
    if experts.out_bias:
        found.append(_vector("experts", "bias", layer, (spec.width,)))
    if experts.shared:
        found.append(_matrix("shared_expert_in", layer, _inward(spec, experts.shared), spec.width))
        found.append(_matrix("shared_expert_out", layer, (spec.width,), experts.shared))
    return found


def _inward(spec: DecoderSpec, feed_forward: int) -> tuple[int, ...]:
    return (feed_forward, feed_forward) if spec.gated else (feed_forward,)


def _cross_parameters(spec: DecoderSpec, layer: int) -> list[Parameter]:
    """Return the parameters of cross-attention. Keys and values are computed once, after the encoder."""
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
    heads = {"query_norm": spec.heads}
    if spec.kv_source(layer) == layer:
        heads["key_norm"] = spec.kv_heads
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
    """Return the name that adapters use for the product with a module's matrix: ``layers.3.qkv``, ``head``."""
    return module if layer is None else f"layers.{layer}.{module}"
