"""Description of what a model sees with: one vision tower with variants as data, and how images become its input."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from dragoman.models.vision.parts import Layers, Pixels, Projection, Reduction, Resampler, Tags, Tiling
from dragoman.models.vision.readers import read_vision

_PADDED = 8  # rows of a tile are a multiple of so many, where the tower sees all tiles at once


class VisionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A vision transformer (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929) before a decoder.

    An image is made tiles, a tile patches; the tower makes a vector of each patch, the reduction and the projection
    make embeddings of these, which replace tokens of the prompt.

    Attributes:
        patch: pixels of a patch's edge; patches are flat vectors of 3 · patch · patch numbers.
        class_token: one more row before a tile's patches (CLIP), which is dropped after the layers, or
            ``class_kept`` (Idefics).
        frames: equal pictures in a patch, one after the other (Qwen2-VL: 2, since it sees video).
        channels_last: the three numbers of a pixel follow one another in a patch; else each colour by itself.
        resampler: what makes embeddings of the projection's rows; None: they are.
        positions: a table with a learned row for each patch of a tile; one of a square, between whose rows those of
            an image's patches are taken (``interpolated``: Qwen3-VL), or that is resampled (``resampled``: SigLIP 2),
            or of which each patch has the row of its place (``bucketed``: Idefics 2);
            two with rows for columns and for rows of patches (``axial``: Gemma 4); or none. position_side: of that
            square, or rows of each of the two.
        stacked: how many of the first layers of the decoder get something added to the rows of an image after them:
            what as many layers of the tower make of it, each with a projection of its own (DeepStack, Meng et al. 2024,
            https://arxiv.org/abs/2406.04334). These are all taken layers but the last.
        batch_of_one: that table and the class token are stored as a batch of one.
        both_ways: which tokens of the prompt see those after them: none; an image's tokens see all of theirs
            (``image``: Gemma 3), in some models where layers have windows alone (``both_ways_in_windows``: Gemma 4);
            all of a prompt with images do (``prompt``: PaliGemma).
        cross_attention_layers: for each layer of the decoder that looks at images the number of its layers before that
            one (Mllama, Meta 2024, https://arxiv.org/abs/2407.21783, section 7); an image is then one token, and its
            embeddings are what these layers compute keys and values of; empty: an image's embeddings replace tokens.
        cross_attention_alone: a token sees the last image before it (Idefics); else those right before that one too.
        cross_attention_until: the token after which others see no image until the next one; None: there is none.
        unspoken: rows of the decoder's table of tokens, after the others, that are for images and have no logits.
        padding_id: the token whose inputs of layers an image's tokens get, in decoders that have any.
        rotary_sections: numbers of a head's pairs in the decoder that are rotated by positions in time, by rows and by
            columns; empty: by the position in the text alone. rotary_interleaved: one pair of each in turn, as long as
            there are any of rows and columns; else one kind after the other.
    """

    layers: Layers
    patch: int
    patch_bias: bool = True
    frames: int = 1
    channels_last: bool = False
    class_token: bool = False
    class_kept: bool = False
    positions: Literal["learned", "interpolated", "resampled", "bucketed", "axial", "none"] = "learned"
    position_side: int = 0
    stacked: int = 0
    batch_of_one: bool = False
    reduction: Reduction
    projection: Projection
    resampler: Resampler | None = None
    pixels: Pixels
    tiling: Tiling
    tags: Tags
    both_ways: Literal["none", "image", "prompt"] = "none"
    both_ways_in_windows: bool = False
    cross_attention_layers: tuple[int, ...] = ()
    cross_attention_alone: bool = False
    cross_attention_until: int | None = None
    unspoken: int = 0
    padding_id: int = 0
    rotary_sections: tuple[int, ...] = ()
    rotary_interleaved: bool = False

    @classmethod
    def from_config(
        cls, config: dict[str, Any], preprocessor: dict[str, Any] | None = None
    ) -> VisionDescription | None:
        """Return what a ``config.json`` says of images, with the image processor's config where the model has one.

        None for a model without images, or whose images are not served. Raises ModelError naming a field that cannot be
        honoured.
        """
        fields = read_vision(config, preprocessor or {})
        if fields is None:
            return None
        if isinstance(token := config.get("image_token"), str) and token:  # a GGUF file may have another
            fields["tags"] = replace(fields["tags"], image=token)
        return cls(**fields)

    @property
    def patch_floats(self) -> int:
        """Numbers of a flat patch."""
        return 3 * self.frames * self.patch**2

    @property
    def patches_per_side(self) -> int:
        """Patches in a row of a tile."""
        return self.tiling.side // self.patch

    @property
    def tile_rows(self) -> int:
        """Rows of the tower for one tile, at the most: its patches, and the class token."""
        if self.tiling.kind == "halves":
            return (self.tiling.longest // self.patch) ** 2
        if self.tiling.kind == "canvas":
            return self.tiling.most * self.padded_rows
        if self.tiling.kind == "mixed":
            return max(self.tiling.side**2, self.tiling.whole_most) // self.patch**2
        if self.tiling.kind == "any":
            return self.tiling.most // self.patch**2
        return self.patches_per_side**2 + self.class_token

    @property
    def padded_rows(self) -> int:
        """Rows of a tile where the tower sees all tiles at once: its patches, the class token, and padding."""
        return -(-self.cross_attention_rows // _PADDED) * _PADDED

    @property
    def cross_attention_rows(self) -> int:
        """Embeddings of a tile that the decoder looks at."""
        return self.patches_per_side**2 + 1 if self.resampler is None else self.resampler.vectors

    @property
    def tile_tokens(self) -> int:
        """Embeddings that one tile becomes, at the most."""
        if self.cross_attention_layers:
            return self.cross_attention_rows
        if self.resampler is not None:
            return self.resampler.vectors
        if self.tiling.kind in ("any", "mixed"):
            return self.tile_rows // self.reduction.factor**2
        return (self.patches_per_side // self.reduction.factor) ** 2

    @property
    def most_embeddings(self) -> int:
        """Embeddings of an image, at the most."""
        return self.cross_attention_rows * self.tiling.most if self.cross_attention_layers else self.most_tokens

    @property
    def most_tokens(self) -> int:
        """Tokens of a prompt that stand for the embeddings of an image, at the most."""
        if self.cross_attention_layers:
            return 1
        if self.tiling.kind == "any":
            return self.tile_tokens
        if self.tiling.kind == "mixed":
            tiles = self.tiling.most * self.tiling.side**2 if self.tiling.cut_above < math.inf else 0
            return (tiles + self.tiling.whole_most) // self.tiling.whole_side**2
        ends = self.tiling.most * self.patches_per_side if self.tiling.kind == "fit" else 0
        return self.tile_tokens * self.tiling.most + ends

    @property
    def has_detail(self) -> bool:
        """Whether an image can become fewer tiles than it does by itself."""
        tiling = self.tiling
        if tiling.kind in ("mixed", "halves"):
            return tiling.cut_above < math.inf if tiling.kind == "mixed" else tiling.most > 1
        return tiling.kind in ("split", "fit", "closest", "canvas")

    @property
    def taken_width(self) -> int:
        """Width of what is taken of the layers for one projection."""
        return self.layers.width * (len(self.layers.taken) - self.stacked)

    @property
    def embedding_floats(self) -> int:
        """Numbers of an image's embedding, those of the decoder's first layers included."""
        return self.projection.out * (1 + self.stacked)

    @property
    def reduced_width(self) -> int:
        """Width of what the projection takes."""
        shuffled = self.reduction.kind in ("shuffle", "unfold")
        return self.taken_width * (self.reduction.factor**2 if shuffled else 1)
