"""Rules of SentencePiece that more than one kind of file needs.

Its compiled map of characters, by which texts are rewritten before they are divided, is a trie as an array. The
tokenizers library follows it without looking, so it is checked here. And the library's unigram models find all pieces
in a text, those too that stand for no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dragoman.core.lazy_imports import np

_LARGEST = 16 << 20  # XLM-RoBERTa's has 317 KB
_IS_VALUE = 1 << 31


def charsmap_problem(stored: bytes) -> str:
    """Return what is wrong with a map; empty where every place that it leads to exists.

    It is the number of bytes of the trie, the trie's units of 32 bits, and the texts. Of a unit the lowest byte is the
    letter that leads to it, and what is above bit 9 the distance to its children, times 256 with that bit. With bit 8
    the child of letter 0 has a place in the texts, and bit 31.
    """
    if len(stored) > _LARGEST:
        return f"has {len(stored)} bytes, more than {_LARGEST:,}"
    size = int.from_bytes(stored[:4], "little")
    if len(stored) < 8 or size % 4 or not 4 <= size <= len(stored) - 4:
        return f"says that its trie has {size} of its {len(stored)} bytes"
    units = np.frombuffer(stored, "<u4", size // 4, 4)
    texts = np.frombuffer(stored, np.uint8, offset=4 + size)
    try:
        stored[4 + size :].decode()
    except UnicodeDecodeError:
        return "has texts that are not UTF-8"
    is_node = (units & np.uint32(_IS_VALUE)) == 0
    is_node[0] = True  # the root, by whatever bits it has
    nodes = np.flatnonzero(is_node).astype(np.int64)
    found = units[nodes].astype(np.int64)
    children = nodes ^ ((found >> 10) << ((found >> 6) & 8))
    if (children | 255).max(initial=0) >= len(units):
        return "leads out of its trie"
    places = units[children[(found >> 8) & 1 == 1]] & np.uint32(~_IS_VALUE & 0xFFFFFFFF)
    if places.size and (places.max() >= texts.size or (texts[places] & 0xC0 == 0x80).any()):
        return "leads out of its texts"
    return ""


def pattern_between(pieces: Iterable[str]) -> str | None:
    """Return the pattern of the places within these pieces at which a text is cut, so that none of them is found in it;
    None where there are none. A byte's are one alternative together."""
    later: dict[str, dict[str, None]] = {}
    for piece in pieces:
        if len(piece) > 1:
            rest = "0x[0-9A-F]{2}>" if _BYTE.fullmatch(piece) else re.escape(piece[1:])
            later.setdefault(piece[0], {})[rest] = None
    # What follows is looked at only after a first character: there may be hundreds of pieces.
    parts = (rf"(?<={re.escape(first)})(?={'|'.join(rests)})" for first, rests in later.items())
    return "|".join(parts) or None


_BYTE = re.compile("<0x[0-9A-F]{2}>")
