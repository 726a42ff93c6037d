"""``dragoman cache``: the prompts that are cached on disk, as servers with ``--prefix-cache-folder`` keep them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec

from dragoman.cli import console
from dragoman.core.errors import DragomanError
from dragoman.core.regular_file import FileName
from dragoman.engine.prefix_store.folder import CacheFolder, FolderError, StoredSegment
from dragoman.engine.prefix_store.segment import (
    HEAD_BYTES,
    STATES,
    Record,
    SegmentError,
    read_bytes,
    scan,
)
from dragoman.engine.settings import DiskCacheSettings


class CacheChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The cache.

    Attributes:
        prefix_cache_folder: folder of the cache; by default $DRAGOMAN_CACHE/prefixes or ~/.cache/dragoman/prefixes.
        cached_model: only what belongs to models with this in their name or digest.
    """

    PANEL: ClassVar[str] = "Cache"

    prefix_cache_folder: FileName | None = None
    cached_model: Annotated[FileName, msgspec.Meta(extra={"configurable": False})] = ""


def list_cache(choice: CacheChoice) -> None:
    """List the models that have prompts in the cache, with their tokens, bytes and last use."""
    table = console.table(("MODEL", "DIGEST", "TOKENS", "RECORDS", "SIZE", "USED"), no_wrap=False)
    folder = _opened(choice)
    if folder is not None:
        for model, segments in _chosen(folder, choice):
            found = [record for segment in segments for _, record in _records(folder, segment)[0]]
            tokens = 32 * len({record.key[1:] for record in found if record.key[0] != STATES})
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(segment.used for segment in segments)))
            size = console.size(sum(segment.nbytes for segment in segments))
            table.add_row(folder.label(model), model[:12], str(tokens), str(len(found)), size, used)
        folder.close()
    if table.rows:
        console.output().print(table)
    elif choice.cached_model:
        console.notes().print(f"No model with {choice.cached_model!r} in its name has cached prompts", markup=False)
    else:
        console.notes().print("No prompts are cached on disk yet: a server writes them as it runs", markup=False)


def clear(choice: CacheChoice) -> None:
    """Remove the cached prompts. Files that a server writes just now stay, until it begins others."""
    folder = _opened(choice)
    if folder is None:
        console.notes().print("There is nothing to remove.", markup=False)
        return
    removed, nbytes, kept = 0, 0, 0
    with folder.locked():
        for _, segments in _chosen(folder, choice):
            for segment in segments:
                if folder.remove(segment):
                    removed, nbytes = removed + 1, nbytes + segment.nbytes
                else:
                    kept += 1
    folder.close()
    console.notes().print(f"Removed {removed} files, {console.size(nbytes)}", markup=False)
    if kept:
        console.remarks([f"{kept} files are being written by servers, and stay"])


def verify(choice: CacheChoice) -> None:
    """Read all cached prompts and compare their checksums. Ends with status 1 where some are damaged: servers find that
    too when they read them, and compute them again."""
    folder = _opened(choice)
    whole = damaged = 0
    if folder is not None:
        for _, segments in _chosen(folder, choice):
            for segment in segments:
                right, faults = _verified(folder, segment)
                whole += right
                damaged += len(faults)
                for fault in faults:
                    console.output().print(f"{segment.model[:12]}/{segment.name}: {fault}", markup=False)
        folder.close()
    console.output().print(f"{whole} records are whole, {damaged} damaged", markup=False)
    if damaged:
        raise SystemExit(1)


def _opened(choice: CacheChoice) -> CacheFolder | None:
    """Return the folder; None where there is none. Raises DragomanError where it is not to be trusted."""
    path = DiskCacheSettings(prefix_cache_folder=choice.prefix_cache_folder).folder
    if not path.exists():
        return None
    try:
        return CacheFolder(path, create=False)
    except FolderError as error:
        raise DragomanError(error.message) from None


def _chosen(folder: CacheFolder, choice: CacheChoice) -> list[tuple[str, list[StoredSegment]]]:
    by_model = [(model, list(folder.segments(model))) for model in folder.models()]
    wanted = choice.cached_model
    return [
        (model, segments) for model, segments in by_model if segments and wanted in f"{model} {folder.label(model)}"
    ]


def _records(folder: CacheFolder, segment: StoredSegment) -> tuple[list[tuple[int, Record]], str]:
    """Return the records of a segment, and why it cannot be read, if so. One that was removed meanwhile has none."""
    try:
        with _reading(folder, segment) as file:
            return list(scan(file)), ""
    except FileNotFoundError:
        return [], ""
    except (OSError, FolderError, SegmentError) as error:
        return [], _reason(error)


def _verified(folder: CacheFolder, segment: StoredSegment) -> tuple[int, list[str]]:
    """Return the number of whole records of a segment, and its faults. One that was removed meanwhile has none."""
    from dragoman import kernels

    whole, end, faults = 0, HEAD_BYTES, []
    try:
        with _reading(folder, segment) as file:
            is_written = _is_written(file)
            for at, record in scan(file):
                target = memoryview(bytearray(record.nbytes))
                if fault := read_bytes(file, at, record, target, kernels.checksum):
                    faults.append(f"the record at {at}: {fault}")
                else:
                    whole += 1
                end = at + record.stride
            rest = 0 if is_written else os.fstat(file).st_size - end
    except FileNotFoundError:
        return 0, []
    except (OSError, FolderError, SegmentError) as error:
        return whole, [*faults, _reason(error)]
    if rest > 0:
        faults.append(f"{rest} bytes after {end} are no record: damaged, or a process died while it wrote them")
    return whole, faults


@contextlib.contextmanager
def _reading(folder: CacheFolder, segment: StoredSegment) -> Iterator[int]:
    file = folder.open_segment(segment.model, segment.name)
    try:
        yield file
    finally:
        os.close(file)


def _is_written(file: int) -> bool:
    """Return whether a server holds the lock of a segment: what follows its last record is being written."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _reason(error: OSError | DragomanError) -> str:
    return error.message if isinstance(error, DragomanError) else error.strerror or str(error)
