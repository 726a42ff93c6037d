"""Images of prompts: when the tower computes their embeddings, and for how long these are kept.

A prompt's images are computed while its first sequence waits, one sequence's at a time, in the order in which callers
take turns. The tower runs in parts, at the beginning of steps: of a step with decode rows it takes no longer than a
chunk of prompts does, and such a step computes no chunk. Embeddings are kept by the digest of the image in a cache of
bounded size; those of a sequence that waits or computes its prompt are its own until it has done so. A prefix of the
prefix cache needs none: the names of its blocks have the digests of the images in them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dragoman.core.service import PROMPT_COST
from dragoman.engine.arrays import Float32
from dragoman.engine.fair_queue import FairQueue, Share
from dragoman.engine.prompt_images import Tower, prepared
from dragoman.engine.sequence import Sequence, Status

FAILED = "the model gave no valid embeddings of an image"
IDLE_SLICE_S = 0.05
"""Time that the tower takes of a step without decode rows. Messages wait as long."""


class _Work:
    """The image that the tower computes now. ``longest_s``: of its parts so far."""

    def __init__(self, digest: bytes, parts: Iterator[Float32 | None]) -> None:
        self.digest, self.parts = digest, parts
        self.longest_s = 0.0


class ImageEncoder:
    """Computes the images of waiting sequences.

    Attributes:
        groups: unfinished requests with images. target: the sequence whose images are computed next; None: there is
            none. takes_turn: the next step with decode rows runs the tower, and no prompts.
        encoded, found: images computed, and found in the cache. seconds: computing them.
            service: as prompt tokens. cached_bytes: of the cache.
    """

    def __init__(
        self, tower: Tower | None, limit_bytes: int, needed: Callable[[Sequence], list[int]], *, shared: bool
    ) -> None:
        """``needed`` returns which images a sequence that waits or has just started needs. ``shared``: embeddings are
        kept for other requests."""
        self._tower = tower
        self._limit_bytes = limit_bytes if shared else 0
        self._needed = needed
        self._cache: OrderedDict[bytes, Float32] = OrderedDict()
        self._work: _Work | None = None
        self.groups = 0
        self.target: Sequence | None = None
        self.takes_turn = False
        self.encoded = self.found = self.service = self.cached_bytes = 0
        self.seconds = 0.0
        self._prompt_token_s = 0.0

    # What sequences have ---------------------------------------------------------------------------------------------

    def must_wait(self, sequence: Sequence) -> bool:
        """Return whether images that a waiting sequence has to compute are not there yet."""
        return sequence.group.images is not None and bool(self._missing(sequence))

    def _missing(self, sequence: Sequence) -> list[int]:
        """Return which of its images have to be computed before it can start."""
        images = sequence.group.images
        assert images is not None
        held = sequence.image_values
        return [
            index for index in self._needed(sequence) if index not in held and images.digest(index) not in self._cache
        ]

    def start(self, sequence: Sequence) -> None:
        """Give a sequence that starts the embeddings of the images that it computes."""
        images = sequence.group.images
        if images is None:
            return
        held, needed = sequence.image_values, self._needed(sequence)
        sequence.image_values = {
            index: held[index] if index in held else self._find(images.digest(index)) for index in needed
        }

    def _find(self, digest: bytes) -> Float32:
        self._cache.move_to_end(digest)
        self.found += 1
        return self._cache[digest]

    @staticmethod
    def release(sequence: Sequence) -> None:
        """Free what a sequence has that neither waits nor runs any more, or has computed its prompt."""
        if sequence.image_values:
            sequence.image_values = {}

    # Which images ----------------------------------------------------------------------------------------------------

    def choose(self, waiting: FairQueue[Sequence], must_wait: Callable[[Sequence], bool]) -> None:
        """Choose the waiting sequence whose images are computed next, before each step. ``must_wait`` returns whether
        another sequence computes what this one will share."""
        if not self.groups:
            self.target = self._work = None
            return
        target = self.target
        if target is None or target.status is not Status.WAITING or not self._missing(target):
            self.target = target = self._next(waiting, must_wait)
        if target is None:
            self._work = None
            return
        images, missing = target.group.images, self._missing(target)
        assert images is not None
        for index in self._needed(target):
            if index not in missing and index not in target.image_values:
                target.image_values[index] = self._find(images.digest(index))
        tiles = images.placed[missing[0]].tiles
        if self._work is None or self._work.digest != tiles.digest:
            assert self._tower is not None
            self._work = _Work(tiles.digest, iter(self._tower.encode_steps(prepared(tiles))))

    def _next(self, waiting: FairQueue[Sequence], must_wait: Callable[[Sequence], bool]) -> Sequence | None:
        """Return the first sequence that waits for images, of the first caller that has no other one waiting whose
        images are computed. Those that wait with theirs hold no more than the cache does, but for the first."""
        held = sum(values.nbytes for sequence in waiting for values in sequence.image_values.values())
        for share in waiting.by_rank():
            if share.max_running is not None and share.running >= share.max_running:
                continue
            sequence = self._first(share, must_wait)
            if sequence is not None and (not held or held <= self._limit_bytes):
                return sequence
        return None

    def _first(self, share: Share[Sequence], must_wait: Callable[[Sequence], bool]) -> Sequence | None:
        for sequence in share.waiting:
            if sequence.group.images is None or must_wait(sequence):
                continue
            if self._missing(sequence):
                return sequence
            if sequence.image_values:
                return None  # it waits for memory
        return None

    def turn(self, *, has_both: bool) -> Sequence | None:
        """Return the sequence that a step computes a part of an image for; None: it has decode rows and prompts both,
        and the next one computes an image."""
        self.takes_turn = has_both and self.target is not None
        return None if has_both else self.target

    # Computing -------------------------------------------------------------------------------------------------------

    def note_prompt(self, seconds: float, tokens: int) -> None:
        """Note how long a step with many prompt tokens took."""
        self._prompt_token_s = seconds / tokens

    def run(self, chunk_tokens: int | None) -> str:
        """Compute parts of the target's next image: one at least, and as many as take no longer than a chunk of so many
        tokens; None: nobody waits for the step. Returns why the target's request fails; empty: it does not."""
        slice_s = IDLE_SLICE_S if chunk_tokens is None else chunk_tokens * self._prompt_token_s
        work, target = self._work, self.target
        assert work is not None
        assert target is not None
        began = started = time.perf_counter()
        values: Float32 | None = None
        while values is None:
            try:
                values = next(work.parts)
            except ValueError as error:  # tiles of another shape than the tower's
                self._work = None
                return f"an image cannot be computed: {error}"
            now = time.perf_counter()
            work.longest_s = max(work.longest_s, now - started)
            started = now
            if now + work.longest_s > began + slice_s:
                break
        self.seconds += started - began
        if values is None:
            return ""
        self._work = None
        if not np.isfinite(values).all():
            return FAILED
        self._finish(target, work.digest, values)
        return ""

    def stats(self) -> dict[str, Any]:
        """Return the fields of ``EngineStats``."""
        return {
            "encoded_images": self.encoded,
            "found_images": self.found,
            "image_service": self.service,
            "image_s": self.seconds,
            "image_cache_bytes": self.cached_bytes,
        }

    def _finish(self, target: Sequence, digest: bytes, values: Float32) -> None:
        images = target.group.images
        assert images is not None
        self.encoded += 1
        first = None
        for index in range(len(images.placed)):
            if images.digest(index) == digest:
                first = index if first is None else first
                target.image_values[index] = values
        assert first is not None
        service = images.placed[first].tiles.service
        self.service += service
        target.share.charge(PROMPT_COST * service)
        if values.nbytes <= self._limit_bytes:
            self._cache[digest] = values
            self.cached_bytes += values.nbytes
            while self.cached_bytes > self._limit_bytes:
                self.cached_bytes -= self._cache.popitem(last=False)[1].nbytes
