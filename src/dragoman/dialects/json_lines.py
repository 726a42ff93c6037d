"""JSON on lines of their own."""

from __future__ import annotations

from typing import Any

from dragoman.dialects.openai_stream import encode

_SEPARATORS = tuple((separator.encode(), b"\\u%04x" % ord(separator)) for separator in "\x85\u2028\u2029")
"""What is no control character in JSON, and ends a line all the same where a client divides text as Python does
(``str.splitlines``, and so httpx' ``iter_lines``)."""


def json_line(value: Any) -> bytes:
    """Return a value as a line of JSON, with its end, which is the only one in it by any rule."""
    line: bytes = encode(value)
    for separator, escaped in _SEPARATORS:
        if separator in line:
            line = line.replace(separator, escaped)
    return line + b"\n"
