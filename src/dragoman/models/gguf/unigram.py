"""Tokenizer of T5 and XLM-RoBERTa from a GGUF file: of all ways to divide a text into pieces that with the best sum of
scores (Kudo 2018, https://arxiv.org/abs/1804.10959).

Texts are first rewritten by a map of characters that SentencePiece has compiled: a trie as an array, whose results are
places in a block of texts. The library follows it without looking, so all places are checked here.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.models.gguf.metadata import Metadata

Json = dict[str, Any]

DEFAULT_IDS = {"eos_token": 1, "unk_token": 2, "pad_token": 0}
"""Special tokens of files that do not name them: T5's."""

_SPACE = "▁"
_CHARSMAP = "precompiled_charsmap"
_LARGEST_CHARSMAP = 16 << 20  # XLM-RoBERTa's has 317 KB
_IS_VALUE = np.uint32(1 << 31)


def unigram_pieces(keys: Metadata, tokens: list[str], special: list[int], unknown: int | None) -> Json:
    """Return the pipeline over tokens, of which the ``special`` ones are not found as pieces.

    Raises ModelError naming a wrong key.
    """
    for key in ("pre", "merges"):  # llama.cpp does not use them here either
        keys.has(key)
    scores = keys.numbers("scores", len(tokens))
    if scores is None:
        raise keys.file.fail("tokenizer.ggml.scores", "is missing")
    if unknown is None:
        raise keys.file.fail("tokenizer.ggml.unknown_token_id", "is missing")
    numbers = scores.astype(np.float64)
    pieces = np.delete(numbers, special)
    numbers[special] = pieces.min(initial=0.0)  # an unknown character costs 10 more than the worst piece
    prefix = keys.flag("add_space_prefix", True)
    spaces: list[Json] = []
    if keys.flag("remove_extra_whitespaces", False):
        spaces = [_replace(r" +", " "), _replace(r"^ | $", "")]
    before = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    marks = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    decoders = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "Fuse"}, *after]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*_characters(keys), *spaces, *before, marks]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": False,
            "vocab": [[token, float(score)] for token, score in zip(tokens, numbers, strict=True)],
        },
    }


def _replace(pattern: str, content: str) -> Json:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _characters(keys: Metadata) -> list[Json]:
    """Return the normalizer of the map of characters; none where the file has no map."""
    value = keys.value(_CHARSMAP)
    if value is None:
        return []
    if not isinstance(value, np.ndarray) or value.dtype.itemsize != 1 or value.dtype.kind not in "iu":
        raise keys.file.fail(f"tokenizer.ggml.{_CHARSMAP}", "must be an array of bytes")
    if not value.size:
        return []
    if problem := _damage(value.view(np.uint8)):
        raise keys.file.fail(f"tokenizer.ggml.{_CHARSMAP}", problem)
    return [{"type": "Precompiled", _CHARSMAP: base64.b64encode(value.tobytes()).decode()}]


def _damage(stored: NDArray[np.uint8]) -> str:
    """Return what is wrong with a map; empty where every place that it leads to exists.

    It is the number of bytes of the trie, the trie's units of 32 bits, and the texts. Of a unit the lowest byte is the
    letter that leads to it, and what is above bit 9 the distance to its children, times 256 with that bit. With bit 8
    the child of letter 0 has a place in the texts, and bit 31.
    """
    if stored.size > _LARGEST_CHARSMAP:
        return f"has {stored.size} bytes, more than {_LARGEST_CHARSMAP:,}"
    size = int.from_bytes(stored[:4].tobytes(), "little")
    if stored.size < 8 or size % 4 or not 4 <= size <= stored.size - 4:
        return f"says that its trie has {size} of its {stored.size} bytes"
    units = stored[4 : 4 + size].view("<u4")
    texts = stored[4 + size :]
    try:
        texts.tobytes().decode()
    except UnicodeDecodeError:
        return "has texts that are not UTF-8"
    nodes = np.flatnonzero((units & _IS_VALUE) == 0).astype(np.int64)
    found = units[nodes].astype(np.int64)
    children = nodes ^ ((found >> 10) << ((found >> 6) & 8))
    if (children | 255).max(initial=0) >= len(units):
        return "leads out of its trie"
    places = units[children[(found >> 8) & 1 == 1]] & ~_IS_VALUE
    if places.size and (places.max() >= texts.size or (texts[places] & 0xC0 == 0x80).any()):
        return "leads out of its texts"
    return ""
