"""Layer groups: layers that keep keys and values of the same positions share blocks, in a pool for each group.

A layer with a window needs the positions of the window and of one step; a layer without one needs all. A model with
both keeps the blocks of each kind as long as that kind needs them.

Keys and values in int4 have one group more, the last: of own blocks. A token reads the block that its own position is
in from there, in bfloat16, and all before it in int4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dragoman.models.settings import KVPrecision, ModelSettings
from dragoman.models.spec import DecoderSpec

BLOCK_TOKENS = 32  # positions of one KV block
OWN_PRECISION: KVPrecision = "bfloat16"  # of own blocks
_OWN_SHARE = 4  # one part of so many is the most that own blocks get where memory is short


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers whose keys and values have the same blocks.

    Attributes:
        window: maximum positions a token sees in these layers, its own included; 0: all.
        layers: of those that have memory for keys and values, by their place among these.
        bytes_per_token: keys and values of one token in these layers.
        sequence_blocks: maximum that one sequence of the whole context holds at one time, without an encoder's input.
        own: the group of own blocks, which has all layers and a window of one position: the next token's own.
        blocks: of 32 tokens each, shared by all sequences.
    """

    window: int
    layers: tuple[int, ...]
    bytes_per_token: int
    sequence_blocks: int
    own: bool = False
    blocks: int = 0

    @property
    def bytes_per_block(self) -> int:
        """Memory of one block."""
        return self.bytes_per_token * BLOCK_TOKENS

    @property
    def nbytes(self) -> int:
        """Memory of all blocks."""
        return self.blocks * self.bytes_per_block


def group_layers(spec: DecoderSpec, context: int, step_tokens: int, kv_precision: KVPrecision) -> tuple[KVGroup, ...]:
    """Return the groups of a decoder that serves ``context`` tokens, without blocks: that which sees most is first.

    A window of the whole context is none. Where layers differ, neither is one that saves no block. In int4 the group of
    own blocks is the last.
    """
    windows = _windows(spec, context)
    if len(set(windows)) > 1:
        whole = math.ceil(context / BLOCK_TOKENS)
        windows = [w if blocks_per_sequence(context, w, step_tokens) < whole else 0 for w in windows]
    sizes = [layer_kv_bytes(spec, layer, kv_precision) for layer in spec.kept_layers]
    groups = tuple(
        KVGroup(
            window=window,
            layers=tuple(place for place, own in enumerate(windows) if own == window),
            bytes_per_token=sum(size for size, own in zip(sizes, windows, strict=True) if own == window),
            sequence_blocks=blocks_per_sequence(context, window, step_tokens),
        )
        for window in sorted(set(windows) or {0}, key=lambda each: each or context, reverse=True)
    )
    if not (kv_precision == "int4" and _has_own_blocks(spec)):
        return groups
    own = KVGroup(
        window=1,
        layers=tuple(range(len(sizes))),
        bytes_per_token=sum(layer_kv_bytes(spec, layer, OWN_PRECISION) for layer in spec.kept_layers),
        sequence_blocks=blocks_per_sequence(context, 1, step_tokens),
        own=True,
    )
    return (*groups, own)


def _has_own_blocks(spec: DecoderSpec) -> bool:
    """Return whether a decoder's keys and values in int4 have own blocks: not where layers look at another text or at
    images besides, nor where they see their whole text."""
    looks = spec.encoder is not None or image_rows(spec) > 0
    return spec.causal and not looks and bool(spec.kept_layers)


def _windows(spec: DecoderSpec, context: int) -> list[int]:
    """Return the window of each layer that has memory for keys and values: the widest of the layers that read them."""
    if not spec.causal:
        return [0] * len(spec.kept_layers)
    readers = [spec.attention_layers] * len(spec.kept_layers)
    if spec.encoder is None:
        readers = [tuple(r for r in spec.attention_layers if spec.kv_source(r) == kept) for kept in spec.kept_layers]
    found = []
    for layers in readers:
        windows = [spec.windows[layer] for layer in layers]
        found.append(max(windows) if windows and all(windows) and max(windows) < context else 0)
    return found


def blocks_per_sequence(tokens: int, window: int, step_tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """Return the maximum number of KV blocks that a sequence of so many tokens holds at one time.

    Where no token sees more than ``window`` positions (0: all are seen), blocks before the window are freed, and
    those of the window and of the next step are enough.
    """
    all_blocks = math.ceil(tokens / block_tokens)
    return min(all_blocks, math.ceil((window + step_tokens) / block_tokens) + 1) if window else all_blocks


def sequence_bytes(groups: Sequence[KVGroup]) -> int:
    """Return the memory for the blocks of one sequence of the whole context."""
    return sum(group.sequence_blocks * group.bytes_per_block for group in groups)


def bytes_per_token(groups: Sequence[KVGroup]) -> int:
    """Return the memory of the keys and values of one token, without own blocks: these do not grow with a text."""
    return sum(group.bytes_per_token for group in groups if not group.own)


def requested_kv_bytes(settings: ModelSettings, groups: Sequence[KVGroup]) -> int | None:
    """Return the requested memory: in bytes, or in tokens, to which the own blocks of one sequence are added. None: no
    size is requested."""
    if settings.kv_bytes is not None or settings.kv_tokens is None:
        return settings.kv_bytes
    tokens = math.ceil(settings.kv_tokens / BLOCK_TOKENS) * BLOCK_TOKENS
    return tokens * bytes_per_token(groups) + sequence_bytes([group for group in groups if group.own])


def longest_within(
    spec: DecoderSpec, step_tokens: int, kv_precision: KVPrecision, *, table: int, most: int, most_kv: int
) -> int:
    """Return the longest context whose keys and values fit, in whole blocks.

    ``table``: bytes of each position in addition. ``most``: bytes for both. ``most_kv``: for keys and values alone.
    """

    def fits(blocks: int) -> bool:
        tokens = blocks * BLOCK_TOKENS
        nbytes = sequence_bytes(group_layers(spec, tokens, step_tokens, kv_precision))
        return nbytes + tokens * table <= most and nbytes <= most_kv

    low, high = 0, spec.context // BLOCK_TOKENS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * BLOCK_TOKENS


def divide_blocks(
    groups: Sequence[KVGroup], nbytes: int, *, context: int, step_tokens: int, max_sequences: int
) -> tuple[KVGroup, ...]:
    """Return the groups with their blocks: as many as ``nbytes`` hold.

    Own blocks come first: one for each sequence that decodes and one more for it to grow, and those of two steps; at
    most a quarter of the memory, but enough for one sequence.

    Short sequences need as many blocks of each group, and long ones fewer of those with a window. So several groups get
    half of the memory as whole contexts, at least one, and the rest for ``max_sequences`` sequences of equal length,
    the longest for which it is enough: whatever the lengths are, that is half of what a division made for them gives.
    What is left then is too little for one more block of each sequence: as many of them as possible get one.
    """
    if groups[-1].own and sequence_bytes(groups) <= nbytes:
        own = groups[-1]
        wanted = 2 * (max_sequences + own.sequence_blocks)
        most = max(own.sequence_blocks, nbytes // _OWN_SHARE // own.bytes_per_block)
        left = (nbytes - sequence_bytes(groups[:-1])) // own.bytes_per_block
        own = replace(own, blocks=min(wanted, most, left))
        sizes = {"context": context, "step_tokens": step_tokens, "max_sequences": max_sequences}
        return (*divide_blocks(groups[:-1], nbytes - own.nbytes, **sizes), own)

    if len(groups) == 1:
        return (replace(groups[0], blocks=nbytes // groups[0].bytes_per_block),)

    one = sequence_bytes(groups)
    if nbytes < one:
        return tuple(replace(group, blocks=group.sequence_blocks * nbytes // one) for group in groups)

    contexts = max(1, nbytes // 2 // one)
    most = max(contexts, max_sequences)

    def blocks_at(length: int) -> list[int]:
        """Return the blocks of each group where the sequences of equal length have so many."""
        tokens = min(length * BLOCK_TOKENS, context)
        needs = [blocks_per_sequence(tokens, group.window, step_tokens) for group in groups]
        return [
            min(contexts * group.sequence_blocks + max_sequences * need, most * group.sequence_blocks)
            for need, group in zip(needs, groups, strict=True)
        ]

    def size(blocks: list[int]) -> int:
        return sum(count * group.bytes_per_block for count, group in zip(blocks, groups, strict=True))

    low, high = 0, math.ceil(context / BLOCK_TOKENS) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(blocks_at(middle)) <= nbytes else (low, middle)
    blocks = blocks_at(low)
    longer = blocks_at(low + 1)
    growing = [group for count, most, group in zip(blocks, longer, groups, strict=True) if most > count]
    more = (nbytes - size(blocks)) // sum(group.bytes_per_block for group in growing) if growing else 0
    blocks = [min(count + more, most) for count, most in zip(blocks, longer, strict=True)]
    more = (nbytes - size(blocks)) // one  # whole contexts, where all sequences have theirs
    blocks = [count + more * group.sequence_blocks for count, group in zip(blocks, groups, strict=True)]
    blocks[0] += (nbytes - size(blocks)) // groups[0].bytes_per_block
    return tuple(replace(group, blocks=count) for group, count in zip(groups, blocks, strict=True))


def image_rows(spec: DecoderSpec) -> int:
    """Return the positions for one image that layers look at; 0: the decoder has no such layers."""
    return spec.vision.most_embeddings if spec.vision is not None and spec.vision.cross_attention_layers else 0


def layer_kv_bytes(spec: DecoderSpec, layer: int, kv_precision: KVPrecision) -> int:
    """Return the bytes of a token's keys and values in one layer: in each KV head, padded to whole vectors of 16 as the
    pool stores them. The value of latent attention is part of the key."""
    own = spec.of_layer(layer)
    padded = -(-own.head_dim // 16) * 16
    groups = -(-padded // 32)  # of numbers with one scale, a bfloat16
    if kv_precision == "int4":
        return own.kv_heads * (
            2 * (padded // 2 + 2 * groups) + groups
        )  # and a block has 32 bytes for each group of keys
    sizes = {"float32": 4 * padded, "bfloat16": 2 * padded, "int8": padded + 2 * groups}
    parts = 1 if spec.latent else 2
    return parts * own.kv_heads * sizes[kv_precision]
