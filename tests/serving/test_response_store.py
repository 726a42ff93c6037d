"""The store of responses: apart by tenant, bounded in time and size, and what continues a response keeps its text."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import stat
import zlib
from pathlib import Path
from typing import Any

import pytest
from opened_responses import NOW, opened

from dragoman.core.errors import GenerationFailed
from dragoman.core.responses import MAX_CHAIN, ChainTooLong, StoredResponse

pytestmark = pytest.mark.anyio


def response(id: str, previous: str = "", tenant: str = "a", **more: Any) -> StoredResponse:
    fields: dict[str, Any] = {"input": id.encode(), "response": b"{}", "events": b"e", "created_s": NOW} | more
    return StoredResponse(id=id, tenant=tenant, previous=previous, **fields)


async def test_a_response_comes_back_after_a_start(tmp_path: Path) -> None:
    file = tmp_path / "responses.sqlite3"
    async with opened(file) as store:
        assert await store.keep(response("x"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with opened(file) as store:
        assert await store.find("a", "x") == response("x")


async def test_other_tenants_find_nothing() -> None:
    async with opened() as store:
        await store.keep(response("x"))
        assert await store.find("b", "x") is None
        assert await store.chain("b", "x") == []
        assert not await store.delete("b", "x")
        assert await store.find("a", "x") is not None


async def test_a_chain_is_kept_for_its_last_response() -> None:
    async with opened() as store:
        for id, previous in (("1", ""), ("2", "1"), ("3", "2")):
            await store.keep(response(id, previous))
        assert await store.delete("a", "2")
        assert await store.find("a", "2") is None
        assert [each.id for each in await store.chain("a", "3")] == ["1", "2", "3"]
        assert await store.chain("a", "2") == []
        assert await store.delete("a", "3")
        assert store.entries == 1, "what was only kept for it is gone"
        assert await store.find("a", "1") is not None


async def test_chains_have_an_end() -> None:
    async with opened() as store:
        for i in range(MAX_CHAIN + 1):
            await store.keep(response(str(i), str(i - 1) if i else ""))
        assert len(await store.chain("a", str(MAX_CHAIN - 1))) == MAX_CHAIN
        with pytest.raises(ChainTooLong):
            await store.chain("a", str(MAX_CHAIN))


async def test_old_responses_expire() -> None:
    now = NOW
    async with opened(clock=lambda: now, responses_ttl_s=10) as store:
        await store.keep(response("x"))
        now = NOW + 9
        assert await store.find("a", "x") is not None
        now = NOW + 10
        assert await store.find("a", "x") is None
        await store.keep(response("y", created_s=now))
        assert (store.entries, store.expired) == (1, 1)


async def test_the_least_recently_used_leave_first() -> None:
    async with opened(responses_max_entries=3) as store:
        await store.keep(response("other", tenant="b"))
        await store.keep(response("1"))
        await store.keep(response("2"))
        await store.find("a", "1")
        await store.keep(response("3"))
        assert await store.find("a", "2") is None
        assert await store.find("a", "1") is not None
        assert await store.find("b", "other") is not None, "no tenant displaces what others have"
        assert store.evicted == 1


async def test_what_runs_stays_and_is_found_again(tmp_path: Path) -> None:
    file = tmp_path / "responses.sqlite3"
    async with opened(file, responses_max_entries=2) as store:
        await store.keep(response("run", is_running=True, record=b"r"))
        await store.append("run", b"12")
        await store.append("run", b"3")
        for id in "123":
            await store.keep(response(id))
    async with opened(file) as store:
        assert [each.id for each in await store.unfinished()] == ["run"]
        assert await store.journal("run") == b"123"
        await store.keep(response("run"))
        assert await store.unfinished() == []
        assert await store.journal("run") == b""


async def test_a_response_that_is_too_large_is_not_kept() -> None:
    async with opened(responses_max_bytes=65536) as store:
        noise = bytes(i * i * 7 % 251 ^ i % 241 for i in range(60_000))
        assert not await store.keep(response("x", events=noise))
        assert store.entries == 0


async def test_what_another_server_generates_is_left_to_it(tmp_path: Path) -> None:
    file = tmp_path / "responses.sqlite3"
    (tmp_path / "responses.7.lock").touch()  # of one that was killed
    async with opened(file) as other:
        async with opened(file) as first:
            assert await first.keep(response("x", is_running=True, record=b"r"))
            assert await other.unfinished() == []
            assert [each.id for each in await first.unfinished()] == ["x"]
        assert [each.id for each in await other.unfinished()] == ["x"], "the first has ended"
        async with opened(file) as third:
            assert await third.unfinished() == []
    assert [each.name for each in tmp_path.glob("*.lock")] == []


async def test_what_runs_and_becomes_too_large_does_not_run_for_ever() -> None:
    async with opened(responses_max_bytes=65536) as store:
        assert await store.keep(response("x", is_running=True, record=b"r"))
        await store.append("x", b"1")
        noise = bytes(i * i * 7 % 251 ^ i % 241 for i in range(60_000))
        assert not await store.keep(response("x", events=noise))
        assert await store.unfinished() == []
        assert await store.find("a", "x") is None
        assert (store.entries, await store.journal("x")) == (0, b"")


async def test_a_deleted_response_leaves_no_journal() -> None:
    async with opened() as store:
        assert await store.keep(response("x", is_running=True, record=b"r"))
        await store.append("x", b"1")
        assert await store.delete("a", "x")
        await store.append("x", b"2")
        assert await store.journal("x") == b""


async def test_nothing_is_kept_where_the_operator_wants_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.sqlite3", responses_store="off") as store:
        assert not store.is_on
        assert not await store.keep(response("x"))
        assert await store.find("a", "x") is None
    assert not list(tmp_path.iterdir())


async def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    file = tmp_path / "responses.sqlite3"
    file.write_bytes(b"no database" * 100)
    async with opened(file) as store:
        assert await store.keep(response("x"))
    assert len(list(tmp_path.glob("responses.sqlite3.2*"))) == 1


async def test_a_response_is_on_the_disk_after_its_folder_was_removed(tmp_path: Path) -> None:
    file = tmp_path / "state" / "responses.sqlite3"
    async with opened(file) as store:
        assert await store.keep(response("x", is_running=True))
        shutil.rmtree(file.parent)
        assert await store.keep(response("y", is_running=True))
        async with opened(file) as other:
            assert await other.find("a", "x") is None
            assert await other.find("a", "y") is not None
            assert await other.unfinished() == [], "it is another server's, which lives"


async def test_a_folder_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    async with opened(blocked / "responses.sqlite3") as store:
        assert not await store.keep(response("x"))
        assert store.failures == 1


async def test_what_continues_a_response_that_has_gone_meanwhile_is_not_kept() -> None:
    async with opened() as store:
        await store.keep(response("1"))
        await store.delete("a", "1")
        assert not await store.keep(response("2", "1")), "its chain would lack the beginning"
        assert await store.find("a", "2") is None


async def test_a_response_expires_for_others_but_not_for_what_continues_it() -> None:
    now = NOW
    async with opened(clock=lambda: now, responses_ttl_s=10) as store:
        await store.keep(response("1"))
        now = NOW + 10
        assert await store.keep(response("2", "1", created_s=now))
        assert [each.id for each in await store.chain("a", "2")] == ["1", "2"]
        assert await store.find("a", "1") is None


@pytest.mark.parametrize("state", [b"\0", zlib.compress(b"\x81\xa1\xff\xc0")], ids=["format", "utf-8"])
async def test_a_damaged_response_keeps_no_other_from_being_stored(tmp_path: Path, state: bytes) -> None:
    now, file = NOW, tmp_path / "responses.sqlite3"
    async with opened(file, clock=lambda: now, responses_ttl_s=10) as store:
        await store.keep(response("1"))
        await store.keep(response("2", "1"))
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE responses SET state = ? WHERE id = '1'", (state,))
    async with opened(file, clock=lambda: now, responses_ttl_s=10) as store:
        with pytest.raises(GenerationFailed):
            await store.find("a", "1")
        now = NOW + 10  # they expire, and the first one is continued
        assert await store.keep(response("3", created_s=now))
        assert await store.find("a", "3") is not None


async def test_a_damaged_response_does_not_keep_others_from_going_on(tmp_path: Path) -> None:
    file = tmp_path / "responses.sqlite3"
    async with opened(file) as store:
        for id in ("1", "2"):
            await store.keep(response(id, is_running=True))
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE responses SET state = x'00' WHERE id = '1'")
    for _ in range(2):
        async with opened(file) as store:
            assert [each.id for each in await store.unfinished()] == ["2"]
            assert store.failures == 0


async def test_a_chain_has_no_events_and_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.serving.response_tables.MAX_CHAIN_BYTES", 1000)
    async with opened() as store:
        for id, previous in (("1", ""), ("2", "1"), ("3", "2")):
            await store.keep(response(id, previous, input=b"i" * 600))
        assert [each.events for each in await store.chain("a", "2")] == [b"", b""]
        with pytest.raises(ChainTooLong):
            await store.chain("a", "3")
