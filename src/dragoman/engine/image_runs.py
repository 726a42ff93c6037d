"""Images that layers of a decoder look at (Mllama): which of them each token of a prompt sees.

A token sees the last image before it, or that it stands for, and those whose tokens are directly before that one. Such
a run of images is one input: a token sees all of it, or, where the token is one of the run's own, the images up to its
own.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from dragoman.core.images import PlacedImage
from dragoman.engine.kv_cache import block_hash


class ImageRun(NamedTuple):
    """Images whose tokens follow one another.

    Attributes:
        images: their numbers. first, end: the tokens that see them: the end is the next run's first, or None.
        rows: positions of keys and values, of all images up to each.
        digest: of the images, and of how many earlier runs have the same.
    """

    images: range
    first: int
    end: int | None
    rows: tuple[int, ...]
    digest: bytes

    @property
    def length(self) -> int:
        """Positions of keys and values."""
        return self.rows[-1]


class View(NamedTuple):
    """What a token sees: the number of a run, and its first positions."""

    run: int
    length: int


def runs_of(placed: Sequence[PlacedImage], rows_per_tile: int) -> list[ImageRun]:
    """Return the runs of a prompt's images."""
    starts = [index for index, each in enumerate(placed) if not index or each.start != placed[index - 1].end]
    found, seen = [], Counter[bytes]()
    for first, end in pairwise([*starts, len(placed)]):
        rows, total = [], 0
        for each in placed[first:end]:
            total += each.tiles.tiles * rows_per_tile
            rows.append(total)
        images = b"".join(each.tiles.digest for each in placed[first:end])
        seen[images] += 1
        digest = hashlib.blake2b(images, key=seen[images].to_bytes(4, "little"), digest_size=16).digest()
        follows = placed[end].start if end < len(placed) else None
        found.append(ImageRun(range(first, end), placed[first].start, follows, tuple(rows), digest))
    return found


class LookedAtImages:
    """The runs of one prompt. ``runs``: in their order."""

    def __init__(self, placed: Sequence[PlacedImage], rows_per_tile: int) -> None:
        self.runs = runs_of(placed, rows_per_tile)
        self._names: dict[tuple[int, bytes], list[bytes]] = {}
        self._starts = [each.start for each in placed]
        self._views = [View(number, rows) for number, run in enumerate(self.runs) for rows in run.rows]

    def view(self, place: int) -> View | None:
        """Return what the token at a place sees; None: no image."""
        index = bisect_right(self._starts, place)
        return self._views[index - 1] if index else None

    def next_change(self, place: int) -> int | None:
        """Return the first place after this one whose token sees other images."""
        index = bisect_right(self._starts, place)
        return self._starts[index] if index < len(self._starts) else None

    def needed(self, computed: int) -> list[int]:
        """Return the numbers of the runs that tokens after the first ``computed`` see."""
        return [number for number, run in enumerate(self.runs) if run.end is None or run.end > computed]

    def block_names(self, number: int, seed: bytes, count: int) -> list[bytes]:
        """Return the names of a run's blocks. ``seed``: of its sequence's."""
        names = self._names.get((number, seed))
        if names is None:
            name = hashlib.blake2b(b"images" + self.runs[number].digest, key=seed, digest_size=16).digest()
            names = self._names[number, seed] = [block_hash(name, (index,)) for index in range(count)]
        return names
