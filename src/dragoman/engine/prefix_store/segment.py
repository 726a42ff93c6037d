"""Segments: the files of the prefix cache on disk. Append-only records, each with a checksum of its own.

A segment begins with a header that names the model, and has records after it. A record is a header of 64 bytes, the
bytes of a block or of a state, and zeros up to a multiple of 64. All numbers are little-endian. What is found after the
last whole record, or from the first header that is not one, is no record: a process that died while it wrote leaves
that behind. ``docs/disk-cache.md`` has the layout.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dragoman.core.errors import DragomanError

VERSION = 1
SUFFIX = ".blocks"
STATES = 0xFF
"""In place of a group of layers: the record is a state of the recurrent layers."""

_MAGIC = b"DRGMPFX\0"
_RECORD_MAGIC = 0x52435844
_HEAD = struct.Struct("<8sI32s16xI")
_RECORD = struct.Struct("<IHHQ16sdII12xI")
"""Magic, group, zero, bytes, name, seconds, tokens, the checksum of the bytes, and that of what is before it."""
HEAD_BYTES, RECORD_BYTES = _HEAD.size, _RECORD.size
PIECE = 4 << 20
_SCAN_BYTES = 256 * 1024
_HEADERS_AHEAD = 32
_LARGEST_PAYLOAD = 1 << 32


class SegmentError(DragomanError):
    """A file that is no segment, or one of another version or model."""


class Record(NamedTuple):
    """What the header of a record says.

    ``key``: the number of a group of layers, or ``STATES``, and the name. ``cost_s``: seconds that it took to compute.
    ``tokens``: of the text up to its end. ``checksum``: of the bytes, 32 bits.
    """

    key: bytes
    nbytes: int
    cost_s: float
    tokens: int
    checksum: int

    @property
    def stride(self) -> int:
        """Return the bytes of the whole record."""
        return RECORD_BYTES + -(-self.nbytes // 64) * 64


assert HEAD_BYTES == RECORD_BYTES == 64


def key_of(group: int, name: bytes) -> bytes:
    """Return the key of a block of a group of layers, or of a state."""
    return bytes((group,)) + name


def pack_head(model: bytes) -> bytes:
    """Return the header of a segment of a model, named by a digest of 32 bytes."""
    head = _HEAD.pack(_MAGIC, VERSION, model, 0)
    return head[:-4] + struct.pack("<I", zlib.crc32(head[:-4]))


def read_head(file: int) -> bytes:
    """Return the digest of the model of a segment. Raises SegmentError and OSError."""
    head = os.pread(file, HEAD_BYTES, 0)
    if len(head) < HEAD_BYTES:
        raise SegmentError("it has no header")
    magic, version, model, checksum = _HEAD.unpack(head)
    if magic != _MAGIC or checksum != zlib.crc32(head[:-4]):
        raise SegmentError("it is not a segment of a prefix cache")
    if version != VERSION:
        raise SegmentError(f"it has version {version}, and this program reads {VERSION}")
    return bytes(model)


def pack_record(record: Record) -> bytes:
    """Return the header of a record."""
    key = record.key
    header = _RECORD.pack(
        _RECORD_MAGIC, key[0], 0, record.nbytes, key[1:], record.cost_s, record.tokens, record.checksum, 0
    )
    return header[:-4] + struct.pack("<I", zlib.crc32(header[:-4]))


def unpack_record(header: bytes) -> Record | None:
    """Return what a header says; None where it is none."""
    if len(header) < RECORD_BYTES:
        return None
    magic, group, zero, nbytes, name, cost_s, tokens, checksum, of_header = _RECORD.unpack(header)
    if magic != _RECORD_MAGIC or zero or group > STATES or nbytes >= _LARGEST_PAYLOAD:
        return None
    if of_header != zlib.crc32(header[:-4]):
        return None
    return Record(key_of(group, name), nbytes, cost_s, tokens, checksum)


def checksum_of(data: memoryview, checksum: Callable[[memoryview | bytes], int]) -> int:
    """Return the checksum of a record's bytes, by that of pieces which no other thread helps with."""
    if len(data) <= PIECE:
        return checksum(data)
    pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)]
    return checksum(b"".join(checksum(piece).to_bytes(4, "little") for piece in pieces))


def read_bytes(
    file: int, at: int, record: Record, target: memoryview, checksum: Callable[[memoryview | bytes], int]
) -> str:
    """Read the bytes of a record. Return what is wrong with them; empty: nothing. Raises OSError."""
    header = bytearray(RECORD_BYTES)
    if os.preadv(file, [header, target], at) != RECORD_BYTES + len(target):
        return "it ends within a record"
    if header != pack_record(record):
        return "the header of a record has changed"
    return "" if checksum_of(target, checksum) == record.checksum else "the checksum of a record is wrong"


def scan(file: int, start: int = HEAD_BYTES) -> Iterator[tuple[int, Record]]:
    """Yield the place and the header of each whole record from ``start`` on. Raises OSError.

    The bytes themselves are not read: their checksums are for their readers.
    """
    size = os.fstat(file).st_size
    at, window, window_at = start, b"", 0
    asked_until = start
    while at + RECORD_BYTES <= size:
        offset = at - window_at
        if not 0 <= offset <= len(window) - RECORD_BYTES:
            # Records of few bytes are read many at a time, others header by header.
            window_at, offset = at, 0
            window = os.pread(file, RECORD_BYTES, at)
            record = unpack_record(window)
            if record is not None and record.stride * 8 < _SCAN_BYTES:
                window = os.pread(file, _SCAN_BYTES, at)
            elif record is not None and at >= asked_until:
                # The next ones are likely to be as long: the disk looks for their headers at the same time.
                asked_until = at + _HEADERS_AHEAD * record.stride
                for place in range(at + record.stride, min(asked_until, size), record.stride):
                    os.posix_fadvise(file, place, RECORD_BYTES, os.POSIX_FADV_WILLNEED)
        record = unpack_record(window[offset : offset + RECORD_BYTES])
        if record is None or at + record.stride > size:
            return
        yield at, record
        at += record.stride


class SegmentWriter:
    """A segment that this process appends to. It holds a lock on the file, so that no process removes it meanwhile."""

    def __init__(self, folder: int, name: str, model: bytes) -> None:
        """Make the file, in an open folder. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.name = name
        self.file = os.open(name, flags, 0o600, dir_fd=folder)
        self.size = 0
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write([pack_head(model)], HEAD_BYTES)
        except OSError:
            os.close(self.file)
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise

    def append(self, record: Record, payload: memoryview) -> int:
        """Write a record; return its place. Raises OSError, and then the segment is as before."""
        at = self.size
        padding = bytes(record.stride - RECORD_BYTES - record.nbytes)
        self._write([pack_record(record), payload, padding], record.stride)
        return at

    def _write(self, parts: list[bytes | memoryview], nbytes: int) -> None:
        try:
            written = os.pwritev(self.file, parts, self.size)
            if written != nbytes:
                rest = b"".join(parts)[written:]
                while rest:
                    count = os.pwrite(self.file, rest, self.size + written)
                    written, rest = written + count, rest[count:]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.file, self.size)
            raise
        self.size += nbytes

    def close(self) -> None:
        """Release the lock. The file stays."""
        os.close(self.file)
