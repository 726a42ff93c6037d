"""Text of standard input."""

from __future__ import annotations

import sys

from dragoman.core.errors import DragomanError


def read_standard_input(most: int = -1) -> str:
    """Return the text of standard input, at most so many characters of it. Raises DragomanError where it is none."""
    try:
        text = sys.stdin.read(most)
        # In the locale C Python hands on bytes that are no text, as half surrogates.
        text.encode()
    except UnicodeDecodeError as error:
        raise _not_text(error.object[error.start]) from None
    except UnicodeEncodeError as error:
        raise _not_text(ord(text[error.start]) & 0xFF) from None
    return text


def _not_text(byte: int) -> DragomanError:
    return DragomanError(f"standard input is not text in UTF-8: it has the byte 0x{byte:02x}; convert it first (iconv)")
