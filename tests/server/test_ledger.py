"""The ledger: what is written when, and what happens when it cannot be."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.core.errors import DragomanError
from dragoman.server.ledger import LEDGER_FILE, Ledger, Usage, read_ledger

DAY = "2027-01-31"
USED = Usage(requests=1, prompt_tokens=10, cached_tokens=4, generated_tokens=20, seconds=0.5)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / LEDGER_FILE


@pytest.fixture
def ledger(file: Path) -> Iterator[Ledger]:
    ledger = Ledger(file, write_s=0.01)
    ledger.open(DAY)
    yield ledger
    ledger.close()


def wait_until(condition: object) -> None:
    until = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.005)


def test_what_is_used_is_summed_by_day_holder_and_model(ledger: Ledger, file: Path) -> None:
    for _ in range(3):
        ledger.add(DAY, "ann", "stub", USED)
    ledger.add(DAY, "bob", "stub", USED)
    ledger.add(DAY, "ann", "", Usage(refused=2))
    ledger.close()
    rows = read_ledger(file)
    assert [(row.day, row.holder, row.model) for row in rows] == [
        (DAY, "ann", ""),
        (DAY, "ann", "stub"),
        (DAY, "bob", "stub"),
    ]
    assert rows[0].usage == Usage(refused=2)
    assert rows[1].usage == Usage(
        requests=3, prompt_tokens=30, cached_tokens=12, generated_tokens=60, seconds=pytest.approx(1.5)
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_restart_finds_the_day_and_adds_to_it(file: Path) -> None:
    for restart in range(3):
        ledger = Ledger(file)
        rows = ledger.open(DAY)
        assert [row.usage.requests for row in rows] == ([restart] if restart else [])
        ledger.add(DAY, "ann", "stub", USED)
        ledger.close()
    assert Ledger(file).open("2027-02-02") == []


def test_two_servers_add_to_one_ledger(file: Path) -> None:
    ledgers = [Ledger(file, write_s=0.001) for _ in range(2)]
    for ledger in ledgers:
        ledger.open(DAY)
    for _ in range(50):
        for ledger in ledgers:
            ledger.add(DAY, "ann", "stub", USED)
        time.sleep(0.001)
    for ledger in ledgers:
        ledger.close()
    assert read_ledger(file)[0].usage.requests == 100


def test_old_days_go_at_the_next_start(file: Path) -> None:
    ledger = Ledger(file)
    ledger.open(DAY)
    for day in ("2025-01-01", "2026-12-01", DAY):
        ledger.add(day, "ann", "stub", USED)
    ledger.close()
    ledger = Ledger(file, keep_days=400)
    ledger.open(DAY)
    ledger.close()
    assert [row.day for row in read_ledger(file)] == ["2026-12-01", DAY]
    assert [row.day for row in read_ledger(file, since="2027-01-01")] == [DAY]
    assert read_ledger(file, holder="bob") == []


def test_what_was_added_a_second_ago_survives_a_kill(file: Path) -> None:
    code = """
        import sys, time
        from pathlib import Path
        from dragoman.server.ledger import Ledger, Usage

        ledger = Ledger(Path(sys.argv[1]))
        ledger.open("2027-01-31")
        number = 0
        while True:
            ledger.add("2027-01-31", "ann", "stub", Usage(requests=1))
            number += 1
            print(number, time.monotonic(), flush=True)
            time.sleep(0.02)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(file)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    added = []
    for line in process.stdout:
        number, when = line.split()
        added.append((int(number), float(when)))
        if added[-1][1] - added[0][1] > 2:
            break
    killed = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    promised = max(number for number, when in added if when < killed - 1)
    assert promised > 10
    assert read_ledger(file)[0].usage.requests >= promised


def test_a_ledger_that_cannot_be_written_is_kept_in_memory_and_told_once(
    ledger: Ledger, file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, as SQLite says it."""
    monkeypatch.setattr("dragoman.server.ledger.RETRY_S", 0.01)
    full, real = [True], sqlite3.connect

    def connect(*arguments: object, **options: object) -> sqlite3.Connection:
        if full[0]:
            raise sqlite3.OperationalError("database or disk is full")
        return real(*arguments, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", connect)
    ledger._database.close()  # type: ignore[union-attr]
    ledger._database = None
    ledger.add(DAY, "ann", "stub", USED)
    wait_until(lambda: ledger.failures >= 3)
    ledger.add(DAY, "ann", "stub", USED)
    assert sum("cannot be used" in record.message for record in caplog.records) == 1
    full[0] = False
    wait_until(lambda: read_ledger(file) and read_ledger(file)[0].usage.requests == 2)


def test_a_folder_that_is_no_folder_keeps_no_server_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("")
    ledger = Ledger(tmp_path / "state" / LEDGER_FILE, write_s=0.01)
    assert ledger.open(DAY) == []
    ledger.add(DAY, "ann", "stub", USED)
    ledger.close()
    assert ledger.failures >= 1
    assert sum("cannot be used" in record.message for record in caplog.records) == 1


def test_a_damaged_ledger_is_set_aside(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.parent.mkdir()
    file.write_bytes(b"this is no database, but long enough to be looked at as one" * 100)
    ledger = Ledger(file)
    assert ledger.open(DAY) == []
    ledger.add(DAY, "ann", "stub", USED)
    ledger.close()
    assert read_ledger(file)[0].usage == USED
    assert len(list(file.parent.glob(f"{LEDGER_FILE}.2*"))) == 1
    assert "an empty one takes its place" in caplog.text


def test_a_ledger_with_a_damaged_page_is_set_aside(ledger: Ledger, file: Path) -> None:
    ledger.add(DAY, "ann", "stub", USED)
    ledger.close()
    content = file.read_bytes()
    file.write_bytes(content[:4096] + bytes(len(content) - 4096))
    again = Ledger(file)
    again.open(DAY)
    again.add(DAY, "bob", "stub", USED)
    again.close()
    assert [row.holder for row in read_ledger(file)] == ["bob"]
    assert len(list(file.parent.glob(f"{LEDGER_FILE}.2*"))) == 1


def test_use_is_on_the_disk_after_the_ledger_was_removed(
    ledger: Ledger, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(file.parent)
    ledger.add(DAY, "ann", "stub", USED)
    wait_until(file.exists)
    ledger.close()
    assert read_ledger(file)[0].usage == USED
    assert "was removed or replaced while it was in use" in caplog.text


def test_a_ledger_that_is_not_there_is_said_in_words(file: Path) -> None:
    with pytest.raises(DragomanError, match="nothing was counted yet"):
        read_ledger(file)


def test_without_a_file_nothing_is_kept_and_no_thread_runs() -> None:
    threads = threading.active_count()
    ledger = Ledger()
    assert ledger.open(DAY) == []
    ledger.add(DAY, "ann", "stub", USED)
    assert threading.active_count() == threads
    ledger.close()


def test_a_ledger_of_a_newer_release_is_left_as_it_is(file: Path) -> None:
    ledger = Ledger(file, write_s=0.01)
    ledger.open(DAY)
    ledger.add(DAY, "ann", "stub", USED)
    ledger.close()
    database = sqlite3.connect(file)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(DragomanError, match="its tables are of version 99"):
        Ledger(file).open(DAY)
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_ledger_that_a_newer_release_replaces_while_it_is_used_is_kept_in_memory(file: Path) -> None:
    ledger = Ledger(file, write_s=0.01)
    ledger.open(DAY)
    for each in file.parent.iterdir():
        each.unlink()
    database = sqlite3.connect(file)
    database.executescript("CREATE TABLE usage (other); PRAGMA user_version = 99")
    database.close()
    ledger.add(DAY, "ann", "stub", USED)
    wait_until(lambda: ledger.failures)
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    ledger.close()
