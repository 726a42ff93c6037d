"""Reader of SentencePiece's files: a protobuf of the message ``ModelProto``, of which only what is needed is read.

Fields by their numbers in ``sentencepiece_model.proto``: ``pieces`` 1 (``piece`` 1, ``score`` 2, ``type`` 3),
``trainer_spec`` 2, ``normalizer_spec`` 3, ``denormalizer_spec`` 5. Messages are two levels deep; a length reaches to
the end of its message at most, so the time is that of one pass over the file.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import ModelError
from dragoman.text.vocabularies.folder import MOST_TOKENS

_FLOAT = struct.Struct("<f")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}


class PieceType(IntEnum):
    """Values of a piece's ``type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class SentencePieceModel(NamedTuple):
    """Content of a file. ``types``: values of ``PieceType``. ``is_unigram``: else merges of neighbours.

    ``unknown``, ``bos`` and ``eos`` are ids, None where the model has no such token.
    """

    pieces: list[str]
    scores: list[float]
    types: list[int]
    is_unigram: bool
    byte_fallback: bool
    unknown: int | None
    bos: int | None
    eos: int | None
    charsmap: bytes
    adds_prefix: bool
    removes_spaces: bool

    def of(self, *types: PieceType) -> list[int]:
        """Return the ids of pieces of these types."""
        return [i for i, kind in enumerate(self.types) if kind in types]


class _Damaged(ValueError):
    pass


def parse_sentencepiece(path: Path, data: bytes) -> SentencePieceModel:
    """Return the content of a file. Raises ModelError that names it."""
    try:
        return _parse(data)
    except _Damaged as error:
        raise ModelError(f"{path}: not a SentencePiece model that can be read: {error}") from None


def is_unigram(data: bytes) -> bool:
    """Return whether a file has a unigram model, without reading its pieces; false for a damaged file."""
    try:
        settings = [
            _message(data, value, "trainer_spec") for number, value in _fields(data, 0, len(data)) if number == 2
        ]
        return all(_number(each, 3, 1) == 1 for each in settings)
    except _Damaged:
        return False


def _parse(data: bytes) -> SentencePieceModel:
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, object] = {}
    normalizer: dict[int, object] = {}
    for number, value in _fields(data, 0, len(data)):
        if number == 1:
            piece, score, kind = _piece(data, *_span(value, "pieces"), len(pieces))
            pieces.append(piece)
            scores.append(score)
            types.append(kind)
            if len(pieces) > MOST_TOKENS:
                raise _Damaged(f"it has more than {MOST_TOKENS:,} pieces")
        elif number == 2:
            trainer |= _message(data, value, "trainer_spec")
        elif number == 3:
            normalizer |= _message(data, value, "normalizer_spec")
        elif number == 5 and _text(data, _message(data, value, "denormalizer_spec").get(2, b"")):
            raise _Damaged("its denormalizer_spec rewrites the text of tokens, which is not supported")
    _check_pieces(pieces, scores, types)
    kind = _number(trainer, 3, 1)
    if kind not in (1, 2):
        raise _Damaged(f"model_type {kind} is not supported; known: 1 (unigram), 2 (bpe)")
    if _number(trainer, 24, 0):
        raise _Damaged("treat_whitespace_as_suffix is not supported")
    if not _number(normalizer, 5, 1):
        raise _Damaged("escape_whitespaces false is not supported")
    unknown = next((i for i, each in enumerate(types) if each == PieceType.UNKNOWN), None)
    return SentencePieceModel(
        pieces,
        scores,
        types,
        is_unigram=kind == 1,
        byte_fallback=bool(_number(trainer, 35, 0)),
        unknown=unknown,
        bos=_token_id(trainer, 41, 1, types),
        eos=_token_id(trainer, 42, 2, types),
        charsmap=_text(data, normalizer.get(2, b"")),
        adds_prefix=bool(_number(normalizer, 3, 1)),
        removes_spaces=bool(_number(normalizer, 4, 1)),
    )


def _check_pieces(pieces: list[str], scores: list[float], types: list[int]) -> None:
    if not pieces:
        raise _Damaged("it has no pieces")
    if len(set(pieces)) != len(pieces):
        [(twice, _)] = Counter(pieces).most_common(1)
        raise _Damaged(f"it has the piece {twice!r:.100} twice")
    for i, (piece, score, kind) in enumerate(zip(pieces, scores, types, strict=True)):
        if not piece:
            raise _Damaged(f"piece {i} is empty")
        if not math.isfinite(score):
            raise _Damaged(f"the score of piece {i} is {score}")
        if not 1 <= kind <= 6:
            raise _Damaged(f"piece {i} has the unknown type {kind}")


def _piece(data: bytes, start: int, stop: int, number: int) -> tuple[str, float, int]:
    text, score, kind = b"", 0.0, 1
    for field, value in _fields(data, start, stop):
        if field == 1:
            first, last = _span(value, "piece")
            text = data[first:last]
        elif field == 2:
            first, last = _span(value, "score")
            if last - first != 4:
                raise _Damaged(f"the score of piece {number} is not a number of 32 bits")
            (score,) = _FLOAT.unpack_from(data, first)
        elif field == 3:
            if not isinstance(value, int):
                raise _Damaged(f"the type of piece {number} is not a number")
            kind = value
    try:
        return text.decode(), score, kind
    except UnicodeDecodeError:
        raise _Damaged(f"piece {number} is not UTF-8") from None


def _fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """Yield the fields of a message: number, and value, or where its bytes begin and end."""
    at = start
    while at < stop:
        key, at = _varint(data, at, stop)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at, stop)
            yield number, value
            continue
        if wire == _BYTES:
            length, at = _varint(data, at, stop)
        elif wire in _WIDTHS:
            length = _WIDTHS[wire]
        else:
            raise _Damaged(f"unknown wire type {wire} before byte {at}")
        if not number or length > stop - at:
            raise _Damaged(f"field {number} reaches beyond its message at byte {at}; the file may be cut off")
        yield number, (at, at + length)
        at += length


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            raise _Damaged(f"it ends within a number at byte {at}; the file may be cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _Damaged(f"a number has more than ten bytes at byte {at}")


def _span(value: int | tuple[int, int], what: str) -> tuple[int, int]:
    if isinstance(value, int):
        raise _Damaged(f"{what} is a number, where bytes are expected")
    return value


def _message(data: bytes, value: int | tuple[int, int], what: str) -> dict[int, object]:
    return dict(_fields(data, *_span(value, what)))


def _number(message: dict[int, object], field: int, default: int) -> int:
    value = message.get(field, default)
    if not isinstance(value, int):
        raise _Damaged(f"field {field} of its settings is not a number")
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _text(data: bytes, value: object) -> bytes:
    if isinstance(value, tuple):
        return data[value[0] : value[1]]
    if value == b"":
        return b""
    raise _Damaged("a text of its settings is a number")


def _token_id(message: dict[int, object], field: int, default: int, types: list[int]) -> int | None:
    """Return the id of a control token; None where the model has none."""
    found = _number(message, field, default)
    return found if 0 <= found < len(types) and types[found] == PieceType.CONTROL else None
