"""Images that layers of a decoder look at: which of them each token of a prompt sees.

A token sees the last image before it, or that it stands for, and in Mllama those whose tokens are directly before that
one. Such a run of images is one input: a token sees all of it, or, where the token is one of the run's own, the images
up to its own. In Idefics each image is a run, and what follows the end of a text sees none.
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
from dragoman.models.vision.description import VisionDescription


class ImageRun(NamedTuple):
    """Images whose tokens follow one another.

    Attributes:
        images: their numbers. first, end: the tokens that see them: the end is the next run's first, or the place after
            the end of a text, or None.
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


def runs_of(placed: Sequence[PlacedImage], vision: VisionDescription, prompt: Sequence[int]) -> list[ImageRun]:
    """Return the runs of a prompt's images."""
    if vision.cross_attention_alone:
        starts = list(range(len(placed)))
    else:
        starts = [index for index, each in enumerate(placed) if not index or each.start != placed[index - 1].end]
    found, seen = [], Counter[bytes]()
    for first, end in pairwise([*starts, len(placed)]):
        rows, total = [], 0
        for each in placed[first:end]:
            total += each.tiles.tiles * vision.cross_attention_rows
            rows.append(total)
        images = b"".join(each.tiles.digest for each in placed[first:end])
        seen[images] += 1
        digest = hashlib.blake2b(images, key=seen[images].to_bytes(4, "little"), digest_size=16).digest()
        follows = placed[end].start if end < len(placed) else None
        if vision.cross_attention_until is not None:
            follows = _place_after(prompt, vision.cross_attention_until, placed[end - 1].end, follows)
        found.append(ImageRun(range(first, end), placed[first].start, follows, tuple(rows), digest))
    return found


def _place_after(prompt: Sequence[int], token: int, first: int, end: int | None) -> int | None:
    """Return the place after the first such token from ``first`` on, or ``end`` where there is none before that. After
    the prompt's last token others see what it sees."""
    last = len(prompt) - 1 if end is None else end
    return next((place + 1 for place in range(first, last) if prompt[place] == token), end)


class CrossAttentionImages:
    """The runs of one prompt. ``runs``: in their order."""

    def __init__(self, placed: Sequence[PlacedImage], vision: VisionDescription, prompt: Sequence[int]) -> None:
        self.runs = runs_of(placed, vision, prompt)
        self._names: dict[tuple[int, bytes], list[bytes]] = {}
        changes: dict[int, View | None] = {}
        for number, run in enumerate(self.runs):
            for index, rows in zip(run.images, run.rows, strict=True):
                changes[placed[index].start] = View(number, rows)
            if run.end is not None:
                changes[run.end] = None  # until the next run, which may begin there
        self._starts, self._views = list(changes), list(changes.values())

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
