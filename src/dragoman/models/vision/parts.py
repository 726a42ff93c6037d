"""Parts of a vision tower's description, each a variant as data."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu"]
Norm = Literal["rms", "layer"]
Positions = Literal["learned", "rotary"]
Resampling = Literal["nearest", "lanczos", "bilinear", "bicubic"]

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
RESAMPLINGS: dict[int, Resampling] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Kinds of resampling by their numbers in a preprocessor's config, which are Pillow's."""


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of attention and a feed-forward network, in which every patch of a tile sees all others.

    Attributes:
        width: of the residual stream.
        taken: numbers of layers after which the stream is taken, ascending; the taken ones are joined side by side.
            Layers after the last of them are not loaded.
        feed_forward: width between the two products of the feed-forward network.
        norm, norm_eps: of all norms; ``layer`` has biases. qkv_bias, bias: of queries, keys and values, and of all
            other products.
        first_norm: a norm before the first layer (CLIP). last_norm: a norm after the last (SigLIP). last_eps: of that,
            where it differs.
        branch_scales: what a branch adds to the stream has learned factors (InternVL).
        joint_head_norm: RMS norms of all queries, and of all keys, as one vector (InternVL 6B). head_norm: of each head
            of these, and of values one without weights (Gemma 4).
        norms_around: norms of what branches add to the stream too. clipped: learned limits of what products take and
            make. attention_scale: of query · key; 0: by the size of a head (Gemma 4).
        gated: the feed-forward network is ``down(act(gate(x)) · up(x))`` (Qwen2.5-VL).
        rotary_theta: base of a rotation by a patch's row and column, half of the pairs each; 0: there is none.
            rotary_shared: columns have the rates of rows; else those between them (Pixtral). rotary_halves: the first
            half of a head is rotated by columns, the other by rows, each on its own (Gemma 4).
        first_stage: number of layers before the second stage, whose branches have learned gates; between the stages are
            the last norm, and positions of tiles (Mllama); 0: there is one stage.
        window: squares of so many by so many pixels see themselves alone; 0: there are none. full_layers: layers
            without such windows.
    """

    width: int
    taken: tuple[int, ...]
    heads: int
    feed_forward: int
    activation: Activation
    norm: Norm = "layer"
    norm_eps: float
    qkv_bias: bool = True
    bias: bool = True
    first_norm: bool = False
    last_norm: bool = False
    last_eps: float | None = None
    branch_scales: bool = False
    joint_head_norm: bool = False
    head_norm: bool = False
    norms_around: bool = False
    clipped: bool = False
    attention_scale: float = 0.0
    gated: bool = False
    rotary_theta: float = 0.0
    rotary_shared: bool = True
    rotary_halves: bool = False
    first_stage: int = 0
    window: int = 0
    full_layers: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Number of layers that are computed."""
        return self.taken[-1]

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        return self.width // self.heads


class Reduction(msgspec.Struct, frozen=True, kw_only=True):
    """How neighbouring patches become one token.

    Attributes:
        kind: ``none``; ``shuffle``: squares of ``factor`` by ``factor`` patches side by side in one wide row (pixel
            shuffle); ``unfold``: the same, channel by channel (Mistral 3); ``average``: their mean.
        scale: of the result. standardised: learned numbers are then subtracted, and it has learned factors (Gemma 4).
    """

    kind: Literal["none", "shuffle", "unfold", "average"] = "none"
    factor: int = 1
    scale: float = 1.0
    standardised: bool = False


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """From a reduced patch to an embedding of the decoder: ``[norm ·] W``, or ``W2 · act(W1 · [norm])``.

    Attributes:
        out: width of the decoder's embeddings. inner: between the two products; 0: there is one product.
        product: False: there is none, the rows are the embeddings (Idefics).
        norm: before the first product; None: there is none. norm_weight: it has weights. merged: there is one product
            before the others, which makes one patch's width of a token's patches (Mistral 3).
        gated: it is ``W3 · (act(W1 · x) · (W2 · x))``. first_bias, last_bias: of the products. factor: of the
            embeddings, where text's have one too (Granite).
    """

    out: int
    product: bool = True
    inner: int = 0
    activation: Activation = "gelu"
    norm: Norm | None = None
    norm_weight: bool = True
    norm_eps: float = 1e-6
    merged: bool = False
    gated: bool = False
    first_bias: bool = False
    last_bias: bool = False
    factor: float = 1.0


class Resampler(msgspec.Struct, frozen=True, kw_only=True):
    """Learned vectors that look at a tile's rows, and are its embeddings (Perceiver, Jaegle et al. 2021,
    https://arxiv.org/abs/2103.03206; Idefics 1 and 2).

    Attributes:
        vectors: how many. layers: of attention to the rows and to each other, and a feed-forward network.
        heads, kv_heads, head_dim: of that attention. feed_forward, activation: of those networks. gated: they are
            ``down(act(gate(x)) · up(x))`` (Idefics 2). norm, norm_eps: of all norms; ``layer`` has biases.
        head_norm: queries and keys have norms of each head (Idefics).
    """

    vectors: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    activation: Activation
    gated: bool = True
    norm: Norm = "rms"
    norm_eps: float
    head_norm: bool = False


class Pixels(msgspec.Struct, frozen=True, kw_only=True):
    """From an image to the numbers that the tower takes: (level / 255 - mean) / deviation of each channel.

    Attributes:
        mean, deviation: of red, green and blue, as shares of 255. rescale: 1 / 255 as the preprocessor has it.
    """

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    resampling: Resampling
    rescale: float = 1 / 255


class Tiling(msgspec.Struct, frozen=True, kw_only=True):
    """How an image becomes tiles of ``side`` by ``side`` pixels.

    Attributes:
        kind: ``one``: resized to one tile, whatever its shape.
            ``crop``: scaled so that its shorter edge is a tile's, of which the middle is one tile (CLIP).
            ``split``: scaled so that its longer edge has ``longest`` pixels, then both edges up to whole tiles; cut,
            and the whole image is one more tile, the last (Idefics 3).
            ``fit``: scaled into the one of ``canvases`` that keeps most of it, in its middle, and cut; the whole image,
            whatever its shape, is the first tile. Embeddings of what is beside it are dropped, and each of its rows
            ends with a learned one (LLaVA-NeXT).
            ``closest``: resized to the grid of ``least`` to ``most`` tiles whose shape is closest, and cut; of several
            tiles the whole image is one more, the last (InternVL).
            ``any``: one tile of any shape, of ``least`` to ``most`` pixels, its edges multiples of ``side``: the
            nearest (Qwen2-VL), or with ``longest`` the next of an image that is made no larger (Pixtral), or, where
            ``filled``, those of the largest image with no more pixels than ``most`` (Gemma 4).
            ``mixed``: one tile of any shape, of ``whole_least`` to ``whole_most`` pixels, its edges the nearest
            multiples of ``whole_side``; of an image of more than ``cut_above`` pixels that is the last tile, after
            those of the grid of ``least`` to ``most`` tiles whose shape is closest (LFM2-VL).
            ``halves``: one tile of any shape, whose edges are at least ``least_edge`` and at most ``longest``; where
            ``most`` is 5 that is the last, after the four quarters of the image, each a tile by the same rule
            (Idefics 2). ``side`` is a patch's.
            ``canvas``: scaled into the upper left of the grid of up to ``most`` tiles that enlarges it least, or else
            that makes it least smaller, and cut; the tower sees all tiles at once, absent ones too (Mllama).
        side: pixels of a tile's edge.
        longest: pixels of the longer edge.
        canvases: rows and columns of tiles.
        least: tiles of an image without the whole. most: with it; of mixed ones without.
    """

    kind: Literal["one", "crop", "split", "fit", "closest", "any", "mixed", "halves", "canvas"]
    side: int
    longest: int = 0
    canvases: tuple[tuple[int, int], ...] = ()
    least: int = 1
    most: int = 1
    filled: bool = False
    least_edge: int = 0
    whole_side: int = 0
    whole_least: int = 0
    whole_most: int = 0
    cut_above: float = math.inf


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """What takes the place of an image in the prompt, around the image's tokens.

    Attributes:
        placeholder: what chat templates write for an image; it is replaced.
        image: the token that stands once for each embedding of the image. image_id: its id.
        before, after: of the whole image. tile: before each tile of several, with ``{row}`` and ``{column}`` from 1.
        row_end: after each row of tiles, or, but for the last, of the embeddings of a tile of any shape.
        rows_end: after the last row. whole: before the tile with the whole image.
        text_start, text_end: what the text after the prompt's last image begins with, and the prompt ends with
            (PaliGemma, whose images come first).
        once: a tag that stands once where one image's would follow another's (Idefics 1 and 2).
        strips: spaces beside images, and at the ends of a prompt that has any, are dropped (Idefics).
    """

    placeholder: str
    image: str
    image_id: int
    before: str = ""
    after: str = ""
    tile: str = ""
    row_end: str = ""
    rows_end: str = ""
    whole: str = ""
    text_start: str = ""
    text_end: str = ""
    once: str = ""
    strips: bool = False


def grids_of(most: int) -> list[tuple[int, int]]:
    """Return the rows and columns of all grids of up to so many tiles, in the order in which a tower numbers them."""
    return [(rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)]
