"""Text in pieces that every reader of LocalLab streams takes in whole.

These readers work line by line, strip the end of each line, take a line that is JSON for JSON, and look for ``[DONE]``
and ``Error:`` at its beginning. So what a stream says has to be cut where none of that does harm.
"""

from __future__ import annotations

import json
from typing import NamedTuple

MARKS = ("Error:", "[ERROR]")
"""A line that begins with one of these is a failure to readers."""
DONE = "[DONE]"


class Piece(NamedTuple):
    """``text`` as it was generated, and the one ``line`` that stands for it."""

    text: str
    line: str


class Pieces:
    """Generated text as it grows, cut into pieces. The texts of all pieces and ``rest`` together are the whole text.

    White space at the end of a piece waits for what follows. So does a piece that reads as JSON, and one that could yet
    become a mark.
    """

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        """The pieces that more text completes."""
        held = self._held + text
        shown = held.rstrip()
        # The line end in front of white space is no white space on the wire; a CR may be the first half of one.
        end = max(len(shown), held.rfind("\n") + 1)
        if held.endswith("\r"):
            end = min(end, len(held) - 1)
        piece, self._held = held[:end], held[end:]
        if _waits(piece):
            self._held = held
            return []
        return _cut(piece)

    def flush(self) -> list[Piece]:
        """The last pieces: what was held back, but for white space at the end, which no line can carry."""
        held, self._held = self._held, ""
        end = max(len(held.rstrip()), held.rfind("\n") + 1, held.rfind("\r") + 1)
        self._held = held[end:]
        return _cut(held[:end])

    @property
    def rest(self) -> str:
        """White space at the end of the text, after ``flush``."""
        return self._held


def escaped(text: str) -> str:
    """Line ends as the two characters backslash and n, so that the text is one line."""
    return text.replace("\r\n", "\n").replace("\n", "\\n").replace("\r", "\\r")


def _waits(piece: str) -> bool:
    """Whether a reader would take the piece, alone, for something else than text, and more text may change that."""
    line = escaped(piece)
    return not line.strip() or _is_json(line) or any(mark.startswith(line) for mark in (*MARKS, DONE))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _cut(piece: str) -> list[Piece]:
    """The piece; in two where readers would take it for the end of the stream or a failure."""
    line = escaped(piece)
    if not line:
        return []
    if line == DONE or line.startswith(MARKS):
        return [Piece(piece[0], piece[0]), Piece(piece[1:], line[1:])]
    return [Piece(piece, line)]
