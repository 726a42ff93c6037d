"""The memory of one step's buffers."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.models.latent import buffer_floats
from dragoman.models.settings import ModelSettings
from dragoman.models.spec import DecoderSpec

_SIZES = ("heads", "kv_heads", "head_dim", "feed_forward")


def activation_bytes(spec: DecoderSpec, settings: ModelSettings) -> int:
    """Return the size of the float32 buffers of one step: those of each token and of each logits row, and those of an
    encoder, which has room for the longest input."""
    if not spec.causal:
        settings = replace(settings, max_tokens=longest_step(spec.context, settings), max_logit_rows=0)
    if spec.encoder is not None:
        rows = longest_step(spec.encoder.context, settings)
        whole = replace(settings, max_tokens=rows, max_logit_rows=0)
        decoder = replace(spec, encoder=None)
        return activation_bytes(spec.encoder_stack, whole) + activation_bytes(decoder, settings)
    parts = part_floats(spec)
    if spec.sizes:
        layers = [spec.of_layer(layer) for layer in range(spec.layers)]
        largest = {name: max(getattr(layer, name) for layer in layers) for name in _SIZES}
        spec = replace(spec, sizes=(), **largest)
    # Buffers whose values are not needed at the same time share memory.
    inner = (2 if spec.gated else 1) * spec.feed_forward
    apart = spec.block.parallel or spec.mixers_beside
    mixed = spec.mixed_width if apart else max(0, spec.mixed_width - spec.width)
    normal = 2 if spec.joins_directly else 3
    projected = 0 if spec.embedding.width is None else spec.embedding.width
    stream = normal * spec.width + projected + mixed
    # Half as much again for the quantized copies of a matrix's input, which the kernels keep between calls.
    kinds = {mixer for mixer in spec.mixers if mixer is not None}
    stream += sum(mixer.buffers for mixer in kinds) + parts
    qkv = spec.projected_width
    if spec.latent is not None:
        stream += buffer_floats(spec, spec.latent)
        qkv = 0
    stream += _branch_floats(spec)
    tokens = settings.max_tokens * ((stream + max(inner, qkv)) * 6 + _routed_bytes(spec))
    return tokens + settings.max_logit_rows * (stream + inner + spec.vocab_size) * 4


def longest_step(context: int, settings: ModelSettings) -> int:
    """Return the most tokens of an encoder's step, which has room for a text of the whole context."""
    return max(settings.max_tokens, min(context, settings.max_context or context))


def _branch_floats(spec: DecoderSpec) -> int:
    """Return the numbers one token takes in what layers have besides attention and one network."""
    floats = 0
    if spec.layer_inputs:
        floats += (spec.layers + 2) * spec.layer_inputs.width
    if spec.experts and spec.experts.beside:
        floats += 3 * spec.width
    if spec.cross_attention_layers:
        floats += spec.query_width + spec.width
    if spec.shared_blocks:
        floats += 5 * spec.width + spec.kv_width + spec.shared_blocks.rank
    if spec.altup:
        floats += (3 * spec.altup.parts + 3) * spec.width + spec.altup.rank
    return floats


def _routed_bytes(spec: DecoderSpec) -> int:
    """Return the bytes one token takes in its experts: inputs, inner values, results, and quantized copies."""
    if spec.experts is None:
        return 0
    each = (1 + spec.gated) * 4 + 4
    inner = spec.experts.active * spec.experts.feed_forward + spec.experts.shared
    ways = spec.experts.active + bool(spec.experts.shared)
    return inner * each + ways * spec.width * 8


def part_floats(spec: DecoderSpec) -> int:
    """Return the numbers one token takes in parts of attention: gates that are not only multiplied, narrow values.
    Layers share a part, but each of its widths is a buffer by itself."""
    layers = map(spec.of_layer, spec.attention_layers)
    return sum(width for _, width in {part for layer in layers for part in _parts(layer)})


def _parts(layer: DecoderSpec) -> list[tuple[str, int]]:
    gate, found = layer.attention_gate, []
    if layer.narrow_values:
        values = layer.kv_heads * layer.narrow_values
        projected = layer.projected_width - layer.kv_width + values
        found += [("projected", projected), ("narrow values", values), ("wide values", layer.kv_width)]
        found.append(("whole values", layer.query_width))
    if gate is not None and gate.softplus:
        found.append(("steps", 2 * layer.gate_width))
    if gate is not None and gate.by_head:
        found += [("narrow", layer.heads), ("wide", layer.query_width)]
    return found
