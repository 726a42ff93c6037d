"""One parameter of a model: a tensor that its program needs."""

from __future__ import annotations

from typing import Literal

import msgspec


class Parameter(msgspec.Struct, frozen=True):
    """One tensor the program needs, under the canonical name of its module.

    Attributes:
        module: ``embedding``, ``qkv`` …: a key of a family's weight-name map. layer: None outside the layers.
        shape: ``[outputs, inputs]`` of a matrix, ``[size]`` of a vector, ``[positions, width]`` of learned positions.
        parts: rows of each fused projection (query, key, value; gate, up) or head's norm; one entry if
            nothing is fused.
        matrix: it is multiplied, so it is packed for the kernels; otherwise kept as float32.
        expert: its number, where there are several.
        stored: shape in files, where it differs: the same numbers in the same order.
    """

    module: str
    kind: Literal["weight", "bias"]
    layer: int | None
    shape: tuple[int, ...]
    parts: tuple[int, ...]
    matrix: bool
    expert: int | None = None
    stored: tuple[int, ...] | None = None

    def sizes(self, count: int) -> tuple[int, ...]:
        """Return the rows of each of ``count`` stored tensors: one for each part, all in one, or the first part in two
        halves (queries and their gate)."""
        if 2 < count == len(self.parts) + 1:
            half = self.parts[0] // 2
            return (half, half, *self.parts[1:])
        return self.parts if count == len(self.parts) else (sum(self.parts),)

    @property
    def name(self) -> str:
        """``layers.3.qkv.weight``, ``layers.3.expert_in.7.weight``, ``final_norm.bias`` …: as in the packed cache."""
        place = "" if self.layer is None else f"layers.{self.layer}."
        module = self.module if self.expert is None else f"{self.module}.{self.expert}"
        return f"{place}{module}.{self.kind}"
