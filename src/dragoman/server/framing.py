"""Which part of a request the bytes of an HTTP/1.1 connection are, and how many of them are parsed at once."""

from __future__ import annotations

import re

PIECE_BYTES = 4096
"""The most bytes that the parser gets at once of a head, or of a body in small chunks: in those of one byte 0.4 ms
of work."""

CHUNKED_PIECE_BYTES = 16 * 1024
"""The same of a chunked body whose last piece was mostly content."""

BODY_PIECE_BYTES = 64 * 1024
"""The same of a body whose length is known, which is only copied."""

LEAST_CHUNKED_BYTES = 64
"""Least bytes of a piece of a chunked body, whose content may be full of what ends a head. Two heads fit after its
end."""

HEAD_END = b"\r\n\r\n"
EMPTY_LINES = b"\r\n"
"""Skipped between two requests (RFC 9112, section 2.2)."""

_ORIGIN = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]+")
_WITHOUT_PATH = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]+(?![^?#])")


def with_path(target: bytes) -> bytes:
    """Return a request's target with the path ``/`` where it is an address without a path (RFC 9110, section 4.2.3)."""
    found = _WITHOUT_PATH.match(target)
    return target if found is None else target[: found.end()] + b"/" + target[found.end() :]


def origin_form(target: bytes) -> bytes:
    """Return the path and query of a request's target, which may be a whole address (RFC 9112, section 3.2)."""
    found = _ORIGIN.match(target)
    return target if found is None else with_path(target)[found.end() :]


class Framing:
    """Cuts a connection's input into pieces that hold no two requests, and counts what they are.

    Attributes:
        in_head, in_body: what the next bytes are a part of; neither is true between two requests.
        is_chunked: the body, which tells its end itself.
        head_bytes: of the head so far; once it is complete, as they are given to ``end_head``.
    """

    def __init__(self) -> None:
        self.in_head = self.in_body = self.is_chunked = False
        self.head_bytes = 0
        self._body_left = self._body_bytes = self._chunked_bytes = 0
        self._piece_bytes = PIECE_BYTES
        self._end_of_last = b""

    # The parts of a request ------------------------------------------------------------------------------------------

    def begin_head(self) -> None:
        """A request begins."""
        self.in_head, self.head_bytes = True, 0

    def begin_body(self, length: int, *, is_chunked: bool) -> None:
        """A head is complete. ``length``: of the body behind it, where that is not chunked."""
        self.in_head, self.in_body = False, True
        self.is_chunked = is_chunked
        self._body_left = 0 if is_chunked else length
        self._body_bytes = self._chunked_bytes = 0

    def add_content(self, size: int) -> None:
        """So many bytes of the body's content were parsed."""
        self._body_bytes += size

    def end_request(self) -> None:
        """A request is complete, with its body."""
        self.in_body = self.is_chunked = False
        self._body_left = 0

    # Pieces of the input ---------------------------------------------------------------------------------------------

    def piece_end(self, data: bytes, begin: int) -> int:
        """Return where to stop parsing: at the end of a head at the latest, so that no piece holds two requests."""
        if self._body_left:
            return min(len(data), begin + min(self._body_left, BODY_PIECE_BYTES))
        if self._end_of_last:
            # The end of a head may be split between what came before and this.
            last, self._end_of_last = self._end_of_last, b""
            found = (last + data[begin : begin + 3]).find(HEAD_END)
            if found >= 0:
                return begin + found + len(HEAD_END) - len(last)
        # So may it be between two pieces.
        first = begin + LEAST_CHUNKED_BYTES if self.is_chunked else max(begin - len(HEAD_END) + 1, 0)
        found = data.find(HEAD_END, first, begin + self._piece_bytes)
        return min(len(data), begin + self._piece_bytes) if found < 0 else found + len(HEAD_END)

    def begin_piece(self, size: int) -> int:
        """Count a piece that is parsed next. Return what ``end_piece`` needs after that."""
        if self.in_head:
            self.head_bytes += size
        elif self.is_chunked:
            self._chunked_bytes += size
            return self._body_bytes
        elif self._body_left:
            self._body_left -= size
        return -1

    def end_piece(self, size: int, before: int) -> None:
        """Choose the size of the next piece by what the parsed one was: of a chunked body a large one, where it was
        mostly content."""
        if not self.is_chunked:
            self._piece_bytes = PIECE_BYTES
        elif before >= 0:
            is_content = 2 * (self._body_bytes - before) > size
            self._piece_bytes = CHUNKED_PIECE_BYTES if is_content else PIECE_BYTES

    def is_mostly_framing(self, slack: int) -> bool:
        """Return whether a chunked body has more framing than content, by more than so many bytes."""
        return self.is_chunked and self._chunked_bytes > 2 * self._body_bytes + slack

    def end_input(self, data: bytes) -> None:
        """All input was parsed: keep the end of it that may be the beginning of a head's end."""
        self._end_of_last = data[-3:] if self.in_head or self.is_chunked else b""
