"""The prefix cache on disk: what is kept, what is not trusted, and that no fault of the disk becomes an answer."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import numpy as np
import pytest

from dragoman.engine.prefix_store import folder as folders
from dragoman.engine.prefix_store import segment as segments
from dragoman.engine.prefix_store.folder import CacheFolder, FolderError
from dragoman.engine.prefix_store.segment import (
    HEAD_BYTES,
    Record,
    SegmentError,
    SegmentWriter,
    key_of,
    pack_record,
    scan,
    unpack_record,
)
from dragoman.engine.prefix_store.store import PrefixStore, checksum_of
from dragoman.engine.settings import DiskCacheSettings

MODEL = b"m" * 32
ROWS, BYTES = 64, 1000
LIMIT = 1 << 22


class Store:
    """A store of some rows of memory, whose keys are ``names``."""

    def __init__(self, path: Path, *, limit: int | None = LIMIT, model: bytes = MODEL, nbytes: int = BYTES) -> None:
        self.rows = np.zeros((ROWS, nbytes), np.uint8)
        self.names: dict[int, bytes] = {}
        self.store = PrefixStore(
            path, limit, model, [self.rows], None, lambda key, row: self.names.get(row) == key, compares=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def write(self, row: int, *, wait: bool = True) -> bytes:
        """Fill a row with bytes that follow from its number, and have it written."""
        self.rows[row] = content(row, self.rows.shape[1])
        key = self.names[row] = key_at(row)
        self.store.save(key, row, 32, 32)
        if wait:
            until(lambda: self.store.has(key) or self.store._is_failing)
        return key

    def read(self, *rows: int) -> list[bool]:
        """Read the rows' keys into rows further on; return which came back, each as it was."""
        until(lambda: self.store._ready)
        load = self.store.load([(key_at(row), row + ROWS // 2) for row in rows])
        until(lambda: load.is_finished)
        for row, is_read in zip(rows, load.read, strict=True):
            assert not is_read or (self.rows[row + ROWS // 2] == content(row, self.rows.shape[1])).all()
        return load.read


def key_at(row: int) -> bytes:
    return key_of(0, row.to_bytes(16, "little"))


def content(row: int, nbytes: int = BYTES) -> np.ndarray:
    return np.random.default_rng(row).integers(0, 256, nbytes, np.uint8)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it does not become true"
        time.sleep(0.001)


def files(path: Path) -> list[Path]:
    return sorted(path.glob("*/*.blocks"))


def written(path: Path, *rows: int) -> Path:
    """Write rows and stop. Returns their file."""
    with Store(path) as store:
        for row in rows:
            store.write(row)
    (file,) = files(path)
    return file


# The format ----------------------------------------------------------------------------------------------------------


def test_another_process_reads_what_was_written(tmp_path: Path) -> None:
    written(tmp_path / "c", 1, 2, 3)
    with Store(tmp_path / "c") as store:
        assert store.read(1, 2, 3, 4) == [True, True, True, False]
        assert store.store.counts.read_bytes == 3 * BYTES
        assert not store.store.counts.damaged


def test_a_segment_that_is_gone_when_its_turn_comes_is_a_miss(tmp_path: Path) -> None:
    """The disk is asked for the next segment while one is read."""
    for row in (1, 2, 3):
        with Store(tmp_path / "c") as store:
            store.write(row)
    first, second, third = files(tmp_path / "c")
    with Store(tmp_path / "c") as store:
        until(lambda: store.store._ready)
        second.unlink()
        assert store.read(1, 2, 3) == [True, False, True]
        assert store.read(1, 2, 3) == [True, False, True]
        assert store.store.counts.damaged == 0
    assert files(tmp_path / "c") == [first, third]


def test_long_records_are_found_whatever_their_lengths(tmp_path: Path) -> None:
    """Headers are asked for ahead, as if all records were as long as the one before."""
    nbytes = 40_000
    stride = Record(key_at(0), nbytes, 0.1, 32, 0).stride
    with Store(tmp_path / "c", limit=64 << 20, nbytes=nbytes) as store:
        for row in range(20):
            store.write(row)
        expected = {key_at(row) for row in range(20)}
    (file,) = files(tmp_path / "c")
    with file.open("r+b") as opened:
        assert {record.key for _, record in scan(opened.fileno())} == expected
        opened.truncate(file.stat().st_size - 1)
        assert {record.key for _, record in scan(opened.fileno())} == expected - {key_at(19)}
        record = Record(key_at(20), 70_000, 0.1, 32, 0)
        opened.seek(0, 2)
        opened.truncate(HEAD_BYTES + 19 * stride)
        opened.seek(HEAD_BYTES + 19 * stride)
        opened.write(pack_record(record) + bytes(record.stride - 64))
        opened.flush()
        assert [each.key for _, each in scan(opened.fileno())][-1] == key_at(20)


@pytest.mark.parametrize("at", ["header", "bytes"])
def test_a_damaged_record_is_a_miss(tmp_path: Path, at: str, caplog: pytest.LogCaptureFixture) -> None:
    """A bit of the second of three records: with a wrong header, those after it are not found either."""
    file = written(tmp_path / "c", 1, 2, 3)
    with open(file, "rb") as opened:
        places = [place for place, _ in scan(opened.fileno())]
    data = bytearray(file.read_bytes())
    data[places[1] + (20 if at == "header" else 70)] ^= 4
    file.write_bytes(data)
    with Store(tmp_path / "c") as store:
        assert store.read(1, 2, 3) == ([True, False, False] if at == "header" else [True, False, True])
        assert store.store.counts.damaged == (at == "bytes")
        assert ("damaged" in caplog.text) is (at == "bytes")
        assert not store.store.has(key_at(2)), "it is computed and written again"
        store.write(2)
        assert store.read(2) == [True]


def test_what_changes_while_it_is_in_use_is_a_miss(tmp_path: Path) -> None:
    file = written(tmp_path / "c", 1, 2)
    with Store(tmp_path / "c") as store:
        until(lambda: store.store._ready)
        data = file.read_bytes()
        file.write_bytes(data[:HEAD_BYTES] + data[HEAD_BYTES + 1024 + 64 :] + data[: 1024 + 64])
        assert store.read(1, 2) == [False, False]
        assert store.store.counts.damaged == 2


@pytest.mark.parametrize("length", [0, 10, HEAD_BYTES, HEAD_BYTES + 30, HEAD_BYTES + 64 + 500])
def test_a_torn_file_has_what_was_whole(tmp_path: Path, length: int) -> None:
    file = written(tmp_path / "c", 1, 2)
    os.truncate(file, length)
    with Store(tmp_path / "c") as store:
        assert store.read(1, 2) == [False, False]
        store.write(1)
        assert store.read(1) == [True]


def test_files_of_other_models_versions_and_kinds_are_not_read(tmp_path: Path) -> None:
    file = written(tmp_path / "c", 1)
    with Store(tmp_path / "c", model=b"n" * 32) as other:
        assert other.read(1) == [False]
    with Store(tmp_path / "c", nbytes=BYTES - 1) as other:
        assert other.read(1) == [False], "rows of another size"
    moved = file.parent.with_name((b"n" * 32).hex())
    file.parent.rename(moved)
    with Store(tmp_path / "c", model=b"n" * 32) as other:
        assert other.read(1) == [False]
        assert other.store.counts.damaged == 1
    data = bytearray(files(tmp_path / "c")[0].read_bytes())
    data[8] = 9
    files(tmp_path / "c")[0].write_bytes(data)
    opened = CacheFolder(tmp_path / "c")
    with pytest.raises(SegmentError):
        opened.open_segment(moved.name, file.name)
    opened.close()


def test_headers_say_what_was_packed() -> None:
    rng = random.Random(1)
    for _ in range(50):
        record = Record(key_of(rng.choice([0, 3, 255]), rng.randbytes(16)), rng.randrange(1 << 30), rng.random(), 7, 9)
        packed = pack_record(record)
        assert unpack_record(packed) == record
        place = rng.randrange(64)
        damaged = packed[:place] + bytes([packed[place] ^ (1 << rng.randrange(8))]) + packed[place + 1 :]
        assert unpack_record(damaged) is None
    assert unpack_record(bytes(64)) is None
    assert unpack_record(b"") is None


def test_the_checksum_of_large_records_covers_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "PIECE", 100)
    data = content(1)
    sums = {checksum_of(data)}
    for place in (0, 99, 100, 999):
        data[place] ^= 1
        sums.add(checksum_of(data))
        data[place] ^= 1
    assert len(sums) == 5


# Processes -----------------------------------------------------------------------------------------------------------

WRITER = """
import sys, numpy as np
from pathlib import Path
from dragoman.engine.prefix_store.folder import CacheFolder
from dragoman.engine.prefix_store.segment import Record, key_of
from dragoman.engine.prefix_store.store import checksum_of
writer = CacheFolder(Path(sys.argv[1])).new_segment((b"m" * 32).hex(), "")
for row in range(100_000):
    data = np.random.default_rng(row).integers(0, 256, 1000, np.uint8)
    writer.append(Record(key_of(0, row.to_bytes(16, "little")), 1000, 1.0, 32, checksum_of(data)), memoryview(data))
    if row == 20: print("some", flush=True)
"""


def test_a_process_killed_while_it_writes(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "c")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"some\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with Store(tmp_path / "c") as store:
        assert all(store.read(*range(20)))
        assert not store.store.counts.damaged


def test_two_servers_write_files_of_their_own(tmp_path: Path) -> None:
    with Store(tmp_path / "c") as first, Store(tmp_path / "c") as second:
        for row in range(1, 9):
            (first if row % 2 else second).write(row)
        assert len(files(tmp_path / "c")) == 2
        first.store._refreshed = -100.0
        first.write(20)
        until(lambda: first.store.has(key_at(8)))
        assert all(first.read(*range(1, 9)))
    with Store(tmp_path / "c") as third:
        assert all(third.read(*range(1, 9)))


def test_a_file_that_a_server_writes_is_not_removed(tmp_path: Path) -> None:
    with Store(tmp_path / "c") as store:
        store.write(1)
        opened = CacheFolder(tmp_path / "c")
        (segment,) = opened.segments()
        assert not opened.remove(segment)
    assert opened.remove(segment)
    assert not list((tmp_path / "c").iterdir()), "its model's folder is gone too"
    opened.close()


# Room ----------------------------------------------------------------------------------------------------------------


def test_room_is_made_by_age_and_worth(tmp_path: Path) -> None:
    opened = CacheFolder(tmp_path / "c")
    data = content(1)
    names = []
    for cost_s, age_s in ((1.0, 0.0), (1.0, 3 * 86400.0), (8.0, 2 * 86400.0), (0.01, 0.0), (1.0, -(10**9))):
        writer = opened.new_segment(MODEL.hex(), "a model")
        writer.append(Record(key_at(1), BYTES, cost_s, 32, checksum_of(data)), memoryview(data))
        writer.close()
        now = time.time()
        os.utime(tmp_path / "c" / MODEL.hex() / writer.name, (now - age_s, now - age_s))
        names.append(writer.name)
    sizes = sum(file.stat().st_size for file in files(tmp_path / "c"))
    one = sizes // 5
    left = []
    for _ in range(5):
        assert opened.make_room(one, sum(f.stat().st_size for f in files(tmp_path / "c")), {})
        left.append({file.name for file in files(tmp_path / "c")})
    gone = [(before - after).pop() for before, after in zip([set(names), *left], left, strict=False)]
    assert gone[:2] == [names[3], names[1]], "what costs little, then what is old"
    assert {names[2], names[4]} <= set(gone), "a time in the future keeps nothing for ever"
    opened.close()


def test_a_clock_that_jumps_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten years on, back before 1970, and to now: all is read again, and room is still made."""
    years_s = 10 * 365 * 86400
    for number, jump_s in enumerate((0, years_s, -6 * years_s, 0)):
        clock = SimpleNamespace(time=lambda: time.time() + jump_s, time_ns=lambda: time.time_ns() + jump_s * 10**9)  # noqa: B023
        monkeypatch.setattr(folders, "time", clock)
        with Store(tmp_path / "c") as store:
            assert all(store.read(*range(number)))
            store.write(number)
    limit = 3 * max(file.stat().st_size for file in files(tmp_path / "c"))
    with Store(tmp_path / "c", limit=limit) as store:
        store.write(9)
        assert store.read(9) == [True]
    assert sum(file.stat().st_size for file in files(tmp_path / "c")) <= limit


def test_the_folder_stays_within_its_bytes(tmp_path: Path) -> None:
    limit = 64 * 1024
    with Store(tmp_path / "c", limit=limit) as store:
        for number in range(200):
            row = number % 32
            store.rows[row] = content(row)
            key = store.names[row] = key_of(0, number.to_bytes(16, "big"))
            store.store.save(key, row, 32, 32)
            until(lambda key=key: store.store.has(key))
        assert not store.store._is_failing
    assert sum(file.stat().st_size for file in files(tmp_path / "c")) <= limit


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_pauses_writing_with_one_line_and_a_free_one_is_used_again(
    code: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    tries: list[str] = []
    full = True
    append = SegmentWriter.append

    def fill(writer: SegmentWriter, record: Record, payload: memoryview) -> int:
        if full:
            tries.append(writer.name)
            raise OSError(code, os.strerror(code))
        return append(writer, record, payload)

    with Store(tmp_path / "c") as store:
        store.write(1)
        monkeypatch.setattr(SegmentWriter, "append", fill)
        for row in range(2, 6):
            store.write(row)
        assert (len(tries), store.read(1, 2)) == (1, [True, False])
        for row in range(6, 9):
            store.store._writes_again_at = time.monotonic()
            store.write(row, wait=False)
            until(lambda: len(tries) == row - 4)  # noqa: B023
        assert len(set(tries[1:])) == 1, "segments without a record do not gather"
        full = False
        store.store._writes_again_at = time.monotonic()
        store.write(9, wait=False)
        until(lambda: store.store.has(key_at(9)))
        assert store.read(1, 2, 8, 9) == [True, False, False, True]
    with Store(tmp_path / "c") as store:
        assert store.read(1, 9) == [True, True]
    assert (caplog.text.count("no prompts are written"), caplog.text.count("are written to")) == (1, 2)


def test_a_write_that_fails_half_way_leaves_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes a part of a record and then no more."""
    opened = CacheFolder(tmp_path / "c")
    writer = opened.new_segment(MODEL.hex(), "")
    data = content(1)
    writer.append(Record(key_at(1), BYTES, 1.0, 32, checksum_of(data)), memoryview(data))
    pwritev = os.pwritev

    def part(file: int, parts: list[bytes], at: int) -> int:
        pwritev(file, [b"".join(parts)[:100]], at)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwritev", part)
    with pytest.raises(OSError, match="full"):
        writer.append(Record(key_at(2), BYTES, 1.0, 32, 0), memoryview(data))
    assert os.fstat(writer.file).st_size == writer.size
    monkeypatch.setattr(os, "pwritev", lambda file, parts, at: os.pwrite(file, b"".join(parts)[:90], at))
    writer.append(Record(key_at(3), BYTES, 1.0, 32, checksum_of(data)), memoryview(data))
    writer.close()
    opened.close()
    monkeypatch.undo()
    with Store(tmp_path / "c") as store:
        until(lambda: store.store._ready)
        assert [store.store.has(key_at(row)) for row in (1, 2, 3)] == [True, False, True]


def test_the_last_gigabyte_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = CacheFolder(tmp_path / "c")
    monkeypatch.setattr(CacheFolder, "free_bytes", 3 << 30)
    assert opened.limit(None, 1 << 30) == (4 << 30) // 10
    assert opened.limit(10 << 30, 1 << 30) == 3 << 30
    monkeypatch.setattr(CacheFolder, "free_bytes", 1 << 50)
    assert opened.limit(None, 0) == folders.MOST_DEFAULT_BYTES
    monkeypatch.setattr(CacheFolder, "free_bytes", 1000)
    assert not opened.make_room(1 << 20, None, {})
    opened.close()


# Whose it is ---------------------------------------------------------------------------------------------------------


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o777)
    with pytest.raises(FolderError, match="can be written by other users"):
        CacheFolder(tmp_path / "c")
    with Store(tmp_path / "c") as store:
        assert store.read(1) == [False]
        store.store.save(key_at(1), 1, 32, 32)
    assert "prompts are not cached on disk" in caplog.text
    assert not list((tmp_path / "c").iterdir())


def test_the_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "c", 1)
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(FolderError, match="belongs to another user"):
        CacheFolder(tmp_path / "c")
    assert file.exists()


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    file = written(tmp_path / "new" / "c", 1)
    assert file.stat().st_mode & 0o777 == 0o600
    assert {path.stat().st_mode & 0o777 for path in (file.parent, file.parents[1])} == {0o700}


def test_links_are_not_followed(tmp_path: Path) -> None:
    file = written(tmp_path / "other", 1)
    (tmp_path / "c" / MODEL.hex()).mkdir(parents=True, mode=0o700)
    os.symlink(file, tmp_path / "c" / MODEL.hex() / file.name)
    with Store(tmp_path / "c") as store:
        assert store.read(1) == [False]
    (tmp_path / "d").mkdir(mode=0o700)
    os.symlink(file.parent, tmp_path / "d" / MODEL.hex())
    with Store(tmp_path / "d") as store:
        assert store.read(1) == [False]
        store.write(2)
    assert files(tmp_path / "other") == [file], "nothing was written through a link"


def test_a_folder_that_cannot_be_made_or_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with Store(tmp_path / "file" / "c") as store:
        assert store.read(1) == [False]
    assert "cannot be opened" in caplog.text
    read_only = Path("/proc/self")
    with Store(read_only) as store:
        store.write(1)
        assert store.read(1) == [False]


def test_a_folder_that_is_removed_while_it_is_used(tmp_path: Path) -> None:
    with Store(tmp_path / "c") as store:
        store.write(1)
        for file in files(tmp_path / "c"):
            file.unlink()
        for path in (*(tmp_path / "c").rglob("*"), tmp_path / "c"):
            path.unlink() if path.is_file() else None
        for path in sorted((tmp_path / "c").iterdir()):
            path.rmdir()
        (tmp_path / "c").rmdir()
        assert store.read(1) == [False]
        store.write(2)
        assert store.read(2) == [True]
    assert len(files(tmp_path / "c")) == 1


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DRAGOMAN_CACHE", raising=False)
    assert DiskCacheSettings().folder == tmp_path / "dragoman" / "prefixes"
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "d"))
    assert DiskCacheSettings().folder == tmp_path / "d" / "prefixes"
    assert DiskCacheSettings(prefix_cache_folder="/x").folder == Path("/x")


def test_the_lock_is_the_process_s(tmp_path: Path) -> None:
    """What ends without closing its segment leaves no lock behind."""
    written(tmp_path / "c", 1)
    with files(tmp_path / "c")[0].open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
