"""The use of each holder of a key, by day and model: an SQLite file written by its own thread.

Use is written within ``WRITE_S``, in one transaction that reaches the disk. Where that fails the server continues: the
use is kept in memory, and writing is tried again.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path

import msgspec

from dragoman.core.errors import DragomanError
from dragoman.serving.sqlite_file import (
    Database,
    check_whole,
    close,
    connect,
    in_place,
    open_or_replace,
    table_version,
    transaction,
)

log = logging.getLogger("dragoman.server")

LEDGER_FILE = "ledger.sqlite3"
VERSION = 1
"""The version of the table, as SQLite's ``user_version``."""

WRITE_S = 0.3
RETRY_S = 5.0
LOCKED_S = 2.0
"""Seconds for which another process may lock the file."""

FAILURES = (sqlite3.Error, OSError)

COUNTS = ("requests", "refused", "prompt_tokens", "cached_tokens", "generated_tokens", "seconds")

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, holder TEXT NOT NULL, model TEXT NOT NULL,
    requests INTEGER NOT NULL, refused INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, generated_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (day, holder, model)
) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
COMMIT;
"""

_ADD = (
    f"INSERT INTO usage (day, holder, model, {', '.join(COUNTS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
    f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in COUNTS)}"
)


class Usage(msgspec.Struct):
    """The use of one kind or in sum.

    Attributes:
        requests: those that reached the engine. refused: those that were answered with 429 before that.
        prompt_tokens: of all prompts, those included that were cached. cached_tokens: found in the prefix cache.
        seconds: in the engine, from first step to last token; of generations that run side by side each.
    """

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """The tokens of prompts and answers."""
        return self.prompt_tokens + self.generated_tokens

    def add(self, other: Usage) -> None:
        self.requests += other.requests
        self.refused += other.refused
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.generated_tokens += other.generated_tokens
        self.seconds += other.seconds


class Row(msgspec.Struct, frozen=True):
    """A holder's use of one model on one day of UTC; an empty holder: callers without a key."""

    day: str
    holder: str
    model: str
    usage: Usage


def day_of(seconds: float) -> str:
    """Return the day of UTC, as 2027-01-31."""
    return _day(int(seconds // 86400))


@lru_cache(8)
def _day(number: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=number)).isoformat()


class Ledger:
    """``file``: None where nothing is stored. ``keep_days``: older days are deleted when the server starts.

    ``failures``: writes that failed, since the start.
    """

    def __init__(self, file: Path | None = None, *, keep_days: int = 400, write_s: float = WRITE_S) -> None:
        self._file = file
        self._keep_days = keep_days
        self._write_s = write_s
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, str, str], Usage] = {}
        self._news = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._database: Database | None = None
        self._is_failing = False
        self.failures = 0

    def open(self, today: str) -> list[Row]:
        """Begin to write. Return the rows of today and yesterday; none where they cannot be read. Raises DragomanError
        for a file of a newer release."""
        if self._file is None:
            return []
        rows: list[Row] = []
        since = (date.fromisoformat(today) - timedelta(days=1)).isoformat()
        with self._failing_softly():
            rows = list(_rows(self._connected(), "day >= ?", (since,)))
            oldest = (date.fromisoformat(today) - timedelta(days=self._keep_days)).isoformat()
            self._connected().execute("DELETE FROM usage WHERE day < ?", (oldest,))
        self._thread = threading.Thread(target=self._write_on, name="dragoman-ledger", daemon=True)
        self._thread.start()
        return rows

    def add(self, day: str, holder: str, model: str, usage: Usage) -> None:
        """Add the use. It is written within ``WRITE_S``."""
        if self._file is None:
            return
        with self._lock:
            self._pending.setdefault((day, holder, model), Usage()).add(usage)
        if not self._news.is_set():
            self._news.set()

    def close(self) -> None:
        """Write what is not written yet, and close the file."""
        if self._thread is not None:
            self._ended.set()
            self._news.set()
            self._thread.join(LOCKED_S + 1.0)
            self._thread = None

    # In the ledger's thread -------------------------------------------------------------------------------------------

    def _write_on(self) -> None:
        while not self._ended.is_set():
            self._news.wait()
            self._ended.wait(RETRY_S if self._is_failing else self._write_s)
            self._news.clear()
            self._write()
        self._write()
        close(self._database)

    def _write(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        if not pending:
            return
        written = False
        with self._failing_softly((*FAILURES, DragomanError)):  # a newer release may have replaced the file
            with transaction(self._connected()) as database:
                database.executemany(_ADD, [(*key, *msgspec.structs.astuple(used)) for key, used in pending.items()])
            written = True
        if written:
            if self._is_failing:
                log.info("the ledger %s is written again", self._file)
            self._is_failing = False
            return
        with self._lock:
            for key, used in pending.items():
                self._pending.setdefault(key, Usage()).add(used)
        self._news.set()

    @contextlib.contextmanager
    def _failing_softly(self, kinds: tuple[type[Exception], ...] = FAILURES) -> Iterator[None]:
        """Suppress and count errors of the file, and log the first of a series."""
        try:
            yield
        except kinds as error:
            self.failures += 1
            if not self._is_failing:
                log.error("the ledger %s cannot be used, what was used is kept in memory: %s", self._file, error)
            self._is_failing = True
            close(self._database)
            self._database = None

    def _connected(self) -> Database:
        self._database = in_place(self._database)
        if self._database is None:
            assert self._file is not None
            self._database = open_or_replace(self._file, _prepare, locked_s=LOCKED_S)
        return self._database


def read_ledger(file: Path, *, since: str = "", holder: str | None = None) -> list[Row]:
    """Return the rows from a day on, by day; of one holder or all. Raises DragomanError where the file cannot be
    read."""
    if not file.exists():
        raise DragomanError(f"{file} is not there: nothing was counted yet (--state-dir names another folder)")
    condition, values = "day >= ?", [since]
    if holder is not None:
        condition, values = f"{condition} AND holder = ?", [*values, holder]
    try:
        with contextlib.closing(connect(file, locked_s=LOCKED_S, read_only=True)) as database:
            return list(_rows(database, condition, values))
    except sqlite3.Error as error:
        raise DragomanError(f"{file} cannot be read: {error}") from None


def _rows(database: sqlite3.Connection, condition: str, values: Iterable[str]) -> Iterator[Row]:
    order = "ORDER BY day, holder, model"
    sql = f"SELECT day, holder, model, {', '.join(COUNTS)} FROM usage WHERE {condition} {order}"
    for day, holder, model, *counts in database.execute(sql, tuple(values)):
        yield Row(day, holder, model, Usage(*counts))


def _prepare(database: sqlite3.Connection) -> None:
    check_whole(database)
    database.execute("PRAGMA journal_mode = WAL")
    # Each write is on the disk before the next: the thread may wait for it.
    database.execute("PRAGMA synchronous = FULL")
    version = table_version(database, VERSION)
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError(f"it is of version {version}, not {VERSION}")
    database.executescript(_SCHEMA)
