"""The store of cut generations: what it keeps, for whom, how long and how much, and what becomes of damaged files."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from dragoman.core.errors import DragomanError, GenerationFailed
from dragoman.core.journal import Journal, current_journal
from dragoman.core.resume import ResumeKey, SavedGeneration, SavedSequence
from dragoman.serving import resume_store as continuing
from dragoman.serving.resume_store import LockedGeneration, SqliteResumeStore
from dragoman.serving.settings import ContinueSettings

pytestmark = pytest.mark.anyio


def cut(number: int = 0, tokens: int = 3) -> SavedGeneration:
    sequence = SavedSequence(prompt=(1, 2), output=(number,) * tokens, seed=2**64 - 1, mirostat=0.1)
    return SavedGeneration(sequences=(sequence,), config={"temperature": 0.5, "stop": ["a", "b"]})


def key(*ids: str, dialect: str = "d", tenant: str = "t", model: str = "m") -> ResumeKey:
    return ResumeKey(dialect, tenant, model, ids)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def open_store(
    folder: Path | None = None, *, clock: Clock | None = None, **limits: float
) -> AsyncIterator[SqliteResumeStore]:
    where = {"continue_store": "memory"} if folder is None else {"state_dir": str(folder)}
    settings = msgspec.convert(where | limits, ContinueSettings)
    store = SqliteResumeStore(settings, **({} if clock is None else {"clock": clock}))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def save(store: SqliteResumeStore, name: ResumeKey, generation: SavedGeneration) -> None:
    async with store.hold(name) as held:
        await held.save(generation)


async def kept(store: SqliteResumeStore, name: ResumeKey) -> SavedGeneration | None:
    async with store.hold(name) as held:
        return held.saved


@pytest.fixture(params=["memory", "disk"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqliteResumeStore]:
    async with open_store(tmp_path if request.param == "disk" else None) as store:
        yield store


async def test_what_is_saved_is_found_until_it_is_forgotten(store: SqliteResumeStore) -> None:
    assert await kept(store, key("a")) is None
    await save(store, key("a"), cut(1))
    assert await kept(store, key("a")) == cut(1)
    await save(store, key("a"), cut(2))
    async with store.hold(key("a")) as held:
        assert held.saved == cut(2)
        await held.forget()
        assert held.saved is None
    assert await kept(store, key("a")) is None
    assert (store.hits, store.misses) == (3, 3)
    assert (store.keys, store.tokens) == (0, 0)


@asynccontextmanager
async def held_by(
    store: SqliteResumeStore, request: bytes, journal: Journal | None = None
) -> AsyncIterator[LockedGeneration]:
    """Hold one key for a request of a cluster."""
    token = current_journal.set(journal or Journal(request=request))
    try:
        async with store.hold(key("a")) as held:
            yield held
    finally:
        current_journal.reset(token)


@pytest.mark.parametrize("before", [None, cut(1)], ids=["nothing", "a generation"])
@pytest.mark.parametrize("forgets", [False, True], ids=["saved", "forgotten"])
async def test_a_request_that_is_run_again_finds_what_it_found(
    tmp_path: Path, before: SavedGeneration | None, forgets: bool
) -> None:
    """Here, and on another server with the same file. Other requests find what it left."""
    after = None if forgets else cut(2)
    async with open_store(tmp_path) as store, open_store(tmp_path) as other:
        if before is not None:
            await save(store, key("a"), before)
        for where in (store, other, store):
            async with held_by(where, b"one") as held:
                assert held.saved == before
                await (held.forget() if after is None else held.save(after))
                assert held.saved == after
        assert await kept(other, key("a")) == after
        async with held_by(store, b"two") as held:
            assert held.saved == after
            await held.save(cut(3))
        async with held_by(other, b"two") as held:
            assert held.saved == after
        assert await kept(store, key("a")) == cut(3)


async def test_a_request_that_goes_on_elsewhere_leaves_there_what_it_found(store: SqliteResumeStore) -> None:
    """Its journal says it: this store never had it."""
    entries: list[bytes] = []
    async with open_store() as first:
        await save(first, key("a"), cut(1))
        async with held_by(first, b"one", Journal(request=b"one", write=entries.append)):
            pass
    for journal in (Journal(request=b"one"), Journal(request=b"one")):
        journal.read(b"".join(entries))
        async with held_by(store, b"one", journal) as held:
            assert held.saved == cut(1)
            await held.save(cut(2))
        entries.clear()  # the third run has no journal


async def test_keys_are_lists_in_order_and_each_belongs_to_one_tenant_model_and_dialect(
    store: SqliteResumeStore,
) -> None:
    names = [
        key("a", "b"),
        key("b", "a"),
        key("a"),
        key("a-b"),
        key("a,b"),
        key('a","b'),
        key(),
        key(""),
        key("a", "b", tenant="u"),
        key("a", "b", model="n"),
        key("a", "b", dialect="e"),
        ResumeKey("dt", "", "m", ("a", "b")),
    ]
    for number, name in enumerate(names):
        await save(store, name, cut(number))
    for number, name in enumerate(names):
        assert await kept(store, name) == cut(number)
    assert store.keys == len(names)


async def test_one_key_is_held_by_one_at_a_time_in_order(store: SqliteResumeStore) -> None:
    order: list[int] = []

    async def call(number: int) -> None:
        async with store.hold(key("a")) as held:
            assert (held.saved is None) is (number == 0)
            order.append(number)
            await asyncio.sleep(0)
            await held.save(cut(number))
            order.append(number)

    await asyncio.gather(*map(call, range(5)))
    assert order == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert store.waits == 4
    assert not store._turns


async def test_other_keys_do_not_wait_and_who_gives_up_waiting_holds_up_nobody(store: SqliteResumeStore) -> None:
    async with store.hold(key("a")):
        async with asyncio.timeout(60), store.hold(key("a", "b")):
            pass
        waiting = [asyncio.create_task(kept(store, key("a"))) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    assert await waiting[1] is None
    assert not store._turns


async def test_each_is_forgotten_some_time_after_it_was_saved(tmp_path: Path) -> None:
    clock = Clock()
    async with open_store(tmp_path, clock=clock, continue_ttl_s=60) as store:
        await save(store, key("a"), cut())
        clock.now += 59
        assert await kept(store, key("a")) is not None
        clock.now += 1  # to look at it was not to save it
        assert await kept(store, key("a")) is None
        assert (store.expired, store.keys) == (1, 0)
        await save(store, key("b"), cut())
    clock.now += 59
    async with open_store(tmp_path, clock=clock, continue_ttl_s=60) as store:
        assert await kept(store, key("b")) is not None
    clock.now += 1
    async with open_store(tmp_path, clock=clock, continue_ttl_s=60) as store:
        assert (store.expired, store.keys) == (1, 0)
        assert await kept(store, key("b")) is None


async def test_nothing_is_kept_where_the_time_is_zero(tmp_path: Path) -> None:
    async with open_store(tmp_path, continue_ttl_s=0) as store:
        await save(store, key("a"), cut())
        assert await kept(store, key("a")) is None
    assert not list(tmp_path.iterdir())


async def test_the_least_recently_used_make_room(store: SqliteResumeStore) -> None:
    store._settings = msgspec.structs.replace(store._settings, continue_max_entries=3)
    for name in "abc":
        await save(store, key(name), cut())
    await kept(store, key("a"))
    await save(store, key("d"), cut())
    assert [name for name in "abcd" if await kept(store, key(name))] == ["a", "c", "d"]
    assert (store.evicted, store.keys) == (1, 3)


async def test_bytes_are_bounded_too(store: SqliteResumeStore) -> None:
    store._settings = msgspec.structs.replace(store._settings, continue_max_bytes=10_000)
    for name in "abc":
        await save(store, key(name), cut(100, tokens=4_000))
    assert [name for name in "abc" if await kept(store, key(name))] == ["b", "c"]
    assert store.tokens == 2 * 4_002
    await save(store, key("e"), cut(100, tokens=20_000))
    assert store.keys == 0
    await save(store, key("a"), cut())
    assert await kept(store, key("a")) == cut()


async def test_nothing_is_written_before_there_is_something_to_keep(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    async with open_store(folder) as store:
        assert await kept(store, key("a")) is None
        async with store.hold(key("a")) as held:
            await held.forget()
        assert not folder.exists()
        await save(store, key("a"), cut())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "continue.sqlite3").stat().st_mode) == 0o600


async def test_the_file_outlives_its_store(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await save(store, key("a"), cut())
    async with open_store(tmp_path) as store:
        assert (store.keys, store.tokens) == (1, 5)
        assert await kept(store, key("a")) == cut()


async def test_two_servers_may_share_it(tmp_path: Path) -> None:
    async with open_store(tmp_path) as one, open_store(tmp_path) as other:
        await save(one, key("a"), cut(1))
        await save(other, key("b"), cut(2))
        assert await kept(other, key("a")) == cut(1)
        assert await kept(one, key("b")) == cut(2)


def rubbish(file: Path) -> None:
    file.write_bytes(b"no database" * 1000)


def torn(file: Path) -> None:
    database = sqlite3.connect(file)
    database.executescript("CREATE TABLE t (x); CREATE INDEX i ON t (x);")
    with database:
        database.executemany("INSERT INTO t VALUES (?)", [(str(i) * 50,) for i in range(2000)])
    database.close()
    content = bytearray(file.read_bytes())
    content[4096 * 5 : 4096 * 20] = bytes(4096 * 15)
    file.write_bytes(content)


def newer(file: Path) -> None:
    database = sqlite3.connect(file)
    database.executescript("CREATE TABLE generations (other); PRAGMA user_version = 99;")
    database.close()


async def test_a_file_of_a_newer_release_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "continue.sqlite3"
    newer(file)
    before = file.read_bytes()
    with pytest.raises(DragomanError, match=r"continue\.sqlite3 is of a newer release of Dragoman"):
        async with open_store(tmp_path):
            pass
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(file.name, before)]


@pytest.mark.parametrize("damage", [rubbish, torn])
async def test_a_file_that_cannot_be_used_is_set_aside(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "continue.sqlite3"
    damage(file)  # type: ignore[operator]
    before = file.read_bytes()
    with caplog.at_level(logging.WARNING):
        async with open_store(tmp_path) as store:
            await save(store, key("a"), cut())
            assert await kept(store, key("a")) == cut()
    assert "an empty one takes its place" in caplog.text
    (aside,) = tmp_path.glob("continue.sqlite3.2*")
    assert aside.read_bytes() == before
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_locked_file_is_a_clear_error_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuing, "LOCKED_S", 0.05)
    async with open_store(tmp_path) as store:
        await save(store, key("a"), cut())
    file = tmp_path / "continue.sqlite3"
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DragomanError, match=r"continue.sqlite3 cannot be opened: database is locked.*--state-dir"):
        async with open_store(tmp_path):
            pass
    other.close()
    async with open_store(tmp_path) as store:
        assert await kept(store, key("a")) == cut()


async def test_a_lock_that_lasts_keeps_what_is_there_and_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuing, "LOCKED_S", 0.05)
    async with open_store(tmp_path) as store:
        await save(store, key("a"), cut())
        other = sqlite3.connect(tmp_path / "continue.sqlite3", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with store.hold(key("a")) as held:
            assert held.saved == cut()
            assert not await held.save(cut(2))
        other.execute("ROLLBACK")
        other.close()
        assert await kept(store, key("a")) == cut()


async def test_a_folder_that_cannot_be_made_is_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    async with open_store(tmp_path / "file" / "state") as store, store.hold(key("a")) as held:
        assert not await held.save(cut())
    assert "cannot be opened" in caplog.text


async def test_a_store_that_cannot_be_read_fails_the_request_and_not_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path) as store:
        await save(store, key("a"), cut())
        database = store._database
        assert database is not None
        database.execute("ALTER TABLE generations RENAME TO gone")
        with pytest.raises(GenerationFailed, match="cannot be reached"):
            await kept(store, key("a"))
        database.execute("ALTER TABLE gone RENAME TO generations")
        assert await kept(store, key("a")) == cut()


@pytest.mark.parametrize("state", [b"\xc1", b"\x81\xa1\xff\xc0"], ids=["format", "utf-8"])
async def test_a_state_that_cannot_be_read_is_forgotten(tmp_path: Path, state: bytes) -> None:
    async with open_store(tmp_path) as store:
        await save(store, key("a"), cut())
        with sqlite3.connect(tmp_path / "continue.sqlite3") as database:
            database.execute("UPDATE generations SET state = ?", (state,))
        database.close()
        assert await kept(store, key("a")) is None
        assert store.keys == 0


def test_by_default_it_lies_with_the_users_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert ContinueSettings().file == Path("/somewhere/dragoman/continue.sqlite3")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert ContinueSettings().file == Path("~/.local/state/dragoman/continue.sqlite3").expanduser()
    assert ContinueSettings(continue_store="memory").file is None


def fill_disk(store: SqliteResumeStore) -> None:
    """Have SQLite find no room for one more page."""
    database = store._database
    assert database is not None
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")


async def test_a_full_disk_keeps_nothing_more_and_forgets_nothing(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await save(store, key("old"), cut(1))
        fill_disk(store)
        async with store.hold(key("new")) as held:
            assert not await held.save(cut(2, tokens=100_000))
            assert held.saved is None
        assert await kept(store, key("old")) == cut(1)
        assert await kept(store, key("new")) is None
        assert store.failures == 1


async def test_what_is_kept_is_found_while_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path) as store:
        await save(store, key("a"), cut(1))
        database = store._database
        assert database is not None
        database.execute("PRAGMA query_only = ON")
        assert await kept(store, key("a")) == cut(1)
        async with store.hold(key("a")) as held:
            assert not await held.forget()
            assert held.saved == cut(1)


async def test_no_caller_crowds_out_what_others_keep(tmp_path: Path) -> None:
    async with open_store(tmp_path, continue_max_entries=10) as store:
        await save(store, key("mine", tenant="small"), cut(1))
        for number in range(50):
            await save(store, key(f"{number}", tenant="large"), cut(number))
        assert await kept(store, key("mine", tenant="small")) == cut(1)
        assert store.keys == 10
        assert [number for number in range(50) if await kept(store, key(f"{number}", tenant="large"))] == [
            *range(41, 50)
        ]


async def test_no_caller_takes_the_bytes_of_others() -> None:
    async with open_store(continue_max_bytes=20_000) as store:
        await save(store, key("mine", tenant="small"), cut(1))
        for number in range(20):
            await save(store, key(f"{number}", tenant="large"), cut(number, tokens=3000))
        assert await kept(store, key("mine", tenant="small")) == cut(1)
        assert store.evicted


async def test_setting_the_system_clock_expires_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(continue_ttl_s=60.0) as store:
        await save(store, key("a"), cut(1))
        real = continuing.time.time()
        monkeypatch.setattr(continuing.time, "time", lambda: real + 86400)
        assert await kept(store, key("a")) == cut(1)


async def test_what_was_saved_by_a_clock_that_was_ahead_is_not_kept_longer(tmp_path: Path) -> None:
    ahead, now = Clock(), Clock()
    ahead.now = 1_000_000.0
    async with open_store(tmp_path, clock=ahead) as store:
        await save(store, key("a"), cut(1))
    async with open_store(tmp_path, clock=now, continue_ttl_s=100.0) as store:
        assert await kept(store, key("a")) == cut(1)
        now.now += 101.0
        assert await kept(store, key("a")) is None


async def test_a_file_of_version_1_is_brought_along(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await save(store, key("a"), cut(1))
    database = sqlite3.connect(tmp_path / "continue.sqlite3")
    database.executescript("DROP INDEX by_tenant; ALTER TABLE generations DROP COLUMN tenant; PRAGMA user_version = 1")
    database.close()
    async with open_store(tmp_path) as store:
        assert await kept(store, key("a")) == cut(1)
        await save(store, key("b"), cut(2))
    assert [path.name for path in tmp_path.iterdir()] == ["continue.sqlite3"]
