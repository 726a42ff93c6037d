"""Cache of packed weights on disk, so that a second start reads what the first one packed.

One file per model, precision and source content: ``<key>.packed`` holds a header (JSON: position and checksum of
each parameter) and the packed bytes as they are in memory. A file appears whole or not at all (written under a
temporary name, then renamed), is verified completely when it is read, and is only a copy: any fault of the file or
its disk costs a warning and the time to pack again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.checkpoint import Checkpoint
from dragoman.models.description import PackedFile
from dragoman.models.layout import Layout, resident_bytes
from dragoman.models.packing import PackedBytes, entry_checksums, pack_matrix, split_bytes
from dragoman.models.progress import WRITING, Progress, ignore_progress
from dragoman.models.settings import WeightsMemory
from dragoman.models.tensors import BLOCK_SIZES, Blocks, Format

_LOG = logging.getLogger("dragoman.models")
_FORMAT = 2  # of the file; how the kernels pack is a separate part of the key
_MAGIC = b"DRGMPACK"
_PAGE = 4096
_LARGEST_HEADER_BYTES = 64 << 20
_FREE_DISK_BYTES = 1 << 30  # the last gigabyte of a disk stays free
_ABANDONED_AFTER_S = 3600.0
_FIRST_ANSWER_S = 1.0  # delay of the move into huge pages after a start; meanwhile weights are in small pages
_SPECIMEN = (np.arange(48 * 96, dtype=np.float32) % 97 - 48).reshape(48, 96)
_SAMPLES, _SAMPLE_BYTES = 64, 16 << 10

Packed = tuple[PackedBytes, list[int]]
"""Bytes of each entry of a layout, and their checksums."""


def cache_key(checkpoint: Checkpoint, layout: Layout, calibration: str = "") -> str:
    """Return the cache key of these weight files: a digest of their names, sizes, times, headers and content samples.

    Samples, because hashing all of a large checkpoint takes as long as packing it. A change that keeps a file's
    size, its time and all of 64 samples is not detected, but does not happen by accident. A small matrix packed at
    each precision represents how the kernels pack. ``calibration``: what the weights were rounded for, if anything.
    """
    digest = hashlib.blake2b(digest_size=20)
    digest.update(f"{_FORMAT} {layout!r} {checkpoint.spec!r}".encode())
    digest.update(calibration.encode())
    for form in sorted({entry.form for entry in layout.entries if entry.form}, key=repr):
        digest.update(pack_matrix(form, _specimen(form)).tobytes())
    for path, header in sorted(checkpoint.files.files.items()):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns} {len(header)}".encode())
        digest.update(header)
        with path.open("rb") as stream:
            for sample in range(_SAMPLES):
                stream.seek(status.st_size * sample // _SAMPLES)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _specimen(form: Format) -> NDArray[np.float32] | Blocks:
    """Return a small matrix that can be packed in the format."""
    if not form.is_blocks:
        return _SPECIMEN
    values, size = BLOCK_SIZES[form.precision]
    return Blocks((np.arange(48 * size * (512 // values)) % 251).astype(np.uint8).reshape(48, -1), values, size)


def _require_own(file: int) -> None:
    """Raise PermissionError for a file that users other than this one and root own or can write to."""
    status = os.fstat(file)
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
        raise PermissionError("other users can write to it")


class PackedCache:
    """A folder of packed weights with a size limit in bytes. ``failure``: why the last write kept nothing."""

    failure = ""

    def __init__(self, folder: Path, limit_bytes: int, checked: PackedFile | None = None) -> None:
        """Open a cache. ``checked``: a file that is not verified again when it is mapped, if it is unchanged."""
        self._folder = folder
        self._limit_bytes = limit_bytes
        self.checked = checked

    def path(self, key: str) -> Path:
        """Return the path of the packed bytes for ``key``, whether it exists or not."""
        return self._folder / f"{key}.packed"

    def read(self, key: str, layout: Layout, memory: WeightsMemory = "auto") -> Packed | None:
        """Return the packed bytes for ``key``, verified: mapped from the file or copied; None: pack again.

        A damaged file is removed.
        """
        path = self.path(key)
        try:
            with path.open("rb") as stream:
                _require_own(stream.fileno())
                opened = _stamp(stream.fileno())
                checksums, start = _read_header(stream.fileno(), layout)
                if memory == "copy":
                    packed = _copy(stream.fileno(), start, layout, checksums)
                else:
                    known = self.checked is not None and self.checked == _stamp(stream.fileno())
                    packed = _map(stream.fileno(), start, layout, () if known else checksums, stays=memory == "map")
                before = _stamp(stream.fileno())
                with contextlib.suppress(OSError):  # the cache may be read-only
                    os.utime(stream.fileno())  # the least recently used file is removed first
                after = _stamp(stream.fileno())
                self.checked = after if before == opened else None
            return packed, checksums
        except FileNotFoundError:
            return None
        except _DamagedError as error:
            _LOG.warning("%s is damaged (%s): packing again", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
        except OSError as error:
            _LOG.warning("%s cannot be read (%s): packing again", path, error)
        return None

    def write(
        self,
        key: str,
        layout: Layout,
        packed: PackedBytes,
        checksums: Sequence[int],
        progress: Progress = ignore_progress,
    ) -> None:
        """Store packed bytes, and tell ``progress`` how much of them is written.

        A failure costs a warning, never an error: the model is already in memory.
        """
        if layout.nbytes > self._limit_bytes:
            self.failure = self._too_large(layout.nbytes)
            return
        temporary = self._folder / f".{key}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        try:
            # A user who can write here controls the weights: a checksum detects damage, not malice.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(layout.nbytes)
            if shutil.disk_usage(self._folder).free < layout.nbytes + _FREE_DISK_BYTES:
                self.failure = self._no_room(layout.nbytes)
                _LOG.warning("%s", self.failure)
                return
            try:
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                    start = stream.write(_header(layout, checksums))
                    for entry, data in zip(layout.entries, packed, strict=True):
                        stream.seek(start + entry.offset)
                        stream.write(data.data)
                        progress(WRITING, (entry.offset + entry.nbytes) / layout.nbytes)
                    stream.truncate(start + layout.nbytes)
                temporary.rename(self.path(key))
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            self.failure = f"packed weights could not be kept in {self._folder}: {error}"
            _LOG.warning("%s", self.failure)

    def obstacle(self, nbytes: int) -> str:
        """Return why so many bytes could not be kept now; empty where nothing is known of that."""
        if nbytes > self._limit_bytes:
            return self._too_large(nbytes)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder):
                pass
            kept = sum(path.stat().st_size for path in self._folder.glob("*.packed"))
            leaving = max(0, kept + nbytes - self._limit_bytes)
            if shutil.disk_usage(self._folder).free + leaving < nbytes + _FREE_DISK_BYTES:
                return self._no_room(nbytes)
        except OSError as error:
            return f"packed weights cannot be kept in {self._folder}: {error.strerror or error}"
        return ""

    def _too_large(self, nbytes: int) -> str:
        return f"packed weights of {nbytes >> 20} MB are more than the cache may take (--cache-bytes)"

    def _no_room(self, nbytes: int) -> str:
        free = _FREE_DISK_BYTES >> 20
        return f"no room in {self._folder} for {nbytes >> 20} MB of packed weights, and {free} MB that stay free"

    def with_rows_in_file(self, key: str, layout: Layout, packed: Packed, memory: WeightsMemory = "auto") -> Packed:
        """Return packed bytes that were just written, those of which steps read single rows mapped from the file."""
        entries, checksums = packed
        if memory == "copy" or resident_bytes(layout) == layout.nbytes:
            return packed
        try:
            with self.path(key).open("rb") as stream:
                _require_own(stream.fileno())
                _, start = _read_header(stream.fileno(), layout)
                rows = kernels.FileMemory(stream.fileno(), start + layout.nbytes).data[start:]
        except (OSError, _DamagedError):
            return packed
        table = split_bytes(layout, rows)[-1]
        return ([*entries[:-1], table], checksums) if kernels.checksum(table) == checksums[-1] else packed

    def _make_room(self, nbytes: int) -> None:
        """Remove the least recently used files beyond the limit, and files of writers that did not finish."""
        kept: list[tuple[float, int, Path]] = []
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.suffix == ".packed":
                    kept.append((status.st_mtime, status.st_size, path))
                elif path.suffix == ".tmp" and status.st_mtime < time.time() - _ABANDONED_AFTER_S:
                    path.unlink()
        total = nbytes + sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total <= self._limit_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


def _stamp(file: int) -> PackedFile:
    status = os.fstat(file)
    return PackedFile(
        device=status.st_dev, inode=status.st_ino, size_bytes=status.st_size, changed_ns=status.st_ctime_ns
    )


class _DamagedError(Exception):
    """The file differs from what was written."""


def _describe(layout: Layout) -> list[list[Any]]:
    return [
        [e.parameter.name, e.form and list(astuple(e.form)), list(e.parameter.shape), e.offset, e.nbytes]
        for e in layout.entries
    ]


def _header(layout: Layout, checksums: Sequence[int]) -> bytes:
    """Return magic, length and JSON, padded to whole pages so that the data after it can be mapped."""
    text = json.dumps({"entries": _describe(layout), "checksums": list(checksums)}).encode()
    head = _MAGIC + len(text).to_bytes(8, "little") + text
    return head + bytes(-len(head) % _PAGE)


def _read_header(file: int, layout: Layout) -> tuple[list[int], int]:
    """Return the checksums and the start of the data."""
    head = os.pread(file, 16, 0)
    length = int.from_bytes(head[8:], "little")
    if head[:8] != _MAGIC or not 0 < length <= _LARGEST_HEADER_BYTES:
        raise _DamagedError("not a file of packed weights")
    start = -(-(16 + length) // _PAGE) * _PAGE
    if os.fstat(file).st_size != start + layout.nbytes:
        raise _DamagedError("wrong size")
    try:
        header = json.loads(os.pread(file, length, 16))
        checksums = [int(checksum) for checksum in header["checksums"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _DamagedError(f"its header cannot be read: {error}") from None
    if header["entries"] != _describe(layout) or len(checksums) != len(layout.entries):
        raise _DamagedError("its header tells of other weights")
    return checksums, start


def _map(file: int, start: int, layout: Layout, checksums: Sequence[int], stays: bool) -> PackedBytes:
    """Map the file. Unless it ``stays``, it moves into huge pages while the model already serves. No ``checksums``: it
    was verified before."""
    moving = start + resident_bytes(layout)
    mapped = kernels.FileMemory(file, moving)
    # What is read in single rows stays the system's copy of the file, which it can drop at any time.
    rows = mapped if moving == start + layout.nbytes else kernels.FileMemory(file, start + layout.nbytes)
    packed = [
        (mapped if start + entry.offset + entry.nbytes <= moving else rows).data[start + entry.offset :][: entry.nbytes]
        for entry in layout.entries
    ]
    if checksums:
        for entry, found, expected in zip(layout.entries, entry_checksums(packed), checksums, strict=True):
            if found != expected:
                raise _DamagedError(f"checksum of {entry.parameter.name}")
    if not stays:
        mapped.settle(_FIRST_ANSWER_S)
    return packed


def _copy(file: int, start: int, layout: Layout, checksums: Sequence[int]) -> PackedBytes:
    """Read into huge pages, two entries at a time: while one is copied the other is verified."""
    packed = split_bytes(layout, kernels.empty(layout.nbytes))

    def read(number: int) -> None:
        entry, target = layout.entries[number], packed[number]
        done = 0
        while done < entry.nbytes:
            count = os.preadv(file, [target.data[done:]], start + entry.offset + done)
            if count == 0:
                raise _DamagedError("truncated")
            done += count
        if kernels.checksum(target) != checksums[number]:
            raise _DamagedError(f"checksum of {entry.parameter.name}")

    with ThreadPoolExecutor(2) as threads:
        for _ in threads.map(read, range(len(layout.entries))):
            pass
    return packed
