"""The store of files and batches: what is damaged, locked, left over, or of another server."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.core.batches import (
    BatchLine,
    BatchStatus,
    LineResult,
    StorageFull,
    StoredBatch,
    StoredFile,
    UnknownBatch,
    UnknownFile,
)
from dragoman.core.caller import Caller
from dragoman.core.errors import BadRequest, DragomanError, GenerationFailed, Overloaded
from dragoman.serving import batch_database
from dragoman.serving.batch_store import PIECE_BYTES, SqliteBatchStore
from dragoman.serving.expiry_clock import ExpiryClock
from dragoman.serving.settings import BatchSettings

pytestmark = pytest.mark.anyio

ON = BatchSettings()
ANN = Caller(name="ann", tenant="a")


def store_in(folder: Path, **settings: Any) -> SqliteBatchStore:
    return SqliteBatchStore(BatchSettings(**settings), folder, clock=lambda: 1000.0)


async def stored(store: SqliteBatchStore, content: bytes = b"{}\n") -> StoredFile:
    async with store.upload("a") as upload:
        await upload.write(content)
        return await upload.keep(filename="in.jsonl", purpose="batch", expires_s=3600)


def batch_of(file: StoredFile, id: str = "batch_1") -> StoredBatch:
    return StoredBatch(
        id=id,
        dialect="openai",
        tenant="a",
        endpoint="/v1/completions",
        caller=ANN,
        input_file=file.id,
        window="24h",
        results_keep_s=60,
        created_s=1000,
        expires_s=2000,
    )


@pytest.mark.parametrize("damage", [b"no database" * 1000, b"", None], ids=["garbage", "empty", "gone"])
async def test_the_files_of_a_database_that_is_lost_are_kept_apart(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_in(tmp_path)
    file = await stored(store, b"mine")
    await store.close()
    database = tmp_path / "batches.sqlite3"
    if damage is None:
        database.unlink()
    else:
        database.write_bytes(damage)
    for _ in range(2):
        store = store_in(tmp_path)
        await store.open()
        with pytest.raises(UnknownFile):
            await store.file("a", file.id)
        await stored(store)
        assert await store.own()
        await store.close()
    (apart,) = tmp_path.glob("files.*")
    assert (apart / file.id).read_bytes() == b"mine", "the database may be found or mended"
    assert str(apart) in caplog.text
    assert len(os.listdir(tmp_path / "files")) == 2


async def test_a_damaged_record_hides_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = store_in(tmp_path)
    files = [await stored(store) for _ in range(3)]
    for number, file in enumerate(files):
        await store.create(batch_of(file, f"batch_{number}"))
    await store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "batches.sqlite3")) as database, database:
        database.execute("UPDATE files SET state = x'00' WHERE id = ?", (files[1].id,))
        (state,) = database.execute("SELECT state FROM batches WHERE id = 'batch_1'").fetchone()
        database.execute("UPDATE batches SET state = ? WHERE id = 'batch_1'", (state.replace(b"openai", b"open\xffi"),))
    store = store_in(tmp_path)
    for _ in range(2):
        assert [batch.id for batch in await store.unfinished()] == ["batch_0", "batch_2"]
        assert [batch.id for batch in await store.batches("a", after=None, limit=9)] == ["batch_2", "batch_0"]
        listed = await store.files("a", purpose=None, after=None, descending=False, limit=9)
        assert [file.id for file in listed] == [files[0].id, files[2].id]
    assert caplog.text.count("has a damaged record") == 2
    with pytest.raises(GenerationFailed):
        await store.batch("a", "batch_1")
    await store.close()


async def test_everything_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir(mode=0o755)
    store = store_in(tmp_path)
    batch = await store.create(batch_of(await stored(store)))
    assert await store.own()
    lines = [BatchLine(0, "a", 0, 2)]
    batch = await store.begin(batch, lines, lambda batch: msgspec.structs.replace(batch, total=1))
    await store.finish(batch, lambda line: LineResult(b"{}\n", True))
    assert len(os.listdir(tmp_path / "files")) == 2
    for path in (*tmp_path.glob("*.*"), *(tmp_path / "files").iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path
    await store.close()


async def test_a_database_of_a_newer_release_is_left_as_it_is(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    file = await stored(store)
    await store.close()
    database = sqlite3.connect(tmp_path / "batches.sqlite3")
    database.execute("PRAGMA user_version = 99")
    store = store_in(tmp_path)
    with pytest.raises(DragomanError, match="its tables are of version 99"):
        await store.open()
    await store.close()
    database.execute("PRAGMA user_version = 1")
    database.close()
    store = store_in(tmp_path)
    await store.open()
    assert (await store.file("a", file.id)).id == file.id
    await store.close()


async def test_a_folder_that_is_removed_is_made_again_without_what_was_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    store, other = store_in(folder), store_in(folder)
    batch = await store.create(batch_of(await stored(store)))
    assert await store.own()
    shutil.rmtree(folder)
    file = await stored(store)
    assert await store.own(), "by a lock in the new folder"
    assert not await other.own()
    with pytest.raises(UnknownBatch):
        await store.finish(batch, lambda line: LineResult(b"", False))
    again = await store.create(batch_of(file, "batch_2"))
    with pytest.raises(UnknownBatch):  # and not the result of a line of the new one
        await store.save_result(batch, BatchLine(0, "a", 0, 1), LineResult(b"{}", True))
    assert (await other.batch("a", "batch_2")).number == again.number
    shutil.rmtree(folder / "files")
    with pytest.raises(UnknownFile, match="are gone"):
        await store.read(Path.read_bytes, file.id)
    await store.close()
    await other.close()


async def test_a_locked_database_is_a_clear_error_and_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.serving.batch_store.LOCKED_S", 0.01)
    store = store_in(tmp_path)
    file = await stored(store)
    other = sqlite3.connect(tmp_path / "batches.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(GenerationFailed, match="cannot be reached"):
        await stored(store)
    assert store.failures == 1
    other.execute("ROLLBACK")
    other.close()
    assert os.listdir(tmp_path / "files") == [file.id]
    await stored(store)
    await store.close()


async def test_files_without_a_record_are_removed_by_the_one_owner(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    file = await stored(store)
    for name in ("file-1.part", "file-2"):
        (tmp_path / "files" / name).write_bytes(b"left")
    other = store_in(tmp_path)
    assert await store.own()
    assert not await other.own()
    assert os.listdir(tmp_path / "files") == [file.id]
    await store.close()
    assert await other.own(), "when the first one has ended"
    await other.close()


async def test_a_folder_without_batches_stays_as_it_is(tmp_path: Path) -> None:
    store = store_in(tmp_path / "state")
    await store.open()
    assert not await store.own()
    assert not (tmp_path / "state").exists()
    await stored(store)
    assert await store.own()
    await store.close()


async def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    store = store_in(tmp_path)
    with pytest.raises(StorageFull, match="no room"):
        await stored(store)
    assert os.listdir(tmp_path / "files") == []
    await store.close()


async def test_files_and_batches_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MAX_FILES", 2), ("MAX_UNFINISHED", 2), ("MAX_WAITING_LINES", 7)):
        monkeypatch.setattr(batch_database, name, most)
    store = store_in(tmp_path)
    file, large = await stored(store, b"{}\n" * 2), await stored(store, b"{}\n" * 4)
    with pytest.raises(StorageFull, match="2 files"):
        await stored(store)
    await store.create(batch_of(file, "batch_1"))
    with pytest.raises(Overloaded, match="3 lines of your batches wait, and 7 may"):
        await store.create(batch_of(large, "batch_2"))
    await store.create(batch_of(file, "batch_2"))
    with pytest.raises(Overloaded, match="2 of your batches"):
        await store.create(batch_of(file, "batch_3"))
    await store.close()


async def test_a_file_that_no_caller_could_have_run_is_refused_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients send again what is refused as too much for now."""
    monkeypatch.setattr(batch_database, "MAX_WAITING_LINES", 3)
    store = store_in(tmp_path)
    with pytest.raises(BadRequest, match="too many lines: of all your batches at most 3 may wait"):
        await store.create(batch_of(await stored(store, b"{}\n" * 4), "batch_1"))
    await store.close()


async def test_a_result_counts_once_and_the_end_is_the_same_when_it_is_begun_again(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    batch = await store.create(batch_of(await stored(store)))
    lines = [BatchLine(place, f"c{place}", 0, 2) for place in range(3)]
    batch = await store.begin(batch, lines, lambda old: replaced(old, total=3, status=BatchStatus.IN_PROGRESS))
    for text in (b"first\n", b"second\n"):
        batch = await store.save_result(batch, lines[1], LineResult(text, is_answer=True))
    assert (batch.completed, batch.failed) == (1, 0)
    assert [line.position for line in await store.waiting_lines(batch, -1, 9)] == [0, 2]
    left = [LineResult(b"given up\n", is_answer=False)]
    store._write_results(batch, lambda line: left[0])  # the server died before this was recorded
    done = await store.finish(batch, lambda line: left[0])
    assert (done.status, done.completed_s) == ("completed", 1000)
    assert done.output_file is not None
    assert done.error_file is not None
    assert store.path(done.output_file).read_bytes() == b"first\n"
    assert store.path(done.error_file).read_bytes() == b"given up\n" * 2
    assert await store.unfinished() == []
    assert store.gauges() == {"files_stored": 3, "batches_unfinished": 0}
    store._clock = lambda: 1061.0
    await store.expire()
    assert len(os.listdir(tmp_path / "files")) == 3, "the clock was set"
    store._expiry = ExpiryClock(store._clock)
    await store.expire()
    assert os.listdir(tmp_path / "files") == [done.input_file]
    await store.close()


async def test_what_was_committed_stays_when_the_call_after_it_fails(tmp_path: Path) -> None:
    """A caller that is told of a failure begins again with the batch as it knew it before."""
    store = store_in(tmp_path)
    known = await store.create(batch_of(await stored(store)))
    lines = [BatchLine(place, f"c{place}", 0, 2) for place in range(2)]

    def begun(old: StoredBatch) -> StoredBatch:
        return replaced(old, total=2, status=BatchStatus.IN_PROGRESS)

    for _ in range(2):
        running = await store.begin(known, lines, begun)
    for each in lines:
        running = await store.save_result(running, each, LineResult(b"answer\n", is_answer=True))
    for _ in range(2):
        done = await store.finish(running, lambda line: LineResult(b"given up\n", is_answer=False))
    assert (done.status, done.completed) == ("completed", 2)
    assert done.output_file is not None
    assert store.path(done.output_file).read_bytes() == b"answer\n" * 2
    await store.close()


async def test_the_database_gives_back_what_results_took(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    batch = await store.create(batch_of(await stored(store)))
    lines = [BatchLine(place, f"c{place}", 0, 2) for place in range(40)]
    batch = await store.begin(batch, lines, lambda old: replaced(old, total=40, status=BatchStatus.IN_PROGRESS))
    for each in lines:
        await store.save_result(batch, each, LineResult(b"x" * 100_000, is_answer=True))
    held = sum(path.stat().st_size for path in tmp_path.glob("batches.sqlite3*"))
    assert held > 4_000_000
    await store.finish(batch, lambda line: LineResult(b"", is_answer=False))
    await store.close()
    left = sum(path.stat().st_size for path in tmp_path.glob("batches.sqlite3*"))
    assert left < 200_000


async def test_a_file_that_another_server_writes_is_left_to_it(tmp_path: Path) -> None:
    other, owner = store_in(tmp_path), store_in(tmp_path)
    async with other.upload("a") as upload:
        await upload.write(b"x" * PIECE_BYTES)
        (tmp_path / "files" / "file-left.part").write_bytes(b"left")
        assert await owner.own()
        assert len(os.listdir(tmp_path / "files")) == 1
        file = await upload.keep(filename="in.jsonl", purpose="batch", expires_s=3600)
    assert os.listdir(tmp_path / "files") == [file.id]
    await other.close()
    await owner.close()


async def test_results_leave_the_disk_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(tmp_path)
    batch = await store.create(batch_of(await stored(store)))
    lines = [BatchLine(0, "c0", 0, 2)]
    batch = await store.begin(batch, lines, lambda old: replaced(old, total=1, status=BatchStatus.IN_PROGRESS))
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageFull, match="no room"):
        await store.save_result(batch, lines[0], LineResult(b"answer\n", is_answer=True))
    await store.close()


def replaced(batch: StoredBatch, **fields: Any) -> StoredBatch:
    import msgspec

    return msgspec.structs.replace(batch, **fields)


async def test_a_folder_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "batches.sqlite3").mkdir()
    with pytest.raises(DragomanError, match="cannot be opened"):
        await store_in(tmp_path).open()


@pytest.mark.parametrize("size", [6000, 3 * PIECE_BYTES])
async def test_nothing_is_left_of_an_upload_that_the_disk_did_not_take(tmp_path: Path, size: int) -> None:
    store = store_in(tmp_path)
    first = await stored(store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 2000, limits[1]))
    try:
        with pytest.raises(GenerationFailed, match="The stored files cannot be reached"):
            await stored(store, b"x" * size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path / "files") == [first.id]
    assert (await stored(store, b"x" * size)).bytes == size
    await store.close()


async def test_an_open_store_needs_no_more_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may start none by then."""
    store = store_in(tmp_path)
    await store.open()

    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        file = await stored(store, b"mine")
        assert (await store.file("a", file.id)).bytes == 4
    await store.close()
