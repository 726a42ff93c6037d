"""Descriptions of parts that few decoders have: inputs of layers (Gemma 3n), AltUp, cross-attention to images, and
blocks that layers share (Zamba 2)."""

from __future__ import annotations

import msgspec


class LayerInputs(msgspec.Struct, frozen=True, kw_only=True):
    """An input of each layer besides the stream, made of the token and of its embedding x (Gemma 3n): with the layer's
    row of a table, i = (norm(x · projection) + row · sqrt(width)) / sqrt(2). A third branch of the layer adds
    norm((act(stream · gate) · i) · out).

    Attributes:
        vocab: tokens in the table; others have the row of token 0. width: of the input.
    """

    vocab: int
    width: int


class AltUp(msgspec.Struct, frozen=True, kw_only=True):
    """A residual stream of several parts, and a product of low rank beside attention (Gemma 3n).

    Layers compute one part, ``active``, and predict the others (Baykal et al. 2023, https://arxiv.org/abs/2301.13310).

    Attributes:
        scaled: what the computed part gives to the third branch has a learned scale.
        rank: of the product beside attention.
        deviations: for each layer, of feed-forward gates only those remain that are so many standard deviations above
            their mean; None: all.
    """

    parts: int
    active: int
    scaled: bool
    rank: int
    deviations: tuple[float | None, ...]


class ImageLayers(msgspec.Struct, frozen=True, kw_only=True):
    """Gated cross-attention layers between the others, which look at images: cross-attention and then a feed-forward
    network, each of which is added to the stream with tanh of a learned gate as its factor.

    Attributes:
        before: where tokens that see no image pass the networks too, for each such layer the number of layers before
            it (Idefics); empty: only tokens that see an image pass these layers, which are where the
            ``VisionDescription`` says (Mllama).
        wide_gates: a gate has a number for each of the stream's; else it is one number.
        head_norm: queries and keys have RMS norms of each head.
    """

    before: tuple[int, ...] = ()
    wide_gates: bool = False
    head_norm: bool = True


class SharedBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of attention and a feed-forward network that several layers share (Zamba 2: Glorioso et al. 2024,
    https://arxiv.org/abs/2411.15242).

    A block's input is the stream and, beside it, the embeddings of the tokens. Its result, multiplied by a matrix of
    the layer, is added to what the layer's mixer gets, and not to the stream. Each of the layers has keys and values
    of its own, and products of low rank that are added to products of the block.

    Attributes:
        layers: those that have one. count: different blocks, which take turns.
        rank: of the product beside the network's first; 0: there is none (Zamba).
        attention: queries, keys and values have such products too.
    """

    layers: tuple[int, ...]
    count: int
    rank: int
    attention: bool = False

    def place(self, layer: int) -> int:
        """Return the number of a layer among those that have a block."""
        return self.layers.index(layer)

    def owner(self, layer: int) -> int:
        """Return the first layer that has the same block, under whose number its weights are."""
        return self.layers[self.place(layer) % self.count]

    def uses(self, owner: int) -> int:
        """Return the number of layers that have the block of an owner."""
        return sum(self.owner(layer) == owner for layer in self.layers)


class LayerSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one layer of a decoder whose layers differ in them (Gemma 4). ``heads``: 0: those of the decoder."""

    kv_heads: int
    head_dim: int
    feed_forward: int
    heads: int = 0


class AttentionGate(msgspec.Struct, frozen=True, kw_only=True):
    """One more projection of attention's input, part of ``qkv`` after the queries, by whose sigmoid attention's output
    is multiplied (Qwen3-Next).

    Attributes:
        by_head: it has one number for each head; else one for each number of the output. softplus: of it, in place of
            the sigmoid (Laguna).
    """

    by_head: bool = False
    softplus: bool = False


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, https://arxiv.org/abs/2405.04434).

    A token's keys and values are products of one latent vector. That vector is kept, and a rotated part of keys that
    all heads share; queries and results are multiplied by the matrices of keys and values instead of what is kept. So
    to the cache there is one KV head, whose key is latent and rotated part, and whose value is the latent.

    Attributes:
        rank: size of the latent. rotated: size of the part of a query and of a key that has positions.
        plain: size of a query's other part. value: size of a head's value.
        query_rank: queries are a product of a normed vector of this size; 0: of the layer's input.
        norm_eps: of the norms of the latent and of that vector.
        scale: factor of the latent, after its norm (LongCat-Flash).
    """

    rank: int
    rotated: int
    plain: int
    value: int
    query_rank: int = 0
    norm_eps: float = 1e-6
    scale: float = 1.0
