"""Description of what a model sees with: one vision tower with variants as data, and how images become its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dragoman.models.vision.parts import Layers, Pixels, Projection, Reduction, Tags, Tiling
from dragoman.models.vision.readers import read_vision


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionDescription:
    """A vision transformer (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929) before a decoder.

    An image is made tiles, a tile patches; the tower makes a vector of each patch, the reduction and the projection
    make embeddings of these, which replace tokens of the prompt.

    Attributes:
        patch: pixels of a patch's edge; patches are flat vectors of 3 · patch · patch numbers.
        class_token: one more row before a tile's patches (CLIP), which is dropped after the layers.
        frames: equal pictures in a patch, one after the other (Qwen2-VL: 2, since it sees video).
        positions: a table with a learned row for each patch of a tile; or none.
        batch_of_one: that table and the class token are stored as a batch of one.
        both_ways: which tokens of the prompt see those after them: none; an image's tokens see all of theirs
            (``image``: Gemma 3); all of a prompt with images do (``prompt``: PaliGemma).
        rotary_sections: numbers of a head's pairs in the decoder that are rotated by positions in time, by rows and by
            columns; empty: by the position in the text alone.
    """

    layers: Layers
    patch: int
    patch_bias: bool = True
    frames: int = 1
    class_token: bool = False
    positions: Literal["learned", "none"] = "learned"
    batch_of_one: bool = False
    reduction: Reduction
    projection: Projection
    pixels: Pixels
    tiling: Tiling
    tags: Tags
    both_ways: Literal["none", "image", "prompt"] = "none"
    rotary_sections: tuple[int, ...] = ()

    @classmethod
    def from_config(
        cls, config: dict[str, Any], preprocessor: dict[str, Any] | None = None
    ) -> VisionDescription | None:
        """Return what a ``config.json`` says of images, with the image processor's config where the model has one.

        None for a model without images, or whose images are not served. Raises ModelError naming a field that cannot be
        honoured.
        """
        fields = read_vision(config, preprocessor or {})
        return None if fields is None else cls(**fields)

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
        if self.tiling.kind == "any":
            return self.tiling.most // self.patch**2
        return self.patches_per_side**2 + self.class_token

    @property
    def tile_tokens(self) -> int:
        """Embeddings that one tile becomes, at the most."""
        if self.tiling.kind == "any":
            return self.tile_rows // self.reduction.factor**2
        return (self.patches_per_side // self.reduction.factor) ** 2

    @property
    def most_tokens(self) -> int:
        """Embeddings of an image, at the most."""
        if self.tiling.kind == "any":
            return self.tile_tokens
        ends = self.tiling.most * self.patches_per_side if self.tiling.kind == "fit" else 0
        return self.tile_tokens * self.tiling.most + ends

    @property
    def taken_width(self) -> int:
        """Width of what is taken of the layers."""
        return self.layers.width * len(self.layers.taken)

    @property
    def reduced_width(self) -> int:
        """Width of what the projection takes."""
        shuffled = self.reduction.kind in ("shuffle", "unfold")
        return self.taken_width * (self.reduction.factor**2 if shuffled else 1)
