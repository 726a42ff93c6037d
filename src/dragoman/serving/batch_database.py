"""The database of files and batches. One thread uses it; every method is a transaction of its own."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec

from dragoman.core.batches import (
    DAY_S,
    BatchLine,
    BatchStatus,
    LineResult,
    StorageFull,
    StoredBatch,
    StoredFile,
    UnknownBatch,
    UnknownFile,
)
from dragoman.core.decoding import UNDECODABLE
from dragoman.core.errors import BadRequest, Overloaded
from dragoman.serving.settings import BatchSettings
from dragoman.serving.sqlite_file import Database, check_whole, close, connect, in_place, table_version, transaction

log = logging.getLogger("dragoman.server")

VERSION = 1
"""The version of the tables, as SQLite's ``user_version``."""
JOURNAL_BYTES = 1 << 20
"""What SQLite's journal keeps on the disk while nothing is written."""
LOCKED_S = 5.0
"""Seconds for which another process may lock the file."""

MAX_FILES = 16_384
MAX_UNFINISHED = 64
"""Most unfinished batches of one caller."""
MAX_WAITING_LINES = 500_000
"""Most lines of one caller that are not done."""
MAX_BATCHES = 16_384
BATCH_KEEP_S = 30 * DAY_S
"""How long a batch can be retrieved after its end."""

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, id TEXT NOT NULL UNIQUE, purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL, expires_s INTEGER, state BLOB NOT NULL
);
CREATE INDEX files_by_tenant ON files (tenant, number);
CREATE INDEX files_by_size ON files (bytes);
CREATE INDEX files_by_end ON files (expires_s) WHERE expires_s IS NOT NULL;
CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, id TEXT NOT NULL UNIQUE, input_file TEXT NOT NULL,
    waiting INTEGER NOT NULL, result_bytes INTEGER NOT NULL DEFAULT 0, ended_s INTEGER, state BLOB NOT NULL
);
CREATE INDEX batches_by_tenant ON batches (tenant, number);
CREATE INDEX batches_unfinished ON batches (tenant, waiting, input_file, result_bytes) WHERE ended_s IS NULL;
CREATE INDEX batches_by_end ON batches (ended_s) WHERE ended_s IS NOT NULL;
CREATE TABLE lines (
    batch INTEGER NOT NULL, position INTEGER NOT NULL, custom_id TEXT NOT NULL, start INTEGER NOT NULL,
    length INTEGER NOT NULL, is_answer INTEGER, result BLOB, PRIMARY KEY (batch, position)
);
CREATE INDEX lines_waiting ON lines (batch, position) WHERE is_answer IS NULL;
INSERT INTO sqlite_sequence (name, seq) VALUES ('batches', random() & 0xFFFFFFFFFFFF);
PRAGMA user_version = {VERSION};
COMMIT;
"""
"""Numbers of batches begin anywhere: one that ran when its file was removed has none of the next file's."""

_encode = msgspec.msgpack.Encoder().encode
_decode_file = msgspec.msgpack.Decoder(StoredFile).decode
_decode_batch = msgspec.msgpack.Decoder(StoredBatch).decode

Row = tuple[int, bytes]
"""The number and the state of a file or a batch."""
Record = TypeVar("Record")

Change = Callable[[StoredBatch], StoredBatch | None]
"""Returns a batch as it becomes; None: it stays as it is."""


class BatchDatabase:
    """``now`` is Unix time, and comes with each call that depends on it."""

    def __init__(self, database: Database, settings: BatchSettings) -> None:
        self._database, self._settings = database, settings
        self._unreadable: set[tuple[object, int]] = set()

    def close(self) -> None:
        close(self._database)

    @property
    def is_in_place(self) -> bool:
        """Whether its file is still there; where it is not, that is told."""
        return in_place(self._database) is not None

    # Files ------------------------------------------------------------------------------------------------------------

    def stored_bytes(self) -> int:
        """Return the bytes of all files, and of results that are not in files yet."""
        sums = "(SELECT coalesce(sum(bytes), 0) FROM files)"
        results = "(SELECT coalesce(sum(result_bytes), 0) FROM batches WHERE ended_s IS NULL)"
        (total,) = self._database.execute(f"SELECT {sums} + {results}").fetchone()
        return int(total)

    def counts(self) -> tuple[int, int]:
        """Return the number of files, and of unfinished batches."""
        files = "(SELECT count(*) FROM files)"
        unfinished = "(SELECT count(*) FROM batches WHERE ended_s IS NULL)"
        (found,) = self._database.execute(f"SELECT {files}, {unfinished}")
        return int(found[0]), int(found[1])

    def add_file(self, tenant: str, file: StoredFile) -> StoredFile:
        """Add a file. Raises StorageFull."""
        with transaction(self._database) as database:
            (count,) = database.execute("SELECT count(*) FROM files").fetchone()
            if count >= MAX_FILES:
                raise StorageFull(f"{count} files are stored already, and no more may be. Delete some of yours.")
            self.check_room(file.bytes)
            return self._insert_file(database, tenant, file)

    def check_room(self, more: int) -> None:
        """Raise StorageFull where so many more bytes are too many."""
        most = self._settings.files_max_total_bytes
        if self.stored_bytes() + more > most:
            raise StorageFull(f"All files together may take {most} bytes, and there is no room for this one.")

    def file(self, tenant: str, id: str, now: float) -> StoredFile:
        """Return a file. Raises UnknownFile."""
        row = self._database.execute(
            "SELECT number, state FROM files WHERE id = ? AND tenant = ? AND (expires_s IS NULL OR expires_s > ?)",
            (id, tenant, now),
        ).fetchone()
        if row is None:
            raise UnknownFile(f"No such File object: {id[:128]}", param="id")
        return _file_of(row)

    def files(
        self, tenant: str, purpose: str | None, after: str | None, descending: bool, limit: int, now: float
    ) -> Sequence[StoredFile]:
        """Return the files after the named one. Raises UnknownFile."""
        where, values = "tenant = ? AND (expires_s IS NULL OR expires_s > ?)", [tenant, now]
        if purpose is not None:
            where, values = f"{where} AND purpose = ?", [*values, purpose]
        if after is not None:
            where = f"{where} AND number {'<' if descending else '>'} ?"
            values.append(self.file(tenant, after, now).number)
        order = f"ORDER BY number {'DESC' if descending else 'ASC'} LIMIT ?"
        rows = self._database.execute(f"SELECT number, state FROM files WHERE {where} {order}", [*values, limit])
        return self._readable(rows, _file_of)

    def delete_file(self, tenant: str, id: str, now: float) -> None:
        """Delete a file. Raises UnknownFile, and BadRequest where an unfinished batch reads it."""
        with transaction(self._database) as database:
            self.file(tenant, id, now)
            if database.execute("SELECT 1 FROM batches WHERE ended_s IS NULL AND input_file = ?", (id,)).fetchone():
                raise BadRequest(f"File {id[:128]} is the input of a batch that is not finished.", param="id")
            database.execute("DELETE FROM files WHERE id = ?", (id,))

    def file_ids(self) -> frozenset[str]:
        """Return the ids of all files."""
        return frozenset(id for (id,) in self._database.execute("SELECT id FROM files"))

    def has_had_files(self) -> bool:
        """Return whether there are files in this database, or have been."""
        return self._database.execute("SELECT 1 FROM sqlite_sequence WHERE name = 'files'").fetchone() is not None

    def expire(self, now: float) -> Sequence[str]:
        """Forget files and batches whose time is over, and return the ids of the files."""
        with transaction(self._database) as database:
            expired = "expires_s <= ? AND id NOT IN (SELECT input_file FROM batches WHERE ended_s IS NULL)"
            gone = [id for (id,) in database.execute(f"DELETE FROM files WHERE {expired} RETURNING id", (now,))]
            database.execute("DELETE FROM batches WHERE ended_s <= ?", (now - BATCH_KEEP_S,))
            newest = "SELECT number FROM batches WHERE ended_s IS NOT NULL ORDER BY number DESC LIMIT -1 OFFSET ?"
            database.execute(f"DELETE FROM batches WHERE number IN ({newest})", (MAX_BATCHES,))
        return gone

    def _insert_file(self, database: sqlite3.Connection, tenant: str, file: StoredFile) -> StoredFile:
        values = (tenant, file.id, file.purpose, file.bytes, file.expires_s, _encode(file))
        columns = "tenant, id, purpose, bytes, expires_s, state"
        number = database.execute(f"INSERT INTO files ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values).lastrowid
        return msgspec.structs.replace(file, number=number or 0)

    # Batches ----------------------------------------------------------------------------------------------------------

    def create(self, batch: StoredBatch, now: float) -> StoredBatch:
        """Add a batch. Raises UnknownFile, BadRequest where its file alone has too many lines, and Overloaded where its
        caller has too many unfinished batches."""
        tenant = batch.tenant
        with transaction(self._database) as database:
            file = self.file(tenant, batch.input_file, now)
            if file.lines > MAX_WAITING_LINES:
                message = f"The file has too many lines: of all your batches at most {MAX_WAITING_LINES} may wait."
                raise BadRequest(message, param="input_file")
            sums = "SELECT count(*), coalesce(sum(waiting), 0) FROM batches WHERE ended_s IS NULL AND tenant = ?"
            count, waiting = database.execute(sums, (tenant,)).fetchone()
            if count >= MAX_UNFINISHED:
                raise Overloaded(f"{count} of your batches are not finished, and no more may be.", retry_after_s=60)
            if waiting + file.lines > MAX_WAITING_LINES:
                message = f"{waiting} lines of your batches wait, and {MAX_WAITING_LINES} may."
                raise Overloaded(message, retry_after_s=60)
            values = (tenant, batch.id, batch.input_file, file.lines, _encode(batch))
            columns = "tenant, id, input_file, waiting, state"
            number = database.execute(f"INSERT INTO batches ({columns}) VALUES (?, ?, ?, ?, ?)", values).lastrowid
        return msgspec.structs.replace(batch, number=number or 0)

    def batch(self, tenant: str, id: str) -> StoredBatch:
        """Return a batch. Raises UnknownBatch."""
        row = self._database.execute(
            "SELECT number, state FROM batches WHERE id = ? AND tenant = ?", (id, tenant)
        ).fetchone()
        if row is None:
            raise UnknownBatch(f"No batch found with id '{id[:128]}'.")
        return _batch_of(row)

    def batches(self, tenant: str, after: str | None, before: str | None, limit: int) -> Sequence[StoredBatch]:
        """Return batches, the newest first. Raises UnknownBatch."""
        if after is None and before is not None:
            where = "tenant = ? AND number > ? ORDER BY number LIMIT ?"
            values = (tenant, self.batch(tenant, before).number, limit)
        else:
            where = "tenant = ? AND number < ? ORDER BY number DESC LIMIT ?"
            values = (tenant, 2**62 if after is None else self.batch(tenant, after).number, limit)
        rows = self._database.execute(f"SELECT number, state FROM batches WHERE {where}", values)
        return sorted(self._readable(rows, _batch_of), key=lambda batch: -batch.number)

    def delete_batch(self, tenant: str, id: str) -> Sequence[str]:
        """Delete a batch, and return the ids of its files. Raises UnknownBatch, and BadRequest where it is not over."""
        with transaction(self._database) as database:
            batch = self.batch(tenant, id)
            if not batch.status.is_over:
                raise BadRequest(f"Batch {batch.id} cannot be deleted before it has ended.", param="id")
            database.execute("DELETE FROM batches WHERE number = ?", (batch.number,))
            files = [each for each in (batch.input_file, batch.output_file, batch.error_file) if each is not None]
            database.executemany("DELETE FROM files WHERE id = ?", [(each,) for each in files])
        return files

    def unfinished(self) -> Sequence[StoredBatch]:
        """Return the batches of all callers that are not over, the oldest first."""
        rows = self._database.execute("SELECT number, state FROM batches WHERE ended_s IS NULL ORDER BY number")
        return self._readable(rows, _batch_of)

    def change(self, number: int, change: Change) -> StoredBatch:
        """Change a batch, and return it."""
        with transaction(self._database) as database:
            return self._change(database, number, change)

    def begin(self, number: int, lines: Sequence[BatchLine], change: Change) -> StoredBatch:
        """Add the lines of a batch, and change it. One that has lines stays as it is."""
        with transaction(self._database) as database:
            if database.execute("SELECT 1 FROM lines WHERE batch = ?", (number,)).fetchone():
                return self._read(database, number)
            batch = self._change(database, number, change)
            if batch.total:
                columns = "batch, position, custom_id, start, length"
                rows = [(number, line.position, line.custom_id, line.offset, line.length) for line in lines]
                database.executemany(f"INSERT INTO lines ({columns}) VALUES (?, ?, ?, ?, ?)", rows)
        return batch

    def waiting_lines(self, number: int, after: int, limit: int) -> Sequence[BatchLine]:
        """Return the next lines of a batch without a result, after the given position."""
        where = "batch = ? AND position > ? AND is_answer IS NULL ORDER BY position LIMIT ?"
        rows = self._database.execute(
            f"SELECT position, custom_id, start, length FROM lines WHERE {where}", (number, after, limit)
        )
        return [BatchLine(*row) for row in rows]

    def save_result(self, number: int, position: int, result: LineResult) -> StoredBatch:
        """Save the result of a line that has none, and count it. Raises StorageFull."""

        def counted(batch: StoredBatch) -> StoredBatch:
            return msgspec.structs.replace(
                batch,
                completed=batch.completed + result.is_answer,
                failed=batch.failed + (not result.is_answer),
                usage=batch.usage + result.usage,
            )

        with transaction(self._database) as database:
            self.check_room(len(result.text))
            saved = database.execute(
                "UPDATE lines SET is_answer = ?, result = ? WHERE batch = ? AND position = ? AND is_answer IS NULL",
                (result.is_answer, result.text, number, position),
            ).rowcount
            if saved:
                size = "UPDATE batches SET result_bytes = result_bytes + ? WHERE number = ?"
                database.execute(size, (len(result.text), number))
            return self._change(database, number, counted if saved else lambda batch: None)

    def finish(self, number: int, files: Sequence[StoredFile], change: Change) -> StoredBatch:
        """End a batch: add its result files, which are written, and forget its lines, in one transaction. One that is
        over stays as it is."""
        with transaction(self._database) as database:
            batch = self._read(database, number)
            if batch.status.is_over:
                return batch
            batch = self._change(database, number, change)
            for file in files:
                database.execute("DELETE FROM files WHERE id = ?", (file.id,))
                self._insert_file(database, batch.tenant, file)
            database.execute("DELETE FROM lines WHERE batch = ?", (number,))
        self._database.executescript("PRAGMA incremental_vacuum")  # ``execute`` would free one page
        return batch

    def _readable(self, rows: Iterable[Row], read: Callable[[Row], Record]) -> list[Record]:
        """Return what is in rows: in all but those that are damaged, each of which is told once."""
        found: list[Record] = []
        for row in rows:
            try:
                found.append(read(row))
            except UNDECODABLE as error:
                if (read, row[0]) not in self._unreadable:
                    log.error("%s has a damaged record, which is left out: %s", self._database.file, error)
                self._unreadable.add((read, row[0]))
        return found

    def _read(self, database: sqlite3.Connection, number: int) -> StoredBatch:
        row = database.execute("SELECT number, state FROM batches WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise UnknownBatch("The batch is gone.")
        return _batch_of(row)

    def _change(self, database: sqlite3.Connection, number: int, change: Change) -> StoredBatch:
        batch = self._read(database, number)
        changed = change(batch)
        if changed is None:
            return batch
        waiting = 0 if changed.status.is_over else changed.total - changed.completed - changed.failed
        database.execute(
            "UPDATE batches SET state = ?, ended_s = ?, waiting = CASE WHEN ? THEN waiting ELSE ? END WHERE number = ?",
            (_encode(changed), changed.ended_s, changed.status is BatchStatus.VALIDATING, waiting, number),
        )
        return changed


def results(file: Path, number: int) -> Iterator[tuple[BatchLine, LineResult | None]]:
    """Yield the lines of a batch in order, each with its result, on a connection of its own."""
    with closing(connect(file, locked_s=LOCKED_S, read_only=True)) as database:
        columns = "position, custom_id, start, length, is_answer, result"
        for *line, is_answer, text in database.execute(
            f"SELECT {columns} FROM lines WHERE batch = ? ORDER BY position", (number,)
        ):
            yield BatchLine(*line), None if is_answer is None else LineResult(text, bool(is_answer))


def prepare(database: sqlite3.Connection) -> None:
    """Check the database, and make its tables where it is empty."""
    check_whole(database)
    version = table_version(database, VERSION)
    is_empty = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not is_empty and version != VERSION:
        raise sqlite3.DatabaseError(f"it is of version {version}, not {VERSION}")
    if is_empty:
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA journal_size_limit = {JOURNAL_BYTES}")
    # A result is on the disk before it counts.
    database.execute("PRAGMA synchronous = FULL")
    if is_empty:
        database.executescript(_SCHEMA)


def _file_of(row: Row) -> StoredFile:
    return msgspec.structs.replace(_decode_file(row[1]), number=row[0])


def _batch_of(row: Row) -> StoredBatch:
    return msgspec.structs.replace(_decode_batch(row[1]), number=row[0])
