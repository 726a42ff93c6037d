"""The journal of a database whose server was killed: what is lost with a damaged one is told, and the journal kept."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.serving.batch_store import SqliteBatchStore
from dragoman.serving.settings import BatchSettings
from dragoman.serving.sqlite_file import Database, check_whole, open_or_replace, transaction
from dragoman.serving.sqlite_journal import FRAME_BYTES, HEADER_BYTES, committed_frames

FRAME = FRAME_BYTES + 4096


def prepare(database: Database) -> None:
    check_whole(database)
    database.executescript("PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS t (x)")


def opened(file: Path) -> Database:
    return open_or_replace(file, prepare, locked_s=1.0)


def rows(database: Database) -> list[int]:
    return [x for (x,) in database.execute("SELECT x FROM t ORDER BY x")]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A database with ten rows, as a kill leaves it: all of them are in the journal."""
    (tmp_path / "lives").mkdir()
    database = opened(tmp_path / "lives" / "it.sqlite3")
    for x in range(10):
        with transaction(database):
            database.execute("INSERT INTO t VALUES (?)", (x,))
    shutil.copytree(tmp_path / "lives", tmp_path / "killed", ignore=shutil.ignore_patterns("*-shm"))
    database.close()
    return tmp_path / "killed" / "it.sqlite3"


def journal_of(file: Path) -> Path:
    return file.with_name("it.sqlite3-wal")


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0xFF
    file.write_bytes(content)


def others(file: Path) -> list[Path]:
    return sorted(file.parent.glob("it.sqlite3.2*"))


def test_a_whole_journal_is_read_in_silence(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert committed_frames(journal_of(killed).read_bytes()) == (journal_of(killed).stat().st_size // FRAME)
    database = opened(killed)
    assert (rows(database), database.has_lost) == (list(range(10)), False)
    with journal_of(killed).open("ab") as journal:
        journal.write(b"a commit that was never whole")
    again = opened(killed)  # beside the first one, whose journal grows
    assert (rows(again), again.has_lost) == (list(range(10)), False)
    assert (caplog.text, others(killed)) == ("", [])
    for each in (again, database):
        each.close()


def test_what_is_left_of_an_earlier_journal_is_no_loss(killed: Path) -> None:
    database = opened(killed)
    database.execute("PRAGMA wal_checkpoint(RESTART)")
    with transaction(database):
        database.execute("INSERT INTO t VALUES (10)")
    copy = killed.parent / "again"
    shutil.copytree(killed.parent, copy, ignore=shutil.ignore_patterns("*-shm"))
    database.close()
    again = opened(copy / "it.sqlite3")
    assert (rows(again), again.has_lost) == (list(range(11)), False)
    again.close()


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda file: flip(journal_of(file), 1), 0),
        (lambda file: flip(journal_of(file), 20), 0),
        (lambda file: flip(journal_of(file), HEADER_BYTES + 9), 0),
        (lambda file: flip(journal_of(file), HEADER_BYTES + 5 * FRAME + 100), None),
        (lambda file: flip(journal_of(file), journal_of(file).stat().st_size - 10), 9),
        (lambda file: file.write_bytes(b""), 0),
    ],
    ids=["magic", "salts", "first frame", "a page", "last page", "no database"],
)
def test_lost_commits_are_told_and_their_journal_is_kept(
    killed: Path, damage: Callable[[Path], None], left: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    damage(killed)
    journal = journal_of(killed).read_bytes()
    database = opened(killed)
    found = rows(database)
    assert found == list(range(len(found)))
    assert len(found) < 10
    assert left is None or len(found) == left
    assert database.has_lost
    assert "what was written last is lost" in caplog.text
    (kept,) = others(killed)
    assert kept.read_bytes() == journal
    assert kept.stat().st_mode & 0o077 == 0
    database.close()
    caplog.clear()
    opened(killed).close()
    assert (caplog.text, others(killed)) == ("", [kept])


def test_a_database_is_set_aside_with_its_journal(killed: Path) -> None:
    flip(journal_of(killed), 1)  # a whole one would mend the file
    killed.write_bytes(b"no database" * 1000)
    journal = journal_of(killed).read_bytes()
    database = opened(killed)
    assert (rows(database), database.has_lost) == ([], True)
    database.close()
    aside, kept = others(killed)
    assert aside.read_bytes() == b"no database" * 1000
    assert kept.read_bytes() == journal


@pytest.mark.anyio
async def test_no_file_of_a_client_is_removed_whose_record_was_lost(tmp_path: Path) -> None:
    async def stored(store: SqliteBatchStore) -> str:
        async with store.upload("a") as upload:
            await upload.write(b"mine")
            return (await upload.keep(filename="a", purpose="user_data", expires_s=None)).id

    store = SqliteBatchStore(BatchSettings(), tmp_path / "lives")
    ids = [await stored(store) for _ in range(3)]
    shutil.copytree(tmp_path / "lives", tmp_path / "killed", ignore=shutil.ignore_patterns("*-shm"))
    await store.close()
    journal = tmp_path / "killed" / "batches.sqlite3-wal"
    flip(journal, journal.stat().st_size - 10)
    store = SqliteBatchStore(BatchSettings(), tmp_path / "killed")
    await store.open()
    assert await store.own()
    kept = [file.id for file in await store.files("a", purpose=None, after=None, descending=False, limit=9)]
    await store.close()
    assert kept == ids[: len(kept)]
    assert len(kept) < 3
    (apart,) = (tmp_path / "killed").glob("files.*")
    assert {path.name for path in apart.iterdir()} == set(ids) - set(kept)
    with sqlite3.connect(tmp_path / "killed" / "batches.sqlite3") as database:
        assert database.execute("SELECT count(*) FROM files").fetchone() == (len(kept),)
