"""Images in a request's prompt: which of its tokens stand for them, and what follows from them for all others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from dragoman.core.errors import BadRequest, ContextOverflow
from dragoman.core.images import ImageTiles
from dragoman.core.request import EngineRequest
from dragoman.engine.arrays import Float32, Int32
from dragoman.engine.image_runs import CrossAttentionImages, runs_of
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import Detail, Grid, Size, are_tiles, cut_of, embedding_count
from dragoman.models.vision.places import position_shift, rotary_positions, seen_ends
from dragoman.models.vision.preprocess import PreparedImage

_DETAILS: tuple[Detail, ...] = ("auto", "low")  # ``high`` is as ``auto``


class Tower(Protocol):
    """What makes embeddings of images."""

    @property
    def vision(self) -> VisionDescription: ...
    def encode_steps(self, prepared: PreparedImage) -> Iterator[Float32 | None]:
        """Compute an image in parts: yield None after each, and last its embeddings ``[embeddings, hidden]``."""


def prepared(tiles: ImageTiles) -> PreparedImage:
    """Return an image as a tower takes it."""
    return PreparedImage(
        pixels=np.frombuffer(tiles.pixels, np.uint8).reshape(tiles.tiles, 3, tiles.height, tiles.width),
        grid=Grid(tiles.rows, tiles.columns, Size(tiles.image_height, tiles.image_width)),
        tokens=tiles.tokens,
        embeddings=tiles.embeddings,
    )


class PromptImages:
    """The images of one request's prompt, whose sequences share them. ``placed``: in their order."""

    def __init__(self, request: EngineRequest, vision: VisionDescription) -> None:
        self.placed = request.images
        ids = np.array(request.prompt, np.int32)
        self._places = [
            np.flatnonzero(ids[each.start : each.end] == ids[each.start]).astype(np.int32) + np.int32(each.start)
            for each in self.placed
        ]
        """The tokens that stand for each image's embeddings."""
        self._salts: dict[int, bytes] = {
            each.start: each.start.to_bytes(8, "little") + each.tiles.digest for each in self.placed
        }
        """By the first token that depends on it, what names a block besides its tokens."""
        self._whole = [(each.start, each.end) for each in self.placed] if vision.both_ways == "image" else []
        if vision.both_ways == "prompt":
            self._whole = [(0, len(ids))]
            whole = hashlib.blake2b(ids.tobytes() + b"".join(self._salts.values()), digest_size=16)
            self._salts = {0: whole.digest()}
        self.cross_attention = (
            CrossAttentionImages(self.placed, vision, request.prompt) if vision.cross_attention_layers else None
        )
        """Which images each token sees, where layers look at them: their embeddings then replace no tokens."""
        self._rotary: Int32 | None = None
        self._shift = 0
        if vision.rotary_sections:
            grids = [(each.start, prepared(each.tiles).grid) for each in self.placed]
            self._rotary = rotary_positions(grids, len(ids))
            self._shift = position_shift(grids)

    @property
    def rotates(self) -> bool:
        """Whether its tokens are rotated by positions of their own."""
        return self._rotary is not None

    def digest(self, index: int) -> bytes:
        """Return the digest of an image."""
        return self.placed[index].tiles.digest

    def after(self, computed: int) -> list[int]:
        """Return which images have tokens after the first ``computed``."""
        return [index for index, each in enumerate(self.placed) if each.end > computed]

    def salt(self, start: int, end: int) -> bytes:
        """Return what the name of the block of these tokens depends on besides them, and the names before it."""
        return b"".join(salt for place, salt in self._salts.items() if start <= place < end)

    def whole_end(self, start: int, end: int) -> int:
        """Return where a step that computes the tokens from ``start`` on ends, which would end at ``end``: before
        tokens that see each other both ways, or after them where it begins within; and before a token that sees other
        images."""
        if self.cross_attention is not None:
            change = self.cross_attention.next_change(start)
            return end if change is None else min(end, change)
        for begin, stop in self._whole:
            if begin < end < stop:
                return begin if begin > start else stop
        return end

    def values(self, held: dict[int, Float32], start: int, end: int) -> Iterator[tuple[Int32, Float32]]:
        """Yield the places of the tokens from ``start`` to before ``end`` that stand for embeddings, and these, image
        by image. ``held``: the embeddings of those images."""
        for index, places in enumerate(self._places if self.cross_attention is None else ()):
            first, last = np.searchsorted(places, (start, end))
            if first < last:
                yield places[first:last], held[index][first:last]

    def seen_ends(self, first: int, count: int) -> Int32 | None:
        """Return where what each of these tokens sees ends; None: after its own."""
        if not any(begin < first + count and end > first + 1 for begin, end in self._whole):
            return None
        return seen_ends(self._whole, first, count)

    def rotary_positions(self, first: int, count: int) -> Int32:
        """Return the positions ``[3, count]`` that the tokens from ``first`` on are rotated by."""
        assert self._rotary is not None
        known = self._rotary[:, first : first + count]
        begin = first + known.shape[1]
        later = np.arange(begin + self._shift, first + count + self._shift, dtype=np.int32)
        return np.concatenate([known, np.broadcast_to(later, (3, len(later)))], axis=1)


def images_of(request: EngineRequest, tower: Tower | None) -> PromptImages | None:
    """Return the images of a request that was checked; None where it has none."""
    return PromptImages(request, tower.vision) if request.images and tower is not None else None


def cross_attention_blocks(request: EngineRequest, tower: Tower | None, block_size: int) -> int:
    """Return how many blocks the images of a request take, where layers look at them."""
    if tower is None or not tower.vision.cross_attention_layers:
        return 0
    return sum(-(-run.length // block_size) for run in runs_of(request.images, tower.vision, request.prompt))


def check_images(request: EngineRequest, tower: Tower | None, step_tokens: int, rows: int) -> None:
    """Raise BadRequest or ContextOverflow where the images of a request are not what the tower takes, or cannot be
    computed in steps of so many tokens, ``rows`` of which belong to other sequences."""
    if not request.images:
        return
    if tower is None:
        raise BadRequest("the model sees no images")
    if request.encoder_input or request.embeddings is not None or request.pooling is not None:
        raise BadRequest("a prompt with images can neither be pooled nor have other embeddings")
    vision, before, prompt = tower.vision, 0, request.prompt
    longest = 0
    for image in request.images:
        if not before <= image.start < image.end <= len(prompt):
            raise BadRequest("images must be within the prompt, one after the other")
        span = prompt[image.start : image.end]
        if {span[0], span[-1]} != {vision.tags.image_id} or span.count(span[0]) != image.tiles.embeddings:
            raise BadRequest("an image has as many tokens in the prompt as embeddings")
        if vision.rotary_sections and len(span) != image.tiles.embeddings:
            raise BadRequest("the tokens of an image must follow one another")
        _check_tiles(image.tiles, vision)
        before, longest = image.end, max(longest, len(span))
    if vision.both_ways == "none":
        return
    if request.logprobs is not None and request.logprobs.prompt:
        raise BadRequest("the log-probabilities of a prompt are not known where its tokens see later ones")
    whole = len(prompt) if vision.both_ways == "prompt" else longest
    if whole > step_tokens - rows:
        what = "a prompt with images" if vision.both_ways == "prompt" else "an image"
        raise ContextOverflow(
            f"{what} of {whole} tokens is computed in one step, and a step has {step_tokens - rows} for it"
        )


def _check_tiles(tiles: ImageTiles, vision: VisionDescription) -> None:
    sizes = (tiles.tiles, tiles.height, tiles.width, tiles.image_height, tiles.image_width)
    if not tiles.is_sound or min(sizes) < 1 or min(tiles.rows, tiles.columns, tiles.service, tiles.tokens) < 0:
        raise BadRequest("an image is not what its digest is of")
    grid = Grid(tiles.rows, tiles.columns, Size(tiles.image_height, tiles.image_width))
    try:
        cuts = [cut_of(tiles.image_width, tiles.image_height, vision, detail) for detail in _DETAILS]
    except ValueError as error:
        raise BadRequest(f"an image cannot be computed: {error}") from None
    fits = any(cut.grid == grid and cut.tiles == tiles.tiles for cut in cuts)
    fits = fits and are_tiles(tiles.tiles, tiles.height, tiles.width, grid, vision)
    if not fits or embedding_count(grid, tiles.tiles, vision) != tiles.embeddings:
        raise BadRequest("an image is not cut as the model's tower takes it")
