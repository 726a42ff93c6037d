"""Which part of a request the bytes of an HTTP/1.1 connection are, and how many of them are parsed at once."""

from __future__ import annotations

import re

_WITHOUT_PATH = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]+(?![^?#])")


def with_path(target: bytes) -> bytes:
    """Return a request's target with the path ``/`` where it is an address without a path (RFC 9110, section 4.2.3)."""
    found = _WITHOUT_PATH.match(target)
    return target if found is None else target[: found.end()] + b"/" + target[found.end() :]
