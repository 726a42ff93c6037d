"""The store of files and batches: an SQLite database, and a folder with the files' contents, in the state folder.

All of SQLite happens in one thread of the store, reading and writing of files in others. A file is written under a
temporary name, synced and renamed before it is recorded; files without a record are removed at the start, and those of
a database that is lost are kept apart. One server at a time owns the batches of a folder (``own``) and runs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from dragoman.core.batches import (
    BatchIsOver,
    BatchLine,
    BatchStatus,
    LineResult,
    StoredBatch,
    StoredFile,
    UnknownBatch,
    UnknownFile,
)
from dragoman.core.decoding import UNDECODABLE
from dragoman.core.elsewhere import note_elsewhere
from dragoman.core.entropy import token_hex
from dragoman.core.errors import DragomanError, GenerationFailed, PayloadTooLarge
from dragoman.core.user_folders import make_private_folder
from dragoman.serving.batch_contents import (
    TEMPORARY,
    check_disk,
    keep_apart,
    open_new,
    open_whole,
    remove_unrecorded,
    sync_folder,
)
from dragoman.serving.batch_database import LOCKED_S, BatchDatabase, Change, prepare, results
from dragoman.serving.expiry_clock import ExpiryClock
from dragoman.serving.settings import BatchSettings
from dragoman.serving.sqlite_file import open_or_replace
from dragoman.serving.worker_pool import start_threads

log = logging.getLogger("dragoman.server")

Result = TypeVar("Result")

DATABASE = "batches.sqlite3"
CONTENTS = "files"
LOCK = "batches.lock"

PIECE_BYTES = 256 * 1024
DISK_THREADS = 2

OFF = BatchSettings(files_store="off")


class SqliteBatchStore:
    """``core.batches.BatchStore``, and what the runner of batches needs.

    ``folder``: the state folder. ``clock``: Unix time; what has expired is deleted by ``ExpiryClock``. ``changed``: set
    when there may be something to run, or to cancel. ``failures``: uses of the store that failed.
    """

    def __init__(
        self, settings: BatchSettings = OFF, folder: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings, self._clock, self._expiry = settings, clock, ExpiryClock(clock)
        self._folder = folder if settings.files_store == "disk" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dragoman-batches")
        self._disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="dragoman-files")
        self._database: BatchDatabase | None = None
        self._lock: IO[bytes] | None = None
        self._uploading = 0
        self.changed = asyncio.Event()
        self.failures = self._files = self._unfinished = 0

    @property
    def is_on(self) -> bool:
        return self._folder is not None

    @property
    def max_file_bytes(self) -> int:
        return self.settings.files_max_bytes

    @property
    def now(self) -> int:
        return int(self._clock())

    @property
    def folder(self) -> Path:
        assert self._folder is not None
        return self._folder

    def gauges(self) -> dict[str, float]:
        """Return the current content, by the names of the metrics."""
        return {"files_stored": self._files, "batches_unfinished": self._unfinished}

    def counters(self) -> dict[str, float]:
        """Return the counts, by the names of the metrics."""
        return {"batch_store_failures": self.failures}

    async def open(self) -> None:
        """Start the threads, and open the database, where there is one that can be seen. Raises DragomanError where it
        cannot be used."""
        if self.is_on:
            start_threads(self._thread, 1)
            start_threads(self._disk, DISK_THREADS)
        if self._folder is None or not os.path.exists(self._folder / DATABASE):
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connected)
        except (sqlite3.Error, OSError) as error:
            hint = "choose another folder with --state-dir, or do without with --files-store off"
            raise DragomanError(f"{self._folder / DATABASE} cannot be opened: {error}; {hint}") from None

    async def close(self) -> None:
        """Close the database, and let another server own the batches."""
        with contextlib.suppress(RuntimeError):  # closed before
            await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)
        self._disk.shutdown(wait=False)

    # For the operations of dialects -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def upload(self, tenant: str) -> AsyncIterator[_Upload]:
        part = await self._on_disk(self._begin_file)
        upload = _Upload(self, tenant, part)
        try:
            yield upload
        finally:
            self.count_uploading(-upload.size)
            with contextlib.suppress(GenerationFailed):
                await self._on_disk(upload.discard)

    async def file(self, tenant: str, id: str) -> StoredFile:
        return await self._in_database(BatchDatabase.file, tenant, id, self.now)

    async def files(
        self, tenant: str, *, purpose: str | None, after: str | None, descending: bool, limit: int
    ) -> Sequence[StoredFile]:
        return await self._in_database(BatchDatabase.files, tenant, purpose, after, descending, limit, self.now)

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        opened = await self._on_disk(partial(open_whole, self.path(file.id), file))
        try:
            while piece := await self._on_disk(partial(opened.read, PIECE_BYTES)):
                yield piece
        finally:
            opened.close()

    async def delete_file(self, tenant: str, id: str) -> None:
        await self._in_database(BatchDatabase.delete_file, tenant, id, self.now)
        await self._count()
        await self._on_disk(lambda: self.path(id).unlink(missing_ok=True))

    async def create(self, batch: StoredBatch) -> StoredBatch:
        created = await self._in_database(BatchDatabase.create, batch, self.now)
        await self._count()
        self.changed.set()
        return created

    async def batch(self, tenant: str, id: str) -> StoredBatch:
        return await self._in_database(BatchDatabase.batch, tenant, id)

    async def batches(
        self, tenant: str, *, after: str | None, limit: int, before: str | None = None
    ) -> Sequence[StoredBatch]:
        return await self._in_database(BatchDatabase.batches, tenant, after, before, limit)

    async def delete_batch(self, tenant: str, id: str) -> None:
        gone = await self._in_database(BatchDatabase.delete_batch, tenant, id)
        await self._count()
        await self._on_disk(partial(self._remove, gone))

    async def cancel(self, tenant: str, id: str) -> StoredBatch:
        def cancelling(batch: StoredBatch) -> StoredBatch | None:
            if batch.status.is_over:
                raise BatchIsOver(batch.id, batch.status)
            if batch.status in (BatchStatus.CANCELLING, BatchStatus.FINALIZING):
                return None
            return msgspec.structs.replace(batch, status=BatchStatus.CANCELLING, cancelling_s=self.now)

        batch = await self.batch(tenant, id)
        cancelled = await self._in_database(BatchDatabase.change, batch.number, cancelling)
        self.changed.set()
        return cancelled

    # For the runner ---------------------------------------------------------------------------------------------------

    async def own(self) -> bool:
        """Return whether there are batches in the folder that this server runs: another one may. The first time that
        it does, files without a record are removed."""
        return await self._in_thread(self._own)

    async def unfinished(self) -> Sequence[StoredBatch]:
        """Return the batches that are not over, the oldest first."""
        return await self._in_database(BatchDatabase.unfinished)

    async def change(self, batch: StoredBatch, change: Change) -> StoredBatch:
        return await self._in_database(BatchDatabase.change, batch.number, change)

    async def begin(self, batch: StoredBatch, lines: Sequence[BatchLine], change: Change) -> StoredBatch:
        begun = await self._in_database(BatchDatabase.begin, batch.number, lines, change)
        await self._count()
        return begun

    async def waiting_lines(self, batch: StoredBatch, after: int, limit: int) -> Sequence[BatchLine]:
        return await self._in_database(BatchDatabase.waiting_lines, batch.number, after, limit)

    async def save_result(self, batch: StoredBatch, line: BatchLine, result: LineResult) -> StoredBatch:
        """Save the result of a line, and return the batch with the line counted. Raises StorageFull."""

        def save(database: BatchDatabase) -> StoredBatch:
            check_disk(self.folder, len(result.text))
            return database.save_result(batch.number, line.position, result)

        return await self._in_database(save)

    async def finish(self, batch: StoredBatch, give_up: Callable[[BatchLine], LineResult]) -> StoredBatch:
        """Write the result files of a batch, and end it with its outcome. ``give_up``: the results of lines that have
        none."""
        await self._in_database(BatchDatabase.batch, batch.tenant, batch.id)  # with its database it may be gone
        written = await self._on_disk(partial(self._write_results, batch, give_up))
        output, errors = (None if file is None else file.id for file in written)

        def ended(current: StoredBatch) -> StoredBatch:
            done = msgspec.structs.replace(current, status=batch.outcome, output_file=output, error_file=errors)
            return msgspec.structs.replace(done, **{f"{batch.outcome}_s": self.now})

        files = [file for file in written if file is not None]
        finished = await self._in_database(BatchDatabase.finish, batch.number, files, ended)
        await self._count()
        return finished

    async def expire(self) -> None:
        """Remove what has expired."""
        gone = await self._in_database(BatchDatabase.expire, int(self._expiry.now()))
        await self._on_disk(partial(self._remove, gone))
        await self._count()

    async def _count(self) -> None:
        """Count what there is, for the metrics: what was changed before is changed whether this works or not."""
        with contextlib.suppress(GenerationFailed):
            self._files, self._unfinished = await self._in_database(BatchDatabase.counts)

    def _remove(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.path(id).unlink(missing_ok=True)

    async def read(self, work: Callable[[Path], Result], file: str) -> Result:
        """Return what ``work`` makes of the contents of a file, in a thread. Raises UnknownFile where they are gone."""

        def read() -> Result:
            try:
                return work(self.path(file))
            except FileNotFoundError:
                raise UnknownFile(f"The contents of the file {file} are gone.") from None

        return await self._on_disk(read)

    # Uploads ----------------------------------------------------------------------------------------------------------

    def path(self, id: str) -> Path:
        return self.folder / CONTENTS / id

    def count_uploading(self, more: int) -> None:
        self._uploading += more

    async def add_file(self, tenant: str, file: StoredFile) -> StoredFile:
        """Record a file that is written."""
        added = await self._in_database(BatchDatabase.add_file, tenant, file)
        await self._count()
        return added

    async def check_room(self) -> None:
        """Raise StorageFull where the files that are being uploaded do not fit any more."""
        await self._in_database(BatchDatabase.check_room, self._uploading)

    def _begin_file(self) -> Path:
        return self._contents() / f"file-{token_hex(12)}{TEMPORARY}"

    def _contents(self) -> Path:
        """Return the folder of contents, which is made where it is missing."""
        make_private_folder(self.folder / CONTENTS)
        return self.folder / CONTENTS

    # Threads ----------------------------------------------------------------------------------------------------------

    async def _in_database(self, work: Callable[..., Result], *arguments: object) -> Result:
        return await self._in_thread(lambda: work(self._connected(), *arguments))

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        with self._failing_clearly():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _on_disk(self, work: Callable[[], Result]) -> Result:
        with self._failing_clearly():
            return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    @contextlib.contextmanager
    def _failing_clearly(self) -> Iterator[None]:
        """Turn errors of the disk into those of a request."""
        try:
            yield
        except (UnknownFile, UnknownBatch):
            note_elsewhere()
            raise
        except (sqlite3.Error, OSError, *UNDECODABLE) as error:
            self.failures += 1
            log.error("the store of files and batches fails: %s", error)
            raise GenerationFailed("The stored files cannot be reached: see the server's log.") from None

    def _connected(self) -> BatchDatabase:
        self._leave_what_was_removed()
        if self._database is None:
            opened = open_or_replace(self.folder / DATABASE, prepare, locked_s=LOCKED_S)
            self._database = BatchDatabase(opened, self.settings)
            if opened.has_lost or not self._database.has_had_files():
                keep_apart(self.folder / CONTENTS, self._database.file_ids())
        return self._database

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _leave_what_was_removed(self) -> None:
        """Where the database was removed, its batches are gone, and the lock is not that of the folder any more."""
        if self._database is not None and not self._database.is_in_place:
            self._database = None
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _own(self) -> bool:
        self._leave_what_was_removed()
        if self._lock is not None:
            return True
        if not os.path.exists(self.folder / DATABASE):
            return False
        lock = os.fdopen(os.open(self.folder / LOCK, os.O_WRONLY | os.O_CREAT, 0o600), "ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        remove_unrecorded(self.folder / CONTENTS, self._connected().file_ids())
        return True

    # Result files -----------------------------------------------------------------------------------------------------

    def _write_results(
        self, batch: StoredBatch, give_up: Callable[[BatchLine], LineResult]
    ) -> tuple[StoredFile | None, StoredFile | None]:
        """Write both files, and return those that are not empty."""
        contents = self._contents()
        kinds = ("output", "error")
        ids = [f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:24]}" for kind in kinds]
        parts = [contents / f"{id}{TEMPORARY}" for id in ids]
        counts, sizes = [0, 0], [0, 0]
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open_new(part, replace=True)) for part in parts]
            for line, result in results(self.folder / DATABASE, batch.number):
                result = result or give_up(line)
                place = 0 if result.is_answer else 1
                files[place].write(result.text)
                counts[place] += 1
                sizes[place] += len(result.text)
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        found: list[StoredFile | None] = []
        for kind, id, part, count, size in zip(kinds, ids, parts, counts, sizes, strict=True):
            if not count:
                part.unlink()
                found.append(None)
                continue
            part.rename(self.path(id))
            found.append(
                StoredFile(
                    id=id,
                    bytes=size,
                    lines=count,
                    created_s=self.now,
                    expires_s=self.now + batch.results_keep_s,
                    filename=f"{batch.id}_{kind}.jsonl",
                    purpose="batch_output",
                )
            )
        sync_folder(contents)
        return found[0], found[1]


class _Upload:
    """``core.batches.Upload``. ``size``: bytes that have come."""

    def __init__(self, store: SqliteBatchStore, tenant: str, part: Path) -> None:
        self._store, self._tenant, self._part = store, tenant, part
        self._file: IO[bytes] | None = None
        self._pending = bytearray()
        self.size = self._lines = 0

    async def write(self, data: bytes) -> None:
        most = self._store.settings.files_max_bytes
        self.size += len(data)
        self._store.count_uploading(len(data))
        self._lines += data.count(b"\n")
        if self.size > most:
            raise PayloadTooLarge(f"The file is larger than the {most} bytes that this server accepts.", param="file")
        self._pending += data
        if len(self._pending) >= PIECE_BYTES:
            await self._flush()

    async def keep(self, *, filename: str, purpose: str, expires_s: int | None) -> StoredFile:
        await self._flush()
        path = self._part.with_suffix("")
        await self._store._on_disk(lambda: self._rename(path))
        created = self._store.now
        file = StoredFile(
            id=path.name,
            bytes=self.size,
            lines=self._lines + 1,
            created_s=created,
            expires_s=None if expires_s is None else created + expires_s,
            filename=filename,
            purpose=purpose,
        )
        try:
            return await self._store.add_file(self._tenant, file)
        except BaseException:
            await self._store._on_disk(lambda: path.unlink(missing_ok=True))
            raise

    async def _flush(self) -> None:
        pending, self._pending = bytes(self._pending), bytearray()
        await self._store.check_room()
        await self._store._on_disk(lambda: self._append(pending))

    def _append(self, data: bytes) -> None:
        check_disk(self._part.parent, len(data))
        if self._file is None:
            self._file = open_new(self._part)
            fcntl.flock(self._file, fcntl.LOCK_EX)  # until it is recorded: another server does not remove it
        self._file.write(data)

    def _rename(self, path: Path) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._part.rename(path)
        sync_folder(path.parent)

    def discard(self) -> None:
        """Remove what is written, unless it was kept."""
        try:
            if self._file is not None:
                self._file.close()  # which writes what it still has
        finally:
            self._part.unlink(missing_ok=True)
