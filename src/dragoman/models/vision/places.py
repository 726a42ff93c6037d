"""What a decoder has to be told of an image's tokens: by which positions they are rotated, and what they see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman.core.lazy_imports import np
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import Grid

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rotary_positions(images: Sequence[tuple[int, Grid]], count: int) -> NDArray[np.int32]:
    """Return the positions ``[3, count]`` of a prompt's tokens, as Qwen2-VL has them (https://arxiv.org/abs/2409.12191,
    section 2.1).

    A token of text has the same position three times. Those of an image have one in time, and their rows and columns
    counted from there; what follows begins after the largest of these.

    Args:
        images: the place of each image's first token, and its grid, whose rows and columns are tokens; in their order.
        count: tokens of the prompt. That of a later one is its place and ``position_shift``.
    """
    found, place, position = [], 0, 0
    for first, grid in images:
        text = np.arange(position, position + first - place)
        found.append(np.tile(text, (3, 1)))
        position += first - place
        rows, columns = np.divmod(np.arange(grid.rows * grid.columns), grid.columns)
        found.append(position + np.stack([np.zeros_like(rows), rows, columns]))
        position += max(grid.rows, grid.columns)
        place = first + grid.rows * grid.columns
    found.append(np.tile(np.arange(position, position + count - place), (3, 1)))
    return np.concatenate(found, axis=1).astype(np.int32)


def rotary_axes(vision: VisionDescription) -> NDArray[np.int32]:
    """Return of each pair of a head's numbers the axis of the positions that it is rotated by, ``[pairs]``."""
    sections = vision.rotary_sections
    if not vision.rotary_interleaved:
        return np.repeat(np.arange(len(sections), dtype=np.int32), sections)
    axes = np.zeros(sum(sections), np.int32)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


def position_shift(images: Sequence[tuple[int, Grid]]) -> int:
    """Return by how much the positions of text after the images differ from its places: they are never greater."""
    return sum(max(grid.rows, grid.columns) - grid.rows * grid.columns for _, grid in images)


def seen_ends(images: Sequence[tuple[int, int]], first: int, count: int) -> NDArray[np.int32]:
    """Return the position before which each of ``count`` tokens from ``first`` on sees all, ``[count]``, where an
    image's tokens see each other both ways (Gemma 3): a step has all tokens of an image, or none.

    ``images``: the places of each image's first token and of the one after its last; where all tokens of a prompt with
    images see each other (PaliGemma), that prompt alone, from 0 to its end. What precedes ``first`` was computed by an
    earlier such step. Raises ValueError for an image that ends after this one.
    """
    found = np.arange(first + 1, first + count + 1, dtype=np.int32)
    for begin, end in images:
        if end <= first or begin >= first + count:
            continue
        if end > first + count:
            raise ValueError(f"tokens {begin} to {end - 1} of an image are not all before {first + count}")
        found[max(0, begin - first) : end - first] = end
    return found
