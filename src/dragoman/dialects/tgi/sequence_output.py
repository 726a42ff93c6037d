"""One generated sequence as TGI shows it: token by token with all of its text, and as a text without special tokens."""

from __future__ import annotations

from typing import NamedTuple

from dragoman.core.events import FinishReason, TextDelta, Token

UNFINISHED = "\ufffd"
"""What the bytes of a character that never became complete are decoded to."""


class Piece(NamedTuple):
    """A token, and what the text grew by with it: nothing, while a character of several tokens is incomplete."""

    token: Token
    text: str

    @property
    def shown(self) -> str:
        """What it adds to the answer's text: special tokens add nothing."""
        if not self.token.special:
            return self.text
        # Bytes before it that turned out to be no character.
        own = self.token.text
        return self.text.removesuffix(own) if self.text.endswith(own) else ""


class SequenceOutput:
    """Grows by the deltas of one sequence, whose text has its special tokens in it.

    Attributes:
        pieces: all tokens so far.
        finish: how it ended; None while it goes on.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.pieces: list[Piece] = []
        self.finish: FinishReason | None = None
        self._length = 0

    def push(self, delta: TextDelta) -> list[Piece]:
        """The new tokens, in order."""
        begins = [token.text_offset - self._length for token in delta.tokens]
        # What came out before the first token's own text belongs to it: bytes that turned out to be no character.
        ends = [*begins[1:], *[len(delta.text)] * bool(begins)]
        begins[:1] = [0] * bool(begins)
        pieces = [
            Piece(token, delta.text[begin:end]) for token, begin, end in zip(delta.tokens, begins, ends, strict=True)
        ]
        self._length += len(delta.text)
        if delta.finish is not None and pieces:
            pieces[-1] = pieces[-1]._replace(text=pieces[-1].text.rstrip(UNFINISHED))
        self.pieces += pieces
        self.finish = delta.finish
        return pieces

    @property
    def text(self) -> str:
        """The text as it is answered: without an unfinished character at its end."""
        text = "".join([piece.shown for piece in self.pieces])
        return text if self.finish is None else text.rstrip(UNFINISHED)

    @property
    def mean_logprob(self) -> float:
        """By which the best of several is chosen."""
        known = [piece.token.logprob for piece in self.pieces if piece.token.logprob is not None]
        return sum(known) / len(known) if known else float("-inf")
