"""Random texts along a grammar, over a small vocabulary: every byte, and a few longer tokens across JSON's borders."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from dragoman.core.constraint import Constraint
from dragoman.core.vocabulary import Vocabulary
from dragoman.grammar.lark import grammar_of
from dragoman.grammar.matching import Matching

_WORDS = [
    '{"',
    '":',
    '": "',
    '", "',
    '"}',
    '"}]',
    "},",
    "[]",
    "{}",
    ", ",
    ": ",
    "true",
    "null",
    "false",
    "00",
    "-1",
    "12",
]
_WORDS += [
    "  ",
    "\n  ",
    "a",
    "ab",
    "the",
    " of",
    "value",
    "name",
    "\\n",
    '\\"',
    "\\\\",
    "é",
    "😀",
    "date",
    "20",
    "-0",
    "T1",
    ".5",
]
_TEXTS = [bytes([byte]) for byte in range(256)] + [word.encode() for word in _WORDS if len(word.encode()) > 1]
END = len(_TEXTS)
CALL = END + 1
VOCABULARY = Vocabulary(tokens=(*_TEXTS, b"<|end|>", b"<|call|>", b"", b""), special_ids=(END, CALL), end_ids=(END,))
MATCHING = Matching(VOCABULARY)

_CLOSING = np.array([token[-1:] in (b'"', b"}", b"]") for token in VOCABULARY.tokens])


class Walk(NamedTuple):
    """A text, and whether the grammar let it end there."""

    text: bytes
    complete: bool


def walk(constraint: Constraint, seed: int, most: int = 400, wander: int = 24) -> Walk:
    """One text. After ``wander`` tokens it hurries to its end. Fails where the grammar comes to a dead end."""
    matcher = MATCHING.matcher(grammar_of(constraint))
    assert not matcher.error, matcher.error
    rng = random.Random(seed)
    text = b""
    for step in range(most):
        allowed = matcher.allowed()
        assert not matcher.error, matcher.error
        assert len(allowed), f"nothing can follow {text!r}"
        token_id = int(rng.choice(allowed))
        if step > wander:
            closing = allowed[_CLOSING[allowed]]
            if allowed[-1] >= END and END in allowed:
                token_id = END
            elif len(closing) and rng.random() < 0.7:
                token_id = int(rng.choice(closing))
        if token_id == END:
            return Walk(text, True)
        text += VOCABULARY.tokens[token_id]
        if matcher.push(token_id):
            return Walk(text, True)
    return Walk(text, False)


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether the grammar lets a generation be exactly this text."""
    matcher = MATCHING.matcher(grammar_of(constraint))
    assert not matcher.error, matcher.error
    for byte in text.encode():
        if not matcher.mask()[byte]:
            return False
        if matcher.push(byte):
            return text.encode().endswith(bytes([byte]))
    return bool(matcher.mask()[END])
