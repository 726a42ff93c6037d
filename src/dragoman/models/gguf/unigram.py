"""Tokenizer of T5 and XLM-RoBERTa from a GGUF file: of all ways to divide a text into pieces that with the best sum of
scores (Kudo 2018, https://arxiv.org/abs/1804.10959).
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from dragoman.core.sentencepiece import charsmap_problem, pattern_between
from dragoman.models.gguf.metadata import Metadata

Json = dict[str, Any]

DEFAULT_IDS = {"eos_token": 1, "unk_token": 2, "pad_token": 0}
"""Special tokens of files that do not name them: T5's."""

_SPACE = "▁"
_CHARSMAP = "precompiled_charsmap"


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
    pattern = pattern_between(tokens[i] for i in special)
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
        "pre_tokenizer": None if pattern is None else _split(pattern),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": False,
            "vocab": [[token, float(score)] for token, score in zip(tokens, numbers, strict=True)],
        },
    }


def _split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


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
    if problem := charsmap_problem(value.tobytes()):
        raise keys.file.fail(f"tokenizer.ggml.{_CHARSMAP}", problem)
    return [{"type": "Precompiled", _CHARSMAP: base64.b64encode(value.tobytes()).decode()}]
