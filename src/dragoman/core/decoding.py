"""What msgspec raises for bytes that are not what is expected."""

from __future__ import annotations

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""Not of the format or not of the type, and text that is not UTF-8, for which msgspec has no error of its own."""
