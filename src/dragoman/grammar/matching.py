"""Following a grammar token by token, with llguidance."""

from __future__ import annotations

from itertools import pairwise
from typing import Self

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from dragoman.core.vocabulary import Vocabulary

Mask = NDArray[np.uint8]

_LIMITS = LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=10_000,
    max_lexer_states=20_000,  # 1 to 2 kB each
    max_grammar_size=200_000,
    verbose_errors=False,
)

_DIVIDED = 4096
"""Texts whose tokens are remembered: the frames of a grammar come again with every answer."""
_FORCED_PARTS = 4
"""Forced texts with free blanks between them that are looked at together: `, "name": "` has three."""
_USUAL_BLANKS = {b'"': b": ", b":": b" ", b",": b" "}
"""What usually follows the last byte of a forced text, where that leaves a choice of blanks."""

# Replacements for llguidance's own terms.
_REWORDED = {
    "NoExtensionBias": "it reaches a point where no text can follow",
    "oneOf constraints": "'oneOf' is supported only where its alternatives visibly exclude each other",
}


class Matching:
    """Grammars over one vocabulary. Creating it takes about a second for 500,000 tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocab_size = len(vocabulary.tokens)
        self._divided: dict[bytes, list[int]] = {}
        self.end_ids = np.array(vocabulary.end_ids, np.intp)
        self._tokenizer = LLTokenizer(
            _Wrapper(vocabulary),  # type: ignore[arg-type]  # it asks for the attributes, not for the class
            n_vocab=self.vocab_size,
            eos_token=list(vocabulary.end_ids),
        )

    def problem(self, grammar: str) -> str:
        """Return why the grammar cannot be followed; empty if it can."""
        return self.matcher(grammar).error

    def divide(self, text: bytes) -> list[int]:
        """Return a text as the tokens that a model would most likely write, without bytes of a character that is not
        whole.

        Neighbours are joined as byte pair encoding does, the pair with the lowest id first: ids follow the order of
        merges in nearly all vocabularies.
        """
        if text not in self._divided:
            if len(self._divided) == _DIVIDED:
                self._divided.clear()
            self._divided[text] = self._joined(text.decode(errors="ignore"))
        return self._divided[text]

    def _joined(self, text: str) -> list[int]:
        parts = list(text)
        joined = [self._token_id(first + second) for first, second in pairwise(parts)]
        while (lowest := min((each for each in joined if each is not None), default=None)) is not None:
            place = joined.index(lowest)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
            joined[max(0, place - 1) : place + 2] = [
                self._token_id(first + second) for first, second in pairwise(parts[max(0, place - 1) : place + 2])
            ]
        return [token_id for part in parts for token_id in self._tokenizer.greedy_tokenize(part)]

    def _token_id(self, text: str) -> int | None:
        """Return the id of the token that is this text; None: there is none."""
        found = self._tokenizer.greedy_tokenize(text)
        return found[0] if len(found) == 1 else None

    def matcher(self, grammar: str) -> Matcher:
        """Return a matcher at the beginning of the text; it has an ``error`` for an invalid grammar. Releases
        the GIL."""
        source = LLMatcher.grammar_from_lark(grammar)
        return Matcher(LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS), self)


class Matcher:
    """The position of one text in its grammar. Its state follows from the grammar and the pushed tokens alone."""

    __slots__ = ("_bits", "_looks_ahead", "_matcher", "_matching")

    def __init__(self, matcher: LLMatcher, matching: Matching) -> None:
        self._matcher = matcher
        self._matching = matching
        self._looks_ahead = True
        """False after a failure, which would cost as much time again."""
        self._bits: Mask = np.zeros(4 * ((matching.vocab_size + 31) // 32), np.uint8)

    def copy(self) -> Self:
        """Return another matcher at the same position."""
        return type(self)(self._matcher.deep_copy(), self._matching)

    @property
    def error(self) -> str:
        """Why this matcher cannot continue, as a message for the client; empty while it can."""
        return _first_line(self._matcher.get_error()) if self._matcher.is_error() else ""

    def push(self, token_id: int) -> bool:
        """Advance by one token. Returns True if the text is complete, and nothing can follow. False also after an
        ``error``."""
        self._matcher.consume_token(token_id)
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def mask(self) -> NDArray[np.bool_]:
        """Return which tokens may come next, bool [vocabulary]; end tokens where the text may end. All False on an
        error."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            return np.zeros(self._matching.vocab_size, np.bool_)
        return np.unpackbits(self._bits, count=self._matching.vocab_size, bitorder="little").view(np.bool_)

    def forced(self, most: int, *, spaced: bool = False) -> list[int]:
        """Return up to ``most`` tokens of the only text that can follow, the longest ones; none where it may end, or
        there is a choice. Other tokens of the same text may follow as well.

        ``spaced``: where JSON may have blanks it is taken to be written `"name": "value", "other": …`.
        Looking ahead has limits of its own, so a copy does it: this matcher's answers stay the same.
        """
        if not self._looks_ahead:
            return []
        ahead, text = self._matcher.deep_copy(), b""
        for _ in range(_FORCED_PARTS):
            part = ahead.compute_ff_bytes()
            if ahead.is_error():
                self._looks_ahead = False
                return []
            guess = _USUAL_BLANKS.get(part[-1:], b"") if spaced else b""
            text += part
            if not guess:
                break
            tokens = self._matching.divide(part + guess)
            if ahead.try_consume_tokens(tokens) < len(tokens):
                break
            text += guess
        return self._matching.divide(text)[:most] if text else []

    def allowed(self) -> NDArray[np.intp]:
        """Return the ids of the tokens that may come next."""
        return np.flatnonzero(self.mask())


class _Wrapper:
    """A vocabulary with the attribute names that llguidance needs."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = sorted({*vocabulary.special_ids, *vocabulary.end_ids})
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        """Raise NotImplementedError: text is never tokenized, as nothing is forced."""
        raise NotImplementedError


def _first_line(message: str) -> str:
    line = message.partition("\n")[0]
    # The position of a schema in the surrounding grammar means nothing to the schema's sender.
    line = line.rpartition("failed to compile JSON schema: ")[2]
    for beginning, words in _REWORDED.items():
        if line.startswith(beginning):
            return words
    return line[:300] or "the grammar failed"
