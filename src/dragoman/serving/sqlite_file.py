"""SQLite databases in the server's own files: opening them, and transactions."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sqlite3
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from dragoman.core.errors import DragomanError
from dragoman.core.user_folders import make_private_folder
from dragoman.serving.sqlite_journal import note_lost_commits

log = logging.getLogger("dragoman.server")

MEMORY = Path(":memory:")
"""The path that stands for a database in memory."""

BRIEF_LOCK_S = 0.05
"""How long a transaction waits for a lock that the one before it has waited for in vain."""


class Database(sqlite3.Connection):
    """A connection that waits for a lock in full only once: what comes next would wait as long, one after another."""

    locked_s = 0.0
    """How long another process may lock the file."""
    is_impatient = False
    has_lost = False
    """Whether commits were lost with its journal, or with all of the file, as it was opened."""
    file: Path | None = None
    """Where it was opened; None in memory."""
    _identity: tuple[int, int] = 0, 0
    _handle: int | None = None
    """Keeps the file's number as it is: some file systems number files that nobody has open anew."""

    @property
    def is_in_place(self) -> bool:
        """Whether its file is where it was opened. SQLite writes on into a file that was removed, and nobody would ever
        read that again."""
        if self.file is None:
            return True
        try:
            found = os.stat(self.file)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # it is not known
        if self._handle is not None:
            self._identity = _identity(os.fstat(self._handle))
        return self._identity == _identity(found)

    def note_place(self, file: Path) -> None:
        """Note where the file is, and which one it is."""
        self.file, self._identity = file, _identity(os.stat(file))
        if sys.platform == "linux":
            # Closing any other descriptor of a file would release the locks that SQLite has on it.
            self._handle = os.open(file, os.O_PATH | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._handle)

    def begin(self) -> None:
        """Begin a transaction that writes. Raises sqlite3.OperationalError where the file stays locked."""
        try:
            self.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                self._wait_at_most(BRIEF_LOCK_S)
                self.is_impatient = True
            raise
        if self.is_impatient:
            self._wait_at_most(self.locked_s)
            self.is_impatient = False

    def _wait_at_most(self, seconds: float) -> None:
        self.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def connect(file: Path, *, locked_s: float, read_only: bool = False) -> Database:
    """Return a connection that any thread may use, one at a time, and that begins no transaction by itself.

    ``locked_s``: how long another process may lock the file.
    """
    path = f"{file.absolute().as_uri()}?mode=ro" if read_only else str(file)
    database = sqlite3.connect(
        path, uri=read_only, timeout=locked_s, isolation_level=None, check_same_thread=False, factory=Database
    )
    database.locked_s = locked_s
    return database


def open_prepared(file: Path, prepare: Callable[[Database], None], *, locked_s: float) -> Database:
    """Connect to the database and ``prepare`` it: check it, and make its tables. Raises sqlite3.Error."""
    database = connect(file, locked_s=locked_s)
    try:
        prepare(database)
        if file != MEMORY:
            database.note_place(file)
        return database
    except BaseException:
        database.close()
        raise


def in_place(database: Database | None) -> Database | None:
    """Return the database, or None where its file was removed or replaced, which is told: open it anew."""
    if database is None or database.is_in_place:
        return database
    log.error("%s was removed or replaced while it was in use: what was in it is gone", database.file)
    # Closing it would remove the journal of a new file of this name. So it is never closed, nor freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))
    return None


def close(database: Database | None) -> None:
    """Close the database, unless its file was removed or replaced."""
    if (found := in_place(database)) is not None:
        found.close()


class NewerVersion(Exception):
    """The tables are of a version that only newer releases of this program know."""


def table_version(database: sqlite3.Connection, newest: int) -> int:
    """Return the version of the tables; 0 where there are none. Raises NewerVersion above ``newest``."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > newest:
        raise NewerVersion(f"its tables are of version {version}, and this release knows those up to {newest}")
    return int(version)


def check_whole(database: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError where the file is damaged."""
    (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(" ".join(found.split()))


def open_or_replace(file: Path, prepare: Callable[[Database], None], *, locked_s: float) -> Database:
    """Return the database in that file, which is made with its folder where it is missing, for its owner alone.

    One that is damaged, and one for which ``prepare`` raises sqlite3.DatabaseError, is set aside with a warning, and an
    empty one replaces it; where its journal is damaged, that is told. Raises sqlite3.OperationalError for what is
    locked or cannot be written, OSError, and DragomanError for one of a newer release, which stays as it is.
    """
    make_private_folder(file.parent)
    file.touch(mode=0o600)
    has_lost = note_lost_commits(file)
    try:
        opened = open_prepared(file, prepare, locked_s=locked_s)
        opened.has_lost = has_lost
        return opened
    except sqlite3.OperationalError:
        raise
    except NewerVersion as error:
        raise DragomanError(
            f"{file} is of a newer release of Dragoman ({error}): start that one again, or choose another folder with "
            "--state-dir; who needs nothing that is in it moves the file away"
        ) from None
    except sqlite3.DatabaseError as error:
        aside = _set_aside(file)
        log.warning("%s cannot be used (%s): it is now %s, and an empty one takes its place", file, error, aside)
        file.touch(mode=0o600)
        opened = open_prepared(file, prepare, locked_s=locked_s)
        opened.has_lost = True
        return opened


def open_own(file: Path | None, prepare: Callable[[Database], None], *, locked_s: float, hint: str) -> Database:
    """Return the database in that file as ``open_or_replace`` does; one in memory for None. Raises DragomanError, with
    the hint at what helps."""
    if file is None:
        return open_prepared(MEMORY, prepare, locked_s=locked_s)
    try:
        return open_or_replace(file, prepare, locked_s=locked_s)
    except (sqlite3.Error, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DragomanError(f"{file} cannot be opened: {reason}; {hint}") from None


@contextlib.contextmanager
def transaction(database: Database) -> Iterator[Database]:
    """Run the block in a transaction: everything in it is written, or nothing."""
    database.begin()
    try:
        yield database
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _set_aside(file: Path) -> Path:
    aside = file.with_name(f"{file.name}.{time.strftime('%Y%m%dT%H%M%S')}")
    file.rename(aside)
    with contextlib.suppress(FileNotFoundError):  # it may have what mends the file
        file.with_name(f"{file.name}-wal").rename(f"{aside}-wal")
    file.with_name(f"{file.name}-shm").unlink(missing_ok=True)
    return aside
