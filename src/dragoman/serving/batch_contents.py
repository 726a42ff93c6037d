"""The folder with the contents of files and of results: what is done to it, without the records about it."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from pathlib import Path
from typing import IO

from dragoman.core.batches import StorageFull, StoredFile, UnknownFile
from dragoman.core.errors import GenerationFailed
from dragoman.core.user_folders import make_private_folder

log = logging.getLogger("dragoman.server")

FREE_DISK_BYTES = 1 << 30
"""What files leave free on their disk."""
TEMPORARY = ".part"


def check_disk(folder: Path, more: int) -> None:
    """Raise StorageFull where so many more bytes would leave too little free."""
    if shutil.disk_usage(folder).free < FREE_DISK_BYTES + more:
        raise StorageFull("The server's disk has no room for more files.")


def open_new(path: Path, *, replace: bool = False) -> IO[bytes]:
    """Open a file for its owner alone to write it. ``replace``: one may be left there from before."""
    flags = os.O_TRUNC if replace else os.O_EXCL
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600), "wb")


def open_whole(path: Path, file: StoredFile) -> IO[bytes]:
    """Open a file to read it. Raises UnknownFile where it is gone, and GenerationFailed where it is not as it was."""
    try:
        opened = path.open("rb")
    except FileNotFoundError:
        raise UnknownFile(f"The contents of the file {file.id} are gone.") from None
    size = os.fstat(opened.fileno()).st_size
    if size == file.bytes:
        return opened
    opened.close()
    log.error("%s has %d bytes, and not %d as when it was stored", path, size, file.bytes)
    raise GenerationFailed(f"The contents of the file {file.id} are damaged: see the server's log.")


def sync_folder(folder: Path) -> None:
    """Have renamed files of a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unrecorded(contents: Path, recorded: frozenset[str]) -> None:
    """Remove the files without a record, unless a server is writing them."""
    for path in _files(contents):
        if path.name not in recorded and not _is_written(path):
            path.unlink(missing_ok=True)


def keep_apart(contents: Path, recorded: frozenset[str]) -> None:
    """Move files whose records are lost to a folder beside theirs, which is told: nobody removes them there, and their
    database may be found or mended."""
    apart = contents.with_name(f"{contents.name}.{time.strftime('%Y%m%dT%H%M%S')}")
    moved = 0
    for path in _files(contents):
        if path.suffix != TEMPORARY and path.name not in recorded and not _is_written(path):
            make_private_folder(apart)
            path.rename(apart / path.name)
            moved += 1
    if moved:
        log.warning("%d files of clients have no records any more: they are now in %s", moved, apart)


def _files(contents: Path) -> list[Path]:
    return list(contents.iterdir()) if contents.is_dir() else []


def _is_written(path: Path) -> bool:
    """Return whether a server is writing the file, or it is gone."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except (FileNotFoundError, BlockingIOError):
        return True
