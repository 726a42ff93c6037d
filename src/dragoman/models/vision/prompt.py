"""What takes the place of an image in a prompt: its tags, and its image token once for each embedding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import tile_embeddings
from dragoman.models.vision.preprocess import PreparedImage


class Tokenizer(Protocol):
    """The part of a tokenizer that tags need."""

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> Sequence[int]:
        """Return the token ids of a text."""


def expand(vision: VisionDescription, tokenizer: Tokenizer, prepared: PreparedImage) -> list[int]:
    """Return the token ids that replace one placeholder of the prompt: ``prepared.embeddings`` of them are the image
    token. Tags are encoded apart from the prompt's other text."""
    found: list[int] = []
    for tag, tokens in _runs(vision, prepared):
        if tag:
            found += tokenizer.encode(tag, add_special_tokens=False, parse_special=True)
        found += [vision.tags.image_id] * tokens
    return found


def with_text_tags(vision: VisionDescription, prompt: str) -> str:
    """Return a prompt with placeholders for images, with the tags that its text begins and ends with: PaliGemma's
    begins after the last image. A prompt without images is not changed, as one that has a text's first tag."""
    tags = vision.tags
    images, placeholder, text = prompt.rpartition(tags.placeholder)
    if not placeholder or (tags.text_start and text.startswith(tags.text_start)):
        return prompt
    return images + placeholder + tags.text_start + text + tags.text_end


def joined(vision: VisionDescription, pieces: Sequence[str], images: Sequence[PreparedImage]) -> str:
    """Return the text of a prompt: its pieces, and between them the images' replacements. There is one image fewer than
    pieces."""
    tags = vision.tags
    if tags.strips and images:
        pieces = [piece.strip(" ") for piece in pieces]
    whole = pieces[0]
    for prepared, piece in zip(images, pieces[1:], strict=True):
        whole += replacement(vision, prepared) + piece
    return whole.replace(2 * tags.once, tags.once) if tags.once else whole


def replacement(vision: VisionDescription, prepared: PreparedImage) -> str:
    """Return the text that replaces one placeholder in the text of a prompt, before that is encoded."""
    return "".join(tag + vision.tags.image * tokens for tag, tokens in _runs(vision, prepared))


def _runs(vision: VisionDescription, prepared: PreparedImage) -> list[tuple[str, int]]:
    """Return text, and how many image tokens follow it, one after the other."""
    tags, grid = vision.tags, prepared.grid
    if vision.tiling.kind == "any" and tags.row_end:
        rows = [(tags.row_end, grid.columns)] * (grid.rows - 1)
        return _joined([(tags.before, grid.columns), *rows, (tags.after, 0)])
    counts = [vision.tile_tokens] * (grid.rows * grid.columns + 1)
    if vision.tiling.kind == "mixed":
        counts = tile_embeddings(grid, vision)
    if not tags.tile or (vision.tiling.kind == "mixed" and not grid.rows):
        return _joined([(tags.before, prepared.embeddings), (tags.after, 0)])
    found = [(tags.before, 0)]
    for row in range(grid.rows):
        for column in range(grid.columns):
            found.append((tags.tile.format(row=row + 1, column=column + 1), counts[0]))
        found.append((tags.row_end, 0))
    if grid.rows:
        found.append((tags.rows_end, 0))
    return _joined([*found, (tags.whole, counts[-1]), (tags.after, 0)])


def _joined(runs: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the same runs with neighbouring texts as one: a tokenizer may have a token across them."""
    found = runs[:1]
    for (_, before), (text, tokens) in pairwise(runs):
        if before:
            found.append((text, tokens))
        else:
            found[-1] = (found[-1][0] + text, tokens)
    return found
