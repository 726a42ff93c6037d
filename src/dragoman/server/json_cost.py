"""The cost of decoding a JSON text, estimated before it is decoded.

Decoding holds Python's lock from beginning to end, and with it every stream of the server. The cost of a byte differs a
hundredfold: 15 MB of text take milliseconds, of empty objects a second, of numbers like 1.5e300 half a minute (10 µs
each, where the decoder falls back to exact arithmetic). Counting is done by NumPy, which lets others run meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.core.errors import PayloadTooLarge
from dragoman.core.lazy_imports import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FREE_BYTES = 2048
"""Shorter texts cost little, whatever is in them."""

MAX_PARTS = 2**18
"""Objects, arrays, members and strings. The largest batches that a request may hold have a tenth of it."""

MAX_ITEMS = 2**22
"""Items of arrays and objects: lists of token ids reach some millions."""

MAX_EXTREMES = 512
"""Numbers with exponents of three digits and more."""

PIECE_BYTES = 2**20
NUMBER_BYTES = 5
"""What follows the first digit of a number with such an exponent."""

_QUOTE, _BACKSLASH, _COMMA, _COLON, _OBJECT, _ARRAY, _E = b'"\\,:{[e'


def check_complexity(body: bytes) -> None:
    """Raise PayloadTooLarge for a text that would take more than some tens of milliseconds to decode."""
    if len(body) <= FREE_BYTES:
        return
    parts, items, extremes = count_parts(body)
    if extremes > MAX_EXTREMES:
        raise PayloadTooLarge(
            f"The request's body has more than {MAX_EXTREMES} numbers with exponents of three digits."
        )
    if parts > MAX_PARTS:
        raise PayloadTooLarge(f"The request's body has more than {MAX_PARTS} objects, arrays, members and strings.")
    if items > MAX_ITEMS:
        raise PayloadTooLarge(f"The request's body has more than {MAX_ITEMS} items.")


def count_parts(body: bytes, piece_bytes: int = PIECE_BYTES) -> tuple[int, int, int]:
    """Return how many objects, arrays, members and strings a text has, how many commas, and how many numbers with
    exponents of three digits.

    Piece by piece: the arrays that are needed for that take ten times the memory of the text that they are about.
    """
    text = np.frombuffer(body, np.uint8)
    quotes = parts = items = extremes = 0
    in_string = is_escaped = False
    for start in range(0, len(text), piece_bytes):
        # A number that begins in this piece may end in the next one.
        piece = text[start : start + piece_bytes + NUMBER_BYTES]
        marks = _quotes(piece, is_escaped)
        # Sums wrap at 256, but only their last bit counts: whether a string is open.
        outside = (np.cumsum(marks, dtype=np.uint8) & 1) == in_string
        extremes += _extremes(piece, outside, piece_bytes)
        piece, marks, outside = piece[:piece_bytes], marks[:piece_bytes], outside[:piece_bytes]
        parts += sum(int(np.count_nonzero((piece == sign) & outside)) for sign in (_COLON, _OBJECT, _ARRAY))
        items += int(np.count_nonzero((piece == _COMMA) & outside))
        found = int(np.count_nonzero(marks))
        quotes += found
        in_string ^= bool(found % 2)
        is_escaped = _ends_escaped(piece, is_escaped)
    return parts + quotes // 2, items, extremes


def _extremes(text: NDArray[np.uint8], outside: NDArray[np.bool_], count: int) -> int:
    """Return how many of the first ``count`` places ``outside`` of strings read like ``0e300`` or ``0E-300``, except at
    the end. In strings they are frequent where these have hexadecimal digits: ids, digests."""
    exponent = ((text[1:-4] | 0x20) == _E) & outside[1:-4]
    if not exponent.any():
        return 0
    digit = (text >= ord("0")) & (text <= ord("9"))
    exponent &= digit[:-5]
    signed = (text[2:-3] == ord("-")) | (text[2:-3] == ord("+"))
    two = digit[3:-2] & digit[4:-1]
    return int(np.count_nonzero((exponent & ((signed & two & digit[5:]) | (digit[2:-3] & two)))[:count]))


def _quotes(text: NDArray[np.uint8], is_escaped: bool) -> NDArray[np.bool_]:
    """Return a mask of the quotes that open or close a string: those after an even number of backslashes.
    ``is_escaped``: an odd number of them is before the text."""
    quotes: NDArray[np.bool_] = text == _QUOTE
    backslashes = text == _BACKSLASH
    if is_escaped or backslashes.any():
        places = np.flatnonzero(quotes)
        # The number of backslashes right before each quote: its distance to the last other byte.
        last_other = np.maximum.accumulate(np.where(backslashes, -1, np.arange(len(text), dtype=np.int32)))
        last = np.where(places > 0, last_other[places - 1], -1)
        before = places - 1 - last + (is_escaped & (last < 0))
        quotes[places[before % 2 == 1]] = False
    return quotes


def _ends_escaped(text: NDArray[np.uint8], is_escaped: bool) -> bool:
    """Return whether an odd number of backslashes ends the text, together with those before it."""
    others = np.flatnonzero(text[::-1] != _BACKSLASH)
    return bool(others[0] % 2) if len(others) else bool(len(text) % 2) ^ is_escaped
