"""Writer of SentencePiece's files, for models that no training makes."""

from __future__ import annotations

import struct
from collections.abc import Iterable

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTES = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
SPECIALS = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]


def varint(value: int) -> bytes:
    """A number, the lowest seven bits first."""
    value &= (1 << 64) - 1
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def field(number: int, value: int | bytes | float) -> bytes:
    """One field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(text: str, score: float = 0.0, kind: int = NORMAL) -> bytes:
    """One piece of a model."""
    return field(1, field(1, text.encode()) + field(2, float(score)) + field(3, kind))


def model(
    pieces: Iterable[tuple[str, float, int]],
    trainer: dict[int, int | bytes] | None = None,
    normalizer: dict[int, int | bytes] | None = None,
) -> bytes:
    """A model of merges, with a token for each byte where it has them, which takes texts as they are."""
    trainer = {3: 2, 35: 1} | (trainer or {})
    normalizer = {3: 1, 4: 0} | (normalizer or {})
    settings = (b"".join(field(number, value) for number, value in each.items()) for each in (trainer, normalizer))
    return b"".join(piece(*each) for each in pieces) + b"".join(field(2 + i, each) for i, each in enumerate(settings))
