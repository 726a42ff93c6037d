"""Parser of reasoning blocks at the beginning of generated text."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec


class ReasoningMarks(NamedTuple):
    """The marks that open and close a reasoning block."""

    opening: str
    closing: str


KNOWN_MARKS = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<|channel>thought", "<channel|>"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
)

ANALYSIS = ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>")
"""The marks of gpt-oss."""
TO_SELF = ReasoningMarks(" to=self<|message|>", "<|eom|>")
"""The marks of Muse Glimmer, whose prompts end before the space."""

KNOWN_BY_OPENING = (ANALYSIS, TO_SELF)
"""Marks of which the closing one also ends other messages."""


class AnswerFrame(msgspec.Struct, frozen=True, kw_only=True):
    """How a format marks the text of an answer.

    Attributes:
        opening: what an answer begins with that is not all text.
        before_text: marks after which the text comes in which stop strings are looked for.
        lead: what comes before that text after a block of reasoning, in texts and marks. written: how many of these the
            prompt has written where there is no block.
    """

    opening: str
    before_text: tuple[str, ...]
    lead: tuple[str, ...]
    written: int = 0


class PieceKind(enum.Enum):
    """Kind of a piece of text."""

    REASONING = enum.auto()
    LAYOUT = enum.auto()
    """The marks, and white space next to them."""
    ANSWER = enum.auto()


Piece = tuple[PieceKind, str]


class ReasoningParser:
    """Splits a generated text into the reasoning block at its start and the answer after it.

    The block begins with the opening mark, after white space only; or at once, where the prompt already ended with
    that mark (``begun``). Without a closing mark all following text is reasoning. A later block is part of the
    answer. A text that begins with the closing mark has no reasoning, as Laguna writes it. The pieces joined are the
    text; the kind of a character does not depend on how the text was cut.
    """

    def __init__(self, marks: ReasoningMarks, *, begun: bool = False) -> None:
        self._opening = marks.opening.lstrip()
        self._closings: Sequence[str] = (marks.closing,)
        self._denial = marks.closing
        self._pending = ""
        self._step = self._lead if begun else self._before

    def push(self, text: str) -> list[Piece]:
        """Parse a piece of text; return the pieces that are certain. White space, and text that may be a mark, is held
        back."""
        self._pending += text
        pieces: list[Piece] = []
        while self._pending:
            step, before = self._step, len(pieces)
            pieces += step()
            if len(pieces) == before and self._step == step:
                break
        return pieces

    def flush(self) -> list[Piece]:
        """Return the rest: no text follows."""
        kind = PieceKind.REASONING if self._step == self._inside else PieceKind.ANSWER
        return [(kind, self._take(len(self._pending)))] if self._pending else []

    def _before(self) -> list[Piece]:
        opening, visible = self._opening, self._pending.lstrip()
        if visible.startswith(opening):
            self._step = self._lead
            return [(PieceKind.LAYOUT, self._take(len(self._pending) - len(visible) + len(opening)))]
        if self._denial and visible.startswith(self._denial):
            self._step = self._trail
            return [(PieceKind.LAYOUT, self._take(len(self._pending) - len(visible) + len(self._denial)))]
        if not opening.startswith(visible) and not self._denial.startswith(visible):
            self._step = self._answer
        return []

    def _lead(self) -> list[Piece]:
        return self._layout(then=self._inside)

    def _inside(self) -> list[Piece]:
        pending = self._pending
        end, closing = min(((pending.find(mark), mark) for mark in self._closings if mark in pending), default=(-1, ""))
        if closing:
            self._step = self._trail
            reasoning = self._take(len(pending[:end].rstrip()))
            return [
                (PieceKind.REASONING, reasoning),
                (PieceKind.LAYOUT, self._take(end + len(closing) - len(reasoning))),
            ]
        longest = min(max(map(len, self._closings)), len(pending))
        sizes = range(longest, -1, -1)
        partial = next(k for k in sizes if any(m.startswith(pending[len(pending) - k :]) for m in self._closings))
        reasoning = pending[: len(pending) - partial].rstrip()
        return [(PieceKind.REASONING, self._take(len(reasoning)))] if reasoning else []

    def _trail(self) -> list[Piece]:
        return self._layout(then=self._answer)

    def _answer(self) -> list[Piece]:
        return [(PieceKind.ANSWER, self._take(len(self._pending)))]

    def _layout(self, then: Callable[[], list[Piece]]) -> list[Piece]:
        blank = len(self._pending) - len(self._pending.lstrip())
        if blank < len(self._pending):
            self._step = then
        return [(PieceKind.LAYOUT, self._take(blank))] if blank else []

    def _take(self, size: int) -> str:
        taken, self._pending = self._pending[:size], self._pending[size:]
        return taken


class FrameParser(ReasoningParser):
    """Splits a generated text into what comes before the text of an answer, of which all is one block, and the rest.

    ``begun``: the prompt ended inside a block of reasoning.
    """

    def __init__(self, frame: AnswerFrame, *, begun: bool = False) -> None:
        super().__init__(ReasoningMarks(frame.opening, frame.before_text[0]), begun=begun)
        self._closings = frame.before_text
        self._denial = ""


def mark_texts(tokens: Iterable[bytes], marks: ReasoningMarks) -> dict[int, str]:
    """Return the texts, by id, of the tokens that may be part of a mark, and of those that are white space.

    Any other token ends what could become a mark. ``tokens`` are the bytes of all, in order.
    """
    texts = enumerate(token.decode("utf-8", "replace") for token in tokens)
    return {token_id: text for token_id, text in texts if text.isspace() or any(_shares(text, m) for m in marks)}


def _shares(text: str, mark: str) -> bool:
    """Return whether text and mark can overlap somewhere in a longer text."""
    if not text or not (mark[0] in text or mark[-1] in text or text in mark):
        return False  # almost all of a vocabulary
    sizes = range(1, len(mark))
    return text in mark or mark in text or any(text.endswith(mark[:k]) or text.startswith(mark[-k:]) for k in sizes)
