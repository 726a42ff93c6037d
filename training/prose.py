"""Public-domain prose: books cut into a training and a held-out share, and passages drawn from them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

PARTS = 24
HELD_OUT_PART = 12  # one contiguous part of each book, so that no held-out line has trained neighbours within it


@dataclass(frozen=True)
class Stretch:
    """Unbroken text as token ids, with the places where a paragraph begins."""

    ids: list[int]
    starts: list[int]


@dataclass(frozen=True)
class Prose:
    """One share of the prose: its stretches for long passages, its paragraphs for short ones."""

    stretches: list[Stretch]
    paragraphs: list[str]

    @property
    def num_tokens(self) -> int:
        return sum(len(stretch.ids) for stretch in self.stretches)

    def passage(self, rng: Random, length: int) -> list[int]:
        """Up to `length` tokens from the start of a random paragraph."""
        stretch = rng.choices(self.stretches, [len(each.ids) for each in self.stretches])[0]
        start = rng.choice(stretch.starts)
        return stretch.ids[start : start + length]


def read_books(folder: Path) -> list[str]:
    """The plain-text books of a folder, in the order of their names, with Unix line ends."""
    books = [path.read_text(encoding="utf-8").replace("\r\n", "\n") for path in sorted(folder.glob("*.txt"))]
    if not books:
        raise FileNotFoundError(f"no .txt files in {folder}")
    return books


def split_books(books: Sequence[str]) -> tuple[list[str], list[str]]:
    """The training stretches and the held-out stretches."""
    training: list[str] = []
    held_out: list[str] = []
    for book in books:
        edges = [0, *(_paragraph_after(book, len(book) * part // PARTS) for part in range(1, PARTS)), len(book)]
        first, last = edges[HELD_OUT_PART], edges[HELD_OUT_PART + 1]
        training += [book[:first], book[last:]]
        held_out.append(book[first:last])
    return [text for text in training if text.strip()], held_out


def encode_prose(texts: Sequence[str], tokenizer: Tokenizer) -> Prose:
    stretches: list[Stretch] = []
    paragraphs: list[str] = []
    for text in texts:
        ids: list[int] = []
        starts: list[int] = []
        # Each piece keeps the blank lines after it; the tokenizer never joins text across them.
        for piece in re.findall(r"(?s).+?(?:\n\n+|\Z)", text.strip() + "\n"):
            starts.append(len(ids))
            ids += tokenizer.encode(piece, add_special_tokens=False).ids
            paragraphs.append(piece.strip())
        stretches.append(Stretch(ids, starts))
    return Prose(stretches, paragraphs)


def _paragraph_after(book: str, position: int) -> int:
    found = book.find("\n\n", position)
    return len(book) if found < 0 else found + 2
