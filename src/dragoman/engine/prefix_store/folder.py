"""The folder of the prefix cache on disk: whose it is, which segments it has, and which of them make room for others.

Every model has a folder in it, named by a digest of all that decides the bytes of a block. All files are opened through
the descriptors of these folders and without following links, and have to be this user's own: a file that another one
could write would be read as trusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import DragomanError
from dragoman.core.user_folders import make_private_folder
from dragoman.engine.prefix_store.segment import SUFFIX, SegmentError, SegmentWriter, read_head, scan

FREE_DISK_BYTES = 1 << 30
"""The last gigabyte of a disk stays free."""
MOST_DEFAULT_BYTES = 20_000_000_000
HALF_LIFE_S = 86_400.0
"""Time without use after which what a segment saves counts half."""
MOST_SEGMENTS = 4096

_MODEL = re.compile(r"[0-9a-f]{64}")
_LABEL = "model"
_SEGMENT = re.compile(r"[0-9a-f]{12}-[0-9a-f]{8}" + re.escape(SUFFIX))


class FolderError(DragomanError):
    """The folder cannot be used. The message says why."""


class StoredSegment(NamedTuple):
    """A segment in the folder. ``used``: when it was last written or read, in seconds of the system's clock."""

    model: str
    name: str
    nbytes: int
    used: float


def new_name() -> str:
    """Return a name for a segment. They sort by the time at which they were begun."""
    return f"{max(0, time.time_ns() // 1_000_000):012x}-{secrets.token_hex(4)}{SUFFIX}"


def worth(segment: StoredSegment, cost_s: float, now: float) -> float:
    """Return the seconds of computation that a byte of a segment saves, half as many for each day without use.

    A time in the future counts as now: the clock was set back since.
    """
    age_s = max(0.0, now - segment.used)
    return cost_s / max(1, segment.nbytes) * math.exp2(-age_s / HALF_LIFE_S)


class CacheFolder:
    """An open folder of the prefix cache. Close it."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Open the folder, and make it where there is none. Raises FolderError."""
        self.path = path
        try:
            if create:
                make_private_folder(path)
            self._file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FolderError(f"{path} cannot be opened: {error.strerror}") from None
        self._models: dict[str, int] = {}
        try:
            _require_own(self._file, str(path))
        except FolderError:
            self.close()
            raise

    def close(self) -> None:
        """Close the folder, and those of models."""
        for file in (*self._models.values(), self._file):
            os.close(file)
        self._models, self._file = {}, -1

    @property
    def exists(self) -> bool:
        """Return whether the folder is still where it was opened."""
        try:
            there = os.stat(self.path)
        except OSError:
            return False
        here = os.fstat(self._file)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    @property
    def free_bytes(self) -> int:
        """Bytes that the disk has left for this user."""
        status = os.fstatvfs(self._file)
        return status.f_bavail * status.f_frsize

    # Segments --------------------------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """Return the digests of the models that have a folder here. Raises OSError."""
        return sorted(name for name in os.listdir(self._file) if _MODEL.fullmatch(name))

    def segments(self, model: str | None = None) -> Iterator[StoredSegment]:
        """Yield the segments of a model, or of all; links and other users' files are left out. Raises OSError."""
        for each in self.models() if model is None else [model]:
            try:
                folder = self._model_folder(each)
                names = sorted(os.listdir(folder))
            except (OSError, FolderError):
                continue
            for name in names:
                if _SEGMENT.fullmatch(name) is None:
                    continue
                with contextlib.suppress(OSError):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                        yield StoredSegment(each, name, status.st_size, status.st_mtime)

    def open_segment(self, model: str, name: str) -> int:
        """Return a descriptor of a segment for reading. Raises OSError, FolderError and SegmentError."""
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._model_folder(model))
        try:
            _require_own(file, name)
            if read_head(file).hex() != model:
                raise SegmentError("it is of another model")
        except BaseException:
            os.close(file)
            raise
        return file

    def new_segment(self, model: str, label: str) -> SegmentWriter:
        """Begin a segment of a model that people know as ``label``. Raises OSError and FolderError."""
        folder = self._model_folder(model, create=True)
        with contextlib.suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(_LABEL, flags, 0o600, dir_fd=folder), "w", encoding="utf-8") as file:
                file.write(label)
        return SegmentWriter(folder, new_name(), bytes.fromhex(model))

    def label(self, model: str) -> str:
        """Return what people know a model as; empty where that is not written."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(
                os.open(_LABEL, flags, dir_fd=self._model_folder(model)), encoding="utf-8", errors="replace"
            ) as file:
                return "".join(each for each in file.read(512) if each.isprintable())
        except (OSError, FolderError):
            return ""

    def note_use(self, model: str, name: str) -> None:
        """Record that a segment was read now."""
        with contextlib.suppress(OSError, FolderError):
            os.utime(name, dir_fd=self._model_folder(model), follow_symlinks=False)

    def _model_folder(self, model: str, *, create: bool = False) -> int:
        known = self._models.get(model)
        if known is not None and os.fstat(known).st_nlink:
            return known
        if known is not None:
            os.close(self._models.pop(model))
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(model, 0o700, dir_fd=self._file)
        file = os.open(model, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._file)
        try:
            _require_own(file, model)
        except FolderError:
            os.close(file)
            raise
        self._models[model] = file
        return file

    # Room ------------------------------------------------------------------------------------------------------------

    def limit(self, wanted: int | None, used: int) -> int:
        """Return the bytes that segments may take where they take ``used`` now: what is wanted, by default a tenth of
        the disk's free part, and never its last gigabyte."""
        free = self.free_bytes
        if wanted is None:
            wanted = min(MOST_DEFAULT_BYTES, (free + used) // 10)
        return min(wanted, used + max(0, free - FREE_DISK_BYTES))

    def remove(self, segment: StoredSegment) -> bool:
        """Remove a segment that no process writes. Return whether it is gone."""
        try:
            folder = self._model_folder(segment.model)
            file = os.open(segment.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return True
        except (OSError, FolderError):
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(segment.name, dir_fd=folder)
        except OSError:
            return False
        finally:
            os.close(file)
        with contextlib.suppress(OSError):
            if os.listdir(folder) == [_LABEL]:
                os.unlink(_LABEL, dir_fd=folder)
            os.rmdir(segment.model, dir_fd=self._file)
        return True

    def cost_s(self, segment: StoredSegment) -> float:
        """Return the seconds of computation that a segment saves; none where it is damaged or of another version."""
        try:
            file = self.open_segment(segment.model, segment.name)
        except (OSError, FolderError, SegmentError):
            return 0.0
        try:
            return float(sum(max(0.0, record.cost_s) for _, record in scan(file)))
        except OSError:
            return 0.0
        finally:
            os.close(file)

    def make_room(self, nbytes: int, wanted: int | None, costs: dict[StoredSegment, float]) -> bool:
        """Remove the segments of least worth until ``nbytes`` more fit, and return whether they do. Raises OSError.

        ``costs``: the results of ``cost_s`` so far. One process does it at a time.
        """
        with self.locked():
            kept = list(self.segments())
            used = sum(segment.nbytes for segment in kept)
            limit = self.limit(wanted, used)
            excess = used + nbytes - limit
            if nbytes > limit:
                return False
            if excess <= 0 and len(kept) < MOST_SEGMENTS:
                return True
            known = {segment: costs[segment] if segment in costs else self.cost_s(segment) for segment in kept}
            costs.clear()
            costs.update(known)
            now = time.time()
            kept.sort(key=lambda segment: (worth(segment, known[segment], now), segment.used, segment.name))
            for place, segment in enumerate(kept):
                if excess <= 0 and len(kept) - place < MOST_SEGMENTS:
                    break
                if self.remove(segment):
                    excess -= segment.nbytes
            return excess <= 0

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder, for as long as a list of its files is read and some are removed."""
        file = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _require_own(file: int, name: str) -> None:
    """Raise FolderError for a folder or file that another user owns or can write to."""
    status = os.fstat(file)
    if status.st_uid != os.geteuid():
        raise FolderError(f"{name} belongs to another user; what they write there would be trusted")
    if status.st_mode & 0o022:
        raise FolderError(f"{name} can be written by other users (chmod go-w)")
