"""The store of saved generations that can be resumed: an SQLite file, or memory; bounded in time and size.

All of SQLite happens in one thread of the store. The file is made when the first generation is saved. An existing one
is checked at the start: where another process has locked it, it cannot be read, or it is of a newer release, the server
does not start; where it is damaged, it is set aside with a warning, and an empty one replaces it.

A disk that is full or read-only makes no answer fail: generations saved already are found, and a failure to save is
reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from dragoman.core.decoding import UNDECODABLE
from dragoman.core.errors import DragomanError, GenerationFailed
from dragoman.core.journal import current_journal
from dragoman.core.resume import ResumeKey, SavedGeneration, SavedSequence
from dragoman.serving.settings import ContinueSettings
from dragoman.serving.sqlite_file import Database, check_whole, close, in_place, open_own, table_version, transaction
from dragoman.serving.worker_pool import start_threads

log = logging.getLogger("dragoman.server")

Result = TypeVar("Result")

VERSION = 2
"""The version of the tables and their content, as SQLite's ``user_version``. Version 1 had no tenants; it is
migrated."""

LOCKED_S = 5.0
"""Seconds for which another process may lock the file."""
HINT = "choose another folder with --state-dir, or keep cut generations in memory with --continue-store memory"

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS generations (
    key BLOB PRIMARY KEY, saved_s REAL NOT NULL, used_ns INTEGER NOT NULL,
    bytes INTEGER NOT NULL, tokens INTEGER NOT NULL, state BLOB NOT NULL, tenant TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS by_age ON generations (saved_s);
CREATE INDEX IF NOT EXISTS by_use ON generations (used_ns, bytes, tokens);
CREATE INDEX IF NOT EXISTS by_tenant ON generations (tenant, used_ns, bytes);
PRAGMA user_version = {VERSION};
COMMIT;
"""

_FROM_VERSION_1 = f"""
BEGIN IMMEDIATE;
ALTER TABLE generations ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
CREATE INDEX by_tenant ON generations (tenant, used_ns, bytes);
PRAGMA user_version = {VERSION};
COMMIT;
"""


class _Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state in a row: a saved generation, and the request of a cluster that saved it.

    Such a request may be run again, here or by another server with this file, when its server or its connection was
    lost and nobody knows what it had saved. It then finds what it found before.

    Attributes:
        sequences: of the saved generation; None: that request has forgotten it. Such a row counts as a key until it
            expires.
        request: ``Journal.request``; empty: one that is not run again. before: what it found.
    """

    sequences: tuple[SavedSequence, ...] | None
    config: Any = None
    request: bytes = b""
    before: SavedGeneration | None = None

    @property
    def saved(self) -> SavedGeneration | None:
        return None if self.sequences is None else SavedGeneration(sequences=self.sequences, config=self.config)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SavedGeneration).decode
_decode_row = msgspec.msgpack.Decoder(_Row).decode


IN_MEMORY = ContinueSettings(continue_store="memory")


class LockedGeneration:
    """The generation saved under one key, while the key is locked. ``request``: ``Journal.request`` of its user."""

    def __init__(
        self, store: SqliteResumeStore, name: bytes, tenant: str, saved: SavedGeneration | None, request: bytes
    ) -> None:
        self._store, self._name, self._tenant = store, name, tenant
        self._request, self._before = request, saved if request else None
        self.saved = saved

    async def save(self, generation: SavedGeneration) -> bool:
        row = _Row(sequences=generation.sequences, config=generation.config, request=self._request, before=self._before)
        is_kept = await self._store._try(self._store._save, self._name, self._tenant, row)
        self.saved = generation if is_kept else self.saved
        return is_kept

    async def forget(self) -> bool:
        if self._before is None:
            is_forgotten = await self._store._try(self._store._forget, self._name)
        else:
            row = _Row(sequences=None, request=self._request, before=self._before)
            is_forgotten = await self._store._try(self._store._save, self._name, self._tenant, row)
        self.saved = None if is_forgotten else self.saved
        return is_forgotten


class _Turn:
    """The lock of a key, and the number of tasks that hold it or wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class SqliteResumeStore:
    """``core.resume.ResumeStore``.

    Counts, since it was opened: ``hits``, ``misses`` (nothing was there), ``expired``, ``evicted`` (for want of room),
    ``waits`` (a key was in use), ``failures`` (the file could not be written or read). ``keys`` and ``tokens``: what it
    holds.

    ``clock``: seconds since the epoch, by default of the system's clock when the store is made, and going on steadily
    from there: when the system's clock is set, nothing expires early or late.
    """

    def __init__(self, settings: ContinueSettings = IN_MEMORY, *, clock: Callable[[], float] | None = None) -> None:
        self._settings = settings
        self._file = settings.file
        self._clock = clock or _steady_clock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dragoman-continue")
        self._database: Database | None = None
        self._turns: dict[bytes, _Turn] = {}
        self.hits = self.misses = self.expired = self.evicted = self.waits = self.failures = 0
        self.keys = self.tokens = self._bytes = 0

    def gauges(self) -> dict[str, float]:
        """Return the current content, by the names of the metrics."""
        return {"continue_keys": self.keys, "continue_tokens": self.tokens}

    def counters(self) -> dict[str, float]:
        """Return the counts, by the names of the metrics."""
        names = ("hits", "misses", "expired", "evicted", "waits", "failures")
        return {f"continue_{name}": getattr(self, name) for name in names}

    async def open(self) -> None:
        """Start the thread, and check the file, if there is one. Raises DragomanError where it cannot be used."""
        if self._settings.continue_ttl_s:
            start_threads(self._thread, 1)
        if (
            self._file is None
            or not self._settings.continue_ttl_s
            or not await asyncio.to_thread(os.path.exists, self._file)
        ):
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._look)
        except sqlite3.Error as error:
            raise DragomanError(f"{self._file} cannot be used: {error}; {HINT}") from None

    async def close(self) -> None:
        """Close the file. No key may be held any more."""
        with contextlib.suppress(RuntimeError):  # closed before
            await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)

    @asynccontextmanager
    async def hold(self, key: ResumeKey) -> AsyncIterator[LockedGeneration]:
        """Wait for the key's lock, and hold it. Raises GenerationFailed where the store cannot be read."""
        name = hashlib.blake2b(msgspec.json.encode(key), digest_size=32).digest()
        turn = self._turns.setdefault(name, _Turn())
        turn.users += 1
        try:
            self.waits += turn.lock.locked()
            async with turn.lock:
                journal = current_journal.get()
                request = b"" if journal is None else journal.request
                saved = await self._run(self._find, name, request) if self._settings.continue_ttl_s else None
                if journal is not None:
                    recalled = journal.recall(name, b"" if saved is None else _encode(saved))
                    saved = _decode(recalled) if recalled else None
                yield LockedGeneration(self, name, key.tenant, saved, request)
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[name]

    async def _run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run the work in the store's thread. Raises GenerationFailed."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except (sqlite3.Error, OSError, DragomanError) as error:
            self.failures += 1
            log.error("the store of cut generations fails: %s", error)
            raise GenerationFailed("What is kept of cut generations cannot be reached: see the server's log.") from None

    async def _try(self, work: Callable[..., object], *arguments: object) -> bool:
        """Run the work in the store's thread, and return whether it succeeded."""
        try:
            await self._run(work, *arguments)
        except GenerationFailed:
            return False
        return True

    # In the store's thread -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        with transaction(self._connected()) as database:
            now = self._clock()
            # Saved when the system's clock was ahead: they would be kept for longer than they should.
            database.execute("UPDATE generations SET saved_s = ? WHERE saved_s > ?", (now, now))
            self._forget_old(database)
            self._count(database)

    def _find(self, name: bytes, request: bytes) -> SavedGeneration | None:
        """Return what is saved under a name. ``request``: finds what was there before its own earlier run."""
        if self._database is None and self._file is not None and not os.path.exists(self._file):
            self.misses += 1
            return None
        row = (
            self._connected()
            .execute("SELECT state FROM generations WHERE key = ? AND saved_s > ?", (name, self._oldest()))
            .fetchone()
        )
        found = saved = None
        if row is not None:
            try:
                found = _decode_row(row[0])
                saved = found.before if request and found.request == request else found.saved
            except UNDECODABLE as error:
                log.warning("a cut generation cannot be read: %s", error)
        self.hits += saved is not None
        self.misses += saved is None
        # Finding needs no room on the disk; updating its bookkeeping does.
        with contextlib.suppress(sqlite3.OperationalError), transaction(self._connected()) as database:
            self._forget_old(database)
            if found is not None:
                database.execute("UPDATE generations SET used_ns = ? WHERE key = ?", (self._next_use(database), name))
            elif row is not None:
                database.execute("DELETE FROM generations WHERE key = ?", (name,))
            self._count(database)
        return saved

    def _oldest(self) -> float:
        """Return the time at which generations that expire now were saved."""
        return self._clock() - self._settings.continue_ttl_s

    def _next_use(self, database: sqlite3.Connection) -> int:
        """Return the number of a use that happens now: nanoseconds, and more than that of each earlier one. A clock
        that was set back before the start would make the newest the first to leave for want of room."""
        used_ns: int = database.execute("SELECT coalesce(max(used_ns), 0) FROM generations").fetchone()[0]
        return max(int(self._clock() * 1e9), used_ns + 1)

    def _save(self, name: bytes, tenant: str, row: _Row) -> None:
        state = _encode(row)
        if not self._settings.continue_ttl_s:
            return
        with transaction(self._connected()) as database:
            self._forget_old(database)
            tokens = sum(len(each.prompt) + len(each.output) for each in row.sequences or ())
            values = (name, self._clock(), self._next_use(database), len(state), tokens, state, tenant)
            database.execute("INSERT OR REPLACE INTO generations VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            self._count(database)
            self._make_room(database)

    def _forget(self, name: bytes) -> None:
        if self._database is None and self._file is not None and not os.path.exists(self._file):
            return
        with transaction(self._connected()) as database:
            database.execute("DELETE FROM generations WHERE key = ?", (name,))
            self._count(database)

    def _forget_old(self, database: sqlite3.Connection) -> None:
        self.expired += database.execute("DELETE FROM generations WHERE saved_s <= ?", (self._oldest(),)).rowcount

    def _make_room(self, database: sqlite3.Connection) -> None:
        """Delete the least recently used generations of the caller with the most, so that no caller displaces those of
        others.

        That is never the newest, unless it is all that this caller has.
        """
        while self.keys > self._settings.continue_max_entries or self._bytes > self._settings.continue_max_bytes:
            size = "count(*)" if self.keys > self._settings.continue_max_entries else "sum(bytes)"
            largest = (
                f"SELECT tenant FROM generations INDEXED BY by_tenant GROUP BY tenant ORDER BY {size} DESC LIMIT 1"
            )
            oldest = f"SELECT key FROM generations WHERE tenant = ({largest}) ORDER BY used_ns LIMIT 1"
            self.evicted += database.execute(f"DELETE FROM generations WHERE key = ({oldest})").rowcount
            self._count(database)

    def _count(self, database: sqlite3.Connection) -> None:
        sums = "SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(tokens), 0) FROM generations INDEXED BY by_use"
        self.keys, self._bytes, self.tokens = database.execute(sums).fetchone()

    def _connected(self) -> Database:
        self._database = in_place(self._database)
        if self._database is None:
            self._database = open_own(self._file, _prepare, locked_s=LOCKED_S, hint=HINT)
        return self._database

    def _disconnect(self) -> None:
        close(self._database)
        self._database = None


def _prepare(database: Database) -> None:
    check_whole(database)
    with transaction(database):
        version = table_version(database, VERSION)
        is_empty = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not is_empty and version not in (1, VERSION):
        raise sqlite3.DatabaseError(f"it is of version {version}, not {VERSION}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    if is_empty or version != VERSION:
        database.executescript(_SCHEMA if is_empty else _FROM_VERSION_1)


def _steady_clock() -> Callable[[], float]:
    """Return a clock that begins at the system's time, and is not affected when that is set."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()
