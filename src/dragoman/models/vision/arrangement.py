"""Order of a tower's rows: which of them see each other, in which order they are, and where in the image."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman.kernels import BLOCK_TOKENS
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.parts import Layers

Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]

_SPARE_BLOCKS = 256  # windows at the edges of an image fill theirs in part


class Sequences(NamedTuple):
    """Rows that see each other, as the sequences of a program's run.

    Attributes:
        positions: int32 [rows]. starts: int32 [sequences + 1]. tables: int32 [sequences, blocks].
        lengths: int32 [sequences]: how many positions of their table the rows see, where sequences share one; None:
            their own.
    """

    positions: Int32s
    starts: Int32s
    tables: Int32s
    lengths: Int32s | None = None


class Arrangement(msgspec.Struct, frozen=True, eq=False):
    """The rows of one run of a tower.

    Attributes:
        whole: the rows of each tile. windows: those of each window, if the tower has windows.
        order: patches of a tile of any shape, in rows from above, in the order of the tower's rows: those of a token
            follow one another, as do those of a window; None: tiles are not reordered.
        tokens: the place of each token in that order.
        places: int32 [3, rows]: 0, and a patch's row and column; None: the tower has no rotation.
    """

    whole: Sequences
    windows: Sequences | None = None
    order: NDArray[np.intp] | None = None
    tokens: NDArray[np.intp] | None = None
    places: Int32s | None = None

    def of_layer(self, layers: Layers, layer: int) -> Sequences:
        """Return what sees each other in a layer."""
        return self.whole if self.windows is None or layer in layers.full_layers else self.windows


def most_sequences(vision: VisionDescription, tiles: int) -> int:
    """Return how many sequences a run has at the most."""
    if vision.layers.first_stage:
        return 2
    return vision.tile_tokens if vision.layers.window else tiles


def most_blocks(vision: VisionDescription, tiles: int) -> int:
    """Return how many blocks for keys and values a run takes at the most."""
    spare = _SPARE_BLOCKS if vision.layers.window else 0
    return tiles * -(-vision.tile_rows // BLOCK_TOKENS) + spare


def arrange(vision: VisionDescription, tiles: int, height: int, width: int) -> Arrangement:
    """Return the order of so many tiles of so many pixels."""
    if vision.tiling.kind not in ("any", "mixed", "halves"):
        return Arrangement(sequences_of([vision.tile_rows] * tiles))
    factor, patch = vision.reduction.factor, vision.patch
    rows, columns = height // patch // factor, width // patch // factor  # of tokens
    tokens, lengths = _by_windows(rows, columns, vision.layers.window // patch // factor)
    above, left = (place[:, None] * factor for place in np.divmod(tokens, columns))
    down, across = np.divmod(np.arange(factor**2), factor)
    row, column = (above + down).reshape(-1), (left + across).reshape(-1)
    places = np.stack([np.zeros_like(row), row, column]).astype(np.int32)
    windows = sequences_of([length * factor**2 for length in lengths]) if vision.layers.window else None
    order = row * columns * factor + column
    return Arrangement(sequences_of([len(row)]), windows, order, np.argsort(tokens), places)


def _by_windows(rows: int, columns: int, side: int) -> tuple[NDArray[np.intp], list[int]]:
    """Return the tokens of a grid window by window, each in rows from above, and how many each window has. ``side``: of
    a window, in tokens; 0: all are one window."""
    grid = np.arange(rows * columns).reshape(rows, columns)
    if not side:
        return grid.reshape(-1), [rows * columns]
    windows = [
        grid[top : top + side, left : left + side].reshape(-1)
        for top in range(0, rows, side)
        for left in range(0, columns, side)
    ]
    return np.concatenate(windows), [len(window) for window in windows]


def interpolated(table: Floats, side: int, rows: int, columns: int) -> Floats:
    """Return a square's learned rows ``[side², width]`` between which lie those of so many rows and columns of patches,
    ``[rows · columns, width]``, bilinearly: the corners of the two are the same."""
    (above, below, down), (left, right, across) = (_between(count, side) for count in (rows, columns))
    square = table.reshape(side, side, -1)
    down, across = down[:, None, None], across[None, :, None]
    upper = square[above][:, left] * (1 - across) + square[above][:, right] * across
    lower = square[below][:, left] * (1 - across) + square[below][:, right] * across
    return np.asarray(upper * (1 - down) + lower * down, np.float32).reshape(rows * columns, -1)


def resampled(table: Floats, side: int, rows: int, columns: int) -> Floats:
    """Return a square's learned rows ``[side², width]`` as an image of so many rows and columns, ``[rows · columns,
    width]``: bilinearly, over as many as become one where it has fewer (as PIL resizes)."""
    down, across = _triangles(rows, side), _triangles(columns, side)
    square = np.tensordot(across, table.reshape(side, side, -1), (1, 1))  # [columns, side, width]
    found = np.tensordot(down, square, (1, 1))  # [rows, columns, width]
    return np.asarray(found, np.float32).reshape(rows * columns, -1)


def _triangles(count: int, side: int) -> Floats:
    """Return by how much each of ``side`` places counts in each of ``count`` places between the same edges,
    ``[count, side]``."""
    step = side / count
    reach = max(step, 1.0)
    centers = (np.arange(count) + 0.5) * step
    found = np.maximum(0.0, 1.0 - np.abs(np.arange(side) + 0.5 - centers[:, None]) / reach)
    return np.asarray(found / found.sum(axis=1, keepdims=True), np.float32)


def bucketed(table: Floats, side: int, rows: int, columns: int) -> Floats:
    """Return of a square's learned rows ``[side², width]`` those that so many rows and columns of patches are in,
    ``[rows · columns, width]``, where the square is as large as the image."""
    edges = ((np.arange(math.ceil((1.0 - 1 / side) / (1 / side))) + 1) * (1 / side)).astype(np.float32)
    down, across = (
        np.searchsorted(edges, np.minimum(_shares(count), np.float32(1 - 1e-6)), side="right")
        for count in (rows, columns)
    )
    return np.asarray(table[(down[:, None] * side + across[None]).reshape(-1)], np.float32)


def _shares(count: int) -> Floats:
    return np.arange(count, dtype=np.float32) * (np.float32(1.0) / np.float32(count))


def axial(table: Floats, side: int, rows: int, columns: int) -> Floats:
    """Return the sums of a learned row of a patch's column and one of its row, ``[rows · columns, width]``. ``table``:
    ``side`` rows for columns, and as many for rows."""
    across, down = table[:columns], table[side : side + rows]
    return (across[None] + down[:, None]).reshape(rows * columns, -1)


def _between(count: int, side: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """Return of ``count`` places from the first of ``side`` to the last the ones before and after, and the share of the
    one after."""
    place = np.arange(count, dtype=np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1))
    before = np.floor(place).astype(np.intp)
    return before, np.minimum(before + 1, side - 1), place - before.astype(np.float32)


def sequences_of(lengths: list[int]) -> Sequences:
    """Return sequences of so many rows, one after the other, each from position 0 in blocks of its own."""
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    blocks = [-(-length // BLOCK_TOKENS) for length in lengths]
    tables, first = np.zeros((len(lengths), max(blocks)), np.int32), 0
    for table, count in zip(tables, blocks, strict=True):
        table[:count] = np.arange(first, first + count)
        first += count
    return Sequences(positions, starts, tables)
