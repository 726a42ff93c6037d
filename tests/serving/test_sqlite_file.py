"""A locked database: who comes first waits for it, and who comes after that is told at once."""

from __future__ import annotations

import gc
import sqlite3
import time
from pathlib import Path

import pytest

from dragoman.serving.sqlite_file import Database, close, connect, in_place, open_or_replace, transaction

LOCKED_S = 0.4


def insert(database: Database) -> float:
    """Write a row, and return how long it took; below 0 where the database stayed locked."""
    began = time.monotonic()
    try:
        with transaction(database):
            database.execute("INSERT INTO t VALUES (1)")
    except sqlite3.OperationalError:
        return began - time.monotonic()
    return time.monotonic() - began


def test_a_lock_is_waited_for_once_and_in_full_again_when_it_was_gone(tmp_path: Path) -> None:
    file = tmp_path / "it.sqlite3"
    database, other = connect(file, locked_s=LOCKED_S), connect(file, locked_s=0)
    database.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t (x)")
    for _ in range(2):
        other.execute("BEGIN IMMEDIATE")
        assert insert(database) <= -LOCKED_S * 0.9
        assert all(-LOCKED_S < insert(database) < 0 for _ in range(3))
        other.execute("ROLLBACK")
        assert insert(database) >= 0
    assert database.execute("SELECT count(*) FROM t").fetchone() == (2,)
    for each in (database, other):
        each.close()


def test_leaving_a_removed_file_removes_no_journal_of_its_successor(tmp_path: Path) -> None:
    file = tmp_path / "it.sqlite3"

    def prepare(database: Database) -> None:
        database.executescript("PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS t (x)")

    removed = open_or_replace(file, prepare, locked_s=LOCKED_S)
    assert in_place(removed) is removed
    for each in tmp_path.iterdir():
        each.unlink()
    successor = open_or_replace(file, prepare, locked_s=LOCKED_S)
    assert insert(successor) >= 0
    close(removed)
    assert in_place(removed) is None
    del removed
    gc.collect()
    reader = connect(file, locked_s=LOCKED_S)
    assert reader.execute("SELECT count(*) FROM t").fetchone() == (1,)
    for each in (reader, successor):
        close(each)


def test_an_error_that_is_no_lock_changes_no_patience(tmp_path: Path) -> None:
    database = connect(tmp_path / "it.sqlite3", locked_s=LOCKED_S)
    with pytest.raises(sqlite3.OperationalError, match="within a transaction"), transaction(database):
        database.begin()
    assert not database.is_impatient
    database.close()
